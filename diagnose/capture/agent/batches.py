"""How a DataLoader was made, what is in its batches, and how long handing one over from a worker takes.

Looked at while the training warms up, and with torch's own ops: on nothing that is measured, and on the CPU only.
"""

import gc
import sys
import time
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, WrapperDescriptorType
from typing import Any, NamedTuple

from . import noticed


def settings(loader: Any) -> dict[str, object]:
    """A DataLoader's settings as fields of `Loader` in the manifest; what is known only later is None."""
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
        "sampler_at": noticed.begins(getattr(type(sampler), "__iter__", None)),
        "collate": _name(own.get("collate_fn")),
        "start_method": None,
        "made": noticed.where(loader),
    }


def dataset_length(iterator: Any) -> int | None:
    """Length of the dataset of an iterator that has given a batch; None unless torch's own sampler has asked as well.
    Asking before it did could do what the script does not expect, such as opening a file before workers are forked."""
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
    """How a worker was started, as "fork"; None if unknown. Does not set the method for later processes."""
    import multiprocessing

    return getattr(type(worker), "_start_method", None) or multiprocessing.get_start_method(allow_none=True)


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _name(function: object) -> str | None:
    """The name of a function, also inside of functools.partial, or of a callable object's class; None for None."""
    while type(function).__name__ == "partial" and hasattr(function, "func"):
        function = function.func
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType)):
        return str(function.__qualname__)
    return None if function is None else type(function).__name__


MOST_LOOKS = 32  # Batches of a loader that are looked at (chosen).
SHORTEST = 8  # Places of a row from which on it is taken for a sequence (chosen).
LARGEST = 1 << 22  # Elements of a tensor that are looked at, at most (chosen).
MOST_TENSORS, DEEPEST = 64, 4  # Of a batch, and levels of lists and dicts in which they are looked for (chosen).
MOST_COUNTED, MOST_OBJECTS = 4, 50_000  # Batches whose objects are counted, and objects of one (chosen).


class Filled(NamedTuple):
    """How far the rows of a batch are filled."""

    rows: int
    length: int  # Places of each row, padding included.
    longest: int  # Places of its fullest row, without padding.
    used: int  # Places of all rows, without padding.


class Parts(NamedTuple):
    """What a batch consists of, wherever in it; None if not counted."""

    tensors: int | None
    objects: int | None  # All Python objects, tensors included.
    batch_bytes: int | None  # Of tensors and arrays of numpy.


class Batches:
    """What was seen of a loader's batches."""

    def __init__(self) -> None:
        self._taken = self._looks = 0
        self._filled: list[Filled] = []
        self._parts: list[Parts] = []
        self.handing: dict[str, object] = {}  # What handing such a batch over would take, as in the manifest.

    def look(self, batch: Any, in_process: bool = False) -> None:
        """Look at a batch that the training got; `in_process`: that it made itself. Raises what torch raises."""
        if self._taken >= MOST_LOOKS:
            return
        self._taken += 1
        if self._taken <= MOST_COUNTED and (parts := _parts(batch)) is not None:
            self._parts.append(parts)
            if in_process and not self.handing:
                self.handing = handing(parts.tensors or 0, parts.objects or 0, parts.batch_bytes or 0)
        tensors = list(_tensors(batch))
        if not tensors or any(tensor.numel() > LARGEST and _is_sequence(tensor) for tensor in tensors):
            return  # Of such a batch nothing is known.
        if (filled := _filled(tensors)) is not None:
            self._filled.append(filled)
        self._looks += 1

    def found(self) -> dict[str, object]:
        """Fields of `Loader` in the manifest; the medians of `Parts`."""
        usual = sorted(self._parts)[len(self._parts) // 2] if self._parts else Parts(None, None, None)
        filled = self._filled
        sequences = filled and {
            "batches": len(filled),
            "rows": max(one.rows for one in filled),
            "shortest": min(one.length for one in filled),
            "longest": max(one.length for one in filled),
            "places": sum(one.rows * one.length for one in filled),
            "to_longest": sum(one.rows * one.longest for one in filled),
            "used": sum(one.used for one in filled),
        }
        return {"looks": self._looks, "sequences": sequences or None, **usual._asdict()}


def _parts(batch: Any) -> Parts | None:
    """Tensors, objects and bytes of a batch, counted without running code of its objects; None if too many."""
    import torch

    seen, pending, tensors, size = {id(batch)}, [batch], 0, 0
    arrays = getattr(sys.modules.get("numpy"), "ndarray", ())
    for current in pending:
        if isinstance(current, torch.Tensor):
            tensors += 1
            size += current.numel() * current.element_size() if current.layout is torch.strided else 0
            continue
        size += current.nbytes if isinstance(current, arrays) else 0
        for part in gc.get_referents(current):
            if id(part) not in seen and not isinstance(part, _CODE):
                seen.add(id(part))
                pending.append(part)
        if len(pending) > MOST_OBJECTS:
            return None
    return Parts(tensors, len(pending), size)


_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def _tensors(batch: Any) -> Iterator[Any]:
    """The batch's plain CPU tensors in order, no more than MOST_TENSORS."""
    import torch

    found, pending = 0, [(batch, 0)]
    while pending and found < MOST_TENSORS:
        current, depth = pending.pop()
        if type(current) is torch.Tensor:
            if current.device.type == "cpu" and current.layout is torch.strided and not current.is_quantized:
                found += 1
                yield current
        elif depth < DEEPEST and isinstance(current, (Mapping, list, tuple)):
            inner = list(current.values()) if isinstance(current, Mapping) else list(current)
            pending += [(part, depth + 1) for part in inner[:MOST_TENSORS][::-1]]


def _filled(tensors: list[Any]) -> Filled | None:
    """How far a batch's largest sequences are filled; None without any. What any tensor of that shape fills counts.

    Sequences are rows of integers, or rows of vectors. What is at the end (or the beginning) of most rows, over and
    over, is padding, whatever its value.
    """
    by_shape: dict[tuple[int, int], list[Any]] = {}
    for tensor in tensors:
        if tensor.numel() >= SHORTEST and _is_sequence(tensor):
            by_shape.setdefault(tuple(tensor.shape[:2]), []).append(tensor)
    if not by_shape:
        return None
    shape, same = max(by_shape.items(), key=lambda item: item[0][0] * item[0][1])
    ways = [
        Filled(rows, length, int(lengths.max()), int(lengths.sum()))
        for rows, length, axis in ((*shape, 1), (*shape[::-1], 0))
        if length >= SHORTEST and rows >= 1
        for lengths in _lengths(same, axis)
    ]
    return min(ways, key=_tenths, default=None)


def _tenths(filled: Filled) -> tuple[int, int]:
    """Filled tenths of the longest row, and of all rows: the least of four readings counts, of equal ones the first."""
    return 10 * filled.longest // filled.length, 10 * filled.used // (filled.rows * filled.length)


def _is_sequence(tensor: Any) -> bool:
    """Whether it has rows of integers, or (three-dimensional) rows of vectors of floating-point numbers."""
    if tensor.dim() == 2:
        return not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.dim() == 3 and bool(tensor.is_floating_point())


def _lengths(tensors: list[Any], axis: int) -> list[Any]:
    """Two tensors of each row's length without padding: taking padding to be at the end, and at the beginning."""
    import torch

    found = []
    upwards = torch.arange(1, tensors[0].shape[axis] + 1, dtype=torch.int32)
    for edge, places in ((-1, upwards), (0, upwards.flip(0))):
        longest = torch.zeros(tensors[0].shape[1 - axis], dtype=torch.int32)
        for tensor in tensors:
            rows = tensor.detach().to(torch.uint8) if tensor.dtype is torch.bool else tensor.detach()
            rows = rows.transpose(0, 1) if axis == 0 else rows
            rows = rows.reshape(*rows.shape[:2], -1)
            filled = (rows != rows[:, edge, 0].mode().values).any(dim=2)
            longest = torch.maximum(longest, (filled * places).amax(dim=1))
        found.append(longest)
    return found


TIMES = 3  # How often handing a batch over is measured (chosen).
MOST_SENT_TENSORS, MOST_SENT_BYTES = 256, 1 << 28  # At once; times for more are scaled up (chosen).


def handing(tensors: int, objects: int, size: int) -> dict[str, object]:
    """`handed_ns` and `sending_ns` of `Loader` in the manifest, for such a batch; empty if it fails. `size`: bytes."""
    from multiprocessing import resource_sharer

    times = max(tensors / MOST_SENT_TENSORS, size / MOST_SENT_BYTES, 1.0)
    tensors, objects, size = (round(one / times) for one in (tensors, objects, size))
    sharer = getattr(resource_sharer, "_resource_sharer", None)  # A thread of this process, which sends descriptors.
    begins = getattr(sharer, "_listener", None) is None
    try:
        each = [_once(tensors, objects, size) for _ in range(TIMES)]
    except Exception:
        return {}  # All else can be recorded without it.
    finally:
        if begins and sharer is not None:
            resource_sharer.stop(timeout=1.0)
    takes = zip(("handed_ns", "sending_ns"), zip(*each, strict=True), strict=True)
    return {name: round(times * min(one)) for name, one in takes}


def _once(tensors: int, objects: int, size: int) -> tuple[int, int]:
    """Pickle such a batch as for another process, and load it here: wall ns to load, CPU ns to send and of helpers."""
    from multiprocessing.reduction import ForkingPickler

    import torch
    import torch.multiprocessing

    parts = [torch.zeros(size // tensors, dtype=torch.uint8) for _ in range(tensors)]
    batch = [parts, bytes(0 if tensors else size), list(range(objects))]
    begun_cpu_ns = time.process_time_ns()
    sent = bytes(ForkingPickler.dumps(batch))
    sent_cpu_ns = time.process_time_ns() - begun_cpu_ns
    del batch, parts  # Else they would be found again, and not received.
    begun_ns, begun_cpu_ns, own_ns = time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()
    del ForkingPickler.loads(sent)[0]  # To give its memory back is part of it.
    taken_ns = time.perf_counter_ns() - begun_ns
    others_ns = time.process_time_ns() - begun_cpu_ns - (time.thread_time_ns() - own_ns)
    return taken_ns, sent_cpu_ns + max(others_ns, 0)
