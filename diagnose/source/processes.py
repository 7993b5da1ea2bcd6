"""Where files are worked on: in this process, or in several where that is faster. Both are executors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles

T = TypeVar("T")

POOL_BYTES = 4 << 20
"""Files that are smaller together are read faster than worker processes start."""


class ThisProcess(Executor):
    """Maps without any pool: each piece of work is done when its result is asked for."""

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **_: Any) -> Iterator[T]:
        """The results in order. Nothing is done ahead, so there is nothing to wait for or to divide."""
        return map(fn, *iterables)


@contextmanager
def executor(jobs: int, files: Sequence[RankFiles]) -> Iterator[Executor]:
    """An executor for work on these files, in up to `jobs` processes. Raises InputError if one of them is killed."""
    if jobs == 1 or len(files) == 1 or sum(map(_size, files)) < POOL_BYTES:
        yield ThisProcess()
        return
    with ProcessPoolExecutor(min(jobs, len(files)), multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise InputError("A reading process was killed, perhaps for memory. Try a smaller --jobs.") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _size(files: RankFiles) -> int:
    try:
        return sum(path.stat().st_size for path in (files.trace.path, files.detail) if path is not None)
    except OSError:
        return 0
