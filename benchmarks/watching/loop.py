"""A training loop that says what a step takes: `python loop.py KIND STEPS`.

KIND is `tiny`, as fast a step as torch makes, or `20ms`, whose batch takes the rest of 20 ms to come. It prints the
mean wall time and CPU time of a step, in us, and the last loss, bit by bit.
"""

import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

WARMUP = 200
WAIT_S = {"tiny": 0.0, "20ms": 0.0195}


class Batches(IterableDataset):  # type: ignore[misc]
    """As many as are asked for."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        batch = torch.ones(4, 8)
        while True:
            if self.wait_s:
                time.sleep(self.wait_s)
            yield batch


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """Train on a batch; its loss."""
    loss: torch.Tensor = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main(kind: str, steps: int) -> None:
    """Train, and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    warmup = WARMUP if kind == "tiny" else WARMUP // 10
    wall_s = cpu_s = 0.0
    loss = torch.zeros(())
    batches = iter(DataLoader(Batches(WAIT_S[kind]), batch_size=None))
    for at in range(warmup + steps):
        if at == warmup:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
        loss = step(model, optimizer, next(batches))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(f"{1e6 * wall_s / steps:.3f} {1e6 * cpu_s / steps:.3f} {loss.item().hex()}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
