"""A model of tiny kernels is launched kernel by kernel."""

from __future__ import annotations

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
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
