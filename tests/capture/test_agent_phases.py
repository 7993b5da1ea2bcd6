"""Time by phase: exclusive, of one thread, and only while it is asked for."""

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diagnose.capture.agent import about_settings, backwards
from diagnose.capture.agent import interruptions as module
from diagnose.capture.agent.interruptions import ALL, BACKWARD, COLLECTION, LOADER, OPTIMIZER, Phases
from diagnose.trace.manifest import FailedGuard

torch = pytest.importorskip("torch")


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> Phases:
    """With a clock that goes on by 1 at each look."""
    ticks = itertools.count()
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: next(ticks))
    made = Phases()
    made.on()
    yield made
    made.off()


def test_what_is_within_another_counts_for_itself(some: Phases) -> None:
    assert some.begin(OPTIMIZER)  # 0
    assert some.begin(BACKWARD)  # 1
    assert some.begin(COLLECTION)  # 2
    some.end(COLLECTION)  # 3
    some.end(BACKWARD)  # 4
    some.end(OPTIMIZER)  # 5
    assert some.spent_ns() == {**dict.fromkeys(ALL, 0), BACKWARD: 2, OPTIMIZER: 2, COLLECTION: 1}


def test_what_is_open_counts_up_to_now(some: Phases) -> None:
    some.begin(LOADER)
    assert some.spent_ns()[LOADER] == 1
    some.end(LOADER)
    assert some.spent_ns()[LOADER] == 2


def test_an_end_ends_what_an_error_left_open(some: Phases) -> None:
    some.begin(OPTIMIZER)
    some.begin(BACKWARD)
    some.end(OPTIMIZER)
    some.begin(LOADER)
    some.end(LOADER)
    assert some.spent_ns() == {**dict.fromkeys(ALL, 0), LOADER: 1, BACKWARD: 1, OPTIMIZER: 1}


def test_other_threads_do_not_count(some: Phases) -> None:
    counted = list[bool]()
    thread = threading.Thread(target=lambda: counted.append(some.begin(LOADER)))
    thread.start()
    thread.join()
    assert counted == [False]


def test_backward_passes_and_collections_are_told_while_it_is_on() -> None:
    own, before = torch.autograd.backward, len(gc.callbacks)
    some = Phases()
    some.on()
    weight = torch.ones(2, requires_grad=True)
    (weight * 2).sum().backward()
    gc.collect()
    found = some.spent_ns()
    assert found[BACKWARD] > 0
    assert found[COLLECTION] > 0
    assert found[OPTIMIZER] == 0
    some.off()
    assert torch.autograd.backward is own
    assert len(gc.callbacks) == before
    assert not some.begin(LOADER)


class Doing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, act: Callable[[], None]) -> Any:
        ctx.act = act
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.act()
        return gradient, None


def test_a_pass_that_raises_or_overlaps_with_one_of_another_thread_hides_no_later_one() -> None:
    told, some, second_runs, first_is_over = list[int](), Phases(), threading.Event(), threading.Event()
    some.on()
    backwards.listen_to_ends(listener := lambda: told.append(1))
    ran = lambda act: Doing.apply(torch.ones((), requires_grad=True), act).backward()  # noqa: E731
    with pytest.raises(ZeroDivisionError):
        ran(lambda: 1 // 0)
    assert (some._open, told) == ([], [])
    other = threading.Thread(target=ran, args=(lambda: (second_runs.set(), first_is_over.wait()),))
    ran(lambda: (other.start(), second_runs.wait()))
    first_is_over.set()
    other.join()
    ran(lambda: None)
    backwards.leave(listener)
    some.off()
    assert len(told) == 2


CODE = compile("def f(): pass", "/somewhere/else.py", "exec").co_consts[0]
NUMBER = (
    "{form}: self.seen == {form[2]}     # self.seen += 1  # in/model.py:9 in forward (HINT: make it a tensor.)\n"
    'User stack trace:\n  File "/lib/torch/module.py", line 3, in called\n'
    '  File "/home/me/model.py", line 9, in forward\n'
    "    self.seen += 1"
)
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 2, actual {}"


def told(*reasons: str) -> list[FailedGuard]:
    return msgspec.convert(about_settings.of_function(CODE, reasons), list[FailedGuard])


def test_a_number_is_told_by_what_holds_it_and_the_line_that_asked() -> None:
    """Two forms failed by it, one of them twice."""
    (found,) = told(*(NUMBER.format(form=form) for form in ("0/1", "0/1", "0/2")))
    assert (found.source, found.said, found.is_size, found.forms) == ("self.seen", "self.seen == 2", False, 2)
    assert (found.file, found.line, found.function) == ("/home/me/model.py", 9, "forward")


def test_a_size_is_of_a_tensor_and_of_the_function_where_no_line_is_told() -> None:
    (found,) = told(SIZE.format(3), SIZE.format(4))
    assert (found.source, found.is_size, found.forms) == ("x", True, 1)
    assert (found.file, found.line, found.function) == ("/somewhere/else.py", 1, "f")


@pytest.mark.parametrize(
    ("reason", "is_size"),
    [
        ("1/0: 2 <= L['x'].size()[0] <= 8", True),
        ("1/0: tensor 'x' stride mismatch at index 0. expected 2, actual 4", True),
        ("1/0: tensor 'x' dtype mismatch. expected Float, actual Double", False),
        ("1/0: len(xs) == 3", False),
    ],
)
def test_sizes_and_strides_are_what_dynamic_shapes_are_for(reason: str, is_size: bool) -> None:
    """What is no reason is left out."""
    (found,) = told("graph break", "", reason)
    assert found.is_size is is_size


SCRIPT = """
import json, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rounds = 0
    def forward(self, x):
        self.rounds += 1
        return x * self.rounds
net = torch.compile(Net(), backend="eager")
for size in range(2, 7):
    net(torch.ones(size))
from diagnose.capture.agent import about_settings
print(json.dumps(about_settings.failed_guards()))
"""


@pytest.mark.slow
def test_torch_says_so(tmp_path: Path) -> None:
    """The counter fails all forms but the newest, the size the first alone: those after it are for any."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, script], capture_output=True, check=True)
    first, *others = msgspec.json.decode(run.stdout, type=list[FailedGuard])
    assert (first.source, first.is_size, first.forms) == ("self.rounds", False, 3)
    assert (first.file, first.line, first.function) == ("train.py", 8, "forward")
    assert [(one.is_size, one.forms) for one in others] == [(True, 1)]
