"""What memory holds, as numbers: equal ones where the same ops have made it of the same."""

from __future__ import annotations

from typing import Any

from .calls import is_one_number, plain


class Unknown(Exception):
    """What an op takes cannot be compared."""


class _Memory:
    def __init__(self, alive: Any, content: int, made_by: int, version: int) -> None:
        self.alive = alive  # A weak reference, so that no other memory gets this one's identity.
        self.content, self.made_by, self.filled_by, self.version = content, made_by, made_by, version
        """`made_by` is the op that allocated it, `filled_by` the one that wrote to it last; -1 if that was no op."""
        self.writes = 0  # Of ours since the version was looked at, which it may or may not count yet.


class Contents:
    """Of all memory that ops were seen to use."""

    def __init__(self, torch: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._numbers: dict[object, int] = {}
        self._memory: dict[int, _Memory] = {}

    def number(self, key: object) -> int:
        """The number of what has this key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def fresh(self) -> int:
        """The number of something that is like nothing else."""
        return self.number(object())

    def key(self, value: Any) -> object:
        """Equal for equal arguments of ops. Raises Unknown."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if not plain(value, torch):
                raise Unknown
            geometry = (value.storage_offset(), tuple(value.shape), tuple(value.stride()))
            return self._of(value).content, geometry, str(value.dtype), value.is_conj(), value.is_neg()
        if isinstance(value, list | tuple):
            return tuple(self.key(one) for one in value)
        if value is None or type(value) in (bool, int, float, complex, str):
            return type(value).__name__, value
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
        raise Unknown

    def is_new(self, tensor: Any) -> bool:
        """Whether it lies in memory of which nothing is known yet."""
        return plain(tensor, self._torch) and _identity(tensor) not in self._memory

    def made(self, tensor: Any, content: int, op: int) -> None:
        """An op has made it."""
        self._keep(tensor, content, op)

    def written(self, tensor: Any, content: int, op: int) -> int:
        """An op has written to it; to the op that had made it, or -1."""
        if not plain(tensor, self._torch):
            return -1
        memory = self._of(tensor)
        memory.content, memory.filled_by, memory.writes = content, op, memory.writes + 1
        return memory.made_by

    def turned(self, tensor: Any) -> None:
        """An op has changed how it looks at its memory, which counts as if it had written to it."""
        if plain(tensor, self._torch):
            self._of(tensor).writes += 1

    def filled_by(self, tensor: Any) -> int:
        """The op that wrote to it last, or -1."""
        memory = self._memory.get(_identity(tensor)) if plain(tensor, self._torch) else None
        return -1 if memory is None else memory.filled_by

    def forget(self) -> None:
        """Let go of all memory."""
        self._memory.clear()

    def _of(self, tensor: Any) -> _Memory:
        memory, version = self._memory.get(_identity(tensor)), _version(tensor)
        if memory is None:
            memory = self._keep(tensor, self._brought(tensor), -1)
        elif not memory.version <= version <= memory.version + memory.writes:
            memory.content, memory.filled_by = self.fresh(), -1
        if memory.version != version:
            memory.version, memory.writes = version, 0
        return memory

    def _keep(self, tensor: Any, content: int, op: int) -> _Memory:
        memory = _Memory(self._weak(tensor.untyped_storage()), content, op, _version(tensor))
        self._memory[_identity(tensor)] = memory
        return memory

    def _brought(self, tensor: Any) -> int:
        """The number of what comes from elsewhere: a single number is known by what it is."""
        if is_one_number(tensor):
            return self.number(("holds", str(tensor.dtype), repr(tensor.tolist())))
        return self.fresh()


def _identity(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _version(tensor: Any) -> int:
    """How often it has been written to, as torch counts it: not by who writes to its memory past torch."""
    return -1 if tensor.is_inference() else int(tensor._version)
