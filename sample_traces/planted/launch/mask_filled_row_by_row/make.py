"""Every step fills the mask of its attention row by row."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 96, "medium": 192, "strong": 512}
BATCH, WIDTH = 1, 64


def ahead(length: int, at_once: bool) -> torch.Tensor:
    """What a word must not see."""
    mask = torch.full((length, length), float("-inf"))
    if at_once:
        return torch.triu(mask, diagonal=1)
    mask = torch.zeros(length, length)
    for row in range(length):
        mask[row, row + 1 :] = float("-inf")
    return mask


def main() -> None:
    """Train."""
    run = harness.start()
    length = LENGTH[run.level]
    attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.01)
    words = torch.rand(BATCH, length, WIDTH)
    for _ in run:
        optimizer.zero_grad()
        seen, _ = attention(words, words, words, attn_mask=ahead(length, run.fixed), need_weights=False)
        seen.square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step fills many rows."""
    filled = [span for span in harness.spans(trace) if span["name"] == "aten::fill_"]
    harness.expect(len(filled) >= min(LENGTH.values()) * len(harness.steps(trace)), "the mask is filled at once")


if __name__ == "__main__":
    main()
