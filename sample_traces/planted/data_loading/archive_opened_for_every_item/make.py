"""Every item opens its archive again, and reads the index of all that is in it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

MEMBERS = {"weak": 150, "medium": 1000, "strong": 3000}
BATCH, BYTES = 8, 784


class Archive:
    """Images in one file, with an index in another that says where each lies."""

    def __init__(self, folder: Path) -> None:
        self.offsets: dict[str, int] = json.loads(Path(folder, "index.json").read_bytes())
        self.bytes = Path(folder, "images.raw")

    def image(self, name: str) -> torch.Tensor:
        """An image."""
        with self.bytes.open("rb") as file:
            file.seek(self.offsets[name])
            return torch.frombuffer(bytearray(file.read(BYTES)), dtype=torch.uint8).float() / 255


class Archived(Dataset[tuple[torch.Tensor, int]]):
    """Images in an archive."""

    def __init__(self, folder: Path, keep_open: bool) -> None:
        self.folder = folder
        self.archive = Archive(folder)
        self.keep_open = keep_open

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        archive = self.archive if self.keep_open else Archive(self.folder)
        return archive.image(f"images/{index % 100:06d}"), index % 10


def pack(folder: Path, members: int) -> None:
    """Write an archive of small images."""
    images = torch.randint(256, (members * BYTES,), dtype=torch.uint8)
    Path(folder, "images.raw").write_bytes(bytes(images.tolist()))
    index = {f"images/{number:06d}": number * BYTES for number in range(members)}
    Path(folder, "index.json").write_text(json.dumps(index), encoding="utf-8")


def main() -> None:
    """Train."""
    run = harness.start()
    with tempfile.TemporaryDirectory() as folder:
        pack(Path(folder), MEMBERS[run.level])
        loader = DataLoader(Archived(Path(folder), keep_open=run.fixed), batch_size=BATCH)
        model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        while True:
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                if run.stepped():
                    return


def verify(trace: Path) -> None:
    """The recorded stacks show the index being read for every item."""
    made = harness.named(trace.with_name("rank0.detail.json.gz"), ": __init__")
    opened = [span for span in made if "archive_opened_for_every_item/make.py" in span["name"]]
    harness.expect(len(opened) >= BATCH, "the archive stays open")


if __name__ == "__main__":
    main()
