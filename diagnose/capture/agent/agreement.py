"""How the ranks of a machine begin and end a recording at the same step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from .board import Board
from .place import Place

LEAD = 5
"""Steps between an announcement and what it announces, so that all ranks hear of it in time (our choice)."""

PATIENCE_S = 60.0
"""How long the leader waits for the recordings of other ranks (our choice)."""

T = TypeVar("T")
Course = Generator[None, None, T]
"""Yields to let the script make one step."""


class Agreement:
    """Between the ranks that share a board; one of them leads."""

    def __init__(self, board: Board, here: Place, number: Callable[[], int]) -> None:
        """`number()` is that of the step that ended last."""
        self._board, self._here, self._number = board, here, number

    def begin(self, what: str, steps: int, wait: Callable[[int], int] | None = None) -> Course[int]:
        """Wait for the step at which all ranks begin something; to the number of steps that the leader says.

        `wait(number)`: how many steps later than with that of this number it may begin at the earliest.
        """
        if self._here.leads:
            step = self._number() + (0 if self._here.alone else LEAD)
            self._board.post(what, step=step + (wait(step + 1) if wait else 0), steps=steps)
        while (word := self._board.read(what)) is None:
            yield
        while self._number() < word["step"]:
            yield
        return int(word["steps"])

    def end(self, note: Callable[[str], None]) -> Course[None]:
        """Wait until no rank leaves while another still needs it."""
        self._board.post(f"done.{os.getpid()}")
        until = time.monotonic() + PATIENCE_S
        while self._here.leads and self._board.posted("done.") < self._here.peers and time.monotonic() < until:
            yield
        done = self._board.posted("done.")
        if self._here.leads and done < self._here.peers:
            note(f"Only {done} of {self._here.peers} ranks on this machine were recorded.")
        yield from self.begin("end", 0)
