"""Which recordings are of one job: ranks are compared with each other only if they ran together.

So does `tensorboard_trace_handler` with a schedule that repeats: worker_pid.time.pt.trace.json, a file for each cycle.
"""

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from diagnose.source.base import InputError
from diagnose.trace.model import IntegrityNote, Provenance, Severity
from diagnose.trace.units import duration

NEAR_NS = 60_000_000_000
"""Recordings of one job overlap in time, but for clocks of hosts that differ. Chosen: NTP keeps them within a second;
trainings that follow each other are minutes apart."""

SINCE_UNIX_NS = 1_420_070_400_000_000_000
"""2015. An earlier time was counted from the start of the machine, or of the recording: it tells no date."""

MOST_NAMED = 4  # Jobs that an error names before it says how many more there are.


def require_one(recordings: Sequence[Provenance], claims: Sequence[int | None]) -> None:
    """Raise InputError if the recordings are of several jobs; `claims` are the ranks that they say they are.

    Where each rank of the only world size is there once, they are one job, whatever their clocks say.
    """
    claimed = dict(zip(map(id, recordings), claims, strict=True))
    found, sizes = [list(recordings)], {one.world_size for one in recordings}
    whole = sizes == {len(claims)} and set(claims) == set(range(len(claims)))
    for parted in (_by_world_size, _by_maker) if whole else (_by_time, _by_world_size, _by_maker):
        found = [part for one in found for part in parted(one)]
    found = [part for one in found for part in _by_folder(one, [claimed[id(recording)] for recording in one])]
    if len(found) > 1:
        named = [_named(one) for one in found[:MOST_NAMED]]
        more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise InputError(
            f"These recordings belong to {len(found)} jobs: {'; '.join(named)}{more}. Analyse one job at a time."
        )


def apart_ns(recordings: Sequence[Provenance]) -> int:
    """The longest time in which none of them ran by their clocks, as far as these tell a date; 0 if within NEAR_NS."""
    parts = [part for part in _by_time(list(recordings)) if all(map(_is_dated, part))]
    ends = [max(one.end_unix_ns for one in part) for part in parts[:-1]]
    begins = [min(one.begin_unix_ns for one in part) for part in parts[1:]]
    return max((begin - end for begin, end in zip(begins, ends, strict=True)), default=0)


def _by_time(recordings: list[Provenance]) -> list[list[Provenance]]:
    dated = [recording for recording in recordings if _is_dated(recording)]
    found: list[list[Provenance]] = []
    last = 0
    for one in sorted(dated, key=lambda one: one.begin_unix_ns):
        if not found or one.begin_unix_ns > last + NEAR_NS:
            found.append([])
        found[-1].append(one)
        last = max(last, one.end_unix_ns)
    undated = [recording for recording in recordings if not _is_dated(recording)]
    if len(found) > 1:
        return [*found, *([undated] if undated else [])]
    return [recordings]


def _is_dated(one: Provenance) -> bool:
    return one.begin_unix_ns >= SINCE_UNIX_NS


def _by_world_size(recordings: list[Provenance]) -> list[list[Provenance]]:
    return _parted(recordings, lambda one: one.world_size)


def _by_maker(recordings: list[Provenance]) -> list[list[Provenance]]:
    return _parted(recordings, lambda one: one.backend if one.backend in ("cuda", "rocm") else None)


def _by_folder(recordings: list[Provenance], claims: Iterable[int | None]) -> list[list[Provenance]]:
    """Of each folder those in it, if ranks occur in several of them and in none twice; else all together."""
    folders = [Path(recording.path).parent for recording in recordings]
    known = [(rank, folder) for rank, folder in zip(claims, folders, strict=True) if rank is not None]
    several = len({rank for rank, _ in known}) < len(set(known))
    if not several or len(set(known)) < len(recordings):
        return [recordings]
    return _parted(recordings, lambda one: Path(one.path).parent)


def _parted(recordings: list[Provenance], key: Callable[[Provenance], Hashable | None]) -> list[list[Provenance]]:
    """By key, in order of the first of each; those without one are with the first."""
    keys = list(dict.fromkeys(key(recording) for recording in recordings if key(recording) is not None))
    if len(keys) < 2:
        return [recordings]
    return [
        [recording for recording in recordings if (keys[0] if key(recording) is None else key(recording)) == own]
        for own in keys
    ]


def _named(job: Sequence[Provenance]) -> str:
    first = min(job, key=lambda one: one.begin_unix_ns)
    world = max((one.world_size or 0 for one in job), default=0)
    about = [f"world size {world}"] if world else []
    if _is_dated(first):
        about.append(f"{datetime.fromtimestamp(first.begin_unix_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M} UTC")
    files = f"{job[0].path} and {len(job) - 1} more" if len(job) > 1 else job[0].path
    return f"{files} ({', '.join(about)})" if about else files


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
