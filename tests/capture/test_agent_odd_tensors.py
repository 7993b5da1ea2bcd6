"""The look at values loses nothing, and changes nothing, because of a tensor that is out of the ordinary."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.capture.agent.values import values_of_two_steps

torch = pytest.importorskip("torch")

STEPS: dict[str, Callable[[], Any]] = {}


def step(run: Callable[[], Any]) -> Callable[[], Any]:
    STEPS[run.__name__] = run
    return run


def some(*shape: int) -> Any:
    return torch.randn(shape)


@step
def nothing() -> Any:
    convolved = torch.nn.functional.conv2d(some(0, 3, 8, 8), some(4, 3, 3, 3))
    return (some(0, 40) @ some(40, 5)).sum() + convolved.sum() + some(80, 40)[torch.zeros(0, dtype=torch.long)].sum()


@step
def single_numbers() -> Any:
    one = some()  # of no dimensions
    normed = torch.nn.functional.layer_norm(some(1, 1), (1,)).sum()
    return one.softmax(-1) + normed + (some(1, 1) @ some(1, 1)).sum() + one.index_select(0, torch.tensor([0]))


@step
def complex_numbers() -> Any:
    made = torch.fft.fft(some(64, 64))
    return (made @ made.conj().T).abs().sum() + torch.view_as_real(made)[:, :3].sum() + made.imag.exp()[:3].sum()


@step
def transforms_along_several_dimensions() -> Any:
    return torch.fft.fft2(some(4, 32, 32)).abs()[:, :3].sum() + torch.fft.fft(some(40, 64), dim=0).abs()[:3].sum()


@step
def whole_numbers_and_signs() -> Any:
    chosen = some(80, 40) > 0
    product = torch.arange(1000).reshape(50, 20) @ torch.ones(20, 30, dtype=torch.long)
    return (chosen & ~chosen).sum() + some(80, 40)[chosen].sum() + product.sum()


@step
def short_floats() -> Any:
    eighth = some(64, 64).to(torch.float8_e4m3fn).float().exp().sum()
    return (some(40, 40).half() @ some(40, 40).half()).float().sum() + some(64, 64).bfloat16().exp()[:3].sum() + eighth


@step
def bits_that_nothing_is_counted_of() -> Any:
    fourths = torch.zeros(64, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return (
        fourths.clone().view(torch.uint8).sum() + (torch.ones(64, 64, dtype=torch.uint16).float() @ some(64, 3)).sum()
    )


@step
def one_place_for_many() -> Any:
    return (some(1, 40).expand(80, 40) @ some(40, 30)).sum() + (some(1, 1).expand(80, 40) * 2)[:10].sum()


@step
def overlapping_views() -> Any:
    made = some(100).as_strided((10, 10), (3, 1)).exp()
    return made.as_strided((5, 5), (7, 2)).sum() + made.T.flip(0)[::2].sum() + made.unfold(0, 3, 1).sum()


@step
def other_views_of_bits() -> Any:
    made = some(40, 40).exp()
    return made.view(torch.int32)[:3].sum() + made[:3].sum()


@step
def views_in_place() -> Any:
    made = some(20, 30).exp()
    made.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    made.resize_(10, 10)
    other = torch.empty(0)
    other.set_(made)
    return other[:2].sum()


@step
def channels_last() -> Any:
    pictures = some(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(pictures, some(4, 3, 3, 3)).relu()[:, :, :4].sum()


@step
def sparse_matrices() -> Any:
    matrix = some(50, 50).relu().to_sparse()
    rows = matrix.to_sparse_csr()
    return (matrix @ some(50, 8)).sum() + (rows @ some(50, 8)).sum() + (some(50, 50) * 2 + matrix).exp().sum()


@step
def sparse_gradients() -> Any:
    table = torch.nn.Embedding(50, 8, sparse=True)
    table(torch.arange(5)).sum().backward()
    return table.weight.grad.to_dense()


@step
def sparse_products_that_are_nothing() -> Any:
    weights = torch.zeros(50, 50).to_sparse().requires_grad_()
    (weights * some(50, 50).relu().to_sparse()).sum().backward()
    return (weights.detach() * some(50, 50)).to_dense().sum() + (weights.detach() * 2.0).to_dense().sum()


@step
def slopes_of_the_way_forth() -> Any:
    made, slope = torch.func.jvp(lambda one: (one * some(40, 40)).exp() * 2, (some(40, 40),), (some(40, 40),))
    nothing = torch._efficientzerotensor((40, 40))
    return made.sum() + slope.sum() + (nothing * 2 + some(40, 40) * nothing).sum() + (nothing @ some(40, 40)).sum()


@step
def nested_tensors() -> Any:
    return (torch.nested.nested_tensor([some(3, 4), some(5, 4)], layout=torch.jagged) * 2).values().sum()


@step
def quantized_tensors() -> Any:
    return torch.quantize_per_tensor(some(40, 40), 0.1, 0, torch.quint8).dequantize()[:4].sum()


@step
def tensors_without_data() -> Any:
    made = torch.empty(50, 50, device="meta")
    return torch.tensor(float((made @ made)[:3].numel()))


@step
def indices_of_all_kinds() -> Any:
    made, bytes_ = some(20, 30, 10), (torch.arange(20) % 2).to(torch.uint8)
    last = made[..., torch.tensor([1, 2])].sum() + made.index_select(-1, torch.tensor([0])).sum()
    return last + made[None, :, None].sum() + made[bytes_].sum() + made[torch.tensor([1]), :, torch.tensor([2])].sum()


@step
def functions_of_functions() -> Any:
    slope = torch.func.vmap(torch.func.jacrev(lambda one: one**2))(some(4, 5))
    return slope.sum() + torch.func.grad(lambda one: (one**2).sum())(some(40)).sum()


@step
def checkpoints() -> Any:
    layer, taken = torch.nn.Linear(40, 30), some(80, 40).requires_grad_()
    torch.utils.checkpoint.checkpoint(lambda one: layer(one).relu(), taken, use_reentrant=False).sum().backward()
    return taken.grad


@step
def inference() -> Any:
    layer = torch.nn.Linear(40, 30)
    with torch.inference_mode():
        made = layer(some(80, 40))[:3].sum()
    return made.clone()


@step
def workers_that_are_forked() -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    batches = torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="fork")
    return sum(rows.exp().sum() for (rows,) in batches)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of(name: str, tmp_path: Path) -> None:
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()
    torch.manual_seed(1)
    wanted = [STEPS[name]() for _ in range(2)]
    torch.manual_seed(1)
    found = [STEPS[name]() for _ in values_of_two_steps(tmp_path / "values.json.gz")]
    assert [one.tolist() for one in found] == [one.tolist() for one in wanted]
    assert (tmp_path / "values.json.gz").exists()
