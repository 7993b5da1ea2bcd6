"""Where files are worked on: in this process, in several, or on a cluster. Results come as they are done.

A cluster is one of Dask, which needs the extra `cluster`: one that is there, or one of this machine's cores.
"""

import hashlib
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles
from diagnose.storage.remote import Remote
from diagnose.version import __version__

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
        """Do it now; the future is done, with the result or the exception."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def results(work: Work[T], files: Sequence[RankFiles], jobs: int, cluster: str | None = None) -> Results[T]:
    """(position of the files, what the work makes of them) as they are done, in up to `jobs` processes.

    `cluster` is the address of a Dask scheduler, or "local". Work whose process was killed is done again alone; if that
    is killed too, it gives an InputError. Raises what the work raises, and InputError if the cluster cannot be used.
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


@contextmanager
def _workplace(jobs: int, files: Sequence[RankFiles], cluster: str | None) -> Iterator[Workplace]:
    """A context: the cluster, if one is named; this process, for one job or little to read; else a pool."""
    if cluster is not None:
        with _on_cluster(cluster, jobs) as workplace:
            yield workplace
    elif jobs == 1 or not _worth_a_pool(files):
        yield Workplace(ThisProcess(), ahead=1)
    else:
        with _pool(min(jobs, len(files))) as pool:
            yield Workplace(pool, 2 * jobs, (BrokenExecutor,))


class Processes(ProcessPoolExecutor):
    """A pool of processes that start with Ctrl-C blocked, until `_end_silently` has run in them."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As ProcessPoolExecutor's; a process that it starts inherits this thread's mask, with Ctrl-C blocked."""
        if not _CAN_BLOCK:
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _pool(processes: int) -> Iterator[Executor]:
    """A context: spawned processes. Leaving it cancels work that has not begun, and does not wait for the rest."""
    with Processes(processes, multiprocessing.get_context("spawn"), _end_silently) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_silently() -> None:
    """Run first in a worker: let Ctrl-C, which a terminal sends to workers too, end it without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _streamed(place: Workplace, work: Work[T], files: Sequence[RankFiles]) -> Iterator[tuple[int, Future[T]]]:
    """(position, outcome) of each file's job as it ends; at most `place.ahead` are given out at a time."""
    waiting, pending, finished = iter(enumerate(files)), dict[Future[T], int](), SimpleQueue[Future[T]]()
    while True:
        for at, rank_files in islice(waiting, place.ahead - len(pending)):
            future = _submitted(place.executor, work, rank_files)
            pending[future] = at
            future.add_done_callback(finished.put)
        if not pending:
            return
        try:
            done = finished.get(timeout=LOOK_S)
        except Empty:
            place.look()
        else:
            yield pending.pop(done), done


def _submitted(executor: Executor, work: Work[T], files: RankFiles) -> Future[T]:
    """The future of the work; a failed one if the executor is broken."""
    try:
        return executor.submit(work, files)
    except BrokenExecutor as error:
        broken: Future[T] = Future()
        broken.set_exception(error)
        return broken


def _one_by_one(place: Workplace, work: Work[T], files: Sequence[RankFiles], positions: list[int]) -> Results[T]:
    """Take from `positions` and yield results, one file at a time: if its process is killed, the file is the reason.
    Ends after a kill where the workplace does not last; then positions may remain."""
    while positions:
        at = positions.pop(0)
        ((_, done),) = _streamed(place, work, [files[at]])
        was_killed = isinstance(done.exception(), place.killed)
        why = f"The process that read {files[at].trace.path} was killed, perhaps for memory. Record fewer steps."
        yield at, InputError(why) if was_killed else done.result()
        if was_killed and not place.lasts:
            return


def _worth_a_pool(files: Sequence[RankFiles]) -> bool:
    elsewhere = any(isinstance(file.trace.path, Remote) for file in files)
    return len(files) > 1 and (elsewhere or sum(map(_size, files)) >= POOL_BYTES)


def _size(files: RankFiles) -> int:
    """Bytes of a trace and the files beside it; 0 if one of them cannot be looked up."""
    try:
        return sum(path.stat().st_size for path in (files.trace.path, *files.beside.values()))
    except OSError:
        return 0


CONNECT_S = 10  # For the scheduler to answer.
WORKERS_S = 60  # For a worker to join it: the first, or another once none is left.
_IS_THERE = "__import__('importlib.util', fromlist=['util']).find_spec('diagnose') is not None"
"""Asks a worker for this program without a function of it, which would end a worker that lacks it."""


class OtherVersionError(Exception):
    """A worker has another version of this program."""


class _Checked(Struct, frozen=True):
    """Work that is only done by the same version of this program."""

    work: Callable[..., Any]
    version: str

    def __call__(self, *args: Any) -> Any:
        """Do the work. Raises OtherVersionError, with the version here, if that is another one."""
        if version() != self.version:
            raise OtherVersionError(version())
        return self.work(*args)


@cache
def version() -> str:
    """The version of this program with a digest of its files, as a checkout may differ from another of its version."""
    digest = hashlib.blake2b(digest_size=4)
    folder = Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return f"{__version__} ({digest.hexdigest()})"


class _Alive(Struct):
    """Whether a cluster still has workers. Dask starts killed ones again, and waits for ever if it cannot."""

    client: Any
    address: str
    empty_since_s: float | None = None

    def __call__(self) -> None:
        """Raises InputError once there has been no worker for WORKERS_S, as seen from call to call."""
        if self.client.scheduler_info()["workers"]:
            self.empty_since_s = None
        elif self.empty_since_s is None:
            self.empty_since_s = time.monotonic()
        elif time.monotonic() - self.empty_since_s > WORKERS_S:
            raise InputError(f"{self.address} lost all its workers. {_start(self.address)}")


def _start(address: str) -> str:
    return f"Start some: dask worker {address} --nthreads 1."


class _OnCluster(Executor):
    """Dask's executor, with errors of the cluster in one sentence."""

    def __init__(self, executor: Executor, address: str) -> None:
        self._executor, self._address = executor, address

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As of any executor; ends with InputError if the cluster is gone or a worker has another version."""
        answer: Future[T] = Future()

        def pass_on(done: Future[T]) -> None:
            """Hand the outcome of the cluster's future on to `answer`, which the caller holds."""
            if answer.cancelled():
                return
            ended = InputError(f"{self._name} is no longer running. Start it again.")
            error = ended if done.cancelled() else done.exception()
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(self._in_a_sentence(error))

        self._executor.submit(_Checked(fn, version()), *args, **kwargs).add_done_callback(pass_on)
        return answer

    @property
    def _name(self) -> str:
        return f"The Dask cluster {self._address}"

    def _in_a_sentence(self, error: BaseException) -> BaseException:
        """An InputError for a worker of another version; any other error as it is."""
        if not isinstance(error, OtherVersionError):
            return error
        return InputError(
            f"{self._name} has a worker with diagnose {error}, but this is {version()}."
            " Install the same version on all workers."
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor; unless it is to wait, Dask cancels what is not done. `cancel_futures` is not used."""
        self._executor.shutdown(wait=wait)


@contextmanager
def _on_cluster(address: str, jobs: int) -> Iterator[Workplace]:
    """A context: the scheduler at `address`, or, if "local", `jobs` workers started here. Raises InputError if none.
    Work ends with KilledWorker after Dask has tried it on several workers."""
    try:
        from distributed import Client, KilledWorker, LocalCluster
    except ImportError:
        raise InputError("--cluster needs Dask. Run: pip install 'torch-diagnose[cluster]'.") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with ExitStack() as opened:
        try:
            scheduler = address
            if address == "local":
                cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=":0")
                scheduler = opened.enter_context(cluster)
            client = opened.enter_context(Client(scheduler, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            why = f"There is no Dask scheduler at {address}. `dask scheduler` prints its address."
            raise InputError(why) from error
        _require_workers(client, address)
        pool = _OnCluster(client.get_executor(pure=False), address)
        opened.callback(pool.shutdown, wait=False)
        yield Workplace(pool, AHEAD, (KilledWorker,), lasts=True, look=_Alive(client, address))


def _require_workers(client: Any, address: str) -> None:
    """Raises InputError if none joins in WORKERS_S, or if some lack this program: work would end those."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError:
        raise InputError(f"No worker has joined {address} in {WORKERS_S} s. {_start(address)}") from None
    answers = client.run(eval, _IS_THERE, on_error="return")
    without = sum(one is not True for one in answers.values())
    if without:
        raise InputError(f"{without} of {len(answers)} workers of {address} lack diagnose. Install it on all of them.")
