"""What the agent counts in the tensors of ops: zeros of matrices, and what depends on rows of a table alone."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.capture.agent.values import values_of_two_steps
from diagnose.source.beside import read_values

torch = pytest.importorskip("torch")

PLACES = itertools.cycle((1, 2, 3, 5, 7, 11, 13))  # Others in each step.


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()


@pytest.fixture
def layer() -> Any:
    return torch.nn.Linear(40, 30)


def counted(target: Path, step: Callable[[], object], column: str, nothing: int) -> list[tuple[str, int]]:
    """What a column says of the ops of the second step where it says something."""
    course = values_of_two_steps(target)
    for _ in course:
        step()
    graph, _ = read_values(target)
    said = getattr(graph, column)
    told = np.flatnonzero((said != nothing) & (graph.step == 1))
    return [(graph.names[graph.name[at]].removeprefix("aten::"), said[at]) for at in told]


def looked_up(target: Path, step: Callable[[], object]) -> list[str]:
    """Ops that depend on nothing but rows of a table."""
    return [name for name, _ in counted(target, step, "looked_up", -1)]


def test_a_graph_as_a_matrix(tmp_path: Path, layer: Any) -> None:
    graph = torch.zeros(100, 100)
    graph[torch.arange(100), torch.arange(100).flip(0)] = 1.0

    def step() -> None:
        scaled = graph / 2
        layer(scaled @ torch.randn(100, 40))

    assert counted(tmp_path / "v", step, "sparse", 0) == [("mm", 990)]


def test_what_is_learnt_is_no_graph(tmp_path: Path) -> None:
    gates = torch.nn.Parameter(torch.zeros(100, 100))

    def step() -> None:
        with torch.no_grad():
            hidden = gates.relu()
        hidden @ torch.randn(100, 40)

    assert counted(tmp_path / "v", step, "sparse", 0) == []


def test_a_product_with_nothing_hides_nothing_else(tmp_path: Path, layer: Any) -> None:
    """An expert that no word was given to."""

    def step() -> None:
        layer.weight.detach() @ torch.randn(40, 0)
        torch.eye(40) @ layer(torch.randn(8, 40)).detach().T.expand(40, 30, 8)[:, 0]

    assert counted(tmp_path / "v", step, "sparse", 0) == [("mm", 975)]


def test_rows_of_a_table_go_through_a_frozen_net(tmp_path: Path, layer: Any) -> None:
    layer.requires_grad_(False)
    learns, table = torch.nn.Linear(30, 1), torch.randn(100, 40)

    def step() -> None:
        rows = table[torch.randint(100, (8,))]
        code = layer(rows.view(8, 40)).relu()
        (learns(code) + torch.randn(8, 1)).sum().backward()

    assert looked_up(tmp_path / "v", step) == ["index", "addmm", "relu"]


def test_rows_that_are_changed_are_none_of_the_table(tmp_path: Path, layer: Any) -> None:
    layer.requires_grad_(False)
    table = torch.randn(100, 40)

    def step() -> None:
        rows = table[torch.randint(100, (8,))]
        layer(rows + torch.randn(8, 40))
        layer(torch.nn.functional.dropout(rows, 0.5))
        with torch.no_grad():
            table[:1].mul_(0.9)
        layer(table[torch.randint(100, (8,))])
        layer(torch.randn(8, 40))

    assert looked_up(tmp_path / "v", step) == []


def test_a_slow_copy_of_what_is_learnt_is_not_frozen(tmp_path: Path, layer: Any) -> None:
    slow, table = torch.nn.Linear(40, 30).requires_grad_(False), torch.randn(100, 40)

    def step() -> None:
        rows = table[torch.randint(100, (8,))]
        layer(rows).sum().backward()
        slow(rows)
        with torch.no_grad():
            for mine, other in zip(slow.parameters(), layer.parameters(), strict=True):
                mine.lerp_(other, 0.1)

    assert looked_up(tmp_path / "v", step) == ["index"]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (lambda rows: rows, 1),
        (lambda rows: rows[:, next(PLACES) :][:, :40], 0),  # cut out by chance
        (lambda rows: rows * next(PLACES), 0),
        (lambda rows: rows + torch.from_numpy(np.full((20, 60), next(PLACES), dtype=np.float32)), 0),
        (lambda rows: rows @ rows.T, 0),  # of each two rows
    ],
)
def test_what_depends_on_more_than_the_rows(tmp_path: Path, seen: Callable[[Any], Any], told: int) -> None:
    table, layer = torch.randn(100, 60), torch.nn.LazyLinear(30)
    layer(seen(table[:20]))
    layer.requires_grad_(False)
    found = looked_up(tmp_path / "v", lambda: layer(seen(table[torch.randperm(100)[:20]])))
    assert found.count("addmm") == told


def test_columns_are_no_rows(tmp_path: Path) -> None:
    table, layer = torch.randn(100, 60), torch.nn.Linear(20, 30).requires_grad_(False)
    assert looked_up(tmp_path / "v", lambda: layer(table[:, torch.randperm(60)[:20]])) == []
    assert looked_up(tmp_path / "v", lambda: layer(table.index_select(1, torch.randperm(60)[:20]))) == []
