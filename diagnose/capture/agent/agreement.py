"""How the ranks of a run begin and end a recording at the same step, and which of them are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from math import ceil
from typing import Any, TypeVar

from . import chosen
from .board import Board, StoreBoard, Words, store
from .place import Place

LEAD = 5  # Steps between an announcement and what it announces, so that all ranks hear of it in time (our choice).
END = "end"  # The last word: at its step all leave.

T = TypeVar("T")
Course = Generator[None, None, T]  # Yields to let the script make one step.


class Over(Exception):
    """The leader has ended what this rank still waits for."""


class Lost(Exception):
    """The other ranks cannot be reached any more, so that no step to end at can be agreed on."""


class Agreement:
    """Between all ranks of a process group; without one between those of a machine. The first of them leads."""

    def __init__(self, board: Board, here: Place, number: Callable[[], int], told: Callable[[str, int], None]) -> None:
        """`board` is of the machine's ranks. `number()` is that of the step that ended last.

        `told(what, steps)` is called some steps before ranks begin something.
        """
        shared = store() if here.world_size > 1 else None
        self._words: Words = board if shared is None else StoreBoard(shared, here.world_size)
        self._here, self._number, self._told = here, number, told
        self.ranks = range(here.first, here.first + here.peers) if shared is None else range(here.world_size)
        """Those that agree."""
        self._leader = self.ranks[0]
        self._begun_s, self._first = time.monotonic(), number()

    @property
    def leads(self) -> bool:
        """This rank says when what is recorded."""
        return self._here.rank == self._leader

    @property
    def alone(self) -> bool:
        """No other rank has to keep in step with this one."""
        return len(self.ranks) <= 1

    def join(self, run: str) -> None:
        """Say, as the first rank, to which run all belong. On one machine the first that says it is heard."""
        if self.leads and self._words.read("run") is None:
            self._words.post("run", name=run)

    def joined(self) -> Course[str]:
        """The run that the first rank has joined. Raises Lost."""
        while (word := self._heard("run")) is None:
            yield
        self._words.rest()
        return str(word["name"])

    def write_elsewhere(self) -> None:
        """This rank has the folder of another run: the machines share none."""
        self._words.count("elsewhere")

    def some_write_elsewhere(self) -> bool:
        """Whether any rank has said so."""
        return self._words.counted("elsewhere") > 0

    def begin(
        self, what: str, steps: int, wait: Callable[[int], int] | None = None, unless: Sequence[str] = ()
    ) -> Course[int]:
        """Wait for the step at which all ranks begin something; to the number of steps that the leader says.

        `wait(number)`: how many steps later than with that of this number it may begin at the earliest. 0 where the
        leader has said one of `unless` instead, which come later. Raises Over if the leader has ended the recording,
        Lost if nobody can be reached.
        """
        if self.leads:
            step = self._number() + self._lead()
            self._words.post(what, step=step + (wait(step + 1) if wait else 0), steps=steps)
        return int((yield from self._awaited(what, unless)).get("steps", 0))

    def _awaited(self, what: str, unless: Sequence[str] = ()) -> Course[dict[str, Any]]:
        """A word of the leader, once the step has ended that it names; empty if it was left out. Raises Over, Lost."""
        while True:
            word = self._heard(what)
            if word is None and any(self._heard(one) is not None for one in unless):
                return {}
            if what != END and self._heard(END) is not None:
                raise Over
            if word is not None:
                break
            yield
        self._words.rest()
        self._told(what, word.get("steps", 0))
        while self._number() < word["step"]:
            yield
        return word

    def choose(self, asked: str, most: int, own_ns: int) -> Course[frozenset[int]]:
        """The ranks to record; the first of them leads from now on. `own_ns`: how long this rank's own step takes.

        Raises like `begin`.
        """
        some = chosen.named(asked, self._here.world_size, most)
        if some is None:
            some = yield from self._chosen(most, own_ns)
        self._leader = min(some.intersection(self.ranks), default=self._leader)
        return some

    def _chosen(self, most: int, own_ns: int) -> Course[frozenset[int]]:
        """By the first rank, from its process groups and from what all say of their steps."""
        self._words.offer("own", self._here.rank, own_ns)
        if self.leads:
            for _ in range(self._lead()):
                yield
            slowest = self._words.greatest("own")
            some = chosen.of_groups(self._here.rank, self._here.world_size, most)
            some |= {slowest} if slowest is not None else set()
            self._words.post("ranks", step=self._number() + self._lead(), some=",".join(map(str, sorted(some))))
        return frozenset(map(int, (yield from self._awaited("ranks"))["some"].split(",")))

    def end(self, patience_s: float, note: Callable[[str], None]) -> Course[None]:
        """Wait until no rank leaves while another still needs it, for as long as patience lasts. Raises Lost."""
        self._words.count("done")
        until = time.monotonic() + patience_s
        while self.leads and self._words.counted("done") < len(self.ranks) and time.monotonic() < until:
            yield
        if self.leads and (done := self._words.counted("done")) < len(self.ranks):
            where = "" if len(self.ranks) == self._here.world_size else " on this machine"
            note(f"Only {done} of {len(self.ranks)} ranks{where} completed the recording.")
        yield from self.begin(END, 0)

    def _lead(self) -> int:
        if self.alone:
            return 0
        made, passed_s = max(self._number() - self._first, 1), time.monotonic() - self._begun_s
        return max(LEAD, ceil(self._words.delay_s * made / max(passed_s, 1e-6)) + 1)

    def _heard(self, what: str) -> dict[str, Any] | None:
        """A word, if it has been said. Raises Lost."""
        word = self._words.read(what)
        if word is None and self._words.lost:
            raise Lost
        return word
