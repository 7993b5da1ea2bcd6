"""Recordings of very different lengths share a batch, which is as long as its longest."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from sample_traces import harness

LONGEST = {"weak": 20, "medium": 32, "strong": 96}
SHORTEST, ROWS, TOGETHER, FEATURES, WIDTH = 8, 2048, 16, 40, 96


class Listener(torch.nn.Module):
    """Tells the speaker of a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(WIDTH, 10)

    def forward(self, moments: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Scores of the speakers."""
        beyond = torch.arange(moments.shape[1]) >= lengths[:, None]
        states = self.encoder(self.inner(moments), src_key_padding_mask=beyond)
        return self.out(states.masked_fill(beyond[:, :, None], 0.0).sum(dim=1) / lengths[:, None])


def collate(some: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch that is as long as its longest recording."""
    lengths = torch.tensor([len(moments) for moments, _ in some])
    return pad_sequence([moments for moments, _ in some], True), lengths, torch.tensor([who for _, who in some])


def main() -> None:
    """Train."""
    run = harness.start()
    lengths = torch.randint(SHORTEST, LONGEST[run.level] + 1, (ROWS,))
    rows = [(torch.randn(length, FEATURES), length % 10) for length in lengths.tolist()]
    order = torch.argsort(lengths) if run.fixed else torch.randperm(ROWS)
    batches = order.view(-1, TOGETHER)
    # With this stride any few dozen batches in a row are of all lengths.
    batches = batches[torch.arange(len(batches)) * 79 % len(batches)]
    loader = DataLoader(rows, batch_sampler=batches.tolist(), collate_fn=collate)  # type: ignore[arg-type]
    model = Listener()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    while True:
        for moments, how_many, speakers in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(moments, how_many), speakers).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Batches are about as long as the longest recordings there are."""
    trace = trace.with_name("rank0.detail.json.gz")
    first = [
        span["args"]["Input Dims"][0]
        for span in harness.spans(trace)
        if span["name"] == "aten::linear" and span["args"]["Input Dims"][1] == [WIDTH, FEATURES]
    ]
    harness.expect(len(first) >= 3, "few batches are taken")
    lengths = [shape[1] for shape in first]
    harness.expect(min(lengths) > 0.7 * max(lengths), "a batch is short")


if __name__ == "__main__":
    main()
