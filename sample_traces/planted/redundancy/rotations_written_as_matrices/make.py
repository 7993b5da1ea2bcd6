"""Positions turn queries and keys; every position has a full matrix for that, most of whose numbers are zero."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

HEADS = {"weak": 4, "medium": 2, "strong": 1}
WIDTH, LENGTH, BATCH, WORDS, DEPTH = 256, 128, 1, 256, 2


class Block(torch.nn.Module):
    """Causal attention with turned queries and keys, and two layers after it."""

    def __init__(self, heads: int, fixed: bool) -> None:
        super().__init__()
        self.heads, self.fixed = heads, fixed
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.mix, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )
        half = WIDTH // heads // 2
        angles = torch.arange(LENGTH)[:, None] * 10_000 ** (-torch.arange(half) / half)
        cos, sin = angles.cos(), angles.sin()
        self.register_buffer("cos", cos[:, None])
        self.register_buffer("sin", sin[:, None])
        upper = torch.cat([torch.diag_embed(cos), torch.diag_embed(sin)], dim=2)
        lower = torch.cat([torch.diag_embed(-sin), torch.diag_embed(cos)], dim=2)
        self.register_buffer("turns", torch.cat([upper, lower], dim=1))

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        """Turn rows by their positions."""
        if self.fixed:
            first, second = rows.chunk(2, dim=-1)
            return torch.cat([first * self.cos - second * self.sin, first * self.sin + second * self.cos], dim=-1)
        return torch.einsum("blhd,lde->blhe", rows, self.turns)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Attend and transform."""
        mixed = self.mix(self.before(rows)).view(BATCH, LENGTH, 3, self.heads, -1)
        query, key, value = mixed.unbind(dim=2)
        query, key, value = (part.transpose(1, 2) for part in (self.turned(query), self.turned(key), value))
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = rows + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return rows + self.feed(self.between(rows))


def main() -> None:
    """Train."""
    run = harness.start()
    blocks = [Block(HEADS[run.level], run.fixed) for _ in range(DEPTH)]
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), *blocks, torch.nn.Linear(WIDTH, WORDS))
    model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    texts = torch.randint(WORDS, (256, LENGTH + 1), device=run.device)
    for _ in run:
        text = texts[torch.randint(len(texts), (BATCH,), device=run.device)]
        scores = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Queries and keys of each block are multiplied by matrices of positions, and so are their gradients."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    products = [span for span in harness.spans(trace) if span["name"] == "aten::bmm"]
    number = len(harness.steps(trace)) - 1
    harness.expect(len(products) >= 4 * DEPTH * number, "nothing is turned by a matrix")
    sizes = [span["args"].get("Input Dims", []) for span in products]
    harness.expect(any(size and size[0][0] == LENGTH for size in sizes), "no matrix for each position")


if __name__ == "__main__":
    main()
