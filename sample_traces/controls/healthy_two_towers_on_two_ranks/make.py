"""Users and items learn to be alike, and unlike those of the other rank, whose features are gathered."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

WIDTH = {"weak": 96, "medium": 128, "strong": 160}
BATCH, LENGTH, FEATURES, OUT = 64, 48, 48, 64


class Towers(torch.nn.Module):
    """What a user looked at, and what an item is like, as vectors of length 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(FEATURES, width), torch.nn.Linear(width, width)
        self.user = torch.nn.Linear(width, OUT)
        self.item = torch.nn.Sequential(torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, OUT))

    def forward(self, looked: torch.Tensor, items: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Users and items."""
        users = self.user(self.second(self.first(looked).relu()).amax(dim=1))
        return normalize(users), normalize(self.item(items))


def main() -> None:
    """Train."""
    run = harness.start()
    model = DistributedDataParallel(Towers(WIDTH[run.level]), gradient_as_bucket_view=True, static_graph=True)
    torch.manual_seed(harness.SEED + run.rank)
    looked, items = torch.randn(16, BATCH, LENGTH, FEATURES), torch.randn(16, BATCH, FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    others = torch.empty(run.ranks * BATCH, OUT)
    mine = slice(run.rank * BATCH, (run.rank + 1) * BATCH)
    right = torch.arange(BATCH) + run.rank * BATCH
    lately, number = torch.zeros(()), 0
    while True:
        number += 1
        optimizer.zero_grad()
        users, offered = model(looked[number % 16], items[number % 16])
        dist.all_gather_into_tensor(others, offered.detach())
        known = others.slice_scatter(offered, start=mine.start, end=mine.stop)
        loss = cross_entropy(users @ known.T / 0.1, right)
        loss.backward()
        optimizer.step()
        lately += loss.detach()
        if number % 50 == 0:
            dist.all_reduce(lately)
            print(f"step {number}: {lately.item() / 50 / run.ranks:.3f}")
            lately.zero_()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step gathers once, and the gradients go in few buckets."""
    steps = harness.steps(trace)
    gathered = harness.named(trace, "c10d::_allgather_base_")
    reduced = harness.named(trace, "c10d::allreduce_")
    harness.expect(len(steps) >= 3, "there are few steps")
    harness.expect(len(steps) - 1 <= len(gathered) <= len(steps) + 1, "steps gather more or less than once")
    harness.expect(len(reduced) <= 2 * len(steps) + 2, "gradients go in many buckets")


if __name__ == "__main__":
    main()
