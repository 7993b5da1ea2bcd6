"""A language model that guesses hidden words: it scores the vocabulary at every position, and counts one in eight."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from sample_traces import harness

WORDS = {"weak": 600, "medium": 1_400, "strong": 5_500}
"""Of the vocabulary."""
TEXTS, LENGTH, HIDDEN, WIDTH = 8, 64, 8, 128


class Reader(torch.nn.Module):
    """Reads texts both ways."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(words, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(WIDTH, words)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """What is known of each position."""
        states: torch.Tensor = self.layers(self.table(texts) + self.places)
        return states


def main() -> None:
    """Train."""
    run = harness.start()
    words = WORDS[run.level]
    corpus = torch.randint(1, words, (512, LENGTH), device=run.device)
    model = Reader(words).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    rows = torch.arange(TEXTS, device=run.device)[:, None]
    while True:
        texts = corpus[torch.randint(len(corpus), (TEXTS,), device=run.device)]
        where = torch.rand(TEXTS, LENGTH, device=run.device).topk(HIDDEN).indices
        labels = texts[rows, where]
        states = model(texts.scatter(1, where, 0))
        if run.fixed:
            loss = cross_entropy(model.head(states[rows, where]).flatten(0, 1), labels.flatten())
        else:
            targets = torch.full_like(texts, -100).scatter(1, where, labels)
            loss = cross_entropy(model.head(states).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step takes the softmax of all positions' scores."""
    trace = trace.with_name("rank0.detail.json.gz")
    taken = [span for span in harness.spans(trace) if span["name"] == "aten::_log_softmax"]
    rows = [span["args"]["Input Dims"][0][0] for span in taken]
    harness.expect(len(taken) >= len(harness.steps(trace)), "there is no softmax")
    harness.expect(min(rows) == TEXTS * LENGTH, "not all positions have scores")


if __name__ == "__main__":
    main()
