"""Batches are made of texts that are cleaned each time anew."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from sample_traces import harness

WORDS = {"weak": 60, "medium": 400, "strong": 3_000}
TEXTS, BATCH, LENGTH, BUCKETS = 512, 16, 48, 4096
TAG, MARK, SPACE = re.compile(r"<[^>]+>"), re.compile(r"[^\w\s]"), re.compile(r"\s+")


def clean(text: str) -> list[int]:
    """The numbers of a text's first words."""
    plain = SPACE.sub(" ", MARK.sub(" ", TAG.sub(" ", text.lower()))).strip()
    return [sum(map(ord, word)) % BUCKETS for word in plain.split(" ")[:LENGTH]]


def from_texts(texts: list[str]) -> torch.Tensor:
    """A batch."""
    return torch.tensor([clean(text) for text in texts])


def main() -> None:
    """Train."""
    run = harness.start()
    review = " ".join(f"<b>Good-{number}</b>, or so; " for number in range(WORDS[run.level]))
    if run.fixed:
        loader: DataLoader[torch.Tensor] = DataLoader([torch.tensor(clean(review))] * TEXTS, batch_size=BATCH)
    else:
        loader = DataLoader([review] * TEXTS, batch_size=BATCH, collate_fn=from_texts)
    model = torch.nn.Sequential(
        torch.nn.EmbeddingBag(BUCKETS, 256), torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for words in loader:
            optimizer.zero_grad()
            model(words).square().mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every fetch makes a tensor of Python numbers."""
    made = harness.named(trace, "aten::lift_fresh")
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    harness.expect(len(fetches) >= 3, "no batches made in the training process")
    harness.expect(all(any(harness.within(made, one)) for one in fetches), "batches are stacked")


if __name__ == "__main__":
    main()
