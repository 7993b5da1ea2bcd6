"""One process drives all GPUs with DataParallel, which sends the weights to them in every step."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sample_traces import harness

TOKENS = {"weak": 32768, "medium": 8192, "strong": 2048}  # On each GPU.

LAYERS = 4


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    gpus = list(range(run.ranks)) if on_gpu else None
    width, tokens = (4096, TOKENS[run.level]) if on_gpu else (128, 32)
    if not run.fixed:
        tokens *= run.ranks
        if run.ranks > 1:
            dist.destroy_process_group()
        if run.rank > 0:
            return
        run.ranks = 1
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        inputs = torch.randn(tokens, width)
    parallel = DistributedDataParallel(model) if run.fixed else DataParallel(model, device_ids=gpus)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = parallel(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step goes through DataParallel."""
    forwards = [span for span in harness.spans(trace) if span["name"] == "DataParallel.forward"]
    harness.expect(len(forwards) >= len(harness.steps(trace)), "DataParallel is not used")


if __name__ == "__main__":
    main()
