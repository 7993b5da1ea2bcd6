"""What is advised fits the recorder and the devices that were used."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import diagnose
from diagnose import pipeline
from diagnose.advice.merging import merged, one_of_each_choice
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Evidence, Finding, Fix, OutcomeKind, RankedFinding
from diagnose.facts.core.base import Facts
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.frameworks import own_work
from diagnose.fixes.setting import Loop
from diagnose.replay.edits import Edit
from diagnose.replay.saving import Replay
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Flags, Host, Loader, RankManifest, Timed
from diagnose.trace.model import Context
from tests.advice.test_ranking import HOST_BOUND, finding, page, shorter
from tests.drawing import Drawing
from tests.rules import built_in
from tests.source.nsight import synthetic

TEXT = "4 steps of 100\ncpu  aten::mm 0-1 | sync 30-90\ngpu  sgemm 0.5-80 @0.2"


def test_of_an_export_of_nsight_systems(tmp_path: Path) -> None:
    found = diagnose.analyze(synthetic(TEXT).write(tmp_path / "report.sqlite"))
    how = {one.what: one.how_to_record_it for one in found.absent}
    assert how["DataLoader fetches"] == "Record with nsys profile --pytorch=autograd-nvtx."
    told = {one.why: one.how_to_record_it for one in found.outcomes if one.outcome is OutcomeKind.CANNOT_TELL}
    assert told["shapes"] == "Record with nsys profile --pytorch=autograd-shapes-nvtx."
    assert not any("record_shapes" in note.effect for note in found.integrity)
    assert found.provenance.sources[0].format == "nsight"


def test_steps_of_an_export_are_found_and_rules_fire(tmp_path: Path) -> None:
    text = "4 steps of 100\ncpu  load 0-60 | aten::mm 60-61 | sync 62-99\ngpu  sgemm 60.5-98 @60.2"
    found = diagnose.analyze(synthetic(text).write(tmp_path / "report.sqlite"))
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
    keeping_up = replace(loader_with(0.02), num_workers=2, fetch_ns=4_000_000, fetch_cpu_ns=4_000_000)
    own = RankManifest(
        rank=0, loaders=(keeping_up,), flags=Flags(threads=2), unprofiled=Timed(first_step=0, wall_ns=(100_000_000,))
    )
    facts = Facts(replace(facts_of(text).rank, context=Context(own, Host(cpus_allowed=2), 1)))
    said = pipeline.present(facts, [built_in("dataloader_starvation")])
    assert [fix.trial for finding in said.findings for fix in finding.fixes] == ["patch:DataLoader(prefetch_factor=8)"]


def loader_with(empty_share: float) -> Loader:
    return Loader(dataset="D", asked=9, num_workers=1, fetch_ns=120_000_000, empty_share=empty_share)


TRAINER = "transformers/trainer.py"


def test_reads_of_the_loss_by_the_trainer_are_its_filter(analyzed: Callable[[str], Diagnosis]) -> None:
    """Of a recording that does not say what owns the loop: its frames do."""
    found = analyzed("h100/hf_trainer_bert")
    assert found.program.loop is Loop.TRANSFORMERS
    (reads,) = (finding for finding in found.findings if finding.rule == "scalar_syncs")
    assert [fix.after for fix in reads.fixes] == ["logging_nan_inf_filter=False,  # of TrainingArguments(...)"]
    code = [fix.after for finding in found.findings for fix in finding.fixes]
    assert "tf32=True,  # of TrainingArguments(...)" in code
    assert not any("autocast(" in one or "DataLoader(" in one or "max_grad_norm" in one for one in code)
    (work,) = (finding for finding in found.findings if finding.rule == "host_work")
    assert work.title == "Python of transformers.Trainer itself stalls the training"
    assert [fix.do for fix in work.fixes] == ["Try a newer version of transformers.Trainer."]


@pytest.mark.parametrize(
    ("loop", "file", "function", "op", "setting"),
    [
        (Loop.TRANSFORMERS, TRAINER, "_run_epoch", "aten::is_nonzero", "logging_nan_inf_filter"),
        (Loop.TRANSFORMERS, TRAINER, "_run_epoch", "aten::mm", None),
        (Loop.TRANSFORMERS, TRAINER, "log", "aten::item", "logging_steps"),
        (Loop.TRANSFORMERS, TRAINER, "log_metrics", "aten::item", None),
        (Loop.OWN, TRAINER, "_run_epoch", "aten::is_nonzero", None),
        (Loop.LIGHTNING, "lightning/pytorch/callbacks/progress/rich_progress.py", "on_x", "", "enable_progress_bar"),
    ],
)
def test_work_is_known_by_function_and_op(loop: Loop, file: str, function: str, op: str, setting: str | None) -> None:
    work = own_work(loop, f"site/{file}", function, frozenset({op}))
    assert (None if work is None else work.setting.name) == setting


FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(zoom_ms: int) -> Drawing:
    """Five steps of a second, 600 ms of which load: of these, scipy zooms for so long."""
    draw, ms = Drawing(), 1000
    for number in range(5):
        at = 1000 * ms * number
        draw.step(number, at, at + 1000 * ms).frame("/home/me/train.py(3): main", at, at + 999 * ms)
        draw.span("user_annotation", FETCH, at, at + 600 * ms)
        draw.frame("/home/me/data.py(8): __getitem__", at + ms, at + 599 * ms)
        draw.frame("scipy/ndimage/_interpolation.py(700): zoom", at + 10 * ms, at + (10 + zoom_ms) * ms)
        draw.op("aten::mm", at + 601 * ms, at + 610 * ms)
        draw.launch("sgemm", (at + 602 * ms, at + 604 * ms), (at + 606 * ms, at + 996 * ms))
    return draw


def loading(draw: Drawing, path: Path) -> RankedFinding:
    found = diagnose.analyze(draw.write(path / "trace.json")).findings
    return next(one for one in found if one.code == "DL02")


def test_the_library_function_with_half_of_the_time_is_named_with_the_line_that_calls_it(tmp_path: Path) -> None:
    said = [one.text for one in loading(training(529), tmp_path).evidence]
    assert said[-1] == "529 ms/step of this is in scipy.ndimage.zoom, called by `__getitem__` (/home/me/data.py:8)."
    assert not any("scipy" in one.text for one in loading(training(250), tmp_path).evidence)


FACTS = facts_of(HOST_BOUND)  # a is 30 ms, b 20, c 10
COMPILE, GRAPHS = Fix.of(fixes.Compile()), Fix.of(fixes.Compile("mode", "reduce-overhead"))


def part(ns: int, some: tuple[Fix, ...], *edits: Edit) -> Finding:
    said = (Evidence(f"It takes {ns} ns.", ns, "ns"), Evidence("And more."))
    return replace(finding(*edits), evidence=said, fixes=some)


def test_what_compiling_gains_is_one_finding_with_its_parts() -> None:
    python = replace(part(3, (COMPILE,), shorter(FACTS, "a")), site=Site("train.py", 3, "main"))
    chains, launches = (part(5, (COMPILE,), shorter(FACTS, "b")), part(9, (GRAPHS, Fix("Or by hand."))))
    other = part(4, (Fix.of(fixes.Compile("mode", "max-autotune")),))
    given = {"lb02": python, "at03": chains, "ke05": other, "lb01": launches}
    (page_, whole), (apart, _) = merged([(page(name), one) for name, one in given.items()])
    assert (page_.id, apart.id, whole.also) == ("lb01", "ke05", {"lb02", "at03"})
    said = ["It takes 9 ns.", "And more.", "It takes 5 ns (AT03).", "It takes 3 ns (LB02)."]
    assert [one.text for one in whole.evidence] == [*said, "One fix for all parts: 17 ns/step."]
    assert whole.edits == (*chains.edits, *python.edits)
    assert (whole.fixes, whole.site) == ((GRAPHS, Fix("Or by hand.")), None)


def test_of_two_precisions_of_one_work_the_better_is_the_finding() -> None:
    tf32, bf16, zeros = (Fix.of(one) for one in (fixes.Tf32(), fixes.Autocast(), fixes.ZeroGrad()))
    given = {
        "tf32": part(1, (tf32,), shorter(FACTS, "a", 0.5)),
        "zeros": part(1, (zeros,), shorter(FACTS, "a")),
        "bf16": part(1, (bf16,), shorter(FACTS, "a", 0.25), shorter(FACTS, "b", 0.5)),
    }
    left = one_of_each_choice([(page(name), one) for name, one in given.items()], Replay(FACTS))
    assert [(name.id, one.fixes) for name, one in left] == [("zeros", (zeros,)), ("bf16", (bf16, tf32))]
    assert (left[1][1].edits, left[1][1].also) == (given["bf16"].edits, {"tf32"})
