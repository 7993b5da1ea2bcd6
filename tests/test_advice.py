"""How to record what is missing is said in terms of the recorder that was used."""

from __future__ import annotations

from pathlib import Path

import diagnose
from diagnose.finding import OutcomeKind
from tests.source.nsight import drawn

TEXT = "4 steps of 100\ncpu  aten::mm 0-1 | sync 30-90\ngpu  sgemm 0.5-80 @0.2"


def test_of_an_export_of_nsight_systems(tmp_path: Path) -> None:
    found = diagnose.analyze(drawn(TEXT).write(tmp_path / "report.sqlite"))
    how = {one.what: one.how_to_record_it for one in found.absent}
    assert how["DataLoader fetches"] == "Record with nsys profile --pytorch=autograd-nvtx."
    told = {one.why: one.how_to_record_it for one in found.outcomes if one.outcome is OutcomeKind.CANNOT_TELL}
    assert told["shapes"] == "Record with nsys profile --pytorch=autograd-shapes-nvtx."
    assert not any("record_shapes" in note.effect for note in found.integrity)
    assert found.provenance.sources[0].format == "nsight"


def test_steps_of_an_export_are_found_and_rules_fire(tmp_path: Path) -> None:
    text = "4 steps of 100\ncpu  load 0-60 | aten::mm 60-61 | sync 62-99\ngpu  sgemm 60.5-98 @60.2"
    found = diagnose.analyze(drawn(text).write(tmp_path / "report.sqlite"))
    assert found.steps is not None
    assert (found.steps.used, found.steps.marker, found.steps.step_time_ns.median) == (3, "ProfilerStep", 100_000_000)
    assert found.findings[0].rule == "loader_without_workers"
    assert found.findings[0].saving.likely_ns > 50_000_000
