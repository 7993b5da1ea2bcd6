"""Recordings that a watched run is asked for: by the command that started it, which hears of who else asks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from .. import place
from ..board import Board
from ..plan import Part

ASKED_BY_SIGNAL = getattr(signal, "SIGUSR2", None)
"""Asks for a recording, where the script has no use of its own for it; None on Windows."""

RECORDING = "recording"
"""What the command posts, with a number, when the next steps are to be recorded; and what the folder is called."""

MADE = "made"  # What each rank posts in the part of a recording when it is over.
ASK = "ask"  # What anyone posts who wants a recording; with something that tells it from other posts.


class Asked:
    """Is looked at by a thread; what is to be recorded is taken by the one that trains."""

    def __init__(self, part: Part) -> None:
        self._board, self._shared = Board(part.work), part.shared
        self._number, self._signals = 1, 0
        self.part: Part | None = None  # What to record into; None while nothing is asked for.
        self._heed_signals()

    def _heed_signals(self) -> None:
        """Unless there is a handler already, or the script sets one later."""
        here = threading.current_thread() is threading.main_thread()
        if here and ASKED_BY_SIGNAL is not None and signal.getsignal(ASKED_BY_SIGNAL) is signal.SIG_DFL:
            signal.signal(ASKED_BY_SIGNAL, lambda *_: self._signalled())

    def look(self) -> None:
        """Whether the next recording has been asked for."""
        while self.part is None and (word := self._board.read(f"{RECORDING}-{self._number}")) is not None:
            self._number += 1
            work = Path(word["part"])
            self.part = Part.at(work) if work.exists() else None  # Of an earlier attempt, which is complete.

    def made(self) -> None:
        """The recording is over, or has failed."""
        part, self.part = self.part, None
        if part is not None:
            Board(part.work).post(f"{MADE}.{place.find().rank}")

    def _signalled(self) -> None:
        self._signals += 1
        Board(self._shared).post(f"{ASK}.{os.getpid()}-{self._signals}", why="requested by a signal")
