"""Images are resized in the training process, which trains nothing meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

PIXELS = {"weak": 288, "medium": 400, "strong": 560}
BATCH = 4


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photos, each resized to what the model takes."""

    def __init__(self, pixels: int) -> None:
        self.photos = torch.rand(8, 3, pixels, pixels)

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photo = self.photos[index % len(self.photos)].unsqueeze(0)
        resized = torch.nn.functional.interpolate(photo, size=(32, 32), mode="bicubic", antialias=True)
        return resized.flatten(), index % 10


def main() -> None:
    """Train."""
    run = harness.start()
    workers = 2 if run.fixed else 0
    loader = DataLoader(
        Photos(PIXELS[run.level]), batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    model = torch.nn.Sequential(torch.nn.Linear(3072, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every batch is resized within its fetch by the training process."""
    resized = harness.named(trace, "aten::_upsample_bicubic2d_aa")
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    harness.expect(len(fetches) >= 3, "no batches made in the training process")
    harness.expect(all(len(list(harness.within(resized, one))) >= BATCH for one in fetches), "nothing is resized")


if __name__ == "__main__":
    main()
