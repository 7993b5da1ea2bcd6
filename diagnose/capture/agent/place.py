"""Which rank this process is, which ranks are recorded, and how they begin and end at the same step."""

import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from .alone import process_group
from .board import Board, StoreBoard, Words, store

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NODE = ("GROUP_RANK", "SLURM_NODEID", "NODE_RANK")
# By torchrun, Open MPI, MPICH and Slurm; _WORLD has no SLURM_NTASKS, which a batch script has as well: srun alone sets
# the variables of a step.


@dataclass(frozen=True)
class Place:
    """Where a training process stands among those of the run."""

    rank: int
    world_size: int
    peers: int  # Ranks on this machine, this one included.
    first: int = 0  # The lowest of them.
    node: int | None = None  # Of this machine, or of this pod of it, as the launcher counts; None: not said.


def find(environment: Mapping[str, str] = os.environ) -> Place:
    """By torch.distributed, else by environment variables of the launcher, else rank 0 of 1."""
    rank, world = _number(environment, _RANK), _number(environment, _WORLD)
    if (group := process_group()) is not None:
        rank, world = group.get_rank(), group.get_world_size()
    world = max(world or 1, 1)
    rank = rank if rank is not None and world > 1 else 0
    peers = min(_number(environment, _LOCAL_WORLD) or _tasks_of_this_node(environment) or world, world)
    local = _number(environment, _LOCAL_RANK)
    first = rank - local if local is not None and peers < world else 0
    return Place(rank, world, peers, max(first, 0), _number(environment, _NODE))


def _tasks_of_this_node(environment: Mapping[str, str]) -> int | None:
    """Tasks that Slurm runs on this node, from a text such as `4(x2),3`: four on two nodes, three on the third."""
    node = _number(environment, ("SLURM_NODEID",))
    told = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    for tasks, nodes in told:
        if node is not None and node < int(nodes or 1):
            return int(tasks)
        node = None if node is None else node - int(nodes or 1)
    return None


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isascii() and value.isdigit()), None)


MOST = 64  # Ranks that are all recorded: what they write fits the disk and the patience of a laptop (chosen).
FEW = 8  # Of a larger group the first `most` / FEW are: as many as a machine usually has (chosen).


def named(asked: str, world_size: int, most: int = MOST) -> frozenset[int] | None:
    """The ranks to record by "all", a list as "0,1,8-15", or "auto"; None where "auto" depends on process groups.
    `most`: of up to so many ranks "auto" records all. Raises ValueError with a sentence if the text is no list."""
    if asked == "all" or (asked == "auto" and world_size <= most):
        return frozenset(range(world_size))
    if asked == "auto":
        return None
    return frozenset(rank for first, last in _ranges(asked) for rank in range(first, min(last + 1, world_size)))


def _ranges(asked: str) -> Iterator[tuple[int, int]]:
    """(first, last) of each part of a text such as `0,8-15`. Raises ValueError if it is another text."""
    for part in asked.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ValueError(f"{asked!r} are not ranks. Write auto, all, or numbers such as 0,1,8-15.")
        yield int(first), int(last or first)


def of_groups(rank: int, world_size: int, most: int = MOST) -> frozenset[int]:
    """The first ranks of the run, and all of each process group that `rank` is in; of one over `most` the first.

    So each way in which the training is parallel is there once: a pipeline has all of its stages, a tensor-parallel
    group all of its shards.
    """
    few = max(most // FEW, 1)
    found = set(range(min(few, world_size)))
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    groups = getattr(getattr(distributed, "_world", None), "pg_group_ranks", {})  # None where torch does not tell.
    for ranks in [list(ranks) for ranks in groups.values() if rank in ranks]:
        found.update(sorted(ranks)[: len(ranks) if len(ranks) <= most else few])
    return frozenset(found)


LEAD = 5  # Steps between an announcement and what it announces, so that all ranks hear of it in time (chosen).
END = "end"  # The last message: at its step all leave.
T = TypeVar("T")
Course = Generator[None, None, T]  # Yields to let the script make one step.


class RecordingEnded(Exception):
    """The leader has ended what this rank still waits for."""


class RankLost(Exception):
    """The other ranks cannot be reached any more, so that no step to end at can be agreed on."""


class Agreement:
    """Has all ranks of a process group, or else of a machine, begin things at the same step. The first one leads."""

    def __init__(self, board: Board, here: Place, number: Callable[[], int], told: Callable[[str, int], None]) -> None:
        """`board`: of the machine's ranks. `number()`: of the step that ended last. `told(what, steps)` is called once
        the leader has announced something, some steps before it begins.
        """
        shared = store() if here.world_size > 1 else None
        self._board: Words = board if shared is None else StoreBoard(shared, here.world_size)
        self._here, self._number, self._told = here, number, told
        # Those that agree.
        self.ranks = range(here.first, here.first + here.peers) if shared is None else range(here.world_size)
        self._leader = self.ranks[0]
        self._begun_s, self._first = time.monotonic(), number()

    @property
    def leads(self) -> bool:
        """Whether this rank decides what is recorded, and when."""
        return self._here.rank == self._leader

    @property
    def alone(self) -> bool:
        """Whether no other rank has to keep in step with this one."""
        return len(self.ranks) <= 1

    def join(self, run: str) -> None:
        """If this rank leads, post which run all ranks belong to, unless that is posted. Others do nothing."""
        if self.leads and self._board.read("run") is None:
            self._board.post("run", name=run)

    def joined(self) -> Course[str]:
        """Wait for the run that the leader has posted. Raises RankLost."""
        while (word := self._heard("run")) is None:
            yield
        self._board.rest()
        return str(word["name"])

    def write_elsewhere(self) -> None:
        """Tell all ranks that this one writes into another folder than the leader, as machines share none."""
        self._board.count("elsewhere")

    def some_write_elsewhere(self) -> bool:
        """Whether any rank has said so."""
        return self._board.counted("elsewhere") > 0

    def begin(
        self, what: str, steps: int, wait: Callable[[int], int] | None = None, unless: Sequence[str] = ()
    ) -> Course[int]:
        """Wait until all ranks begin `what`, with the next step. Returns the leader's `steps`; those of others do not
        count. `wait(number)`: how many steps after the one of this number it may begin. 0: the leader left it out and
        announced one of `unless`, parts that come later. Raises RecordingEnded, and RankLost.
        """
        if self.leads:
            step = self._number() + self._lead()
            self._board.post(what, step=step + (wait(step + 1) if wait else 0), steps=steps)
        return int((yield from self._awaited(what, unless)).get("steps", 0))

    def _awaited(self, what: str, unless: Sequence[str] = ()) -> Course[dict[str, Any]]:
        """The leader's message, once the step it names has ended; empty if `unless` came instead. Raises as `begin`."""
        while True:
            message = self._heard(what)
            if message is None and any(self._heard(one) is not None for one in unless):
                return {}
            if what != END and self._heard(END) is not None:
                raise RecordingEnded
            if message is not None:
                break
            yield
        self._board.rest()
        self._told(what, message.get("steps", 0))
        while self._number() < message["step"]:
            yield
        return message

    def choose(self, asked: str, most: int, own_ns: int) -> Course[frozenset[int]]:
        """The ranks to record; the first leads from now on. `own_ns`: as `Clock.own_ns`. Raises as `begin`."""
        some = named(asked, self._here.world_size, most)
        if some is None:
            some = yield from self._chosen(most, own_ns)
        self._leader = min(some.intersection(self.ranks), default=self._leader)
        return some

    def _chosen(self, most: int, own_ns: int) -> Course[frozenset[int]]:
        """The ranks to record, which the leader chooses by process groups and by the longest step of a rank's own."""
        self._board.offer("own", self._here.rank, own_ns)
        if self.leads:
            for _ in range(self._lead()):
                yield
            slowest = self._board.greatest("own")
            some = of_groups(self._here.rank, self._here.world_size, most)
            some |= {slowest} if slowest is not None else set()
            self._board.post("ranks", step=self._number() + self._lead(), some=",".join(map(str, sorted(some))))
        return frozenset(map(int, (yield from self._awaited("ranks"))["some"].split(",")))

    def end(self, patience_s: float, note: Callable[[str], None]) -> Course[None]:
        """Wait until all ranks are done, or `patience_s` is over; all leave at the same step. Raises RankLost."""
        self._board.count("done")
        until = time.monotonic() + patience_s
        while self.leads and self._board.counted("done") < len(self.ranks) and time.monotonic() < until:
            yield
        if self.leads and (done := self._board.counted("done")) < len(self.ranks):
            where = "" if len(self.ranks) == self._here.world_size else " on this machine"
            note(f"Only {done} of {len(self.ranks)} ranks{where} completed the recording.")
        yield from self.begin(END, 0)

    def _lead(self) -> int:
        """How many steps ahead the leader names a step, so that its message reaches all ranks in time; 0 if alone."""
        if self.alone:
            return 0
        made, passed_s = max(self._number() - self._first, 1), time.monotonic() - self._begun_s
        return max(LEAD, ceil(self._board.delay_s * made / max(passed_s, 1e-6)) + 1)

    def _heard(self, what: str) -> dict[str, Any] | None:
        """The message of that name; None if it has not been posted. Raises RankLost."""
        message = self._board.read(what)
        if message is None and self._board.lost:
            raise RankLost("the other ranks are unreachable")
        return message
