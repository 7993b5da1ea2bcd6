"""Which fixes are tried, what is said of the others, and what shows that one was in force."""

import pytest
from msgspec.structs import replace

from benchmarks.planted_cases import SAMPLES
from diagnose import pipeline
from diagnose.cli.try_ import Screening
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import (
    Confidence,
    Fix,
    Kind,
    Level,
    PricedSaving,
    RankedFinding,
    ReplayQuality,
    Together,
    Where,
)
from diagnose.contracts.trials import Range
from diagnose.fixes.catalogue import OptimizerArgument, parsed
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import Basis
from diagnose.statistics import CPU, RANKS, Spread, of_waiting
from diagnose.trace.manifest import Arm, Distributed, Flags, Loader, Optimizer, RankManifest
from diagnose.trace.measured import Screened
from diagnose.trials.arms import why_none
from diagnose.trials.selection import Candidate, CannotTry, between_runs, predicted, select
from tests.reports.html.test_figures import finding
from tests.reports.test_trials import of_a_run

WORKERS = Fix("Load in workers.", trial="patch:DataLoader(num_workers=2)")
AUTOCAST = Fix("Use autocast.", safety=Safety.PRECISION, trial="wrap:torch.autocast")
EDIT = Fix("Take it out of the loop.")
UNKNOWN = Fix("Replay a graph.", trial="wrap:cuda_graph")


def found(number: int, *fixes: Fix, minor: bool = False, per_sample: bool = False) -> RankedFinding:
    """It would save 20 ms, 10 to 25."""
    return RankedFinding(
        rule=f"rule_{number}",
        code=f"XX0{number}",
        title="Something is slow",
        kind=Kind.FAULT,
        rank_order=number,
        where=Where((0,), (1, 2)),
        evidence=(),
        saving=PricedSaving(10_000_000, 20_000_000, 25_000_000, Basis.REPLAYED, None, None),
        share_of_step=0.2,
        confidence=Confidence(Level.HIGH, "drawn"),
        fixes=fixes,
        site=None,
        minor=minor,
        hidden=None,
        changes=(),
        spots=(),
        spot_count=0,
        per_sample=per_sample,
    )


def tried(*findings: RankedFinding, asked: tuple[str, ...] = (), safety: Safety = Safety.ROUNDING) -> list[int]:
    return [one.number for one in select(findings, 100_000_000, asked, safety)[0]]


def test_a_model_is_compiled_in_one_mode() -> None:
    """The first that is found says which."""
    graphs = Fix("Compile.", trial="wrap:torch.compile(mode=reduce-overhead)")
    plain = Fix("Compile.", trial="wrap:torch.compile")
    chosen, others = select([found(1, graphs), found(2, plain)], 100_000_000, (), Safety.ROUNDING)
    assert [one.number for one in chosen] == [1]
    assert [one.why for one in others] == ["it is the same trial as that of 1"]


def test_predictions_are_factors_of_the_step() -> None:
    """Of 100 ms: 90, 80 and 75 are left."""
    ((one,), others) = select([found(1, WORKERS)], 100_000_000, (), Safety.ROUNDING)
    assert (one.rule, one.number, one.trial, others) == ("rule_1", 1, WORKERS.trial, [])
    assert one.predicted == Range(100 / 90, 100 / 80, 100 / 75)


@pytest.mark.parametrize("step_ns", [None, 25_000_000])
def test_where_no_step_is_left_nothing_is_predicted(step_ns: int | None) -> None:
    assert select([found(1, WORKERS)], step_ns, (), Safety.ROUNDING)[0][0].predicted is None


def test_a_gain_per_sample_predicts_nothing_of_the_step() -> None:
    assert select([found(1, WORKERS, per_sample=True)], 100_000_000, (), Safety.ROUNDING)[0][0].predicted is None


@pytest.mark.parametrize(
    ("finding", "why"),
    [
        (found(1, EDIT), "it needs an edit of the script"),
        (found(1), "it needs an edit of the script"),
        (found(1, UNKNOWN), "this version does not support the setting wrap:cuda_graph"),
        (found(1, AUTOCAST), "its numerical change is 'precision' (try it with --fix 1)"),
        (found(1, WORKERS, minor=True), "it would save less than 1 % (try it with --fix 1)"),
    ],
)
def test_what_is_not_tried_is_listed_with_the_reason(finding: RankedFinding, why: str) -> None:
    candidates, others = select([finding], 100_000_000, (), Safety.ROUNDING)
    assert candidates == []
    assert [(other.rule, other.number, other.why) for other in others] == [("rule_1", 1, why)]


def test_the_same_injection_is_tried_once() -> None:
    candidates, others = select([found(1, WORKERS), found(2, WORKERS)], None, (), Safety.ROUNDING)
    assert [candidate.number for candidate in candidates] == [1]
    assert [other.why for other in others] == ["it is the same trial as that of 1"]


def test_of_several_fixes_the_first_that_may_be_tried_is() -> None:
    (one,), _ = select([found(1, EDIT, UNKNOWN, AUTOCAST, WORKERS)], None, (), Safety.ROUNDING)
    assert one.fix == WORKERS


def test_what_is_asked_for_is_tried_whatever_it_changes() -> None:
    findings = [found(1, WORKERS), found(2, AUTOCAST), found(3, WORKERS, minor=True)]
    assert tried(*findings) == [1]
    assert tried(*findings, safety=Safety.PRECISION) == [1, 2]
    for name in ("2", "rule_2", "XX02", "xx02"):
        assert tried(*findings, asked=(name,)) == [2]
    assert tried(*findings, asked=("2", "rule_3")) == [2, 3]


def test_a_name_of_no_finding_is_refused_with_those_that_are() -> None:
    with pytest.raises(CannotTry, match=r"--fix 7 names no finding of this run\. There are: 1 rule_1, 2 rule_2\."):
        select([found(1, WORKERS), found(2, EDIT)], None, ("7",), Safety.ROUNDING)


@pytest.mark.parametrize(
    ("recording", "usual"),
    [
        ("planted/kernels/odd_vocabulary/gpu_medium", of_waiting(0.0)),
        ("planted/optimizer/optimizer_one_by_one/medium", CPU),
        ("planted/communication/ranks_meet_to_print/strong", RANKS),
    ],
)
def test_how_runs_differ_follows_what_bounds_the_recorded_training(recording: str, usual: Spread) -> None:
    found = between_runs(pipeline.diagnose([SAMPLES / recording]))
    assert found == Spread(pytest.approx(usual.share, rel=1e-4), usual.freedom)


def test_a_switch_that_has_ended_is_a_line() -> None:
    name, pairs = "patch:torch.optim(fused=True)", ((2e6, 1e6), (2.02e6, 1e6), (1.98e6, 1e6))
    said, blocks = list[str](), Screened(name=name, alone=pairs, steps=60, is_on=True)
    tell = Screening([Candidate("unfused_optimizer", 2, Fix("Do."), name, None)], said.append)
    tell([blocks])
    tell([replace(blocks, ended=True), Screened(name="wrap:torch.autocast", void="it is on", ended=True)])
    tell([replace(blocks, ended=True)])
    assert said == ["unfused_optimizer: 3 pairs of blocks of 60 steps", "wrap:torch.autocast: not measured"]


TF32 = "env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 NVIDIA_TF32_OVERRIDE="
TWO_WORKERS, FUSED = "patch:DataLoader(num_workers=2)", "patch:torch.optim(fused=True)"
VIEWS = "wrap:DistributedDataParallel(gradient_as_bucket_view=True)"
USED = {"allocated_bytes": 1}


def rank(fix: str, **said: object) -> RankManifest:
    """In which the fix has changed a line."""
    return RankManifest(rank=0, arm=Arm(injected={fix: ("somewhere",)}), **said)  # type: ignore[arg-type]


def loader(workers: int, asked: int = 9) -> Loader:
    return Loader(dataset="Data", num_workers=workers, asked=asked)


def ddp(**options: bool) -> Distributed:
    return Distributed(ddp=(options,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fix", "said", "why"),
    [
        (TWO_WORKERS, {"loaders": (loader(2),)}, ""),
        (
            TWO_WORKERS,
            {"loaders": (loader(2, asked=0), loader(0))},
            "no DataLoader that gave batches has num_workers=2",
        ),
        (FUSED, {"optimizers": (Optimizer(name="SGD", fused=True),)}, ""),
        (
            FUSED,
            {"optimizers": (Optimizer(name="SGD"),)},
            "no optimizer that stepped has fused=True; a loaded checkpoint may reset it",
        ),
        (VIEWS, {"distributed": ddp(gradient_as_bucket_view=True)}, ""),
        (VIEWS, {"distributed": ddp(static_graph=True)}, ""),
        (
            VIEWS,
            {"distributed": ddp(gradient_as_bucket_view=False)},
            "DistributedDataParallel still has gradient_as_bucket_view=False",
        ),
        ("wrap:torch.autocast", {"flags": Flags(autocast={"cuda": "bfloat16"})}, ""),
        ("wrap:torch.autocast", {"flags": Flags(autocast={"cuda": "float16"})}, "autocast to bfloat16 was not entered"),
        (
            "patch:torch.use_deterministic_algorithms(mode=False)",
            {"flags": Flags(deterministic_algorithms=True)},
            "deterministic algorithms are still on",
        ),
        (TF32, {"flags": Flags(cuda_matmul_allow_tf32=True), "allocator": USED}, ""),
        (TF32, {"flags": Flags(cuda_matmul_allow_tf32=False), "allocator": USED}, "torch still does not allow TF32"),
        (
            "env:PYTORCH_NO_CUDA_MEMORY_CACHING=",
            {},
            "PyTorch used no GPU, to which PYTORCH_NO_CUDA_MEMORY_CACHING applies",
        ),
    ],
)
def test_a_changed_line_is_not_enough(fix: str, said: dict[str, object], why: str) -> None:
    setting = parsed(fix)
    assert why_none(setting, rank(fix, **said)) == why


def test_without_a_changed_line_the_process_says_why() -> None:
    fused = OptimizerArgument("fused", True)
    assert why_none(fused, RankManifest(rank=0)) == "the run reached no line of the script that it changes"
    said = Arm(injected={FUSED: ()}, refused={FUSED: "the optimizer is differentiable"})
    assert why_none(fused, RankManifest(rank=0, arm=said)) == "the optimizer is differentiable"


def diagnosed(*rules: str, high_ns: int = 60_000_000) -> Diagnosis:
    """Of a step of 100 ms, of which all findings together save 20 to 60 ms, likely 50."""
    shown = tuple(replace(finding(rule, 10_000_000, None), rule=rule) for rule in rules)
    saved = Together(20_000_000, 50_000_000, high_ns)
    return replace(of_a_run(None), findings=shown, replay=ReplayQuality(100_000_000, 0.0, 0.0, None, None, saved))


def test_it_is_the_step_over_what_is_left() -> None:
    assert predicted(diagnosed("a", "b"), ["a", "b"]) == Range(100 / 80, 100 / 50, 100 / 40)


def test_it_is_unknown_if_a_fix_finds_nothing_or_all_of_the_step_would_go() -> None:
    assert predicted(diagnosed("a"), ["a", "b"]) is None
    assert predicted(diagnosed("a", "b", high_ns=100_000_000), ["a", "b"]) is None
    assert predicted(of_a_run(None), []) is None
