"""Trainings to try fixes on."""

from __future__ import annotations

MANY = """
import gc, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def main():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    model(torch.zeros(1, 3, 12, 12))
    data = TensorDataset(torch.randn(256, 3, 12, 12), torch.randint(0, 10, (256,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append(phase) if info["generation"] == 2 else None)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for epoch in range(1000):
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad(set_to_none=False)
            empty = all(one.grad is None for one in model.parameters())
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            gc.collect()
            torch.cuda.empty_cache()
            if number == 3:
                channels_last = model[0].weight.is_contiguous(memory_format=torch.channels_last)
                group = optimizer.param_groups[0]
                print(loader.num_workers, group["fused"], group["foreach"], empty, channels_last, len(collected) > 6)


if __name__ == "__main__":
    main()
"""
"""It does what many fixes change, and prints whether they are made."""

MORE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(2)
torch.autograd.set_detect_anomaly(True)


def main():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=8, num_workers=1)
    for epoch in range(1000):
        for number, (rows,) in enumerate(loader):
            optimizer.zero_grad()
            given = model(rows)
            given.float().square().mean().backward()
            optimizer.step()
            if number == 3:
                torch.save(model.state_dict(), "model.pt")
                settings = loader.prefetch_factor, loader.persistent_workers
                compiled = model._compiled_call_impl is not None
                print(*settings, torch.get_num_threads(), torch.is_anomaly_enabled(), given.dtype, compiled, flush=True)


if __name__ == "__main__":
    main()
"""
"""As MANY, of what other fixes change."""

STEADY = """
import sys, time
import torch

torch.manual_seed({seed})
torch.set_num_threads(1)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for number in range({steps}):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 10, (64,)))
    loss.backward()
    optimizer.step()
    time.sleep(0.002)
"""
"""Short steps, as many as are asked for."""


def steady(before: str = "", steps: int = 100_000, seed: str = "0") -> str:
    """The text of STEADY. `before`: lines before the first step."""
    return STEADY.format(before=before, steps=steps, seed=seed)
