"""A frozen net is tuned by adapters of low rank, whose product is added to each weight before it is used."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ADAPTED = {"weak": (1, 16), "medium": (3, 12), "strong": (6, 5)}
"""Layers with adapters, and texts in a batch."""
LAYERS, WIDTH, RANK, WORDS, LENGTH, KINDS = 6, 768, 8, 2000, 8, 5


class Layer(torch.nn.Module):
    """A frozen linear layer, with an adapter or none."""

    def __init__(self, rank: int, together: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.rank, self.together = rank, together
        if rank:
            self.down = torch.nn.Parameter(torch.randn(rank, WIDTH) / WIDTH**0.5)
            self.up = torch.nn.Parameter(torch.zeros(WIDTH, rank))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Of words (rows, width)."""
        if not self.rank:
            return torch.nn.functional.linear(words, self.weight)
        if self.together:
            return torch.nn.functional.linear(words, self.weight + 2.0 * self.up @ self.down)
        return torch.nn.functional.linear(words, self.weight) + 2.0 * (words @ self.down.T) @ self.up.T


def main() -> None:
    """Train."""
    run = harness.start()
    adapted, batch = ADAPTED[run.level]
    plain = LAYERS - adapted
    layers = torch.nn.ModuleList(Layer(RANK if at >= plain else 0, not run.fixed) for at in range(LAYERS))
    layers.to(run.device)
    head = torch.nn.Linear(WIDTH, KINDS).to(run.device)
    known = torch.randn(WORDS, WIDTH, device=run.device)
    weights = [*layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.001, fused=True)
    texts = torch.randint(WORDS, (512, LENGTH), device=run.device)
    kinds = torch.randint(KINDS, (512,), device=run.device)
    while True:
        chosen = torch.randint(len(texts), (batch,), device=run.device)
        words = known[texts[chosen].flatten()]
        for layer in layers:
            words = words + torch.nn.functional.gelu(layer(words))
        scores = head(words.view(batch, LENGTH, WIDTH).mean(dim=1))
        loss = torch.nn.functional.cross_entropy(scores, kinds[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step adds matrices as large as the frozen weights to them."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    number = len(harness.steps(trace))
    square = [WIDTH, WIDTH]
    sums = [s for s in harness.named(trace, "aten::add") if s["args"].get("Input Dims", [])[:2] == [square, square]]
    harness.expect(len(sums) >= number - 1, "no whole weights are added")


if __name__ == "__main__":
    main()
