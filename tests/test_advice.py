"""What is advised fits the recorder and the devices that were used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import diagnose
from diagnose import engine, one_rank
from diagnose.engine import RuleSet
from diagnose.facts.base import Facts
from diagnose.finding import OutcomeKind
from diagnose.testing import facts_of
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


STARVED = "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02\ngpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"


@pytest.mark.parametrize(("capability", "compiled"), [((7, 0), True), ((9, 4), True), ((0, 0), True), ((6, 0), False)])
def test_nothing_is_to_be_compiled_for_a_gpu_that_is_too_old(capability: tuple[int, int], compiled: bool) -> None:
    drawn = facts_of(STARVED).rank
    (device,) = drawn.provenance.devices
    provenance = replace(drawn.provenance, devices=(replace(device, compute_capability=capability),))
    rules = engine.load(RuleSet(select=("launch_bound", "python_between_ops", "unfused_pointwise")))
    found = one_rank.diagnose(Facts(replace(drawn, provenance=provenance)), rules).findings
    assert found[0].rule == "launch_bound"
    assert all(one.fixes for one in found)
    advised = {one.rule for one in found for fix in one.fixes if (fix.trial or "").startswith("wrap:torch.compile")}
    assert ("launch_bound" in advised, bool(advised)) == (compiled, compiled)
