"""Reads the logs of a run again as they grow, in a thread of the process that has started it.

What is shown of them must never disturb the run: what fails is named once on standard error, and ends by itself.
"""

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

from diagnose import failures
from diagnose.live.now import RankNow, rank_now
from diagnose.rulekit.engine import RuleSet
from diagnose.source.base import InputError
from diagnose.source.run_log import logs_in, read

LOOK_S = 1.0  # Between two looks at whether a log has grown.
RESTS = 20  # Times the CPU time of a look, until the next one: at most 5 % of one CPU core (our choice).
PATIENCE_S = 5.0  # For the last look at the end of the run (our choice): its disk may hang.
LEAST_PRIORITY = 19
MOST_RANKS = 64  # Whose logs are read, the first ones (our choice).
AGAIN = 2  # Times that a log is read again which has grown meanwhile: what is read of both its files has to fit.

Signature: TypeAlias = tuple[tuple[int, int] | None, ...]


class Show(Protocol):
    """One way to show a run."""

    @property
    def name(self) -> str:
        """A noun phrase: "the panel"."""

    def show(self, ranks: Sequence[RankNow]) -> None:
        """A log has grown; at least one rank is known."""

    def close(self) -> None:
        """The run has ended, or showing it has failed."""


class Following:
    """Within `with`, reads the logs in a folder again when they have grown, and hands the ranks to all `shows`."""

    def __init__(
        self, folder: Path, shows: Sequence[Show], say: Callable[[str], None], rules: RuleSet | None = None
    ) -> None:
        """`say` names what fails, once. `rules`: those that are chosen; else all."""
        self._folder, self._shows, self._say, self._rules = folder, list(shows), say, rules
        self._by_path: dict[Path, tuple[Signature, RankNow | None]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diagnose-live", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        """Look until the run is over, resting RESTS times a look's CPU time in between, then close all shows."""
        with suppress(Exception):  # Linux gives each thread a priority of its own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
        rest_s = LOOK_S
        while not self._over.wait(rest_s):
            began_s = time.thread_time()
            self._look()
            rest_s = max(LOOK_S, RESTS * (time.thread_time() - began_s))
        self._look()
        for show in self._shows:
            self._tell(show, show.close)

    def _look(self) -> None:
        """Hand the ranks to each show if a log has grown; all shows end if that cannot be found out."""
        try:
            with failures.collected():  # A part of a run that cannot be told is named by the report at the end.
                ranks = self._grown()
        except Exception as error:
            for show in self._shows:
                self._end(show, error)
            return
        for show in list(self._shows) if ranks else ():
            self._tell(show, lambda show=show: show.show(ranks))  # type: ignore[misc]

    def _tell(self, show: Show, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:
            self._end(show, error)

    def _end(self, show: Show, error: Exception) -> None:
        """Close a show that has failed, show it no more, and report why."""
        self._shows = [one for one in self._shows if one is not show]
        with suppress(Exception):
            show.close()
        if failures.raised():
            traceback.print_exception(error)
        why = error.strerror if isinstance(error, OSError) else f"diagnose itself failed ({failures.told(error)})"
        self._say(f"{show.name} stops: {why}. The training continues.")

    def _grown(self) -> Sequence[RankNow]:
        """All ranks that can be read, in order; () if no log has grown since the last look."""
        grown = False
        for path in logs_in(self._folder)[:MOST_RANKS]:
            before, _ = self._by_path.get(path, (None, None))
            if _signature(path) != before:
                found = self._by_path[path] = _read(path, self._rules)
                grown = grown or found[1] is not None
        ranks = [one for _, one in self._by_path.values() if one is not None] if grown else []
        return sorted(ranks, key=lambda one: one.rank)


def _read(path: Path, rules: RuleSet | None = None, again: int = AGAIN) -> tuple[Signature, RankNow | None]:
    """(signature of the files as read, the rank or None if it cannot be read yet). `again`: how many more tries."""
    before = _signature(path)
    try:
        found = read(path)
    except InputError:
        return before, None
    if again and _signature(path)[0] != before[0]:
        return _read(path, rules, again - 1)
    return before, rank_now(found, rules)


def _signature(path: Path) -> Signature:
    """Size and time of both files of a log; None of one that is not there."""
    return tuple(map(_size_and_time, (path, path.with_name(f"{path.name}.open"))))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
