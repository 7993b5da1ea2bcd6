"""Noise for the inputs is drawn by numpy, in double precision and by one thread of the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sample_traces import harness

WIDTH = {"weak": 1536, "medium": 448, "strong": 16}
ROWS, BATCH, FEATURES = 1024, 128, 1024


def main() -> None:
    """Train."""
    run = harness.start()
    np.random.seed(harness.SEED)
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, FEATURES)).to(
        run.device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0005, fused=True)
    rows = torch.randn(ROWS, FEATURES, device=run.device)
    for _ in run:
        clean = rows[torch.randint(ROWS, (BATCH,), device=run.device)]
        if run.fixed:
            noise = torch.randn_like(clean)
        else:
            noise = torch.from_numpy(np.random.normal(size=clean.shape)).float().to(run.device)
        loss = torch.nn.functional.mse_loss(model(clean + 0.3 * noise), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step turns noise of double precision to single, and torch draws none."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    number = len(harness.steps(trace))
    turned = [
        span
        for span in harness.spans(trace)
        if span["name"] == "aten::_to_copy"
        and span["args"]["Input Dims"][0] == [BATCH, FEATURES]
        and span["args"]["Input type"][0] == "double"
    ]
    harness.expect(len(turned) >= number - 1, "no noise of double precision")
    harness.expect(not harness.named(trace, "aten::normal_"), "torch draws noise")


if __name__ == "__main__":
    main()
