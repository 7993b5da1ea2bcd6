"""Which files are recordings of one process, taken one after the other: they are one rank, and one of them is used.

So does `tensorboard_trace_handler` with a schedule that repeats: worker_pid.time.pt.trace.json, a file for each cycle.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from diagnose.trace.model import IntegrityNote, Provenance, Severity
from diagnose.trace.units import duration

MAX_NAMED = 8  # Recordings that are listed before it says how many more there are.

SMALL_NUMBER = 1000
"""Below it processes of containers have their numbers, where those of two runs are often equal (our choice)."""

_WORKER = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(\.gz)?\Z")
"""As torch.profiler.tensorboard_trace_handler names files."""


def unused(
    recordings: Sequence[Provenance], claims: Sequence[int | None], times_ns: Sequence[Sequence[int]]
) -> tuple[set[int], list[IntegrityNote]]:
    """Positions of recordings of a process of which another one is used, and notes on them.

    Used is, of those after the first, the one with the steadiest steps: the first holds warm-up. Ranks are compared in
    the same cycle, so that of several processes it is the cycle whose least steady one is the steadiest.
    `times_ns`: of the steps of each recording.
    """
    several = [one for one in _processes(recordings, claims) if len(one) > 1]
    left_out, notes = set[int](), list[IntegrityNote]()
    for count in sorted({len(one) for one in several}):
        alike = [one for one in several if len(one) == count]
        later = range(1, count) if any(times_ns[one[k]] for one in alike for k in range(1, count)) else range(count)
        cycle = min(later, key=lambda k: (max(_variation(times_ns[one[k]]) for one in alike), -k))
        for process in alike:
            others = [at for at in process if at != process[cycle]]
            left_out.update(others)
            why = "The steadiest after the first, as that holds warm-up." if cycle else "Only it has steps."
            notes.append(_note(recordings, times_ns, process[cycle], others, why))
    return left_out, notes


def _processes(recordings: Sequence[Provenance], claims: Sequence[int | None]) -> list[list[int]]:
    found: dict[object, list[list[int]]] = {}
    for at in sorted(range(len(recordings)), key=lambda at: recordings[at].begin_unix_ns):
        one = recordings[at]
        name = Path(one.path).name
        worker = _WORKER.match(name)
        named = worker[1] if worker else re.sub(r"\d+", "#", name)  # As trace_100.json, trace_200.json.
        chance = one.machine < 0 and int(one.process or 0) < SMALL_NUMBER
        place = (Path(one.path).parent, named * chance, claims[at], one.world_size, one.machine, one.format)
        lines = found.setdefault((one.process or at, *place), [])
        free = next((line for line in lines if recordings[line[-1]].end_unix_ns <= one.begin_unix_ns), None)
        if free is None:
            lines.append([at])
        else:
            free.append(at)
    # Where windows overlap, as of processes that count their numbers in containers of their own, nothing is known.
    return [line for lines in found.values() if len(lines) == 1 for line in lines]


def _variation(times_ns: Sequence[int]) -> float:
    """Standard deviation over the mean; of fewer than two steps infinite."""
    return statistics.stdev(times_ns) / max(statistics.fmean(times_ns), 1) if len(times_ns) > 1 else float("inf")


def _note(
    recordings: Sequence[Provenance], times_ns: Sequence[Sequence[int]], used: int, others: Sequence[int], why: str
) -> IntegrityNote:
    def said(at: int) -> str:
        took = f"steps of {duration(round(statistics.fmean(times_ns[at])))}" if times_ns[at] else "no steps"
        return f"{Path(recordings[at].path).name} ({took})"

    more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
    return IntegrityNote(
        f"One process was recorded {len(others) + 1} times. Used: {said(used)}. "
        f"Not used: {', '.join(map(said, others[:MAX_NAMED]))}{more}.",
        f"{why} Name another file to analyse that.",
        Severity.NOTE,
    )
