"""A recording's folder: its manifest, whatever is in it, and which files belong together."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.source import beside, processes, recording
from diagnose.source.base import InputError
from diagnose.trace.manifest import Manifest
from diagnose.trace.model import Severity
from tests.drawing import Drawing


def training(shapes: bool = False) -> Drawing:
    draw = Drawing()
    for number in range(3):
        at = number * 100
        args = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]} if shapes else {}
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 80, **args)
    return draw if not shapes else draw.frame("train.py(7): step", 0, 300)


def rank(number: int = 0, **more: Any) -> dict[str, Any]:
    """Steps of 100 us that take 80 us without the profiler (median; 86 on average), by the process's clock."""
    known = {"rank": number, "trace": f"rank{number}.trace.json.gz", "detail": f"rank{number}.detail.json.gz"}
    times = {"unprofiled": {"first_step": 10, "wall_ns": [79_000, 80_000, 99_000]}}
    times |= {"timing": {"first_step": 20, "wall_ns": [90_000, 100_000, 110_000]}}
    return {**known, **times, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, shapes in (("trace", False), ("detail", True)):
        (tmp_path / f"rank0.{name}.json.gz").write_bytes(gzip.compress(training(shapes).text().encode()))
    put(tmp_path, {"schema_version": 1, "complete": True, "ranks": [rank()]})
    return tmp_path


def put(folder: Path, manifest: object) -> None:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "manifest.json").write_text(text)


def test_a_folder_is_used_whole(folder: Path) -> None:
    found = diagnose.analyze(folder)
    assert (found.steps.unprofiled_step_time_ns, found.steps.overhead_ratio) == (86_000, 1.25)
    (source,) = found.provenance.sources
    assert (source.recorded, source.from_detail) == (("ops", "shapes", "stacks"), ("shapes", "stacks"))
    assert (source.path, source.detail) == (f"{folder}/rank0.trace.json.gz", f"{folder}/rank0.detail.json.gz")
    assert found.provenance.manifest.ranks[0].timing is not None
    assert "call stacks" not in {one.what for one in found.absent}
    said = " ".join(note.what for note in found.integrity)
    assert "Input shapes and source lines of 100% of the ops come from rank0.detail.json.gz." in said
    assert "not recorded" not in said.replace("No device work was recorded", "")


def test_a_named_trace_is_used_alone(folder: Path) -> None:
    found = diagnose.analyze(folder / "rank0.trace.json.gz")
    assert (found.steps.unprofiled_step_time_ns, found.steps.overhead_ratio) == (None, None)
    assert found.provenance.manifest is None
    assert found.provenance.sources[0].recorded == ("ops",)


def test_a_damaged_detail_recording_is_noted(folder: Path) -> None:
    (folder / "rank0.detail.json.gz").write_bytes(b"\x1f\x8b")
    found = diagnose.analyze(folder)
    assert any("rank0.detail.json.gz is empty" in note.what for note in found.integrity)
    assert any("Call stacks were not recorded" in note.what for note in found.integrity)
    assert found.steps.unprofiled_step_time_ns == 86_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "is no manifest: Expected `object`, got `array`"),
        ("null", "is no manifest"),
        ('{"ranks": 5}', "is no manifest: Expected `array`, got `int` - at `$.ranks`"),
        ('{"ranks": [{"rank": "0"}]}', "is no manifest: Expected `int`, got `str` - at `$.ranks[0].rank`"),
        ('{"ranks": [{"rank": 9223372036854775808}]}', "is no manifest: Expected `int`, got `str`"),
        ('{"schema_version": "2"}', "is no manifest"),
        ('{"schema_version": 2, "ranks": "unheard of"}', "has schema version 2, but this version of diagnose reads 1"),
        ("\udcff", "is not valid JSON"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_noted(folder: Path, text: str, said: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = diagnose.analyze(folder)
    (note,) = [note for note in found.integrity if note.what.startswith("manifest.json")]
    assert said in note.what
    assert note.severity is Severity.WARNING
    assert found.provenance.manifest is None
    assert found.conclusive


def test_a_manifest_is_used_without_what_cannot_be_read(folder: Path) -> None:
    told = rank(unprofiled_after={"first_step": 0, "wall_ns": [1e999]}, loaders=[None], rank=None)
    put(folder, {"schema_version": "1", "complete": True, "ranks": [told, 7]})
    found = diagnose.analyze(folder)
    (note,) = [note for note in found.integrity if note.what.startswith("manifest.json")]
    assert note.what == (
        "manifest.json cannot be read in part: schema_version (Expected `int`, got `str`), ranks[0].rank (Expected"
        " `int`, got `null`), ranks[0].unprofiled_after.wall_ns (Expected `int`, got `str` - at `$[0]`),"
        " ranks[0].loaders[0], ranks[1]."
    )
    assert found.steps is not None
    assert found.steps.unprofiled_step_time_ns == 86_000


def test_a_manifest_that_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / "manifest.json").open("w") as file:
        file.truncate(beside.MOST_BYTES + 1)
    assert [note.what for note in recording.find([folder]).integrity] == ["manifest.json is larger than 256 MB."]


def test_a_manifest_that_is_no_file_is_none(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    assert recording.find([folder]).manifest is None


def test_only_what_the_schema_names_is_passed_on(folder: Path) -> None:
    token = "hf_Xk29secretQ7token"
    put(folder, {"complete": True, token: token, "host": {"user": token}, "ranks": [rank(secret=token)]})
    assert token not in diagnose.analyze(folder).to_json()
    (folder / "manifest.json").write_text(json.dumps({"ranks": token}))
    assert token not in diagnose.analyze(folder).to_json()


def test_text_is_printable(folder: Path) -> None:
    put(folder, {"complete": True, "notes": ["\x1b[31mred\u202e"], "ranks": [rank(notes=["a\nb"])]})
    notes = [note.what for note in diagnose.analyze(folder).integrity]
    assert {r"\x1b[31mred\u202e", r"a\nb"} <= set(notes)


@pytest.mark.parametrize("times", [[], [0, 5], [-1], [0]])
def test_times_that_are_none_are_not_used(folder: Path, times: list[int]) -> None:
    put(folder, {"ranks": [rank(unprofiled={"first_step": 0, "wall_ns": times})]})
    found = diagnose.analyze(folder).steps
    assert (found.unprofiled_step_time_ns, found.overhead_ratio) == (None, None)


def test_what_a_recording_says_of_itself(folder: Path) -> None:
    ranks = [rank(notes=["The GPU was busy."]), {"rank": 1, "notes": ["It crashed at step 3."]}]
    put(folder, {"complete": False, "notes": ["It was slow."], "ranks": ranks})
    notes = {note.what: note.effect for note in diagnose.analyze(folder).integrity}
    assert notes.keys() >= {"The GPU was busy.", "It was slow.", "The recording is incomplete."}
    assert notes["Rank 1 left no trace."] == "It crashed at step 3."


def test_ranks_find_their_part_by_name_then_by_number(tmp_path: Path) -> None:
    for name in ("rank0.trace.json", "odd.json", "worker3.json", "stranger.json"):
        training().write(tmp_path / name)
    own = [rank(0, trace="odd.json"), rank(3, trace="rank3.trace.json.gz")]
    put(tmp_path, {"ranks": own, "host": {"cpus_allowed": 8}})
    contexts = {one.trace.path.name: one.context for one in recording.find([tmp_path]).ranks}
    found = {name: context and context.rank.rank for name, context in contexts.items()}
    assert found == {"odd.json": 0, "rank0.trace.json": 0, "stranger.json": None, "worker3.json": 3}
    context = contexts["odd.json"]
    assert (context.host.cpus_allowed, context.ranks) == (8, 2)


def test_what_a_recording_works_with_is_no_trace(folder: Path) -> None:
    (folder / ".work").mkdir()
    (folder / ".work" / "rank0.json").write_text("{}")
    assert [rank.trace.path.name for rank in recording.find([folder]).ranks] == ["rank0.trace.json.gz"]


def test_a_recording_without_any_trace_is_refused(folder: Path) -> None:
    for name in ("trace", "detail"):
        (folder / f"rank0.{name}.json.gz").unlink()
    with pytest.raises(InputError, match="holds no trace"):
        diagnose.analyze(folder)


def test_a_manifest_survives_json(folder: Path) -> None:
    found = diagnose.analyze(folder)
    assert Diagnosis.from_json(found.to_json()) == found
    assert isinstance(found.provenance.manifest, Manifest)


@pytest.mark.slow
def test_processes_give_the_same_as_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trace", "detail"):
        (folder / f"rank1.{name}.json.gz").write_bytes((folder / f"rank0.{name}.json.gz").read_bytes())
    put(folder, {"complete": True, "ranks": [rank(0), rank(1, notes=["Slow."])]})
    alone = diagnose.analyze(folder)
    assert "Rank 1: Slow." in {note.what for note in alone.integrity}
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    assert diagnose.analyze(folder, jobs=2) == alone
