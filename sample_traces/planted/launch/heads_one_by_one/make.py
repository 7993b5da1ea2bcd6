"""Two layers of attention that compute one head after the other."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

HEADS = {"weak": 4, "medium": 8, "strong": 32}
BATCH, LENGTH, WIDTH = 8, 32, 256


class Attention(torch.nn.Module):
    """Of several heads."""

    def __init__(self, heads: int, together: bool) -> None:
        super().__init__()
        self.heads, self.together = heads, together
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words to words."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(words).chunk(3, dim=-1)
        )
        if self.together:
            mixed = torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value
        else:
            found = []
            for head in range(self.heads):
                weights = torch.softmax(query[:, head] @ key[:, head].transpose(-1, -2), dim=-1)
                found.append(weights @ value[:, head])
            mixed = torch.stack(found, dim=1)
        return words + self.out(mixed.transpose(1, 2).flatten(2))


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [Attention(HEADS[run.level], run.fixed) for _ in range(2)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.rand(BATCH, LENGTH, WIDTH)
    for _ in run:
        optimizer.zero_grad()
        model(words).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step takes more than one softmax for each layer."""
    taken = [span for span in harness.spans(trace) if span["name"] == "aten::softmax"]
    harness.expect(len(taken) >= 2 * min(HEADS.values()) * len(harness.steps(trace)), "heads are computed together")


if __name__ == "__main__":
    main()
