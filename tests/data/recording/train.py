"""The run that made the recording beside it: `python train.py` with torch, in this folder.

A timing recording without shapes and stacks and a detail recording with both, of one small training, with the times
of steps without any profiler in manifest.json.
"""

import gzip
import json
import time
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.full((16,), float(index)), torch.tensor(index % 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(16, 32)
        self.out = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def train_step(model, optimizer, batches):
    x, y = next(batches)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return report(loss)


def report(loss):
    return loss.item()


def steps(first, count, *what):
    times = []
    for number in range(first, first + count):
        began = time.perf_counter_ns()
        with record_function(f"ProfilerStep#{number}"):
            train_step(*what)
        times.append(time.perf_counter_ns() - began)
    return {"first_step": first, "wall_ns": times}


def recorded(name, first, count, what, **options):
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        timed = steps(first, count, *what)
    profiler.export_chrome_trace("recorded.json")
    plain = Path("recorded.json")
    Path(name).write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    return timed


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    what = model, optimizer, iter(DataLoader(Numbers(), batch_size=4))
    steps(0, 20, *what)
    rank = {"rank": 0, "trace": "rank0.trace.json.gz", "detail": "rank0.detail.json.gz", "steps_by": "optimizer"}
    rank["unprofiled"] = steps(20, 20, *what)
    rank["timing"] = recorded("rank0.trace.json.gz", 40, 4, what)
    rank["attribution"] = recorded("rank0.detail.json.gz", 50, 3, what, record_shapes=True, with_stack=True)
    rank["loaders"] = [{"dataset": "Numbers", "batch_size": 4}]
    Path("manifest.json").write_text(json.dumps({"schema_version": 1, "complete": True, "ranks": [rank]}) + "\n")
    print(median(rank["unprofiled"]["wall_ns"]), median(rank["timing"]["wall_ns"]))


if __name__ == "__main__":
    main()
