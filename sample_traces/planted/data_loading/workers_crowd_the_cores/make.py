"""Many loader workers compute with many threads each, on few cores."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

THREADS = {"weak": 2, "medium": 4, "strong": 16}
BATCH = 4


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photos, each resized to what the model takes."""

    def __init__(self) -> None:
        self.photos = torch.rand(16, 3, 256, 256)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photo = self.photos[index % len(self.photos)].unsqueeze(0)
        resized = torch.nn.functional.interpolate(photo, size=(32, 32), mode="bicubic", antialias=True)
        return resized.flatten(), index % 10


class Threads:
    """What every worker does first: choose how many threads compute its items."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, worker: int) -> None:
        """Choose."""
        torch.set_num_threads(self.count)


def main() -> None:
    """Train."""
    run = harness.start()
    workers, threads = (2, 1) if run.fixed else (16, THREADS[run.level])
    loader = DataLoader(
        Photos(), batch_size=BATCH, num_workers=workers, persistent_workers=True, worker_init_fn=Threads(threads)
    )
    model = torch.nn.Sequential(torch.nn.Linear(3072, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """What was recorded with the trace says that there were several workers for each core."""
    manifest = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))
    workers = manifest["ranks"][0]["loaders"][0]["num_workers"]
    harness.expect(workers >= 4 * manifest["host"]["cpus_allowed"], "there is a core for every worker or two")


if __name__ == "__main__":
    main()
