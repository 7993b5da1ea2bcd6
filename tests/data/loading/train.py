"""Iterates over DataLoaders of all kinds; prints what they made, to the bit, and what was seen of them if watched."""

import hashlib
import json
import random
import sys

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info


class Images(Dataset):
    """Items that depend on every source of random numbers."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(3)


class Fetched(Images):
    """Gives all items of a batch at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Nested(Images):
    """Asks another loader for what it gives, and tells whether that was noticed in the worker."""

    def __getitem__(self, index):
        asked = getattr(sys.modules.get("sitecustomize"), "asked", [])
        before = len(asked)
        inside = [batch.item() for batch in DataLoader(range(index))]
        return sum(inside), len(asked) - before


class Lines(IterableDataset):
    """Shares its items among the workers."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return ((index, torch.rand(2)) for index in range(first, 10, step))


def collate(items):
    return [*zip(*items, strict=True), random.random()]


def begin_worker(number):
    random.seed(number + torch.initial_seed() % 1000)


def plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    return value


def made_by(loader, epochs, in_order):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    batches = [repr(plain(batch)) for _ in range(epochs) for batch in loader]
    if not in_order:
        batches = sorted(batch.split("'torch.int64', ")[1].split("]")[0] for batch in batches)
    state = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    return hashlib.sha256(repr([batches, state]).encode()).hexdigest()


def kinds():
    """Name, loader, epochs, batches in all of them, items in most of those."""
    for workers in (0, 2):
        often = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        yield f"plain {workers}", DataLoader(Images(), 4, shuffle=True, **often), 2, 6, 4
        yield f"dropping {workers}", DataLoader(Images(), 4, drop_last=True, **often), 1, 2, 4
        yield f"iterable {workers}", DataLoader(Lines(), 2, **often), 2, 12 if workers else 10, 2
        yield f"own collate {workers}", DataLoader(Images(), 5, collate_fn=collate, **often), 1, 2, 5
        yield f"getitems {workers}", DataLoader(Fetched(), 3, shuffle=True, **often), 1, 4, 3
        yield f"unbatched {workers}", DataLoader(Images(), None, **often), 1, 10, 1
        yield f"unbatched iterable {workers}", DataLoader(Lines(), None, **often), 1, 10, 1
        yield f"pinned {workers}", DataLoader(Images(), 5, pin_memory=True, **often), 1, 2, 5
        batches = BatchSampler(SequentialSampler(range(6)), 3, False)
        seed = torch.Generator().manual_seed(7)
        yield f"own batches {workers}", DataLoader(Images(), batch_sampler=batches, generator=seed, **often), 1, 2, 3
    kept = {"num_workers": 2, "multiprocessing_context": "fork", "worker_init_fn": begin_worker}
    yield "persistent", DataLoader(Images(), 4, shuffle=True, persistent_workers=True, **kept), 3, 9, 4
    yield "persistent iterable", DataLoader(Lines(), 1, persistent_workers=True, **kept), 2, 20, 1
    yield "unordered", DataLoader(Images(), 2, in_order=False, **kept), 1, 5, 2
    for method in ("fork", "spawn", "forkserver"):
        one = {"num_workers": 1, "multiprocessing_context": method}
        yield method, DataLoader(Images(), 2, shuffle=True, **one), 1, 5, 2
    yield "nested", DataLoader(Nested(), 4, num_workers=1, multiprocessing_context="fork"), 1, 3, 4


def main():
    names, loaders, made, counts = [], [], {}, {}
    for name, loader, epochs, batches, items in kinds():
        names.append(name)
        loaders.append(loader)
        made[name] = made_by(loader, epochs, in_order=name != "unordered")
        counts[name] = epochs, batches, items
    ours = sys.modules.get("sitecustomize")
    watched = None
    if hasattr(ours, "watch"):
        found = dict(zip(names, ours.watch.loaders(), strict=True))
        watched = {"loaders": found, "asked": len(ours.asked), "failures": ours.alone.failures}
    print(json.dumps({"made": made, "counts": counts, "watched": watched}))


if __name__ == "__main__":
    main()
