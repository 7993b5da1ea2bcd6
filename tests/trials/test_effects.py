"""What a training process says of itself decides whether a fix was in force."""

import pytest
from msgspec.structs import replace

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import ReplayQuality, Together
from diagnose.contracts.trials import Range
from diagnose.fixes.catalogue import OptimizerArgument, parsed
from diagnose.trace.manifest import Arm, Distributed, Flags, Loader, Optimizer, RankManifest
from diagnose.trials.arms import why_none
from diagnose.trials.selection import predicted
from tests.reports.html.test_figures import finding
from tests.reports.test_trials import of_a_run

TF32 = "env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 NVIDIA_TF32_OVERRIDE="
WORKERS, FUSED = "patch:DataLoader(num_workers=2)", "patch:torch.optim(fused=True)"
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
        (WORKERS, {"loaders": (loader(2),)}, ""),
        (WORKERS, {"loaders": (loader(2, asked=0), loader(0))}, "no DataLoader that gave batches has num_workers=2"),
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
    assert setting is not None
    assert why_none(setting, rank(fix, **said)) == why


def test_without_a_changed_line_the_process_says_why() -> None:
    fused = OptimizerArgument("fused", True)
    assert why_none(fused, RankManifest(rank=0)) == "the run reached no line of the script that it changes"
    said = Arm(injected={FUSED: ()}, refused={FUSED: "the optimizer is differentiable"})
    assert why_none(fused, RankManifest(rank=0, arm=said)) == "the optimizer is differentiable"


def found(*rules: str, high_ns: int = 60_000_000) -> Diagnosis:
    """Of a step of 100 ms, of which all findings together save 20 to 60 ms, likely 50."""
    shown = tuple(replace(finding(rule, 10_000_000, None), rule=rule) for rule in rules)
    saved = Together(20_000_000, 50_000_000, high_ns)
    return replace(of_a_run(None), findings=shown, replay=ReplayQuality(100_000_000, 0.0, 0.0, None, None, saved))


def test_it_is_the_step_over_what_is_left() -> None:
    assert predicted(found("a", "b"), ["a", "b"]) == Range(100 / 80, 100 / 50, 100 / 40)


def test_it_is_unknown_if_a_fix_finds_nothing_or_all_of_the_step_would_go() -> None:
    assert predicted(found("a"), ["a", "b"]) is None
    assert predicted(found("a", "b", high_ns=100_000_000), ["a", "b"]) is None
    assert predicted(of_a_run(None), []) is None
