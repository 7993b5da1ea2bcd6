"""A training whose batches take time in one of six ways: `python -m benchmarks.loaders_training KIND --workers K`.

With `--seconds` it prints the steps of stretches of time, each with the share of the cores that other processes took.
"""

import argparse
import json
import os
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch

STRETCH_S, WARM_UP_S = 2.0, 3.0
TICKS = os.sysconf("SC_CLK_TCK")


def wait(ms: float) -> None:
    """As for storage."""
    time.sleep(ms / 1e3)


def compute(ms: float) -> None:
    """For so much CPU time of this thread, as a transform does."""
    until, image = time.thread_time() + ms / 1e3, torch.rand(3, 64, 64)
    while time.thread_time() < until:
        image.sub(0.5).div(0.25).flip(2).contiguous()


class Items(torch.utils.data.Dataset):  # type: ignore[misc]
    """Items of a kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> Any:
        wait({"remote": 4.0, "both": 2.0}.get(self.kind, 0.0))
        compute({"transforms": 3.0, "both": 1.5, "handing": 0.1}.get(self.kind, 0.0))
        if self.kind == "handing":
            return [torch.full((64,), float(index)) for _ in range(8)]
        return torch.full((64,), float(index % 7))


def collate(items: list[Any]) -> Any:
    """As slow as one that pads in Python."""
    compute(18.0)
    return torch.stack(items)


def as_they_are(items: list[Any]) -> Any:
    """Each tensor by itself."""
    return items


SIZES = {"small": 512}  # Items of a batch.
COLLATES = {"collate": collate, "handing": as_they_are}
KINDS = ("remote", "transforms", "both", "handing", "collate", "small")


def loader(kind: str, workers: int) -> Any:
    """Its batches."""
    return torch.utils.data.DataLoader(
        Items(kind), SIZES.get(kind, 8), num_workers=workers, collate_fn=COLLATES.get(kind)
    )


def cores_s() -> tuple[float, float]:
    """CPU time of the machine so far, and that of this process with its workers."""
    busy = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    own = 0
    for pid in (os.getpid(), *(child.pid for child in active_children())):
        own += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return (sum(busy) - busy[3] - busy[4]) / TICKS, own / TICKS


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 768), torch.nn.ReLU(), torch.nn.Linear(768, 768))
    inputs, optimizer = torch.rand(256, 64), torch.optim.SGD(model.parameters(), lr=1e-4)
    began = stretch = time.perf_counter()
    steps, before, found = 0, cores_s(), []
    for _batch in loader(given.kind, given.workers):
        for _ in range(2):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
        optimizer.step()
        steps, now = steps + 1, time.perf_counter()
        if given.seconds and now - stretch >= STRETCH_S:
            after = cores_s()
            others = (after[0] - before[0]) - (after[1] - before[1])
            if now - began > WARM_UP_S:
                found.append((now - stretch, steps, max(others, 0.0) / (now - stretch)))
            stretch, steps, before = time.perf_counter(), 0, cores_s()
            if now - began > given.seconds + WARM_UP_S:
                break
    print(json.dumps(found))


if __name__ == "__main__":
    main()
