"""The host waits for the GPU after every layer, forward and backward, as for timing them."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 32768, "medium": 8192, "strong": 2048}
LAYERS = 6


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    scale = 1 if on_gpu else 32
    rows, width = ROWS[run.level] // scale, 2048 // scale

    def wait(_: torch.Tensor) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(LAYERS)).bfloat16()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        hidden = inputs
        for layer in layers:
            hidden = torch.nn.functional.gelu(layer(hidden))
            if not run.fixed:
                wait(hidden)
                hidden.register_hook(wait)
        hidden.square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The host waits for the device many times in every step."""
    waits = [span for span in harness.named(trace, "cudaDeviceSynchronize") if span["cat"] == "cuda_runtime"]
    harness.expect(len(waits) >= LAYERS * len(harness.steps(trace)) > 0, "the device is not waited for in every layer")


if __name__ == "__main__":
    main()
