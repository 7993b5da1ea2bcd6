"""A tagger of words, on batches of sentences of one length each."""

from __future__ import annotations

import math
import random
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 64, "medium": 96, "strong": 128}
WORDS, TAGS, IN_BATCH = 3000, 12, 640


class Tagger(torch.nn.Module):
    """Tells the tags of words from the sentence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(width, TAGS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the tags of each word."""
        return self.out(self.layers(self.words(words)))


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    lengths = [length for length in (8, 10, 16, 20, 32, 40) for _ in range(8)]
    batches = [torch.randint(WORDS, (IN_BATCH // length, length)) for length in lengths]
    model = Tagger(WIDTH[run.level])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    recent, number = torch.zeros(32), 0
    while True:
        random.shuffle(batches)
        for words in batches:
            optimizer.param_groups[0]["lr"] = 0.0005 * (1 + math.cos(math.pi * (number % 2000) / 2000))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(words).flatten(0, 1), (words % TAGS).flatten())
            loss.backward()
            optimizer.step()
            recent[number % len(recent)] = loss.detach()
            number += 1
            if number % len(recent) == 0:
                print(f"step {number}: {recent.mean().item():.3f}")
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Attention is torch's own, and batches have several lengths."""
    trace = trace.with_name("rank0.detail.json.gz")
    steps = harness.steps(trace)
    attended = harness.named(trace, "aten::scaled_dot_product_attention")
    harness.expect(len(attended) >= 2 * (len(steps) - 1) > 0, "attention is written out")
    looked_up = [span for span in harness.spans(trace) if span["name"] == "aten::embedding"]
    harness.expect(len({span["args"]["Input Dims"][1][1] for span in looked_up}) > 1, "all sentences have one length")


if __name__ == "__main__":
    main()
