"""The look at values loses nothing, and changes nothing, because of a tensor that is out of the ordinary; and what it
counts in tensors: zeros of matrices, and what depends on rows of a table alone.
"""

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


def some(*shape: int) -> Any:
    return torch.randn(shape)


def of_nothing() -> Any:
    convolved = torch.nn.functional.conv2d(some(0, 3, 8, 8), some(4, 3, 3, 3))
    return (some(0, 40) @ some(40, 5)).sum() + convolved.sum() + some(80, 40)[torch.zeros(0, dtype=torch.long)].sum()


def of_single_numbers() -> Any:
    one = some()  # of no dimensions
    normed = torch.nn.functional.layer_norm(some(1, 1), (1,)).sum()
    return one.softmax(-1) + normed + (some(1, 1) @ some(1, 1)).sum() + one.index_select(0, torch.tensor([0]))


def of_complex_numbers() -> Any:
    made, two = torch.fft.fft(some(64, 64)), torch.fft.fft2(some(4, 32, 32)).abs()[:, :3].sum()
    return two + (made @ made.conj().T).abs().sum() + torch.view_as_real(made)[:, :3].sum() + made.imag.exp()[:3].sum()


def of_whole_numbers_and_signs() -> Any:
    chosen = some(80, 40) > 0
    product = torch.arange(1000).reshape(50, 20) @ torch.ones(20, 30, dtype=torch.long)
    return (chosen & ~chosen).sum() + some(80, 40)[chosen].sum() + product.sum()


def of_short_floats() -> Any:
    eighth = some(64, 64).to(torch.float8_e4m3fn).float().exp().sum()
    return (some(40, 40).half() @ some(40, 40).half()).float().sum() + some(64, 64).bfloat16().exp()[:3].sum() + eighth


def of_bits_that_nothing_is_counted_of() -> Any:
    fourths = torch.zeros(64, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return (
        fourths.clone().view(torch.uint8).sum() + (torch.ones(64, 64, dtype=torch.uint16).float() @ some(64, 3)).sum()
    )


def of_one_place_for_many() -> Any:
    return (some(1, 40).expand(80, 40) @ some(40, 30)).sum() + (some(1, 1).expand(80, 40) * 2)[:10].sum()


def of_overlapping_views() -> Any:
    made, bits = some(100).as_strided((10, 10), (3, 1)).exp(), some(40, 40).exp().view(torch.int32)[:3].sum()
    return bits + made.as_strided((5, 5), (7, 2)).sum() + made.T.flip(0)[::2].sum() + made.unfold(0, 3, 1).sum()


def of_views_in_place() -> Any:
    made = some(20, 30).exp()
    made.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    made.resize_(10, 10)
    other = torch.empty(0)
    other.set_(made)
    return other[:2].sum()


def of_channels_last() -> Any:
    pictures = some(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(pictures, some(4, 3, 3, 3)).relu()[:, :, :4].sum()


def of_sparse_matrices() -> Any:
    matrix = some(50, 50).relu().to_sparse()
    rows = matrix.to_sparse_csr()
    return (matrix @ some(50, 8)).sum() + (rows @ some(50, 8)).sum() + (some(50, 50) * 2 + matrix).exp().sum()


def of_sparse_gradients() -> Any:
    table = torch.nn.Embedding(50, 8, sparse=True)
    table(torch.arange(5)).sum().backward()
    return table.weight.grad.to_dense()


def of_sparse_products_that_are_nothing() -> Any:
    weights = torch.zeros(50, 50).to_sparse().requires_grad_()
    (weights * some(50, 50).relu().to_sparse()).sum().backward()
    return (weights.detach() * some(50, 50)).to_dense().sum() + (weights.detach() * 2.0).to_dense().sum()


def of_slopes_of_the_way_forth() -> Any:
    made, slope = torch.func.jvp(lambda one: (one * some(40, 40)).exp() * 2, (some(40, 40),), (some(40, 40),))
    nothing = torch._efficientzerotensor((40, 40))
    return made.sum() + slope.sum() + (nothing * 2 + some(40, 40) * nothing).sum() + (nothing @ some(40, 40)).sum()


def of_nested_and_quantized_tensors_and_those_without_data() -> Any:
    nested = torch.nested.nested_tensor([some(3, 4), some(5, 4)], layout=torch.jagged) * 2
    quantized = torch.quantize_per_tensor(some(40, 40), 0.1, 0, torch.quint8).dequantize()[:4].sum()
    made = torch.empty(50, 50, device="meta")
    return nested.values().sum() + quantized + (made @ made)[:3].numel()


def of_indices_of_all_kinds() -> Any:
    made, bytes_ = some(20, 30, 10), (torch.arange(20) % 2).to(torch.uint8)
    last = made[..., torch.tensor([1, 2])].sum() + made.index_select(-1, torch.tensor([0])).sum()
    return last + made[None, :, None].sum() + made[bytes_].sum() + made[torch.tensor([1]), :, torch.tensor([2])].sum()


def of_functions_of_functions() -> Any:
    slope = torch.func.vmap(torch.func.jacrev(lambda one: one**2))(some(4, 5))
    return slope.sum() + torch.func.grad(lambda one: (one**2).sum())(some(40)).sum()


def of_checkpoints() -> Any:
    layer, taken = torch.nn.Linear(40, 30), some(80, 40).requires_grad_()
    torch.utils.checkpoint.checkpoint(lambda one: layer(one).relu(), taken, use_reentrant=False).sum().backward()
    return taken.grad


def of_inference() -> Any:
    layer = torch.nn.Linear(40, 30)
    with torch.inference_mode():
        made = layer(some(80, 40))[:3].sum()
    return made.clone()


def of_workers_that_are_forked() -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    batches = torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="fork")
    return sum(rows.exp().sum() for (rows,) in batches)


@pytest.mark.parametrize("step", [one for name, one in list(globals().items()) if name.startswith("of_")])
def test_a_step(step: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    wanted = [step() for _ in range(2)]
    torch.manual_seed(1)
    found = [step() for _ in values_of_two_steps(tmp_path / "values.json.gz")]
    assert [one.tolist() for one in found] == [one.tolist() for one in wanted]
    assert (tmp_path / "values.json.gz").exists()


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
