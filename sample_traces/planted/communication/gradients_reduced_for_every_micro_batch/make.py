"""Gradients are accumulated over three micro-batches, and summed over the ranks after each of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 512, "medium": 128, "strong": 16}
MICRO_BATCHES = 3


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level] * MICRO_BATCHES, 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        for number, micro_batch in enumerate(inputs.chunk(MICRO_BATCHES), start=1):
            alone = run.fixed and number < MICRO_BATCHES
            with ddp.no_sync() if alone else contextlib.nullcontext():
                (ddp(micro_batch).square().mean() / MICRO_BATCHES).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step has several forward passes, and reduces gradients after each."""
    forwards = harness.named(trace, "DistributedDataParallel.forward")
    reduced = harness.named(trace, "c10d::allreduce_")
    harness.expect(len(forwards) > 2 * len(harness.steps(trace)), "no gradients are accumulated")
    harness.expect(len(reduced) > len(forwards) / 2, "gradients are reduced once in a while")


if __name__ == "__main__":
    main()
