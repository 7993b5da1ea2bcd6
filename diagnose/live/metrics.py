"""A run that goes on as families of metrics. Counters never fall: they end with the last step that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median

from diagnose.live.now import RankNow
from diagnose.reports.exposition import Distribution, Family, Sample, seconds, text
from diagnose.version import __version__
from diagnose.watched.sketch import PER_OCTAVE

HALF_OCTAVES = range(34, 75)
"""Limits of the histogram, 2^(k/2) ns: from 131 us to 137 s (our choice)."""

MEMORY = {
    "resident_bytes": "resident",
    "children_resident_bytes": "workers_resident",
    "allocated_bytes": "allocated",
    "most_allocated_bytes": "most_allocated",
    "reserved_bytes": "reserved",
}
"""Figures of the log, and what they are called here."""

STORAGE = {
    "read_bytes": ("read", "training"),
    "written_bytes": ("written", "training"),
    "children_read_bytes": ("read", "workers"),
    "children_written_bytes": ("written", "workers"),
}

FAULTS = {"minor_faults": "minor", "major_faults": "major"}

Ranks = Sequence[RankNow]


def render(ranks: Ranks) -> str:
    """All that is known, ending in `# EOF`."""
    return text(FAMILIES, ranks)


def _of_each(told: Callable[[RankNow], Iterable[Sample]]) -> Callable[[Ranks], Iterator[Sample]]:
    """What is told of each rank, with its number."""

    def samples(ranks: Ranks) -> Iterator[Sample]:
        for one in ranks:
            yield from (({"rank": one.rank, **labels}, value) for labels, value in told(one))

    return samples


def _info(one: RankNow) -> Iterator[Sample]:
    yield {"tool_version": __version__, "world_size": one.run.world_size, "steps_by": one.run.steps_by}, 1


def _steps(one: RankNow) -> Iterator[Sample]:
    yield {}, one.run.steps


def _length(one: RankNow) -> Iterator[Sample]:
    yield {}, seconds(one.run.length_ns)


def _since_last_step(one: RankNow) -> Iterator[Sample]:
    yield {}, seconds(one.since_last_step_ns)


def _parts(one: RankNow) -> Iterator[Sample]:
    for part in one.ended:
        yield {"part": part.kind.value}, seconds(part.ns)


def _part_counts(one: RankNow) -> Iterator[Sample]:
    for part in one.ended:
        yield {"part": part.kind.value}, part.count


def _phases(one: RankNow) -> Iterator[Sample]:
    for phase in one.run.phases:
        yield {"phase": phase.phase}, seconds(phase.ns)


def _step_times(one: RankNow) -> Iterator[Sample]:
    upto = tuple(
        (
            float(f"{2 ** (half / 2) / 1e9:.4g}"),
            sum(count for bucket, count in one.step_times if bucket < half * PER_OCTAVE // 2),
        )
        for half in HALF_OCTAVES
    )
    for phase in one.run.phases:
        if phase.phase == "step":
            yield {}, Distribution(upto, sum(count for _, count in one.step_times), phase.ns / 1e9)


def _quantiles(one: RankNow) -> Iterator[Sample]:
    for when, pace in (("first", one.first), ("now", one.now)):
        if pace is not None:
            yield {"when": when, "quantile": "0.5"}, seconds(pace.median_ns)
            yield {"when": when, "quantile": "0.99"}, seconds(pace.p99_ns)


def _findings(one: RankNow) -> Iterator[Sample]:
    for kind in {found.kind: None for found in one.findings}:
        yield {"finding": kind.value}, 1
    for other in one.not_found:
        yield {"finding": other.kind.value}, None if other.why else 0


def _savings(one: RankNow) -> Iterator[Sample]:
    for kind in {found.kind: None for found in one.findings}:
        likely_ns = sum(found.saving.likely_ns for found in one.findings if found.kind is kind)
        yield {"finding": kind.value}, seconds(likely_ns)


def _last(one: RankNow) -> dict[str, float]:
    return {figure.name: figure.last for figure in one.run.figures}


def _figure(name: str, factor: float, one: RankNow) -> Iterator[Sample]:
    value = _last(one).get(name)
    yield {}, None if value is None else value * factor


def _memory(one: RankNow) -> Iterator[Sample]:
    last = _last(one)
    for name, kind in MEMORY.items():
        yield {"kind": kind}, last.get(name)


def _storage(one: RankNow) -> Iterator[Sample]:
    last = _last(one)
    for name, (direction, process) in STORAGE.items():
        yield {"direction": direction, "process": process}, last.get(name)


def _faults(one: RankNow) -> Iterator[Sample]:
    last = _last(one)
    for name, kind in FAULTS.items():
        yield {"kind": kind}, last.get(name)


def _ranks(ranks: Ranks) -> Iterator[Sample]:
    yield {}, len(ranks)


def _spread(ranks: Ranks) -> Iterator[Sample]:
    """Of several ranks."""
    known = [ns for one in ranks if one.now is not None and (ns := one.now.median_ns) is not None]
    if len(known) > 1:
        for name, of in (("min", min), ("median", median), ("max", max)):
            yield {"statistic": name}, seconds(of(known))


def _family(
    name: str, labels: str, meaning: str, told: Callable[[RankNow], Iterable[Sample]], counts: bool = False
) -> Family[Ranks]:
    """Of each rank, with these labels beside its number."""
    return Family(f"watch_{name}", ("rank", *labels.split()), meaning, _of_each(told), "counter" if counts else "gauge")


FAMILIES: tuple[Family[Ranks], ...] = (
    _family("run_info", "tool_version world_size steps_by", "The run, and what steps are found by. Always 1.", _info),
    _family("steps", "", "Steps that have ended.", _steps, counts=True),
    _family("run_seconds", "", "From the start of the process to the last that its log tells.", _length),
    _family(
        "since_last_step_seconds", "", "From the last step's end to the last that the log tells.", _since_last_step
    ),
    _family("part_seconds", "part", "Where the time went, up to the last step's end.", _parts, counts=True),
    _family("part_events", "part", "Steps, evaluations and checkpoints.", _part_counts, counts=True),
    _family(
        "phase_seconds", "phase", "Times on the host and the device, without the first step.", _phases, counts=True
    ),
    Family("watch_step_seconds", ("rank", "le"), "Steps by their time.", _of_each(_step_times), "histogram"),
    _family("step_quantile_seconds", "when quantile", "Step time in the first minutes and now.", _quantiles),
    _family("finding", "finding", "1: seen so far; 0: looked for, and not there.", _findings),
    _family("finding_saving_seconds", "finding", "What the run so far would have taken less.", _savings),
    _family("memory_bytes", "kind", "Memory of the process, its workers and its device.", _memory),
    _family("storage_bytes", "direction process", "Read from storage and written to it.", _storage, counts=True),
    _family("page_faults", "kind", "Page faults of the process.", _faults, counts=True),
    _family("cpu_seconds", "", "CPU time of the process.", partial(_figure, "cpu_s", 1), counts=True),
    _family(
        "allocator_retries",
        "",
        "Allocations that freed cached blocks first.",
        partial(_figure, "allocator_retries", 1),
        counts=True,
    ),
    _family("device_clock_hertz", "", "SM clock of the device.", partial(_figure, "sm_clock_mhz", 1e6)),
    _family("device_temperature_celsius", "", "Temperature of the device.", partial(_figure, "temperature_c", 1)),
    _family("device_power_watts", "", "Power of the device.", partial(_figure, "power_w", 1)),
    _family("device_slowed", "", "1: heat or power hold its clock back.", partial(_figure, "slowed", 1)),
    Family("watch_ranks", (), "Ranks whose logs are read, 64 at most.", _ranks),
    Family("watch_ranks_step_seconds", ("statistic",), "Median step time now of all ranks, of several.", _spread),
)
"""In the order in which they are written. What this log does not know is left out."""
