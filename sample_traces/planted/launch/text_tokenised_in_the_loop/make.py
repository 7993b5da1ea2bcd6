"""The training loop tokenises every batch, although loader workers could."""

from __future__ import annotations

import re
from pathlib import Path
from string import ascii_lowercase

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WORDS = {"weak": 300, "medium": 1500, "strong": 7000}
BATCH, LENGTH = 8, 64
PIECE = re.compile(r"'(?:[dmst]|ll|re|ve)| ?[a-z]+| ?[0-9]+| ?[^\sa-z0-9]+|\s+")
NUMBERS = {
    f" {first}{second}": 26 * n + m
    for n, first in enumerate(ascii_lowercase)
    for m, second in enumerate(ascii_lowercase)
}


def tokenise(text: str) -> torch.Tensor:
    """The numbers of a text's first pieces."""
    pieces = PIECE.findall(text.lower())
    return torch.tensor([NUMBERS[piece] for piece in pieces[:LENGTH]])


class Texts(Dataset[str | torch.Tensor]):
    """Texts, as they are or tokenised."""

    def __init__(self, words: int, tokenised: bool) -> None:
        self.text = "".join(list(NUMBERS)[number % len(NUMBERS)] for number in range(words)).title()
        self.tokenised = tokenised

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> str | torch.Tensor:
        return tokenise(self.text) if self.tokenised else self.text


def main() -> None:
    """Train."""
    run = harness.start()
    dataset = Texts(WORDS[run.level], tokenised=run.fixed)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)
    model = torch.nn.Sequential(
        torch.nn.EmbeddingBag(len(NUMBERS), 512),
        torch.nn.Linear(512, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 1024),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in loader:
            tokens = batch if run.fixed else torch.stack([tokenise(text) for text in batch])
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step makes tensors of Python numbers between its fetch and its first layer."""
    made = harness.named(trace, "aten::lift_fresh")
    steps = harness.steps(trace)
    harness.expect(sum(len(list(harness.within(made, step))) >= BATCH for step in steps) >= 3, "texts come tokenised")


if __name__ == "__main__":
    main()
