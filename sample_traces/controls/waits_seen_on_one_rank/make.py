"""Two ranks have the same work; what one of them waits for the other is hidden behind the backward pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 1024, "medium": 1536, "strong": 2048}


def main() -> None:
    """Train; gradients of the last layers are reduced while those of the first are computed."""
    run = harness.start()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    ddp = DistributedDataParallel(model.to(run.device), bucket_cap_mb=0.1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level], 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Collectives go on while this rank computes."""
    spans = harness.spans(trace)
    waits = [span for span in spans if span["name"].startswith(("gloo:", "nccl"))]
    kernels = [span for span in spans if span.get("cat") == "kernel" and "nccl" not in span["name"]]
    computing = kernels or harness.named(trace, "Backward0")
    beside = [wait for wait in waits if any(harness.within(computing, wait))]
    harness.expect(len(waits) > len(harness.steps(trace)), "there is one collective a step at most")
    harness.expect(len(beside) >= len(harness.steps(trace)) / 2, "no collective goes on beside the backward pass")


if __name__ == "__main__":
    main()
