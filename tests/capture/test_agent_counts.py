"""What the agent counts in the tensors of ops: rows of zeros, equal rows, and zeros of matrices."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.capture.agent.rows import Rows
from diagnose.capture.agent.values import values_of_two_steps
from diagnose.source.values import read_values

torch = pytest.importorskip("torch")

PLACES = itertools.cycle((1, 2, 3, 5, 7, 11, 13))
"""Others in each step."""


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """By other tests."""
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()


@pytest.fixture
def layer() -> Any:
    return torch.nn.Linear(40, 30)


def counted(target: Path, step: Callable[[], object], column: str) -> list[tuple[str, int]]:
    """What a column says of the ops of the second step where it says something."""
    course = values_of_two_steps(target)
    for _ in course:
        step()
    graph = read_values(target)
    assert graph.rows is not None
    said = getattr(graph.rows, column).tolist()
    nothing = -1 if column in ("matrix", "looked_up") else 0
    told = [at for at in range(len(said)) if graph.step[at] == 1 and said[at] != nothing]
    return [(graph.names[graph.name[at]].removeprefix("aten::"), said[at]) for at in told]


@pytest.mark.slow
def test_rows_that_are_repeated_go_through_a_layer(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        layer(torch.randn(50, 40).repeat_interleave(4, dim=0)).exp()

    assert counted(tmp_path / "v", step, "alike") == [("addmm", 75), ("exp", 75)]
    assert counted(tmp_path / "v", step, "spread") == [("clone", 75)]


def test_rows_that_are_looked_up_go_through_a_layer(tmp_path: Path, layer: Any) -> None:
    source = torch.arange(20).repeat(10)

    def step() -> None:
        layer(torch.randn(20, 40)[source])

    assert counted(tmp_path / "v", step, "alike") == [("addmm", 90)]
    assert counted(tmp_path / "v", step, "spread") == [("index", 90)]


def test_rows_that_differ_in_anything_that_is_taken_differ(tmp_path: Path) -> None:
    def step() -> None:
        rows = torch.ones(100, 40) * 2
        rows + torch.randn(100, 40)
        torch.nn.functional.dropout(rows, 0.5)

    assert counted(tmp_path / "v", step, "alike") == [("mul", 99)]


def test_rows_of_zeros_are_not_equal_ones(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        torch.cat((torch.randn(50, 40), torch.zeros(50, 40))).exp()

    assert counted(tmp_path / "v", step, "alike") == []


def test_images_are_equal_as_a_whole(tmp_path: Path) -> None:
    """A picture of one colour has equal lines."""
    layer = torch.nn.Conv2d(3, 4, 3)

    def step() -> None:
        layer(torch.rand(4, 3, 1, 1).expand(4, 3, 20, 20).contiguous())
        layer(torch.rand(2, 3, 20, 20).repeat(2, 1, 1, 1))

    assert counted(tmp_path / "v", step, "alike") == [("convolution", 50)]


def test_gradients_of_rows_that_a_mask_leaves_out(tmp_path: Path, layer: Any) -> None:
    counts = (torch.arange(80) % 4 == 0).float()[:, None]

    def step() -> None:
        loss = (layer(torch.randn(80, 40)) * counts).exp().sum()
        loss.backward()

    assert counted(tmp_path / "v", step, "idle") == [("mm", 75), ("sum", 75)]
    assert counted(tmp_path / "v", step, "masked") == [("mul", 75)]


def test_gradients_of_rows_that_are_not_taken(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        layer(torch.randn(80, 40))[:20].exp().sum().backward()

    assert counted(tmp_path / "v", step, "idle") == [("mm", 75), ("sum", 75)]


def test_weights_that_get_no_gradient_are_no_rows(tmp_path: Path) -> None:
    """Units that are never above zero have columns of zeros."""
    layer = torch.nn.Linear(40, 200)
    with torch.no_grad():
        layer.bias[:100] = -1e6

    def step() -> None:
        layer(torch.randn(80, 40)).relu().sum().backward()
        layer.zero_grad()

    assert counted(tmp_path / "v", step, "idle") == []


def test_a_graph_as_a_matrix(tmp_path: Path, layer: Any) -> None:
    graph = torch.zeros(100, 100)
    graph[torch.arange(100), torch.arange(100).flip(0)] = 1.0

    def step() -> None:
        scaled = graph / 2
        layer(scaled @ torch.randn(100, 40))

    assert counted(tmp_path / "v", step, "sparse") == [("mm", 990)]


def test_what_is_learnt_is_no_graph(tmp_path: Path) -> None:
    gates = torch.nn.Parameter(torch.zeros(100, 100))

    def step() -> None:
        with torch.no_grad():
            hidden = gates.relu()
        hidden @ torch.randn(100, 40)

    assert counted(tmp_path / "v", step, "sparse") == []


def test_a_matrix_is_solved_with_again(tmp_path: Path) -> None:
    matrix = torch.randn(30, 30)

    def step() -> None:
        field = torch.randn(30, 2)
        for _ in range(2):
            field = torch.linalg.solve(matrix, field)
        torch.linalg.solve(torch.randn(30, 30), field)

    assert counted(tmp_path / "v", step, "matrix") == [("_linalg_solve_ex", 1)] * 2


def looked_up(target: Path, step: Callable[[], object]) -> list[str]:
    """Ops that depend on nothing but rows of a table."""
    return [name for name, _ in counted(target, step, "looked_up")]


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_of_any_precision(dtype: str) -> None:
    rows = torch.arange(5_000.0).remainder(2_048).to(getattr(torch, dtype)).view(500, 10)
    distinct = len(torch.unique(rows, dim=0))
    assert Rows(torch).alike(rows.repeat(2, 1), False, None) == 100 * (1_000 - distinct) // 1_000


def test_rows_are_looked_at_where_they_lie() -> None:
    """Channels may be last in memory, and moments first."""
    images = torch.rand(4, 3, 20, 20).to(memory_format=torch.channels_last)
    assert Rows(torch).alike(images[[0, 1, 0, 0]], True, None) == 50
    moments = torch.rand(10, 4, 40)
    moments[:, 3] = moments[:, 2]
    moments[:, 0] = 0
    assert Rows(torch).alike(moments.transpose(0, 1), False, None) == 25
    assert Rows(torch).idle(moments.transpose(0, 1), False, None) == 25
    assert Rows(torch).idle(moments.transpose(1, 2), False, None) == 25


def test_numbers_that_are_hardly_there(tmp_path: Path) -> None:
    decays = torch.full((100, 100), 0.5) ** torch.arange(100.0).mul(2)
    small = int(((decays > 0) & (decays < torch.finfo(torch.float32).tiny)).sum())
    assert 0 < small < 5_000

    def step() -> None:
        torch.randn(40, 100) @ decays
        torch.randn(40, 100) + decays[:40]

    assert counted(tmp_path / "v", step, "subnormal") == [("mm", small // 10)]


def test_windows_that_are_a_column_times_a_row(tmp_path: Path) -> None:
    line = torch.tensor([0.1, 0.5, -1.0, 0.4, 0.0])
    blur = (line[:, None] * line)[None, None].expand(3, 1, 5, 5).contiguous()
    edges = torch.randn(1, 3, 5, 5)
    learnt = torch.nn.Parameter(torch.ones(1, 3, 5, 5))

    def step() -> None:
        images = torch.randn(2, 3, 20, 20)
        torch.nn.functional.conv2d(images, blur, groups=3)
        torch.nn.functional.conv2d(images, edges)
        torch.nn.functional.conv2d(images, learnt)
        torch.nn.functional.conv2d(images, blur[:1, :, :1].expand(1, 3, 1, 5))

    assert counted(tmp_path / "v", step, "separable") == [("convolution", 1)]


def test_of_few_rows_only_all_count() -> None:
    rows = torch.zeros(4, 400)
    assert Rows(torch).idle(rows, False, None) == 100
    assert Rows(torch).idle(rows[:, :10], False, None) == 0
    rows[0] = 1
    assert Rows(torch).idle(rows, False, None) == 0


def test_whole_numbers_are_no_rows() -> None:
    assert Rows(torch).alike(torch.ones(100, 100, dtype=torch.int64), False, None) == 0
    assert Rows(torch).idle(torch.zeros(100, 100, dtype=torch.int64), False, None) == 0


def test_a_product_with_nothing_hides_nothing_else(tmp_path: Path, layer: Any) -> None:
    """An expert that no word was given to."""

    def step() -> None:
        layer.weight.detach() @ torch.randn(40, 0)
        torch.eye(40) @ layer(torch.randn(8, 40)).detach().T.expand(40, 30, 8)[:, 0]

    assert counted(tmp_path / "v", step, "sparse") == [("mm", 975)]


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
    found = counted(tmp_path / "v", lambda: layer(seen(table[torch.randperm(100)[:20]])), "looked_up")
    assert len([name for name, _ in found if name == "addmm"]) == told


def test_columns_are_no_rows(tmp_path: Path) -> None:
    table, layer = torch.randn(100, 60), torch.nn.Linear(20, 30).requires_grad_(False)
    assert counted(tmp_path / "v", lambda: layer(table[:, torch.randperm(60)[:20]]), "looked_up") == []
    columns = counted(tmp_path / "v", lambda: layer(table.index_select(1, torch.randperm(60)[:20])), "looked_up")
    assert columns == []


def test_a_matrix_that_numpy_fills_anew(tmp_path: Path) -> None:
    memory = np.zeros((20, 20), dtype=np.float32)
    matrix, sides = torch.from_numpy(memory), torch.randn(20, 3)

    def step() -> None:
        memory[:] = 20 * np.eye(20) + next(PLACES)
        torch.linalg.solve(matrix, sides)

    assert counted(tmp_path / "v", step, "matrix") == []


def test_small_numbers_of_what_is_there_once_for_many(tmp_path: Path) -> None:
    """Without room for all places: this would take 40 GB."""
    one = torch.full((1, 100, 100), 1e-40).expand(1_000_000, 100, 100)
    assert Rows(torch).subnormal(one) == 1000
