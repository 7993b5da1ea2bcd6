"""Work on a Dask cluster: one that is there, or one of this machine's cores. Needs the extra `cluster`."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from diagnose.source.base import InputError
from diagnose.version import __version__

T = TypeVar("T")

LOCAL = "local"

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


class Alive(Struct):
    """Whether a cluster still has workers. Dask starts killed ones again, and waits for ever if it cannot."""

    client: Any
    address: str
    empty_since_s: float | None = None

    def __call__(self) -> None:
        """Raises InputError once there has been no worker for as long as one is waited for."""
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
        """As of any executor; the future may end with InputError."""
        told: Future[T] = Future()

        def over(done: Future[T]) -> None:
            if told.cancelled():
                return
            error = (
                done.exception()
                if not done.cancelled()
                else InputError(f"{self._name} is no longer running. Start it again.")
            )
            if error is None:
                told.set_result(done.result())
            else:
                told.set_exception(self._in_a_sentence(error))

        self._executor.submit(_Checked(fn, version()), *args, **kwargs).add_done_callback(over)
        return told

    @property
    def _name(self) -> str:
        return f"The Dask cluster {self._address}"

    def _in_a_sentence(self, error: BaseException) -> BaseException:
        if not isinstance(error, OtherVersionError):
            return error
        return InputError(
            f"{self._name} has a worker with diagnose {error}, but this is {version()}."
            " Install the same version on all workers."
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancels what is not done, unless it is to wait."""
        self._executor.shutdown(wait=wait)


@contextmanager
def executor(address: str, jobs: int) -> Iterator[tuple[Executor, tuple[type[BaseException], ...], Alive]]:
    """An executor, what work ends with whose workers were killed, after Dask has tried it on others, and a look at all.

    `address` is a scheduler's, or "local": then `jobs` workers are started here. Raises InputError if there is none.
    """
    try:
        from distributed import Client, KilledWorker, LocalCluster
    except ImportError:
        raise InputError("--cluster needs Dask. Run: pip install 'torch-diagnose[cluster]'.") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with ExitStack() as opened:
        try:
            scheduler = address
            if address == LOCAL:
                cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=":0")
                scheduler = opened.enter_context(cluster)
            client = opened.enter_context(Client(scheduler, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            why = f"There is no Dask scheduler at {address}. `dask scheduler` prints its address."
            raise InputError(why) from error
        _require_workers(client, address)
        pool = _OnCluster(client.get_executor(pure=False), address)
        opened.callback(pool.shutdown, wait=False)
        yield pool, (KilledWorker,), Alive(client, address)


def _require_workers(client: Any, address: str) -> None:
    """Raises InputError if there are none, or if some lack this program: they would not survive being asked for it."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError:
        raise InputError(f"No worker has joined {address} in {WORKERS_S} s. {_start(address)}") from None
    told = client.run(eval, _IS_THERE, on_error="return")
    without = sum(one is not True for one in told.values())
    if without:
        raise InputError(f"{without} of {len(told)} workers of {address} lack diagnose. Install it on all of them.")
