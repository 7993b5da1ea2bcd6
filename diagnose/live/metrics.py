"""A run that goes on as metrics of Prometheus. Counters never fall: they end with the last step that has ended."""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from diagnose.facts.watched.log import PER_OCTAVE
from diagnose.live.now import RankNow
from diagnose.trace.units import clipped
from diagnose.version import __version__

PREFIX = "diagnose_watch_"
HOST = "127.0.0.1"
MOST_LABEL = 200  # Characters of a label's value.
HALF_OCTAVES = range(34, 75)  # Limits of the histogram, 2^(k/2) ns: from 131 us to 137 s (our choice).

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]
Ranks: TypeAlias = Sequence[RankNow]


class Sample(NamedTuple):
    """A value of one series."""

    labels: Mapping[str, object]
    value: float | None  # None is unknown.
    ending: str = ""  # Of the series' name, behind that of its family.


class Family(Struct, frozen=True):
    """Series of one name, which differ in their labels."""

    name: str  # Without PREFIX; ends in its unit, if it has one. The series of a counter add `_total`.
    labels: tuple[str, ...]  # That its series may have.
    meaning: str
    samples: Callable[[Ranks], Iterable[Sample]]
    kind: Kind = "gauge"

    @property
    def ending(self) -> str:
        """What the series of this kind add to its name."""
        return "_total" if self.kind == "counter" else ""

    def collected(self, ranks: Ranks) -> Metric:
        """The metric with a sample of each series whose value is known."""
        found = Metric(PREFIX + self.name, self.meaning, self.kind)
        for labels, value, ending in self.samples(ranks):
            known = {key: clipped(str(text), MOST_LABEL) for key, text in labels.items() if text is not None}
            if value is not None:
                found.add_sample(found.name + self.ending + ending, known, value)
        return found


class Metrics(Collector):
    """All that is known of some ranks, for a registry of `prometheus_client`."""

    def __init__(self, ranks: Ranks = ()) -> None:
        self.show(ranks)

    def show(self, ranks: Ranks) -> None:
        """From now on, `collect` gives the metrics of these ranks."""
        self._collected = [found for family in FAMILIES if (found := family.collected(ranks)).samples]

    def collect(self) -> list[Metric]:
        """What the registry asks for."""
        return self._collected


def _info(one: RankNow) -> Iterator[Sample]:
    yield Sample({"tool_version": __version__, "world_size": one.run.world_size, "steps_by": one.run.steps_by}, 1)


def _parts(one: RankNow) -> Iterator[Sample]:
    for part in one.ended:
        yield Sample({"part": part.kind.value}, part.ns / 1e9)


def _part_counts(one: RankNow) -> Iterator[Sample]:
    for part in one.ended:
        yield Sample({"part": part.kind.value}, part.count)


def _phases(one: RankNow) -> Iterator[Sample]:
    for phase in one.run.phases:
        yield Sample({"phase": phase.phase}, phase.ns / 1e9)


def _step_times(one: RankNow) -> Iterator[Sample]:
    """A histogram of step times in s, for Prometheus: cumulative counts by half octave, then count and sum."""
    total = sum(count for _, count in one.step_times)
    for phase in one.run.phases:
        if phase.phase == "step":
            for half in HALF_OCTAVES:
                upto = sum(count for bucket, count in one.step_times if bucket < half * PER_OCTAVE // 2)
                yield Sample({"le": f"{2 ** (half / 2) / 1e9:.4g}"}, upto, "_bucket")
            yield Sample({"le": "+Inf"}, total, "_bucket")
            yield Sample({}, total, "_count")
            yield Sample({}, phase.ns / 1e9, "_sum")


def _quantiles(one: RankNow) -> Iterator[Sample]:
    """Median and 99th percentile of step times in s, at first and now; None where they are not known."""
    for when, pace in (("first", one.first), ("now", one.now)):
        for quantile, ns in () if pace is None else (("0.5", pace.median_ns), ("0.99", pace.p99_ns)):
            yield Sample({"when": when, "quantile": quantile}, None if ns is None else ns / 1e9)


def _findings(one: RankNow) -> Iterator[Sample]:
    """Per rule: 1 if it has found something so far, 0 if not, None if it could not look."""
    for rule in {found.rule: None for found in one.findings}:
        yield Sample({"finding": rule}, 1)
    for other in one.not_found:
        yield Sample({"finding": other.rule}, None if other.why else 0)


def _savings(one: RankNow) -> Iterator[Sample]:
    """Per rule, the s that its largest finding would have saved so far; findings of one rule overlap."""
    for rule, likely_ns in {found.rule: found.saving.likely_ns for found in reversed(one.findings)}.items():
        yield Sample({"finding": rule}, likely_ns / 1e9)


def _spread(ranks: Ranks) -> Iterator[Sample]:
    """The least, median and greatest of the ranks' median step times in s; nothing with fewer than two."""
    known = [ns for one in ranks if one.now is not None and (ns := one.now.median_ns) is not None]
    if len(known) > 1:
        for name, of in (("min", min), ("median", median), ("max", max)):
            yield Sample({"statistic": name}, of(known) / 1e9)


def _family(
    name: str, labels: str, meaning: str, samples_of: Callable[[RankNow], Iterable[Sample]], kind: Kind = "gauge"
) -> Family:
    """A family of metrics whose samples each rank gives, with the rank as the first label."""

    def samples(ranks: Ranks) -> Iterator[Sample]:
        for one in ranks:
            yield from (sample._replace(labels={"rank": one.rank, **sample.labels}) for sample in samples_of(one))

    return Family(name, ("rank", *labels.split()), meaning, samples, kind)


def _logged(
    name: str, labels: str, meaning: str, figures: Mapping[str, str], kind: Kind = "gauge", factor: float = 1
) -> Family:
    """A family from figures of the log; `figures`: the label values, in the order of `labels`, by figure."""

    def samples_of(one: RankNow) -> Iterator[Sample]:
        last = {figure.name: figure.last for figure in one.run.figures}
        for figure, values in figures.items():
            if figure in last:
                yield Sample(dict(zip(labels.split(), values.split(), strict=True)), last[figure] * factor)

    return _family(name, labels, meaning, samples_of, kind)


MEMORY = {
    "resident_bytes": "resident",
    "children_resident_bytes": "workers_resident",
    "allocated_bytes": "allocated",
    "most_allocated_bytes": "most_allocated",
    "reserved_bytes": "reserved",
}
STORAGE = {
    "read_bytes": "read training",
    "written_bytes": "written training",
    "children_read_bytes": "read workers",
    "children_written_bytes": "written workers",
}
FAULTS = {"minor_faults": "minor", "major_faults": "major"}

FAMILIES: tuple[Family, ...] = (  # In the order of the output. Figures that the log does not have are left out.
    _family("run_info", "tool_version world_size steps_by", "The run, and how steps are counted. Always 1.", _info),
    _family("steps", "", "Completed steps.", lambda one: [Sample({}, one.run.steps)], "counter"),
    _family(
        "run_seconds",
        "",
        "From the start of the process to the end of its log.",
        lambda one: [Sample({}, one.run.length_ns / 1e9)],
    ),
    _family(
        "since_last_step_seconds",
        "",
        "From the last step to the end of the log.",
        lambda one: [Sample({}, one.since_last_step_ns / 1e9)],
    ),
    _family("part_seconds", "part", "Where the time went, up to the last step.", _parts, "counter"),
    _family("part_events", "part", "Steps, evaluations and checkpoints.", _part_counts, "counter"),
    _family("phase_seconds", "phase", "Times on the CPU and the GPU, without the first step.", _phases, "counter"),
    _family("step_seconds", "le", "Steps by their time.", _step_times, "histogram"),
    _family("step_quantile_seconds", "when quantile", "Step time in the first minutes and now.", _quantiles),
    _family("finding", "finding", "1: found so far; 0: checked and not found.", _findings),
    _family("finding_saving_seconds", "finding", "Time that a fix would have saved so far.", _savings),
    _logged("memory_bytes", "kind", "Memory of the process, its workers and its GPU.", MEMORY),
    _logged("storage_bytes", "direction process", "Read from storage and written to it.", STORAGE, "counter"),
    _logged("page_faults", "kind", "Page faults of the process.", FAULTS, "counter"),
    _logged("cpu_seconds", "", "CPU time of the process.", {"cpu_s": ""}, "counter"),
    _logged(
        "allocator_retries", "", "Allocations that freed cached blocks first.", {"allocator_retries": ""}, "counter"
    ),
    _logged("device_clock_hertz", "", "SM clock of the GPU.", {"sm_clock_mhz": ""}, factor=1e6),
    _logged("device_temperature_celsius", "", "Temperature of the GPU.", {"temperature_c": ""}),
    _logged("device_power_watts", "", "Power of the GPU.", {"power_w": ""}),
    _logged("device_slowed", "", "1: throttled by heat or power.", {"slowed": ""}),
    Family("ranks", (), "Ranks with a log that is read (at most 64).", lambda ranks: [Sample({}, len(ranks))]),
    Family("ranks_step_seconds", ("statistic",), "Current median step time by rank.", _spread),
)


class CannotServe(Exception):
    """Why, as a sentence or two."""


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of `[HOST:]PORT`; without a host HOST, this machine. Raises CannotServe.

    >>> address_of(":9400"), address_of("9400"), address_of("[::1]:9400")
    (('127.0.0.1', 9400), ('127.0.0.1', 9400), ('::1', 9400))
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise CannotServe(f"{text} is not [HOST:]PORT. Write 9400, :9400 or 0.0.0.0:9400.")
    return host.removeprefix("[").removesuffix("]") or HOST, int(port)


class MetricsServer(Metrics):
    """Serves metrics over HTTP, in threads of its own. Before the first `show`, `ranks` (0) is the only series."""

    name = "serving metrics"

    def __init__(self, text: str) -> None:
        """At `[HOST:]PORT`. Raises CannotServe."""
        super().__init__()
        host, port = address_of(text)
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as error:
            why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise CannotServe(f"Cannot serve metrics at {text}: {why}. Choose another port with --metrics.") from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """The run has ended: the port is free again."""
        self._server.shutdown()
        self._server.server_close()
