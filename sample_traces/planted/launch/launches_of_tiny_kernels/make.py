"""A model of tiny kernels is launched kernel by kernel."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 6144, "medium": 4096, "strong": 256}
WIDTH = {"weak": 1024, "medium": 1024, "strong": 512}
LAYERS = 9


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    scale = 1 if on_gpu else 16
    rows, width = ROWS[run.level] // scale, WIDTH[run.level] // scale
    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if run.fixed and on_gpu:
        model = torch.cuda.make_graphed_callables(model, (inputs,))
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Many short kernels, each with a launch of its own."""
    kernels = sorted(span["dur"] for span in harness.spans(trace) if span.get("cat") == "kernel")
    launches = [span for span in harness.named(trace, "Launch") if span["cat"] in ("cuda_runtime", "cuda_driver")]
    harness.expect(len(kernels) >= 40 * len(harness.steps(trace)) > 0, "few kernels")
    harness.expect(len(launches) >= 0.9 * len(kernels), "the kernels are launched by graphs")
    harness.expect(kernels[len(kernels) // 2] < 40, "the kernels are not short")


if __name__ == "__main__":
    main()
