"""Switches are turned in this process: on they are in force, off all is as it was; what cannot be turned says why."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from diagnose.capture.agent.injection import Injection
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.interfaces import CannotSwitch
from diagnose.fixes.setting import NotPossible, Setting


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def injection_of(setting: Setting) -> Injection:
    """As the agent has it once a step was made."""
    found = Injection(setting)
    model, optimizer = model_and_optimizer()
    found.model, found.stepped = model, [optimizer]
    return found


def layouts(injection: Injection) -> object:
    model, (optimizer,) = injection.trained_model(), injection.optimizers()
    kept = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    return [one.stride() for one in [*model.parameters(), *(one.grad for one in model.parameters()), *kept]]


BLOCKS = """
import ctypes, resource
from diagnose.fixes import catalogue as fixes
glibc = ctypes.CDLL(None)
glibc.malloc.restype, glibc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
glibc.free.restype, glibc.free.argtypes = None, [ctypes.c_void_p]
def pages(steps=20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        blocks = [glibc.malloc(8_000_000) for _ in range(6)]
        for block in blocks:
            ctypes.memset(block, 1, 8_000_000)
        for block in blocks:
            glibc.free(block)
    return round((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps)
pages()
values = (("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "2147483647"))
before, switch = pages(), fixes.Environment(value=values).switch(None)
found = [before]
for on in (True, False, True, False):
    switch.turn(on)
    pages(3)
    found.append(pages())
print(*found, switch.what)
"""
"""It prints how many pages a step touches for the first time: before, and while the setting is on, off, on and off."""


@dataclass(frozen=True)
class Case:
    """What is read before, while and after a setting is on."""

    setting: Setting
    read: Callable[[Injection], object]
    on: object
    off: object
    begin: Callable[[], object] = lambda: None


def called(injection: Injection) -> object:
    """The type of numbers that the model gives."""
    return injection.trained_model()(torch.randn(2, 3, 8, 8)).dtype


def records(injection: Injection) -> object:
    """Whether the model's outputs could go backward, in training and in evaluation mode."""
    model = injection.trained_model()
    found = [model.train(mode)(torch.randn(2, 3, 8, 8)).requires_grad for mode in (True, False)]
    model.train()
    return found


CASES = [
    Case(fixes.Threads(value=3), lambda _: torch.get_num_threads(), 3, 1, lambda: torch.set_num_threads(1)),
    Case(
        fixes.AnomalyMode(),
        lambda _: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        (False, False),
        (True, False),
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    ),
    Case(
        fixes.Determinism(),
        lambda _: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (False, True),
        (True, True),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    Case(fixes.CollectByHand(), lambda _: (gc.isenabled(), gc.get_freeze_count() > 0), (False, True), (True, False)),
    Case(fixes.Autocast(), called, torch.bfloat16, torch.float32),
    Case(fixes.NoGradInEvaluation(), records, [True, False], [True, True]),
    Case(
        fixes.OptimizerArgument("fused", True),
        lambda injection: injection.optimizers()[0].param_groups[0]["fused"],
        True,
        None,
    ),
]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.autograd.set_detect_anomaly(False)
    torch.use_deterministic_algorithms(False)
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.setting.name)
def test_a_switch_is_in_force_while_it_is_on(case: Case) -> None:
    case.begin()
    injection = injection_of(case.setting)
    switch = case.setting.switch(injection)
    assert case.read(injection) == case.off
    for _ in range(2):
        switch.turn(True)
        assert (case.read(injection), switch.why_none()) == (case.on, "")
        switch.turn(False)
        assert case.read(injection) == case.off
    if not isinstance(case.setting, fixes.Autocast | fixes.NoGradInEvaluation):  # They tell whether they were entered.
        assert switch.why_none() != ""


def test_weights_their_gradients_and_what_optimizers_keep_change_their_order_in_memory_and_no_number() -> None:
    injection = injection_of(fixes.ChannelsLast())
    model, (optimizer,) = injection.trained_model(), injection.optimizers()
    weight = model[0].weight
    before, values = layouts(injection), [weight.detach().clone(), optimizer.state[weight]["exp_avg"].clone()]
    switch = fixes.ChannelsLast().switch(injection)
    switch.turn(True)
    kept = optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]
    for one in (weight, weight.grad, *kept):
        assert one.is_contiguous(memory_format=torch.channels_last)
    assert switch.why_none() == ""
    assert torch.equal(weight, values[0])
    assert torch.equal(kept[0], values[1])
    switch.turn(False)
    assert layouts(injection) == before
    assert switch.why_none() == "the script changes the memory format of weights itself"


def test_calls_are_changed_only_while_it_is_on() -> None:
    """The calls stand in this file, which is no library's."""
    setting = fixes.ZeroGrad()
    injection = injection_of(setting)
    original = torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad
    injection.on = False
    setting.inject(injection)
    try:
        switch = setting.switch(injection)
        (optimizer,) = injection.optimizers()
        weight = optimizer.param_groups[0]["params"][0]
        optimizer.zero_grad(set_to_none=False)
        assert weight.grad is not None
        assert switch.why_none() == "the run reached no line of the script that it changes"
        switch.turn(True)
        optimizer.zero_grad(set_to_none=False)
        assert weight.grad is None
        assert switch.why_none() == ""
    finally:
        torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad = original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (fixes.Threads(value=3), "torch computes with 3 threads already"),
        (fixes.AnomalyMode(), "anomaly detection is off between steps"),
        (fixes.Determinism(), "the script already allows nondeterministic algorithms"),
        (fixes.OptimizerArgument("foreach", True), "the script has foreach=True already"),
        (fixes.Attention(), "the model has no attn_implementation, which models of transformers have"),
        pytest.param(
            fixes.Tf32(),
            "PyTorch has no GPU here, to which TF32 applies",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        pytest.param(
            fixes.CudnnBenchmark(),
            "PyTorch has no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=lambda one: one.name if isinstance(one, Setting) else None,
)
def test_what_cannot_be_turned_says_why(setting: Setting, why: str) -> None:
    torch.set_num_threads(3)
    injection = injection_of(setting)
    injection.optimizers()[0].param_groups[0]["foreach"] = True
    with pytest.raises(CannotSwitch, match=f"^{why}$"):
        setting.switch(injection)


def test_what_needs_a_model_says_that_none_was_called() -> None:
    injection = Injection(fixes.Autocast())
    with pytest.raises(CannotSwitch, match=r"^no module was called in a step$"):
        fixes.Autocast().switch(injection)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (fixes.LoaderArgument("num_workers", 2), "the argument only counts when the object is created"),
        (fixes.DdpArgument("static_graph", True), "the argument only counts when the object is created"),
        (fixes.CompileArgument("dynamic", True), "the argument only counts when the object is created"),
        (fixes.Environment(value=(("OMP_NUM_THREADS", "2"),)), "the variable is read when the process starts"),
        (fixes.Environment(value=(("MALLOC_TRIM_THRESHOLD_", "2147483647"),)), ""),
        (fixes.Environment(value=(("MALLOC_TRIM_THRESHOLD_", ""),)), "the variable is read when the process starts"),
        (fixes.Tf32(value=True), "NVIDIA_TF32_OVERRIDE is read when the process starts"),
        (fixes.Tf32(), ""),
        (fixes.ZeroGrad(), ""),
    ],
    ids=lambda one: one.name if isinstance(one, Setting) else None,
)
def test_what_only_counts_from_the_start_is_no_switch(setting: Setting, why: str) -> None:
    assert setting.why_no_switch == why
    if getattr(type(setting).switch, "why", ""):
        unused: Any = None
        with pytest.raises(NotPossible):
            setting.switch(unused)


def test_channels_last_is_what_the_model_is_given_while_it_is_on() -> None:
    """Its first convolution would order it so itself, in each step, and what comes before that would not."""
    injection = injection_of(fixes.ChannelsLast())
    model, seen = injection.trained_model(), list[bool]()
    model[0].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    switch = fixes.ChannelsLast().switch(injection)
    for on in (False, True, False):
        if on or seen:
            switch.turn(on)
        model(torch.randn(2, 3, 8, 8))
    assert seen == [False, True, False]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="it is a switch of glibc")
def test_memory_that_glibc_keeps_is_not_fetched_again_and_off_all_is_as_it_was() -> None:
    """Six blocks of 8 MB, side by side: glibc moves its threshold of trimming to 16 MB, and gives 48 MB back. That are
    11,719 pages, but for some around the blocks."""
    ran = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    *pages, name, mapped, trimmed = ran.stdout.split()
    before, *turned = map(int, pages)
    assert 11_600 < before <= 11_719
    assert turned == pytest.approx([0, before, 0, before], abs=20)
    said = (name, mapped, trimmed)
    assert said == ("mallopt():", "MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=2147483647")


def test_thresholds_that_the_environment_sets_cannot_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    setting = fixes.Environment(value=(("MALLOC_TRIM_THRESHOLD_", "2147483647"),))
    with pytest.raises(CannotSwitch, match=r"^MALLOC_TRIM_THRESHOLD_ is in the environment already$"):
        setting.switch(injection_of(setting))
