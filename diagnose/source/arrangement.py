"""Which recording is which rank, and which are of one job: ranks are compared only if they ran together.

One process may be recorded several times. So does `tensorboard_trace_handler` with a schedule that repeats:
worker_pid.time.pt.trace.json, a file for each cycle.
"""

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct

from diagnose.source.base import InputError
from diagnose.trace.model import IntegrityNote, Provenance, Severity
from diagnose.trace.units import duration, long_duration

MAX_NAMED = 8  # Ranks or files that are listed before it says how many more there are.
_RANK_IN_NAME = re.compile(r"(?:rank|worker|gpu|node)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)

NEAR_NS = 60_000_000_000
"""Recordings of one job overlap in time, but for clocks of hosts that differ. Chosen: NTP keeps them within a second;
trainings that follow each other are minutes apart."""

SINCE_UNIX_NS = 1_420_070_400_000_000_000  # 2015. Earlier times count from a start, and tell no date.
MOST_NAMED = 4  # Jobs that an error names before it says how many more there are.


class Arrangement(Struct, frozen=True):
    """Which of the files that were read are used as which rank."""

    indexes: tuple[int | None, ...]  # Of each file; None if another one has that rank, or is of the same process.
    integrity: tuple[IntegrityNote, ...]


def arrange(recordings: Sequence[Provenance], times_ns: Sequence[Sequence[int]]) -> Arrangement:
    """Ranks of files: as recorded in the file, else from its name, else the next free number in order.

    `times_ns`: step durations of each file, which tell what to use of several recordings of one process.
    Raises InputError if they are of several jobs.
    """
    claims = [rank_in_name(one.path) if one.rank is None else one.rank for one in recordings]
    unused, notes = _unused(recordings, claims, times_ns)
    used = [at for at in range(len(recordings)) if at not in unused]
    found = _arranged([recordings[at] for at in used], [claims[at] for at in used])
    indexes = dict(zip(used, found.indexes, strict=True))
    return Arrangement(tuple(map(indexes.get, range(len(recordings)))), (*notes, *found.integrity))


def _arranged(recordings: Sequence[Provenance], claims: Sequence[int | None]) -> Arrangement:
    """The rank of each recording, None for a second one of a rank, and notes. Raises InputError if of several jobs."""
    position_of: dict[int, int] = {}
    indexes: list[int | None] = []
    duplicates: list[str] = []
    _require_one(recordings, claims)
    for position, claim in enumerate(claims):
        free = (k for k in range(len(recordings) + 1) if k not in position_of and k not in claims)
        index = next(free) if claim is None else claim
        if index in position_of:
            first = Path(recordings[position_of[index]].path).name
            duplicates.append(f"{Path(recordings[position].path).name} (rank {index}, as {first})")
            indexes.append(None)
        else:
            position_of[index] = position
            indexes.append(index)
    return Arrangement(tuple(indexes), tuple(_set_notes(recordings, set(position_of), duplicates)))


def rank_in_name(path: str) -> int | None:
    """The rank that a file's name tells, as in rank0.trace.json; None if it tells none."""
    found = _RANK_IN_NAME.search(Path(path).name)
    return int(found[1]) if found else None


def _set_notes(recordings: Sequence[Provenance], ranks: set[int], repeated: list[str]) -> Iterator[IntegrityNote]:
    """Notes on recordings of the same rank, on ranks that ran at other times, and on ranks that are missing."""
    if repeated:
        what = f"Not used, as another file is of the same rank: {_listed(repeated)}."
        yield IntegrityNote(what, "Analyse one recording of one run at a time.", Severity.WARNING)
    if apart_ns := _apart_ns(recordings):
        what = f"By their clocks the ranks ran {long_duration(apart_ns)} apart."
        why = "Each rank is there once, so they count as one job. If runs are mixed, ignore what compares ranks."
        yield IntegrityNote(what, why, Severity.WARNING)
    world = max((recording.world_size or 0 for recording in recordings), default=0)
    if any(rank not in ranks for rank in range(min(world, len(ranks) + 1))):
        one = "The only rank given is" if len(ranks) == 1 else "The ranks given are"
        what = f"{one} {_listed([str(rank) for rank in sorted(ranks)])} of {world}."
        effect = "Whether a collective was transferring or waiting for a rank that is not here cannot be told."
        yield IntegrityNote(what, effect, Severity.NOTE)


def _listed(items: Sequence[str]) -> str:
    shown = ", ".join(items[:MAX_NAMED])
    return shown if len(items) <= MAX_NAMED else f"{shown} and {len(items) - MAX_NAMED} more"


def _require_one(recordings: Sequence[Provenance], claims: Sequence[int | None]) -> None:
    """Raise InputError if the recordings are of several jobs; `claims` are the ranks that they say they are.

    Where each rank of the only world size is there once, their clocks do not count: only makers and folders part them.
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


def _apart_ns(recordings: Sequence[Provenance]) -> int:
    """The longest time in which none of them ran by their clocks, as far as these tell a date; 0 if within NEAR_NS."""
    parts = [part for part in _by_time(list(recordings)) if all(map(_is_dated, part))]
    ends = [max(one.end_unix_ns for one in part) for part in parts[:-1]]
    begins = [min(one.begin_unix_ns for one in part) for part in parts[1:]]
    return max((begin - end for begin, end in zip(begins, ends, strict=True)), default=0)


def _by_time(recordings: list[Provenance]) -> list[list[Provenance]]:
    """The recordings in groups that ran within NEAR_NS of each other; those without a date are one more group."""
    groups, last = list[list[Provenance]](), 0
    for one in sorted(filter(_is_dated, recordings), key=lambda one: one.begin_unix_ns):
        if not groups or one.begin_unix_ns > last + NEAR_NS:
            groups.append([])
        groups[-1].append(one)
        last = max(last, one.end_unix_ns)
    undated = [one for one in recordings if not _is_dated(one)]
    return [part for part in (*groups, undated) if part] if len(groups) > 1 else [recordings]


def _is_dated(one: Provenance) -> bool:
    return one.begin_unix_ns >= SINCE_UNIX_NS


def _by_world_size(recordings: list[Provenance]) -> list[list[Provenance]]:
    return _parted(recordings, lambda one: one.world_size)


def _by_maker(recordings: list[Provenance]) -> list[list[Provenance]]:
    return _parted(recordings, lambda one: one.backend if one.backend in ("cuda", "rocm") else None)


def _by_folder(recordings: list[Provenance], claims: Iterable[int | None]) -> list[list[Provenance]]:
    """The recordings by folder, if a rank is in several, none is twice in one, and all are known; else one group."""
    folders = [Path(recording.path).parent for recording in recordings]
    known = [(rank, folder) for rank, folder in zip(claims, folders, strict=True) if rank is not None]
    several = len({rank for rank, _ in known}) < len(set(known))
    if not several or len(set(known)) < len(recordings):
        return [recordings]
    return _parted(recordings, lambda one: Path(one.path).parent)


def _parted(recordings: list[Provenance], key: Callable[[Provenance], Hashable | None]) -> list[list[Provenance]]:
    """The recordings grouped by key, in order of first appearance; those without a key join the first group."""
    keys = list(dict.fromkeys(key(one) for one in recordings if key(one) is not None))
    if len(keys) < 2:
        return [recordings]
    return [[one for one in recordings if (keys[0] if key(one) is None else key(one)) == own] for own in keys]


def _named(job: Sequence[Provenance]) -> str:
    """A job in an error message: a file of it, how many more, the world size and when it began."""
    first = min(job, key=lambda one: one.begin_unix_ns)
    world = max((one.world_size or 0 for one in job), default=0)
    about = [f"world size {world}"] if world else []
    if _is_dated(first):
        about.append(f"{datetime.fromtimestamp(first.begin_unix_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M} UTC")
    files = f"{job[0].path} and {len(job) - 1} more" if len(job) > 1 else job[0].path
    return f"{files} ({', '.join(about)})" if about else files


SMALL_NUMBER = 1000  # Below it are processes of containers, whose numbers often repeat in runs (our choice).
_WORKER = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(\.gz)?\Z")  # As tensorboard_trace_handler names files.


def _unused(
    recordings: Sequence[Provenance], claims: Sequence[int | None], times_ns: Sequence[Sequence[int]]
) -> tuple[set[int], list[IntegrityNote]]:
    """Positions of recordings that are not used, as another one of the same process is, and a note per process.

    Used is the recording with the steadiest steps, the first left out as it holds warm-up. Processes that were recorded
    equally often use the same cycle, as ranks are compared in it: the one whose least steady process is the steadiest.
    `times_ns`: step durations of each recording.
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
    """Per recorded process the positions of its recordings, in order of time; none for one whose recordings overlap."""
    found: dict[object, list[list[int]]] = {}
    for at in sorted(range(len(recordings)), key=lambda at: recordings[at].begin_unix_ns):
        one = recordings[at]
        name = Path(one.path).name
        worker = _WORKER.match(name)
        named = worker[1] if worker else re.sub(r"\d+", "#", name)  # As trace_100.json, trace_200.json.
        chance = one.machine < 0 and int(one.process or 0) < SMALL_NUMBER
        place = (Path(one.path).parent, named * chance, claims[at], one.world_size, one.machine, one.format)
        chains = found.setdefault((one.process or at, *place), [])
        free = next((chain for chain in chains if recordings[chain[-1]].end_unix_ns <= one.begin_unix_ns), None)
        if free is None:
            chains.append([at])
        else:
            free.append(at)
    # Where windows overlap, as of processes that count their numbers in containers of their own, nothing is known.
    return [chain for chains in found.values() if len(chains) == 1 for chain in chains]


def _variation(times_ns: Sequence[int]) -> float:
    """Standard deviation over the mean; of fewer than two steps infinite."""
    return statistics.stdev(times_ns) / max(statistics.fmean(times_ns), 1) if len(times_ns) > 1 else float("inf")


def _note(
    recordings: Sequence[Provenance], times_ns: Sequence[Sequence[int]], used: int, others: Sequence[int], why: str
) -> IntegrityNote:
    """The note on a process: which recording is used and which are not (by position), with step times, and why."""

    def said(at: int) -> str:
        took = f"steps of {duration(round(statistics.fmean(times_ns[at])))}" if times_ns[at] else "no steps"
        return f"{Path(recordings[at].path).name} ({took})"

    return IntegrityNote(
        f"One process was recorded {len(others) + 1} times. Used: {said(used)}. "
        f"Not used: {_listed([said(at) for at in others])}.",
        f"{why} Name another file to analyse that.",
        Severity.NOTE,
    )
