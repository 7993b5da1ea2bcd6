"""The data is split unevenly: the last rank computes more than the first, which waits for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"cpu": 4096, "cuda": 65536}
HEAVY = {"weak": 0.55, "medium": 0.67, "strong": 0.98}


def main() -> None:
    """Train on two ranks."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.device.type], 512)
    first = round(len(inputs) * (0.5 if run.fixed else 1 - HEAVY[run.level]))
    mine = inputs.split([first, len(inputs) - first])[run.rank].to(run.device)
    for _ in run:
        optimizer.zero_grad()
        (ddp(mine).square().sum() * run.ranks / len(inputs)).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The other rank computes longer in a step."""
    first, last = (_computed_us(trace.with_name(f"rank{rank}.trace.json.gz")) for rank in range(2))
    harness.expect(last > 1.1 * first, "both ranks compute alike")


def _computed_us(trace: Path) -> float:
    """In the middle one of the steps."""
    spans = harness.spans(trace)
    kernels = [span for span in spans if span.get("cat") == "kernel" and "nccl" not in span["name"]]
    computing = kernels or [span for span in spans if span["name"] in ("aten::addmm", "aten::mm")]
    taken = [sum(span["dur"] for span in harness.within(computing, step)) for step in harness.steps(trace)]
    return float(sorted(taken)[len(taken) // 2])


if __name__ == "__main__":
    main()
