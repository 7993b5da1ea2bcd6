"""Rules that say more where a manifest tells the run's settings: drawn traces, with what was known of them.

`tests/data/known_settings.txt` has the drawings and the cases: a rule on a drawing, what was known of the run, and what
is said, by the place of each value in a RankDiagnosis.
"""

import re
from enum import Enum
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import diagnose
from diagnose import pipeline
from diagnose.facts.core.base import Facts
from diagnose.facts.data.loading import loading
from diagnose.synthetic import notation as drawings
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Host, Loader, Manifest, RankManifest
from diagnose.trace.model import Context
from tests.rules import built_in

BLOCKS = (Path(__file__).parents[1] / "data" / "known_settings.txt").read_text(encoding="utf-8").split("\n\n")
DRAWINGS = dict(block.removeprefix("drawing ").split("\n", 1) for block in BLOCKS if block.startswith("drawing "))


GIVEN = {"known": "{}", "cpus": "null", "environment": "{}"}
MS = 1_000_000


def cases() -> list[object]:
    found, heading = list[object](), ""
    for block in BLOCKS:
        lines = block.splitlines()
        if lines[0].startswith("# "):
            heading = lines.pop(0)[2:].partition(".")[0]
        if not lines[0].startswith("drawing "):
            found.append(pytest.param(*lines[0].split(" on "), lines[1:], id=f"{heading}: {lines[0]}"))
    return found


def value(of: Any, path: str) -> object:
    for part in path.split("."):
        of = len(of) if part == "count" else of[int(part)] if part.isdigit() else getattr(of, part)
    return of.value if isinstance(of, Enum) else of


@pytest.mark.parametrize(("rule", "drawing", "lines"), cases())
def test_what_is_said(rule: str, drawing: str, lines: list[str]) -> None:
    told = dict(re.split(" = | ", line, maxsplit=1) for line in lines)
    given = {name: msgspec.json.decode(told.pop(name, text)) for name, text in GIVEN.items()}
    own = msgspec.convert({"rank": 0, **given["known"]}, RankManifest)
    context = Context(own, Host(cpus_allowed=given["cpus"]), 1, given["environment"])
    found = pipeline.present(Facts(replace(facts_of(DRAWINGS[drawing]).rank, context=context)), [built_in(rule)])
    for path, text in told.items():
        wanted = msgspec.json.decode(text)
        number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
        assert value(found, path) == (pytest.approx(wanted, rel=1e-3) if number else wanted), path


def test_the_environment_is_read_from_the_recording(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace.json").write_bytes(drawings.trace(DRAWINGS["blocking"]))
    known = Manifest(complete=True, environment={"RANK": "0"}, ranks=(RankManifest(rank=0),))
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(known))
    whys = {outcome.rule: outcome.why for outcome in diagnose.analyze(tmp_path).outcomes}
    assert whys["blocking_launches"].endswith("with CUDA_LAUNCH_BLOCKING off")


def test_a_step_that_begins_outside_of_the_recorded_ones_takes_its_batch_too() -> None:
    """Four fetches in five steps are a batch each: 463 ms take seven workers, where a step takes 70.6 without."""
    drawing = """
        5 steps of 100
        cpu  next 0-29.4 not in 3 | aten::mm 60-61
        gpu  sgemm 29.4-99.99 @29
    """
    own = RankManifest(rank=0, loaders=(Loader(dataset="D", fetch_ns=463 * MS, num_workers=1),))
    facts = Facts(replace(facts_of(drawing).rank, context=Context(own, Host(cpus_allowed=16), 1, {})))
    known = loading(facts)
    assert (known.batches, known.workers) == (1.0, ceil(463 / (known.model.training_ns / MS)))
