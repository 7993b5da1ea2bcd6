"""A sequence in few bytes, for crossing processes and machines, and for keeping those of thousands of ranks.

Times rise, sizes repeat and positions are small: of the 8 bytes of a number some 1 to 3 are left.
"""

from __future__ import annotations

import io
import pickle
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.trace.job import CollectiveSequence, ProcessGroup

_Array = npt.NDArray[Any]
_INTEGERS = tuple((np.iinfo(one).max, one) for one in (np.int8, np.int16, np.int32, np.int64))


def packed(sequence: CollectiveSequence) -> bytes:
    """The sequence in few bytes, for a process of the same version of this program."""
    written = io.BytesIO()
    _Packer(written, protocol=5).dump(sequence)
    return zlib.compress(written.getbuffer(), 1)


def unpacked(data: bytes) -> CollectiveSequence:
    """The sequence again."""
    found: CollectiveSequence = pickle.loads(zlib.decompress(data))
    return found


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        """How arrays of integers and long lists of ranks are written."""
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and value.ndim == 1 and len(value):
            return _array, _narrowed(value)
        if isinstance(value, ProcessGroup):
            return _group, (value.name, value.use, *_narrowed(np.array(value.ranks, dtype=np.int64)))
        return NotImplemented


def _narrowed(values: _Array) -> tuple[int, bool, str, bytes]:
    """The first value, whether differences follow, of which type, and the values or differences."""
    plain, steps = _narrow(values), _narrow(np.diff(values))
    first = int(values[0]) if len(values) else 0
    if len(values) and steps.itemsize < plain.itemsize:
        return first, True, steps.dtype.str, steps.tobytes()
    return first, False, plain.dtype.str, plain.tobytes()


def _narrow(values: _Array) -> _Array:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(next(one for most, one in _INTEGERS if -most <= low + 1 and high <= most))


def _array(first: int, differ: bool, dtype: str, data: bytes) -> _Array:
    values = np.frombuffer(data, dtype).astype(np.int64)
    return np.cumsum(np.concatenate(([first], values))) if differ else values


@lru_cache(maxsize=1 << 16)
def _group(name: str, use: str, first: int, differ: bool, dtype: str, data: bytes) -> ProcessGroup:
    return ProcessGroup(name, use, tuple(_array(first, differ, dtype, data).tolist()))
