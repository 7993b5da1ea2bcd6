"""A normalisation and an activation are written out as a chain of small operations."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 192, "medium": 640, "strong": 4096}


def normalised_gelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form, of RMSNorm."""
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


class Adapter(torch.nn.Module):  # type: ignore[misc]
    """Adds what it makes of its input."""

    def __init__(self, width: int, features: int, compiled: bool) -> None:
        super().__init__()
        self.activation = torch.compile(normalised_gelu) if compiled else normalised_gelu
        self.widen = torch.nn.Linear(width, features, bias=False)
        self.weight = torch.nn.Parameter(torch.ones(features))
        self.narrow = torch.nn.Linear(features, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (tokens, width)."""
        return x + self.narrow(self.activation(self.widen(x), self.weight))


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (32, 64) if run.device.type == "cpu" else (512, 65536)
    with run.device:
        model = torch.nn.Sequential(
            torch.nn.Linear(width, 8 * width, bias=False),
            torch.nn.ReLU(),
            torch.nn.Linear(8 * width, width, bias=False),
            Adapter(width, FEATURES[run.level], compiled=run.fixed),
        )
        inputs = torch.randn(tokens, width)
    model, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The small operations are called one by one."""
    names = [span["name"] for span in harness.spans(trace)]
    steps = len(harness.steps(trace))
    harness.expect(min(names.count("aten::rsqrt"), names.count("aten::tanh")) >= steps, "the chain is not written out")


if __name__ == "__main__":
    main()
