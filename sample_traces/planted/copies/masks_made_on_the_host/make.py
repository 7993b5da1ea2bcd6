"""A mask for every sequence of the batch is made on the host, and moved to the GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

SEQUENCES = {"weak": 2, "medium": 8, "strong": 32}


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 16
    sequences, tokens, width = SEQUENCES[run.level], 4096, 4096 // scale
    longest = tokens // sequences
    lengths = torch.randint(longest // 2, longest, (sequences,)).tolist()
    where = run.device if run.fixed else torch.device("cpu")
    with run.device:
        inputs = torch.rand(tokens, width, dtype=torch.bfloat16)
        model = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width)
        ).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        masks = [(torch.arange(longest, device=where) < length).to(run.device) for length in lengths]
        errors = model(inputs).square().mean(1)
        (errors * torch.cat(masks)).mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Small copies to the GPU in every step."""
    small = sum(copy["args"]["bytes"] < 65536 for copy in harness.named(trace, "Memcpy HtoD"))
    harness.expect(small >= 2 * (len(harness.steps(trace)) - 1) > 0, "no small copies to the GPU")


if __name__ == "__main__":
    main()
