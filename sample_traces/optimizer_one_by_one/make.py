"""Adam updates hundreds of small parameters one after the other."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import planted

LAYERS = {"weak": 5, "medium": 15, "strong": 40}


def main() -> None:
    """Train."""
    run = planted.start()
    layers = [layer for _ in range(LAYERS[run.level]) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 32), *layers)
    optimizer = torch.optim.Adam(model.parameters(), foreach=run.fixed)
    inputs = torch.rand(64, 512)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """The optimizer's step holds several ops for every parameter."""
    spans = planted.spans(trace)
    steps = [span for span in spans if span["name"].startswith("Optimizer.step")]
    ops = sum(span.get("cat") == "cpu_op" and _inside(span, steps[1]) for span in spans)
    planted.expect(ops > 5 * 20, "the optimizer does its work in few ops")


def _inside(span: dict[str, float], other: dict[str, float]) -> bool:
    return other["ts"] <= span["ts"] < other["ts"] + other["dur"]


if __name__ == "__main__":
    main()
