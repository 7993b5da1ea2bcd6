"""Validation keeps what a backward pass would need, which never comes."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

VALIDATED = {"weak": 256, "medium": 1024, "strong": 4096}
TRAINED = 64


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [
        layer for _ in range(2) for layer in (torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(TRAINED, 256, device=run.device)
    held_out = torch.rand(VALIDATED[run.level], 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode(run.fixed):
            model(held_out).square().mean()
        model.train()


def verify(trace: Path) -> None:
    """All that is computed outside of the backward pass is computed as if one would come."""
    detail = trace.with_name(trace.name.replace(".trace.", ".detail."))
    layers = harness.named(detail, "aten::layer_norm")
    recorded = sum("Sequence number" in layer["args"] for layer in layers)
    harness.expect(recorded == len(layers), "some layers run without recording for a backward pass")


if __name__ == "__main__":
    main()
