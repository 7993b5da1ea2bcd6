"""Attention is written out as matmul, softmax and matmul."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 256, "medium": 1024, "strong": 4096}
HEADS = 16


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Of several heads."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.project_in = torch.nn.Linear(width, 3 * width, bias=False)
        self.project_out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.project_in(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
            mixed = scores.softmax(dim=-1) @ v
        return self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))


def main() -> None:
    """Train."""
    run = harness.start()
    small = run.device.type == "cpu"
    width, batch, length = (128, 1, 64) if small else (2048, 16384 // LENGTH[run.level], LENGTH[run.level])
    with run.device:
        model = torch.nn.Sequential(
            Attention(width, fused=run.fixed),
            torch.nn.Linear(width, 4 * width, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width, bias=False),
        )
        inputs = torch.randn(batch, length, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step has a softmax between products of batches of matrices."""
    names = [span["name"] for span in harness.spans(trace)]
    steps = len(harness.steps(trace))
    harness.expect(names.count("aten::_softmax") >= steps, "no softmax is computed by itself")
    harness.expect(names.count("aten::bmm") >= 6 * steps, "no products of scores")


if __name__ == "__main__":
    main()
