"""What is advised fits the recorder and the devices that were used."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_in

import diagnose
from diagnose import pipeline
from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.core.base import Facts
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Flags, Host, Loader, RankManifest, Timed
from diagnose.trace.model import Context
from tests.rules import built_in
from tests.source.nsight import synthetic

TEXT = "4 steps of 100\ncpu  aten::mm 0-1 | sync 30-90\ngpu  sgemm 0.5-80 @0.2"


def test_of_an_export_of_nsight_systems(tmp_path: Path) -> None:
    found = diagnose.analyze(synthetic(TEXT).write(tmp_path / "report.sqlite"))
    how = {one.what: one.how_to_record_it for one in found.absent}
    assert how["DataLoader fetches"] == "Record with nsys profile --pytorch=autograd-nvtx."
    told = {
        outcome.why: outcome.how_to_record_it
        for outcome in found.outcomes
        if outcome.outcome is OutcomeKind.CANNOT_TELL
    }
    assert told["shapes"] == "Record with nsys profile --pytorch=autograd-shapes-nvtx."
    assert not any("record_shapes" in note.effect for note in found.integrity)
    assert found.provenance.sources[0].format == "nsight"


def test_steps_of_an_export_are_found_and_rules_fire(tmp_path: Path) -> None:
    text = "4 steps of 100\ncpu  load 0-60 | aten::mm 60-61 | sync 62-99\ngpu  sgemm 60.5-98 @60.2"
    found = diagnose.analyze(synthetic(text).write(tmp_path / "report.sqlite"))
    assert found.steps is not None
    assert (found.steps.used, found.steps.marker, found.steps.step_time_ns.median) == (3, "ProfilerStep", 100_000_000)
    assert found.findings[0].rule == "dataloader_starvation"
    assert found.findings[0].saving.likely_ns > 50_000_000


STARVED = "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02\ngpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"


@pytest.mark.parametrize(("capability", "compiled"), [((7, 0), True), ((9, 4), True), ((0, 0), True), ((6, 0), False)])
def test_nothing_is_to_be_compiled_for_a_gpu_that_is_too_old(capability: tuple[int, int], compiled: bool) -> None:
    synthetic = facts_of(STARVED).rank
    (device,) = synthetic.provenance.devices
    provenance = replace(synthetic.provenance, devices=(replace(device, compute_capability=capability),))
    rules = engine.load(RuleSet(select=("launch_bound", "python_overhead", "unfused_pointwise")))
    found = pipeline.present(Facts(replace(synthetic, provenance=provenance)), rules).findings
    assert found[0].rule == "launch_bound"
    assert all(one.fixes for one in found)
    advised = {one.rule for one in found for fix in one.fixes if (fix.trial or "").startswith("wrap:torch.compile")}
    assert ("launch_bound" in advised, bool(advised)) == (compiled, compiled)


def test_workers_that_keep_up_are_not_raised() -> None:
    """A batch is ready whenever the training asks: what is left is taking it over."""
    text = "5 steps of 100\ncpu  next 0-60\ngpu  sgemm 60.01-100 @60"
    for empty_share, kind in ((0.0, OutcomeKind.CLEAN), (0.5, OutcomeKind.FOUND)):
        own = RankManifest(rank=0, loaders=(loader_with(empty_share),))
        facts = Facts(replace(facts_of(text).rank, context=Context(own, Host(cpus_allowed=8), 1)))
        said = pipeline.present(facts, [built_in("dataloader_starvation")])
        assert said.outcomes[0].outcome is kind


def test_a_deeper_queue_takes_no_core_from_the_training() -> None:
    """Two workers compute for 4 of 100 ms a batch: enough, though every seventh batch is late."""
    text = "8 steps of 100\ncpu  next 0-1 not in 5 | next 0-60 in 5 | aten::mm 60-99"
    keeping_up = replace_in(loader_with(0.02), num_workers=2, fetch_ns=4_000_000, fetch_cpu_ns=4_000_000)
    own = RankManifest(
        rank=0, loaders=(keeping_up,), flags=Flags(threads=2), unprofiled=Timed(first_step=0, wall_ns=(100_000_000,))
    )
    facts = Facts(replace(facts_of(text).rank, context=Context(own, Host(cpus_allowed=2), 1)))
    said = pipeline.present(facts, [built_in("dataloader_starvation")])
    assert [fix.trial for finding in said.findings for fix in finding.fixes] == ["patch:DataLoader(prefetch_factor=8)"]


def loader_with(empty_share: float) -> Loader:
    return Loader(dataset="D", asked=9, num_workers=1, fetch_ns=120_000_000, ready=1.0, empty_share=empty_share)
