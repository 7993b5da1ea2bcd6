"""Large batches are copied on the stream that computes, so that the GPU does one or the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 1024, "medium": 4096, "strong": 16384}


def copied(batches: torch.Tensor, device: torch.device) -> Iterator[torch.Tensor]:
    """Each batch on the device, copied when it is needed."""
    for batch in cycle(batches):
        yield batch.to(device, non_blocking=True)


def copied_ahead(batches: torch.Tensor, device: torch.device) -> Iterator[torch.Tensor]:
    """Each batch on the device, copied on a stream of its own while the one before is used."""
    computing, copying = torch.cuda.current_stream(), torch.cuda.Stream()
    following: torch.Tensor | None = None
    for batch in cycle(batches):
        ready = following
        with torch.cuda.stream(copying):
            following = batch.to(device, non_blocking=True)
        if ready is not None:
            ready.record_stream(computing)
            yield ready
        computing.wait_stream(copying)


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    features, scale = FEATURES[run.level], 1 if on_gpu else 32
    rows, width = 4096 // scale, 4096 // scale
    batches = torch.rand(2, rows, features, pin_memory=on_gpu)
    with run.device:
        hidden = [layer for _ in range(5) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(features, width), *hidden).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in (copied_ahead if run.fixed and on_gpu else copied)(batches, run.device):
        optimizer.zero_grad()
        model(inputs.bfloat16()).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Batches are copied from pinned memory on a stream that computes."""
    copies = [copy for copy in harness.named(trace, "Memcpy HtoD (Pinned") if copy["args"]["bytes"] > 1_000_000]
    computing = {span["args"]["stream"] for span in harness.spans(trace) if span.get("cat") == "kernel"}
    harness.expect(len(copies) >= len(harness.steps(trace)) - 1 > 0, "no batches copied from pinned memory")
    harness.expect({copy["args"]["stream"] for copy in copies} <= computing, "copies have a stream of their own")


if __name__ == "__main__":
    main()
