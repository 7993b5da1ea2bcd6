"""A net of retention weighs what is past by powers of decays; those of fast decays are too small for normal numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from sample_traces import harness

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
    run = harness.start()
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
    """Products of matrices take numbers that are subnormal, as the recorder has counted."""
    values = json.loads(gzip.decompress(trace.with_name("rank0.values.json.gz").read_bytes()))
    names = [values["names"][one] for one in values["name"]]
    small = [name for name, many in zip(names, values["subnormal"], strict=True) if many]
    harness.expect("aten::bmm" in small, "no product takes small numbers")


if __name__ == "__main__":
    main()
