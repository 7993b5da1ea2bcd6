"""A net of retention weighs what is past by powers of decays; those of fast decays are too small for normal numbers."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import planted

DECAYS = {"weak": (0.99, 0.97, 0.95, 0.836), "medium": (0.99, 0.97, 0.94, 0.8), "strong": (0.99, 0.96, 0.8, 0.7)}
BATCH, LENGTH, HEADS, WIDTH, WORDS = 1, 512, 4, 192, 64


class Retention(torch.nn.Module):
    """Products of queries and keys, weighed by how long ago the key was."""

    def __init__(self, decays: tuple[float, ...]) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        ago = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        powers = torch.tensor(decays)[:, None, None] ** ago.clamp(min=0)
        self.register_buffer("powers", powers.tril())

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Of words (batch, length, width)."""
        queries, keys, values = self.mix(words).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        kept = (queries @ keys.mT) * (self.powers * (WIDTH // HEADS) ** -0.5)
        return self.out((kept @ values).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


def main() -> None:
    """Train."""
    run = planted.start()
    torch.set_flush_denormal(run.fixed)
    known = torch.nn.Embedding(WORDS, WIDTH).to(run.device)
    retention = Retention(DECAYS[run.level]).to(run.device)
    norm = torch.nn.LayerNorm(WIDTH).to(run.device)
    head = torch.nn.Linear(WIDTH, WORDS).to(run.device)
    weights = [weight for part in (known, retention, norm, head) for weight in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.001, fused=True)
    texts = torch.randint(WORDS, (64, LENGTH + 1), device=run.device)
    while True:
        text = texts[torch.randint(len(texts), (BATCH,), device=run.device)]
        words = known(text[:, :-1])
        words = words + retention(norm(words))
        loss = torch.nn.functional.cross_entropy(head(words).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Products with weighed slopes take longer than the product that makes the scores, of as many operations."""
    took: dict[str, list[float]] = {"scores": [], "weighed": []}
    for span in planted.named(trace, "aten::bmm"):
        first, second = span["args"].get("Input Dims", [[], []])[:2]
        if second == [BATCH * HEADS, LENGTH, LENGTH]:
            took["weighed"].append(span["dur"])
        elif first == [BATCH * HEADS, LENGTH, WIDTH // HEADS]:
            took["scores"].append(span["dur"])
    planted.expect(min(map(len, took.values())) >= len(planted.steps(trace)) - 1, "few products")
    planted.expect(min(took["weighed"]) > 1.3 * min(took["scores"]), "products of small numbers are as fast as others")


if __name__ == "__main__":
    main()
