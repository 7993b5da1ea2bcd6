"""A small training that times itself: a cold first epoch, a metric over all losses, evaluations and checkpoints."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
began = time.perf_counter()
watch: dict[str, float] = {}


def timed(name: str, since: float) -> None:
    """Add the time since then."""
    watch[name] = watch.get(name, 0.0) + time.perf_counter() - since


class Rows(Dataset):  # type: ignore[misc]
    """Slow when a row is read for the first time, as from a cold file cache."""

    def __init__(self, count: int, cold_s: float) -> None:
        self.rows, self.cold_s, self.seen = torch.randn(count, 256), cold_s, set[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        if at not in self.seen:
            self.seen.add(at)
            time.sleep(self.cold_s)
        return self.rows[at], at % 10


model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
training, validation = DataLoader(Rows(64 * 200, 0.0005), 64, shuffle=True), DataLoader(Rows(64 * 100, 0.0), 64)
loss_of, kept = torch.nn.CrossEntropyLoss(), []
for _ in range(int(sys.argv[1])):
    since = time.perf_counter()
    batches = iter(training)
    while (batch := next(batches, None)) is not None:
        timed("waiting for data", since)
        since = time.perf_counter()
        loss = loss_of(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
        running = torch.stack(kept).mean().item()
        timed("training steps", since)
        since = time.perf_counter()
    timed("waiting for data", since)
    since = time.perf_counter()
    model.eval()
    with torch.no_grad():
        correct = sum((model(rows).argmax(1) == labels).sum().item() for rows, labels in validation)
    model.train()
    timed("evaluation", since)
    watch["correct"] = correct
    since = time.perf_counter()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    timed("checkpoints", since)
print({name: round(seconds, 2) for name, seconds in watch.items()}, round(time.perf_counter() - began, 2))
