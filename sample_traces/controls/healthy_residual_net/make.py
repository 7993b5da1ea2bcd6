"""A residual net in bf16 and channels_last gets pinned batches from workers, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from sample_traces import harness

CHANNELS = {"weak": 256, "medium": 384, "strong": 512}
ENDLESS = 10**9


class Block(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions, and what they started from."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images."""
        return torch.relu(x + self.convolutions(x))


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    channels, batch = (CHANNELS[run.level], 256) if on_gpu else (8, 4)
    torch.backends.cudnn.benchmark = True
    images = torch.randint(256, (2048, 3, 64, 64), dtype=torch.uint8)
    dataset = TensorDataset(images, torch.arange(2048) % 10)
    sampler = RandomSampler(dataset, replacement=True, num_samples=ENDLESS)
    workers = 4 if on_gpu else 1
    loader = DataLoader(dataset, batch, sampler=sampler, num_workers=workers, pin_memory=on_gpu)
    with run.device:
        stem = torch.nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        ending = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, 10))
        model = torch.nn.Sequential(stem, Block(channels), *ending)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for pixels, labels in loader:
        pixels = pixels.to(run.device, non_blocking=True).to(memory_format=torch.channels_last)
        labels = labels.to(run.device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pixels / 255), labels)
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Workers make the batches, which are pinned."""
    steps = len(harness.steps(trace))
    harness.expect(len(harness.named(trace, "MultiProcessingDataLoaderIter")) >= steps - 1, "no workers make batches")
    harness.expect(len(harness.named(trace, "Memcpy HtoD (Pinned -> Device)")) >= steps, "batches are not pinned")


if __name__ == "__main__":
    main()
