"""Compiled code meets a new length in every step, for which it is not compiled."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 1024, "medium": 256, "strong": 16}
SHORTEST, LONGEST, BUCKET = 1025, 2048, 256
FEATURES = {"cpu": 256, "cuda": 8192}


def gated(inputs: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """GELU, as it is approximated, times a gate."""
    inner = 0.79788456 * (inputs + 0.044715 * inputs * inputs * inputs)
    return 0.5 * inputs * (1.0 + torch.tanh(inner)) * gate


def main() -> None:
    """Train."""
    run = harness.start()
    compiled = torch.compile(gated, dynamic=False)
    width, features = WIDTH[run.level], FEATURES[run.device.type]
    model = torch.nn.Linear(width, features).to(run.device)
    gate = torch.nn.Parameter(torch.rand(features, device=run.device))
    optimizer = torch.optim.SGD([*model.parameters(), gate], lr=0.01)
    samples = torch.rand(LONGEST, width, device=run.device)
    lengths = (torch.randperm(LONGEST - SHORTEST + 1) + SHORTEST).tolist()
    while True:
        for length in lengths:
            padded = -(-length // BUCKET) * BUCKET if run.fixed else length
            optimizer.zero_grad()
            compiled(model(samples[:padded]), gate)[:length].square().mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """What is compiled hardly ever runs; its ops run one by one."""
    compiled = len(harness.named(trace, "Torch-Compiled Region"))
    steps = len(harness.steps(trace))
    harness.expect(compiled < steps // 2, "compiled code runs in every step")
    harness.expect(len(harness.named(trace, "aten::tanh")) >= steps, "nothing runs that could be compiled")


if __name__ == "__main__":
    main()
