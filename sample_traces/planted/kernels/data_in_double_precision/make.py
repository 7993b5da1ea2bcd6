"""Readings arrive as float64, as NumPy makes them, and their part of the model computes in it."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 16, "medium": 160, "strong": 2048}
BATCH = {"cpu": 256, "cuda": 8192}


class TwoInputs(torch.nn.Module):
    """Tells an image's class with the help of readings, of whatever type these are."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.image = torch.nn.Linear(784, 512)
        self.readings = torch.nn.Linear(256, width).to(dtype)
        self.head = torch.nn.Linear(width, 512).to(dtype)

    def forward(self, image: torch.Tensor, readings: torch.Tensor) -> torch.Tensor:
        """Return one score for each class."""
        return self.image(image).relu() * self.head(self.readings(readings).tanh()).to(image)


def main() -> None:
    """Train."""
    run = harness.start()
    size = BATCH[run.device.type]
    image = torch.rand(size, 784, device=run.device)
    readings = torch.rand(size, 256, dtype=torch.float64, device=run.device)
    if run.fixed:
        readings = readings.float()
    labels = torch.randint(512, (size,), device=run.device)
    model = TwoInputs(WIDTH[run.level], readings.dtype).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(image, readings), labels).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Matrices are multiplied that hold float64."""
    detail = trace.with_name(trace.name.replace(".trace.", ".detail."))
    products = [span["args"] for span in harness.named(detail, "aten::addmm")]
    harness.expect(any("double" in product["Input type"] for product in products), "all is computed in float32")


if __name__ == "__main__":
    main()
