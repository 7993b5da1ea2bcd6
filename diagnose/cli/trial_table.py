"""How trials stand while they run: a table on a terminal, lines elsewhere. All of it on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich import table

    from diagnose.contracts.trials import Range, Trial
    from diagnose.trace.manifest import Screened
    from diagnose.trials.protocol import Standing
    from diagnose.trials.selection import Candidate


class Watch(Protocol):
    """Who is told of trials."""

    def begins(self, standing: Standing) -> None:
        """A run begins."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""

    def screens(self, found: Sequence[Screened]) -> None:
        """So far a process has come that turns fixes on and off."""


@contextmanager
def watched(
    candidates: Sequence[Candidate], budget_s: float, quiet: bool, say: Callable[[str], None]
) -> Iterator[Watch]:
    """Yields who is to be told. On a terminal the table goes when it is left."""
    if quiet or not sys.stderr.isatty():
        yield _Lines(candidates, say)
        return
    from rich.console import Console
    from rich.live import Live

    shown = Table(candidates, budget_s)
    with Live(get_renderable=shown.drawn, console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield shown


class _Lines:
    """A line for each pair, and for what came of it."""

    def __init__(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> None:
        self._rules = {one.trial: one.rule for one in candidates}
        self._say, self._pair, self._screened = say, ("", 0), set[str]()

    def begins(self, standing: Standing) -> None:
        pair = standing.name, standing.pair
        if pair != self._pair:
            self._pair = pair
            self._say(f"running {standing.name}: {'pair' if standing.numbers else 'run'} {standing.pair}")

    def screens(self, found: Sequence[Screened]) -> None:
        """A line for each that has ended."""
        for one in found:
            if one.ended and one.name not in self._screened:
                self._screened.add(one.name)
                self._say(f"{self._rules.get(one.name, one.name)}: {_blocks(one, found)}")

    def ended(self, trial: Trial) -> None:
        from diagnose.reports import trials

        self._say(trials.brief(trial))


class Table:
    """A row for each trial."""

    def __init__(self, candidates: Sequence[Candidate], budget_s: float) -> None:
        self._candidates, self._budget_s = candidates, budget_s
        self._begun_s = time.monotonic()
        self._now: Standing | None = None
        self._screened: dict[str, tuple[str, str]] = {}
        self._ended: dict[tuple[int, ...], Trial] = {}

    def begins(self, standing: Standing) -> None:
        """A run begins."""
        self._ended.pop(standing.numbers, None)  # It goes on.
        self._now = standing
        self._screened.clear()

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""
        self._ended[trial.numbers] = trial

    def screens(self, found: Sequence[Screened]) -> None:
        """So far a process has come that turns fixes on and off."""
        for one in found:
            if one.alone or one.added or one.is_on or one.ended:
                self._screened[one.name] = _interval(one, found), _blocks(one, found).rpartition(", ")[2]

    def drawn(self) -> table.Table:
        """As it stands at this moment."""
        from rich.table import Table as Drawn
        from rich.text import Text

        passed_s = time.monotonic() - self._begun_s
        spent = f"{_clock(passed_s)}; at most {_clock(max(0.0, self._budget_s - passed_s))} left"
        made = Drawn(box=None, padding=(0, 2, 0, 0), caption=spent, caption_justify="left")
        for head in ("", "fix", "predicted", "measured", ""):
            made.add_column(head, header_style="dim")
        rows: list[tuple[tuple[int, ...], str, Range | None]] = [
            ((candidate.number,), candidate.rule, candidate.predicted) for candidate in self._candidates
        ]
        known = [numbers for numbers, _, _ in rows]
        if self._now is not None and self._now.numbers not in known:
            rows.insert(len(rows) if self._now.numbers else 0, (self._now.numbers, self._now.name, None))
        for numbers, name, predicted in rows:
            cells = [" + ".join(map(str, numbers)), name, _factor(predicted), *self._standing(numbers)]
            running = self._now is not None and numbers == self._now.numbers and numbers not in self._ended
            made.add_row(*map(Text, cells), style="bold" if running else "")
        return made

    def _standing(self, numbers: tuple[int, ...]) -> tuple[str, str]:
        from diagnose.reports import trials

        if (trial := self._ended.get(numbers)) is not None:
            return ("" if trial.found is None else trials.factors(trial.found)), trials.VERDICTS[trial.verdict]
        screened = [self._screened.get(one.trial) for one in self._candidates if (one.number,) == numbers]
        if screened and screened[0] is not None:
            return screened[0]
        now = self._now
        if now is None or now.numbers != numbers:
            return "", "waiting"
        if not numbers:
            return "", f"run {now.pair} of 2"
        measured = "" if now.measured is None else trials.factors(now.measured)
        return measured, f"pair {now.pair}, {'with' if now.with_fix else 'without'} the fix"


def _interval(one: Screened, found: Sequence[Screened]) -> str:
    from diagnose.reports import trials
    from diagnose.trials.screening import so_far

    alone, added = so_far(one, found)
    measured = added or alone
    return "" if measured is None else trials.factors(measured)


def _blocks(one: Screened, found: Sequence[Screened]) -> str:
    pairs, on_top = one.added or one.alone, " on top of others" if one.added else ""
    counted = "waiting for steady steps" if not pairs else f"{len(pairs)} pairs of blocks of {one.steps} steps{on_top}"
    if one.ended and (one.void or not pairs):
        counted = "not measured"
    return ", ".join(filter(None, (_interval(one, found), counted)))


def _factor(found: Range | None) -> str:
    return "" if found is None else f"{found.likely:.2f}x"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
