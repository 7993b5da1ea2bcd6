"""A wrong value in a recording costs its own place, and no other."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diagnose.trace import lenient
from diagnose.trace.manifest import Manifest, RankManifest
from diagnose.trace.measured import MeasuredOp, Measurements, OpSpec

RECORDED = Path(__file__).parents[2] / "sample_traces/planted/data_loading/one_worker_too_few/medium/manifest.json"


def paths(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of each field, and each element that is an object."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if isinstance(key, str) or isinstance(part, dict):
            yield (*at, key)
            yield from paths(part, (*at, key))


def changed(whole: Any, path: tuple[str | int, ...], *value: Any) -> Any:
    """With the value there; with nothing, if there is none."""
    whole = copy.deepcopy(whole)
    *before, last = path
    inner = whole
    for key in before:
        inner = inner[key]
    if value:
        inner[last] = value[0]
    else:
        del inner[last]
    return whole


@pytest.mark.parametrize("damage", [None, {"a": [1]}, [{}], "x", 1e999, 1 << 70])
def test_each_field_of_a_manifest_is_as_if_it_were_not_there(damage: Any) -> None:
    whole = json.loads(RECORDED.read_text())
    for path in paths(whole):
        text = json.dumps(changed(whole, path, damage)).encode()
        found, lost = lenient.converted(lenient.decoded(text), Manifest)
        if lost:
            without, _ = lenient.converted(changed(whole, path), Manifest)
            assert found == without, path
            assert str(path[-1]) in lost[0]
        else:  # A value that may be there.
            assert found == msgspec.convert(lenient.decoded(text), Manifest)


@pytest.mark.parametrize(
    ("told", "left", "lost"),
    [
        ({"pid": "x", "notes": ["a", None, "b"]}, {"notes": ("a", "b")}, ["pid", "notes[1]"]),
        ({"allocator": {"ooms": None, "retries": 2}}, {"allocator": {"retries": 2}}, ["allocator.ooms"]),
        # Places in a series count. A time without its number is of no step.
        ({"unprofiled": {"first_step": 3, "wall_ns": [5, None]}}, {"unprofiled": None}, ["unprofiled.wall_ns"]),
        ({"timing": {"first_step": None, "wall_ns": [5]}, "pid": 4}, {"timing": None, "pid": 4}, ["timing.first_step"]),
        ({"loaders": [{"made": {"file": "a", "line": 3}}]}, {}, ["loaders[0].made"]),
    ],
)
def test_what_is_lost_is_named(told: dict[str, Any], left: dict[str, Any], lost: list[str]) -> None:
    found, named = lenient.converted({"rank": 1, **told}, RankManifest)
    assert found.rank == 1
    assert {name: getattr(found, name) for name in left} == left
    assert [one.partition(" (")[0] for one in named] == lost


def test_an_op_that_cannot_be_read_leaves_the_other_measurements() -> None:
    ops = [{"spec": {"op": "a", "shapes": "", "dtypes": ""}, "change": "bf16"}, {"spec": None, "change": "bf16"}]
    content = json.dumps({"device": "", "torch": "2.9", "seconds": 1, "ops": ops}).encode()
    found, lost = lenient.read(content, Measurements)
    assert found == Measurements("", "2.9", 1.0, (MeasuredOp(OpSpec("a", "", ""), "bf16"),))
    assert lenient.said(lost) == "cannot be read in part: ops[1].spec (Expected `object`, got `null`)"
