"""The ranks do not share the rows of a batch: each computes all, and the gradients they average are the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from sample_traces import harness

HISTORY = {"weak": 2, "medium": 8, "strong": 48}
USERS, ITEMS, BATCH, WIDTH = 6400, 2000, 32, 64


class Histories(Dataset[torch.Tensor]):
    """What users looked at, one item after the other."""

    def __init__(self, length: int) -> None:
        self.items = torch.randint(ITEMS, (USERS, length + 1))

    def __len__(self) -> int:
        return len(self.items)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self.items[indices]


class Guess(torch.nn.Module):
    """Scores all items to come next after each."""

    def __init__(self) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, WIDTH)
        self.mixed = torch.nn.Conv1d(WIDTH, WIDTH, 3)
        self.out = torch.nn.Linear(WIDTH, ITEMS)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The scores."""
        states = torch.nn.functional.pad(self.items(items).transpose(1, 2), (2, 0))
        return self.out(self.mixed(states).relu().transpose(1, 2))


def as_it_is(batch: torch.Tensor) -> torch.Tensor:
    """The rows are a batch already."""
    return batch


def main() -> None:
    """Train."""
    run = harness.start()
    dataset = Histories(HISTORY[run.level])
    if run.fixed:
        sampler = DistributedSampler(dataset, seed=harness.SEED, drop_last=True)
        loader = DataLoader(dataset, BATCH // run.ranks, sampler=sampler, drop_last=True, collate_fn=as_it_is)
    else:
        loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, collate_fn=as_it_is)
    model = DistributedDataParallel(Guess(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    epoch = 0
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        epoch += 1
        for items in loader:
            optimizer.zero_grad()
            scores = model(items[:, :-1])
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), items[:, 1:].flatten()).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """This rank looks up all rows of a batch, and reduces its gradients."""
    trace = trace.with_name("rank0.detail.json.gz")
    looked_up = [span for span in harness.spans(trace) if span["name"] == "aten::embedding"]
    harness.expect(len(looked_up) >= 3, "items are seldom looked up")
    rows = {span["args"]["Input Dims"][1][0] for span in looked_up}
    harness.expect(rows == {BATCH}, "a rank has some of the rows")
    harness.expect(len(harness.named(trace, "c10d::allreduce_")) >= 3, "gradients are not reduced")


if __name__ == "__main__":
    main()
