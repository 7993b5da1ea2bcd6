"""What jobs are made of. Compute is an op that sleeps: ranks then compute at once, however few cores there are."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MS = 1e-3


@torch.library.custom_op("jobs::compute", mutates_args=())
def compute(x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
    """Squash values, and take so long for it."""
    time.sleep(forward_ms * MS)
    return x.tanh()


@torch.library.custom_op("jobs::compute_backward", mutates_args=())
def compute_backward(gradient: Tensor, y: Tensor, ms: float) -> Tensor:
    """Gradient of `compute`."""
    time.sleep(ms * MS)
    return gradient * (1 - y * y)


@compute.register_fake
def _(x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.ms = inputs[2]
    ctx.save_for_backward(output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return compute_backward(gradient.contiguous(), ctx.saved_tensors[0], ctx.ms), None, None


compute.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("jobs::update", mutates_args=("parameter",))
def update(parameter: Tensor, gradient: Tensor, rate: float, ms: float) -> None:
    """A step of an optimizer, which takes so long."""
    time.sleep(ms * MS)
    parameter.add_(gradient, alpha=-rate)


@torch.library.custom_op("jobs::send", mutates_args=())
def send(x: Tensor, ms: float) -> Tensor:
    """Put values on a slow wire."""
    time.sleep(ms * MS)
    return x.clone()


class Layer(nn.Module):
    """A linear layer, with parameters to reduce, and so long a forward pass. The backward pass takes twice as long."""

    def __init__(self, width: int, ms: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.ms = ms

    def forward(self, x: Tensor) -> Tensor:
        """Add to the input."""
        return x + compute(self.linear(x), self.ms, 2 * self.ms)


class Deep(nn.Module):
    """A layer of many small linear ones."""

    def __init__(self, width: int, parts: int, ms: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(parts))
        self.ms = ms

    def forward(self, x: Tensor) -> Tensor:
        """Add to the input."""
        h = x
        for one in self.parts:
            h = one(h)
        return x + compute(h, self.ms, 2 * self.ms)


class SlowSGD(torch.optim.Optimizer):
    """Its step takes so long for each parameter."""

    def __init__(self, params: Any, lr: float, ms: float) -> None:
        super().__init__(params, {"lr": lr, "ms": ms})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all of them."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, parameter.grad, group["lr"], group["ms"])


class Copied(torch.autograd.Function):
    """Into a layer whose columns are on several ranks: gradients are summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """As it is."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Summed."""
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduced(torch.autograd.Function):
    """Out of a layer whose rows are on several ranks: results are summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Summed."""
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """As it is."""
        return gradient, None


class SplitLayer(nn.Module):
    """Columns of one matrix and rows of the next, as tensor parallelism splits a layer over ranks."""

    def __init__(self, width: int, ms: float, group: Any) -> None:
        super().__init__()
        part = width // dist.get_world_size(group)
        self.up = nn.Linear(width, part, bias=False)
        self.down = nn.Linear(part, width, bias=False)
        self.ms, self.group = ms, group

    def forward(self, x: Tensor) -> Tensor:
        """Add to the input."""
        h = compute(self.up(Copied.apply(x, self.group)), self.ms, 2 * self.ms)
        return x + Reduced.apply(self.down(h), self.group)


class Slow(torch.utils.data.Dataset[Tensor]):
    """Rows of numbers, each of which takes so long to read."""

    def __init__(self, width: int, ms: float) -> None:
        self.width, self.ms = width, ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.ms * MS)
        return torch.randn(self.width)
