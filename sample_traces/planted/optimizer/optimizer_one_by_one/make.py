"""Adam updates one parameter after the other, and passes over each many times."""

from __future__ import annotations

import torch

from sample_traces import harness

BATCH = {"weak": 768, "medium": 128, "strong": 16}
LAYERS = 4
WIDTH = {"cpu": 512, "cuda": 4096}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.device.type]
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False, fused=run.fixed)
    inputs = torch.rand(BATCH[run.level], width, device=run.device)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
