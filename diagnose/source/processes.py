"""Where files are worked on: in this process, in several, or on a cluster. Results come as they are done."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from diagnose.source import cluster as clusters
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles
from diagnose.storage.remote import Remote

T = TypeVar("T")
Work = Callable[[RankFiles], T]
Results = Iterator[tuple[int, T | InputError]]

POOL_BYTES = 4 << 20  # Files that are smaller together are read faster than worker processes start.
LOOK_S = 5.0  # Without anything done before the workplace is looked at.
AHEAD = 1_024  # Pieces of work that are handed to a cluster before the first is done: enough for so many workers.
_CAN_BLOCK = hasattr(signal, "pthread_sigmask")  # not on Windows


class Workplace(Struct, frozen=True):
    """Where work is done, and how much of it is handed over before some is done."""

    executor: Executor
    ahead: int
    killed: tuple[type[BaseException], ...] = ()  # What work ends with whose process was killed.
    lasts: bool = False  # Whether it does work after that: another process takes the killed one's place.
    look: Callable[[], None] = lambda: None  # Raises InputError if nothing more will be done here.


class ThisProcess(Executor):
    """Does each piece of work when it is handed over."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """What has been done."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def results(work: Work[T], files: Sequence[RankFiles], jobs: int, cluster: str | None = None) -> Results[T]:
    """(position of the files, what the work makes of them) as they are done, in up to `jobs` processes.

    `cluster` is the address of a Dask scheduler, or "local". If a process is killed, what it worked on is an
    InputError. Raises what the work raises, and InputError if the cluster cannot be used.
    """
    killed = list[int]()
    handed = files if cluster is None else [file.absolute() for file in files]  # Workers run in folders of their own.
    with _workplace(jobs, files, cluster) as place:
        for at, done in _streamed(place, work, handed):
            if isinstance(done.exception(), place.killed):
                killed.append(at)  # perhaps as a bystander
            else:
                yield at, done.result()
        if place.lasts:
            yield from _one_by_one(place, work, handed, killed)
    while killed:
        with _pool(1) as pool:
            yield from _one_by_one(Workplace(pool, 1, (BrokenExecutor,)), work, files, killed)


def _workplace(jobs: int, files: Sequence[RankFiles], cluster: str | None) -> AbstractContextManager[Workplace]:
    if cluster is not None:
        return _cluster(cluster, jobs)
    return _here(jobs, files)


@contextmanager
def _cluster(address: str, jobs: int) -> Iterator[Workplace]:
    with clusters.executor(address, jobs) as (executor, killed, alive):
        yield Workplace(executor, AHEAD, killed, lasts=True, look=alive)


@contextmanager
def _here(jobs: int, files: Sequence[RankFiles]) -> Iterator[Workplace]:
    if jobs == 1 or not _worth_a_pool(files):
        yield Workplace(ThisProcess(), ahead=1)
        return
    with _pool(min(jobs, len(files))) as pool:
        yield Workplace(pool, 2 * jobs, (BrokenExecutor,))


class Processes(ProcessPoolExecutor):
    """Starts them as it is handed work, with Ctrl-C blocked: they hear of it only once they end silently."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As of the executor that it is; a process that starts has this thread's signal mask."""
        if not _CAN_BLOCK:
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _pool(processes: int) -> Iterator[Executor]:
    with Processes(processes, multiprocessing.get_context("spawn"), _end_silently) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_silently() -> None:
    """Ctrl-C on a terminal interrupts workers as well: without a traceback, as the command itself tells of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _streamed(place: Workplace, work: Work[T], files: Sequence[RankFiles]) -> Iterator[tuple[int, Future[T]]]:
    waiting, pending, finished = iter(enumerate(files)), dict[Future[T], int](), SimpleQueue[Future[T]]()
    while True:
        for at, one in islice(waiting, place.ahead - len(pending)):
            handed = _submitted(place.executor, work, one)
            pending[handed] = at
            handed.add_done_callback(finished.put)
        if not pending:
            return
        done = _next(place, finished)
        yield pending.pop(done), done


def _next(place: Workplace, finished: SimpleQueue[Future[T]]) -> Future[T]:
    while True:
        try:
            return finished.get(timeout=LOOK_S)
        except Empty:
            place.look()


def _submitted(executor: Executor, work: Work[T], files: RankFiles) -> Future[T]:
    try:
        return executor.submit(work, files)
    except BrokenExecutor as error:
        broken: Future[T] = Future()
        broken.set_exception(error)
        return broken


def _one_by_one(place: Workplace, work: Work[T], files: Sequence[RankFiles], left: list[int]) -> Results[T]:
    """Work during which a process was killed, taken from `left`: whoever is killed again has itself to blame."""
    while left:
        at = left.pop(0)
        ((_, done),) = _streamed(place, work, [files[at]])
        was_killed = isinstance(done.exception(), place.killed)
        yield at, _killed(files[at]) if was_killed else done.result()
        if was_killed and not place.lasts:
            return


def _killed(files: RankFiles) -> InputError:
    return InputError(f"The process that read {files.trace.path} was killed, perhaps for memory. Record fewer steps.")


def _worth_a_pool(files: Sequence[RankFiles]) -> bool:
    elsewhere = any(isinstance(file.trace.path, Remote) for file in files)
    return len(files) > 1 and (elsewhere or sum(map(_size, files)) >= POOL_BYTES)


def _size(files: RankFiles) -> int:
    try:
        return sum(path.stat().st_size for path in (files.trace.path, *files.beside.values()))
    except OSError:
        return 0
