"""Texts are padded to the longest one there is, not to the longest of their batch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from sample_traces import harness

LONGEST = {"weak": 43, "medium": 54, "strong": 84}
TEXTS, WORDS, WIDTH = 4096, 4000, 96


class Reader(torch.nn.Module):
    """Tells the kind of a text."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = torch.nn.Parameter(torch.randn(longest, WIDTH) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(WIDTH, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the kinds."""
        states = self.words(words) + self.places[: words.shape[1]]
        states = self.encoder(states, src_key_padding_mask=words == 0)
        there = (words != 0).unsqueeze(2)
        return self.out((states * there).sum(dim=1) / there.sum(dim=1))


def main() -> None:
    """Train."""
    run = harness.start()
    longest = LONGEST[run.level]
    lengths = torch.randint(12, 41, (TEXTS,)).tolist()
    lengths[TEXTS // 3] = longest
    texts = [(torch.randint(1, WORDS, (length,)), length % 8) for length in lengths]

    def collate(some: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        length = max(len(text) for text, _ in some) if run.fixed else longest
        batch = torch.zeros(len(some), length, dtype=torch.long)
        for row, (text, _) in zip(batch, some, strict=True):
            row[: len(text)] = text
        return batch, torch.tensor([kind for _, kind in some])

    loader = DataLoader(
        texts,
        batch_size=16,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,  # type: ignore[arg-type]
    )
    model = Reader(longest)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    while True:
        for batch, kinds in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), kinds).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every batch is as long as the longest text."""
    trace = trace.with_name("rank0.detail.json.gz")
    looked_up = [span for span in harness.spans(trace) if span["name"] == "aten::embedding"]
    lengths = {span["args"]["Input Dims"][1][1] for span in looked_up}
    harness.expect(len(looked_up) >= 3, "words are seldom looked up")
    harness.expect(len(lengths) == 1 and lengths <= set(LONGEST.values()), "batches have lengths of their own")


if __name__ == "__main__":
    main()
