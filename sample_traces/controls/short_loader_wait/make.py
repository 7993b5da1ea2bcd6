"""Batches are loaded in the training process, in hardly any time: the pattern is there, and costs nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import harness

WIDTH = {"weak": 2048, "medium": 3072, "strong": 4096}
COPIES = 2048  # Of each image, made on a GPU.


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    dataset = TensorDataset(torch.rand(512, 784), torch.randint(10, (512,)))
    loader = DataLoader(dataset, batch_size=8, pin_memory=on_gpu)
    width = WIDTH[run.level] * (4 if on_gpu else 1)
    with run.device:
        model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    if on_gpu:
        model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            if on_gpu:
                images = images.to(run.device, non_blocking=True).bfloat16().repeat(COPIES, 1)
                labels = labels.to(run.device, non_blocking=True).repeat(COPIES)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """There are fetches, and they are short."""
    spans = harness.spans(trace)
    fetches = [span["dur"] for span in spans if "SingleProcessDataLoaderIter.__next__" in span["name"]]
    steps = [span["dur"] for span in spans if span["name"].startswith("ProfilerStep#")]
    harness.expect(0 < sum(fetches) < 0.05 * sum(steps), "fetches are none, or not short")


if __name__ == "__main__":
    main()
