"""A net tells samples apart by a bank of their last features, all of which are scaled to length 1 in every step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, normalize

from sample_traces import harness

SAMPLES = {"weak": 1_900, "medium": 4_200, "strong": 24_000}
BATCH, INPUTS, WIDTH, OUT = 16, 64, 512, 256


def main() -> None:
    """Train."""
    run = harness.start()
    count = SAMPLES[run.level]
    samples = torch.randn(count, INPUTS)
    bank = normalize(torch.randn(count, OUT))
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, OUT),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, fused=True)
    for _ in run:
        chosen = torch.randint(count, (BATCH,))
        views = samples[chosen] + 0.1 * torch.randn(BATCH, INPUTS)
        optimizer.zero_grad()
        found = normalize(model(views))
        known = bank if run.fixed else normalize(bank)
        cross_entropy(found @ known.T / 0.1, chosen).backward()
        optimizer.step()
        bank[chosen] = normalize(bank[chosen] + found.detach())


def verify(trace: Path) -> None:
    """Every step takes the norms of many rows, and divides them."""
    trace = trace.with_name("rank0.detail.json.gz")
    norms = [span["args"]["Input Dims"][0] for span in harness.named(trace, "aten::linalg_vector_norm")]
    steps = harness.steps(trace)
    harness.expect(len(steps) >= 3, "there are few steps")
    harness.expect(sum(dims[0] > 10 * BATCH for dims in norms) >= len(steps) - 1, "norms are of batches only")


if __name__ == "__main__":
    main()
