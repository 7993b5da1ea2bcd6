"""A tagger of parts of speech: every word gets one, the few places that are padding count nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from sample_traces import harness

TAGS = {"weak": 20, "medium": 400, "strong": 4_000}
SENTENCES, WORDS, WIDTH, PLACES, IGNORED = 1024, 3000, 96, 32, -100


class Tagger(torch.nn.Module):
    """Scores the tags of each word."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.near = torch.nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2)
        self.out = torch.nn.Linear(2 * WIDTH, tags)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of all places."""
        seen = self.near(self.words(words).transpose(1, 2)).relu()
        return self.out(seen.transpose(1, 2))


def main() -> None:
    """Train."""
    run = harness.start()
    sentences = []
    for length in torch.randint(27, PLACES, (SENTENCES,)).tolist():
        sentences.append((torch.randint(1, WORDS, (length,)), torch.randint(TAGS[run.level], (length,))))

    def collate(some: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.zeros(len(some), PLACES, dtype=torch.long)
        tags = torch.full((len(some), PLACES), IGNORED)
        for row, (own, right) in enumerate(some):
            words[row, : len(own)] = own
            tags[row, : len(own)] = right
        return words, tags

    loader = DataLoader(sentences, 16, shuffle=True, drop_last=True, collate_fn=collate)  # type: ignore[arg-type]
    model = Tagger(TAGS[run.level])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    while True:
        for words, tags in loader:
            optimizer.zero_grad()
            scores = model(words)
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=IGNORED).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step looks up 32 places of 16 sentences, and scores all of them."""
    trace = trace.with_name("rank0.detail.json.gz")
    looked_up = [span for span in harness.spans(trace) if span["name"] == "aten::embedding"]
    harness.expect(len(looked_up) >= 3, "words are seldom looked up")
    harness.expect(all(span["args"]["Input Dims"][1] == [16, PLACES] for span in looked_up), "batches differ in length")


if __name__ == "__main__":
    main()
