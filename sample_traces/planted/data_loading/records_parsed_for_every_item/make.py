"""A data set that keeps its records as text, and parses one whenever it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

NUMBERS = {"weak": 40, "medium": 200, "strong": 1500}
RECORDS, BATCH = 512, 16


class Records(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Records of a file, one a line."""

    def __init__(self, numbers: int, parsed: bool) -> None:
        record = {"label": 3, "values": [one / 7 for one in range(numbers)]}
        self.lines = [json.dumps(record)] * RECORDS
        self.items = [self.parse(line) for line in self.lines] if parsed else None

    @staticmethod
    def parse(line: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A record's numbers and label."""
        record = json.loads(line)
        return torch.tensor(record["values"]), torch.tensor(record["label"])

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.items[index] if self.items else self.parse(self.lines[index])


def main() -> None:
    """Train."""
    run = harness.start()
    numbers = NUMBERS[run.level]
    loader = DataLoader(Records(numbers, parsed=run.fixed), batch_size=BATCH, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(numbers, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for values, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(values), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every fetch makes tensors of Python numbers."""
    made = harness.named(trace, "aten::lift_fresh")
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    harness.expect(len(fetches) >= 3, "no batches made in the training process")
    harness.expect(all(len(list(harness.within(made, one))) >= BATCH for one in fetches), "items come parsed")


if __name__ == "__main__":
    main()
