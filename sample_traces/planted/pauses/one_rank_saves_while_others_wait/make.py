"""Rank 0 writes a checkpoint every fourth step, and the others wait for it at a barrier."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

WIDTH = {"weak": 256, "medium": 2048, "strong": 8192}
EVERY, SELDOM = 4, 1000


def main() -> None:
    """Train a small head on a large encoder that is frozen."""
    run = harness.start()
    width = WIDTH[run.level]
    encoder = torch.nn.Sequential(torch.nn.Embedding(width, 512), torch.nn.Linear(512, 256)).requires_grad_(False)
    model = torch.nn.Sequential(encoder, torch.nn.ReLU(), torch.nn.Linear(256, 256))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.randint(width, (256,), device=run.device)
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while True:
            number += 1
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
            if number % (SELDOM if run.fixed else EVERY) == 0:
                if run.rank == 0:
                    torch.save(model.state_dict(), Path(folder, "model.pt"))
                dist.barrier()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """This rank saves, the other does not, and both meet at a barrier."""
    other = trace.with_name("rank1.trace.json.gz")
    harness.expect(bool(harness.named(trace, "torch.save")), "nothing is saved")
    harness.expect(not harness.named(other, "torch.save"), "the other rank saves as well")
    harness.expect(bool(harness.named(other, "c10d::barrier")), "the other rank does not wait")


if __name__ == "__main__":
    main()
