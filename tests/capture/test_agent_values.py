"""What the agent says of ops that compute what is known."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.capture.agent import alone, values
from diagnose.capture.agent.place import Place
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.session import Session
from diagnose.capture.agent.values import values_of_two_steps
from diagnose.source.beside import read_values
from diagnose.trace.model import ValueGraph

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()


def looked_at(target: Path, step: Callable[[], object]) -> ValueGraph | None:
    course = values_of_two_steps(target)
    for _ in course:
        step()
    step()  # Of which nobody hears.
    return read_values(target)[0] if target.exists() else None


def found(graph: ValueGraph | None, step: int = 1) -> list[tuple[str, bool, bool]]:
    """Of each op of a step that makes something: its name, whether this step has had it, and whether the other had."""
    known: set[int] = set()
    told = []
    for at, name in enumerate(graph.name.tolist()):
        if graph.step[at] == step and graph.makes[at]:
            value = int(graph.same[at]) if graph.same[at] >= 0 else at
            told.append((graph.names[name].removeprefix("aten::"), value in known, bool(graph.step[value] < step)))
            known.add(value)
    return told


@pytest.fixture
def weight() -> Any:
    return torch.randn(40, 40, requires_grad=True)


def test_what_is_computed_twice(tmp_path: Path, weight: Any) -> None:
    def step() -> None:
        batch = torch.randn(4, 40)
        (batch @ weight).tanh()
        (batch @ weight).tanh()
        (batch @ weight).exp()

    new, again = (False, False), (True, False)
    assert found(looked_at(tmp_path / "v", step), 0) == [
        ("randn", *new),
        *(("mm", *new), ("tanh", *new)),
        *(("mm", *again), ("tanh", *again)),
        *(("mm", *again), ("exp", *new)),
    ]


def test_what_looks_as_in_the_step_before_though_its_memory_was_written_to(tmp_path: Path) -> None:
    ends, steps = torch.arange(600) % 100 == 99, iter(range(3))

    def step() -> None:
        at = next(steps)
        ends[at] = False
        ends.nonzero()
        ends[at:].logical_not()

    graph = looked_at(tmp_path / "v", step)
    named = [graph.names[one].removeprefix("aten::") for one in graph.name.tolist()]
    told = {name for name, repeats in zip(named, graph.repeats.tolist(), strict=True) if repeats}
    assert told & {"nonzero", "logical_not"} == {"nonzero"}


def test_weights_that_have_changed_make_new_values(tmp_path: Path, weight: Any) -> None:
    batch = torch.randn(4, 40)

    def step() -> None:
        batch @ weight
        with torch.no_grad():
            weight.mul_(0.5)
        batch @ weight

    assert found(looked_at(tmp_path / "v", step)) == [("mm", False, True), ("mul_", False, False), ("mm", False, False)]


def test_what_somebody_else_wrote_makes_new_values(tmp_path: Path) -> None:
    """A buffer that numpy fills is written to without torch's knowing."""
    buffer = torch.zeros(100)

    def step() -> None:
        for _ in range(2):
            buffer.numpy()[:] += 1.0
            buffer.exp()

    assert found(looked_at(tmp_path / "v", step)) == [("exp", False, False)] * 2


def test_random_numbers_are_never_the_same(tmp_path: Path) -> None:
    def step() -> None:
        torch.manual_seed(0)
        torch.nn.functional.dropout(torch.ones(100), 0.5)

    told = found(looked_at(tmp_path / "v", step))
    assert not any(again or constant for name, again, constant in told if "drop" in name or "bern" in name)


def test_what_never_changes(tmp_path: Path) -> None:
    positions = torch.arange(100.0)
    graph = looked_at(tmp_path / "v", lambda: torch.outer(positions, positions).sin())
    assert found(graph, 0) == [("mul", False, False), ("sin", False, False)]
    assert found(graph, 1) == [("mul", False, True), ("sin", False, True)]


def test_a_sum_that_begins_anew_is_not_its_zeros_again(tmp_path: Path) -> None:
    """Each of two sums needs zeros of its own."""
    data = torch.randn(2, 100)

    def step() -> None:
        for k in range(2):
            torch.zeros(100).add_(data[k])

    assert [again for _, again, _ in found(looked_at(tmp_path / "v", step))] == [False] * 4


def test_the_same_numbers_are_the_same_whoever_brings_them(tmp_path: Path) -> None:
    data = torch.randn(100)

    def step() -> None:
        for _ in range(2):
            data * torch.tensor(2.0)

    assert found(looked_at(tmp_path / "v", step), 0) == [("mul", False, False), ("mul", True, False)]


def test_backward_passes_are_told_apart(tmp_path: Path, weight: Any) -> None:
    graph = looked_at(tmp_path / "v", lambda: (weight @ weight).sum().backward())
    told = {(graph.names[name], back) for name, back in zip(graph.name.tolist(), graph.backward.tolist(), strict=True)}
    assert {("aten::mm", 0), ("aten::mm", 1), ("aten::sum", 0)} <= told
    assert ("aten::sum", 1) not in told


def test_who_takes_what(tmp_path: Path) -> None:
    data = torch.randn(10)
    graph = looked_at(tmp_path / "v", lambda: data.exp().view(2, 5).t().sin())
    names = [*(graph.names[name] for name in graph.name.tolist()), "elsewhere"]
    edges = zip(graph.uses.tolist(), graph.used.tolist(), strict=True)
    assert {(names[uses], names[used]) for uses, used in edges} == {
        ("aten::exp", "elsewhere"),
        *((f"aten::{name}", "aten::exp") for name in ("view", "t", "sin")),
    }


def test_nobody_looks_into_a_mode_of_the_script_s_own(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert looked_at(tmp_path / "v", lambda: torch.ones(2).exp()) is None


def test_a_session_that_ends_before_the_steps_leaves_torch_as_it_was(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    Part(tmp_path).work.mkdir(parents=True)
    session = Session(Part(tmp_path), Plan(warmup=2, steps=2), Place(0, 1, 1))
    assert session.join()
    number = 0
    while _get_current_dispatch_mode() is None:
        torch.ones(8).sum()
        assert not session.step_ended(number)
        number += 1
    session.stop()
    assert _get_current_dispatch_mode() is None
    assert not list(tmp_path.glob("*.values.json.gz"))


def test_below_a_mode_that_the_script_enters_it_does_nothing_more(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    course = values_of_two_steps(tmp_path / "v")
    next(course)
    ours = _get_current_dispatch_mode()
    with FlopCounterMode(display=False) as counter:
        for _ in range(3):
            torch.ones(2, 2) @ torch.ones(2, 2)
            next(course, None)
            counts.append(counter.get_total_flops())
        assert _get_current_dispatch_mode() is not ours
    assert counts == [16, 32, 48]
    assert not (tmp_path / "v").exists()
    assert _get_current_dispatch_mode() is ours
    ours.__exit__(None, None, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_nobody_looks_at_what_a_forked_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values.Values, "_begun", lambda *_: os._exit(1))
    looking = values.Values()
    if (child := os.fork()) == 0:
        looking.called(torch.ops.aten.exp.default, (torch.ones(2),), {})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("bound", "most"), [("MOST_OPS", 5), ("MOST_EDGES", 3)])
def test_what_is_too_long_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """Two steps of four ops and three edges each."""
    monkeypatch.setattr(values, bound, most)
    assert looked_at(tmp_path / "v", lambda: torch.ones(2).exp().exp().exp()) is None


def test_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    course = values_of_two_steps(tmp_path / "missing" / "v")
    next(course)
    torch.ones(2).exp()
    next(course)
    with pytest.raises(StopIteration) as ended:
        next(course)
    assert ended.value.value is None
    assert alone.failures.pop().startswith("v: FileNotFoundError")


def test_memory_is_let_go(tmp_path: Path) -> None:
    """Nothing that a step makes outlives it."""
    import weakref

    kept = []

    def step() -> None:
        made = torch.randn(10).exp()
        kept.append(weakref.ref(made))
        assert kept[-1]() is made

    course = values_of_two_steps(tmp_path / "v")
    for _ in course:
        step()
        assert kept[-1]() is None


def test_tensors_of_other_kinds_are_left_alone(tmp_path: Path) -> None:
    """What is sparse has no memory that could be compared; what is beside it has."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    data = torch.randn(4)

    def step() -> None:
        table(torch.tensor([1, 2])).sum().backward()
        data.to_sparse().to_dense()
        data.exp()
        data.exp()

    told = found(looked_at(tmp_path / "v", step))
    assert [again for name, again, _ in told if name == "exp"] == [False, True]


def test_control_flow_of_torch_s_own_is_not_disturbed(tmp_path: Path) -> None:
    """It compiles, and what is compiled calls no ops."""
    told = []

    def step() -> None:
        told.append(torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.zeros(1),)).item())

    step()  # Once in the warm-up.
    assert looked_at(tmp_path / "v", step) is None
    assert set(told) == {1.0}
