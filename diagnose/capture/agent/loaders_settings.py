"""How a DataLoader was made. Nothing here runs code of the script, but for the length of a dataset."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any

from . import made


def settings(loader: Any) -> dict[str, object]:
    """By the names of `Loader` in the manifest; what is known only later is None."""
    own = loader.__dict__
    batches, sampler = own.get("batch_sampler"), own.get("sampler")
    made_by = getattr(batches, "__dict__", {})
    if batches is not None:
        sampler = made_by.get("sampler", sampler) if type(batches).__name__ == "BatchSampler" else batches
    return {
        "dataset": type(own.get("dataset")).__name__,
        "dataset_length": None,
        "batch_size": _whole(own.get("batch_size")) or _whole(made_by.get("batch_size")),
        "num_workers": _whole(own.get("num_workers")) or 0,
        "pin_memory": bool(own.get("pin_memory")),
        "prefetch_factor": _whole(own.get("prefetch_factor")),
        "persistent_workers": bool(own.get("persistent_workers")),
        "drop_last": bool(own.get("drop_last") or made_by.get("drop_last") is True),
        "in_order": None if own.get("in_order") is None else bool(own["in_order"]),
        "sampler": None if type(sampler).__name__ == "_InfiniteConstantSampler" else type(sampler).__name__,
        "sampler_at": made.begins(getattr(type(sampler), "__iter__", None)),
        "collate": _name(own.get("collate_fn")),
        "start_method": None,
        "made": made.where(loader),
    }


def dataset_length(iterator: Any) -> int | None:
    """Length of the dataset of a loader's iterator that has given a batch, where torch's own sampler has asked as well.

    Asking first could do what the script does not expect, such as opening a file before workers are forked.
    """
    module = sys.modules["torch.utils.data"]
    kinds = (module.SequentialSampler, module.RandomSampler, module.DistributedSampler)
    dataset, sampler = iterator._dataset, iterator._index_sampler
    if type(sampler) is module.BatchSampler:
        sampler = sampler.sampler
    if not isinstance(sampler, kinds):
        return None
    own = sampler.__dict__
    plain = isinstance(getattr(type(dataset), "__len__", None), (FunctionType, WrapperDescriptorType))
    if not plain or own.get("data_source", own.get("dataset")) is not dataset:
        return None
    try:
        return _whole(len(dataset))
    except Exception:
        return None


def start_method(worker: Any) -> str | None:
    """How a worker was started, without fixing the way of later ones."""
    import multiprocessing

    return getattr(type(worker), "_start_method", None) or multiprocessing.get_start_method(allow_none=True)


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _name(function: object) -> str | None:
    while type(function).__name__ == "partial" and hasattr(function, "func"):
        function = function.func
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType)):
        return str(function.__qualname__)
    return None if function is None else type(function).__name__
