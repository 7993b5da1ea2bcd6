"""What the agent says of autograd's graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.capture.agent import alone, backwards
from diagnose.capture.agent.backwards import graph_of_a_step
from diagnose.source.beside import read_graph
from diagnose.trace.model import AutogradGraph

torch = pytest.importorskip("torch")


def looked_at(target: Path, step: Callable[[], object], *told: str) -> AutogradGraph | None:
    course = graph_of_a_step(target)
    next(course)
    step()
    with pytest.raises(StopIteration) as ended:
        next(course)
    step()  # Of which nobody hears.
    assert alone.failures == [*told]
    alone.failures.clear()
    assert ended.value.value == (target.name if target.exists() else None)
    return read_graph(target)[0] if target.exists() else None


def of(graph: AutogradGraph) -> list[tuple[str, list[str]]]:
    """Each numbered node in the order in which it was made, and what it takes."""
    kinds = [graph.names[one] for one in graph.name.tolist()]
    order = sorted((number, at) for at, number in enumerate(graph.number.tolist()) if number >= 0)
    edges = list(zip(graph.uses.tolist(), graph.used.tolist(), strict=True))
    return [(kinds[at], sorted(kinds[used] for uses, used in edges if uses == at)) for _, at in order]


@pytest.fixture
def weight() -> Any:
    return torch.randn(3, 3, requires_grad=True)


def test_the_nodes_of_a_pass(tmp_path: Path, weight: Any) -> None:
    def step() -> None:
        made = (torch.ones(2, 3) @ weight).tanh()
        (made * made.exp()).sum().backward()

    graph = looked_at(tmp_path / "g", step)
    assert of(graph) == [
        ("MmBackward0", ["torch::autograd::AccumulateGrad"]),
        ("TanhBackward0", ["MmBackward0"]),
        ("ExpBackward0", ["TanhBackward0"]),
        ("MulBackward0", ["ExpBackward0", "TanhBackward0"]),
        ("SumBackward0", ["MulBackward0"]),
    ]
    assert graph.names[graph.name[graph.number.tolist().index(-1)]] == "torch::autograd::AccumulateGrad"


def test_all_passes_of_a_step(tmp_path: Path, weight: Any) -> None:
    def step() -> None:
        weight.exp().sum().backward()
        torch.autograd.backward([weight.sin().sum(), weight.cos().sum()])

    graph = looked_at(tmp_path / "g", step)
    assert graph is not None
    assert [kind for kind, _ in of(graph)] == [f"{one}Backward0" for one in ("Exp", "Sum", "Sin", "Sum", "Cos", "Sum")]


def test_which_optimizer_has_which_weight(tmp_path: Path, weight: Any) -> None:
    other, nobodys = (torch.randn(3, requires_grad=True) for _ in range(2))
    optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([{"params": [other]}], lr=0.1)]

    def step() -> None:
        (weight.exp().sum() + other.sin().sum() + nobodys.cos().sum()).backward()

    graph = looked_at(tmp_path / "g", step)
    kinds = [graph.names[one] for one in graph.name.tolist()]
    edges = zip(graph.uses.tolist(), graph.used.tolist(), strict=True)
    has = {kinds[uses]: int(graph.optimizer[used]) for uses, used in edges if graph.number[used] < 0}
    assert has["CosBackward0"] == 0
    assert min(has["ExpBackward0"], has["SinBackward0"]) > 0
    assert has["ExpBackward0"] != has["SinBackward0"]
    assert set(graph.optimizer[graph.number >= 0].tolist()) == {-1}
    del optimizers


def test_a_step_without_a_pass(tmp_path: Path, weight: Any) -> None:
    assert looked_at(tmp_path / "g", lambda: weight.detach().exp()) is None


def test_a_graph_that_is_too_large(tmp_path: Path, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backwards, "MOST_NODES", 3)
    assert looked_at(tmp_path / "g", lambda: weight.exp().sin().cos().sum().backward()) is None


def test_a_full_disk(tmp_path: Path, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backwards.json, "dump", full)
    told = "g: OSError: [Errno 28] No space left on device"
    assert looked_at(tmp_path / "g", lambda: weight.exp().sum().backward(), told) is None
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_let_go(tmp_path: Path) -> None:
    """What the graph holds goes when the script's own step lets it go."""
    kept: list[Any] = []

    def step() -> None:
        weight = torch.randn(3, requires_grad=True)
        loss = weight.exp().sum()
        loss.backward()
        kept.append(torch.utils.weak.WeakTensorKeyDictionary({weight: 1}))

    looked_at(tmp_path / "g", step)
    assert [len(one) for one in kept] == [0, 0]


def test_torch_has_its_function_back(tmp_path: Path, weight: Any) -> None:
    original = torch.autograd.backward
    looked_at(tmp_path / "g", lambda: weight.sum().backward())
    assert torch.autograd.backward is original
    assert backwards._listeners == []


def test_torch_has_its_function_back_if_the_training_ends_before_the_step(tmp_path: Path) -> None:
    course = graph_of_a_step(tmp_path / "g")
    next(course)
    assert backwards._listeners != []
    course.close()
    assert backwards._listeners == []
