"""Which ops the agent sees to depend on rows of a table alone."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.capture.agent.values import values_of_two_steps
from diagnose.source.values import read_values

torch = pytest.importorskip("torch")

PLACES = itertools.cycle((1, 2, 3, 5, 7, 11, 13))  # Others in each step.


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """By other tests."""
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()


@pytest.fixture
def layer() -> Any:
    return torch.nn.Linear(40, 30)


def looked_up(target: Path, step: Callable[[], object]) -> list[str]:
    """Ops of the second step that depend on nothing but rows of a table."""
    course = values_of_two_steps(target)
    for _ in course:
        step()
    graph = read_values(target)
    assert graph.looked_up is not None
    told = np.flatnonzero((graph.looked_up != -1) & (graph.step == 1))
    return [graph.names[one].removeprefix("aten::") for one in graph.name[told].tolist()]


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
