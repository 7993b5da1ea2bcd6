"""A recording as `diagnose profile` leaves it: which files of a folder belong together, and its manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diagnose.contracts.trials import SCHEMA_VERSION as TRIALS_VERSION
from diagnose.contracts.trials import Report
from diagnose.failures import attempt
from diagnose.source import beside, ranks
from diagnose.source.base import InputError
from diagnose.source.beside import LONGEST_NOTE, read_costs, read_graph, read_values
from diagnose.source.integrity import WITHOUT
from diagnose.source.ranks import TraceFile
from diagnose.storage.remote import Listings, Place
from diagnose.trace import retiming, units
from diagnose.trace.joining import joined
from diagnose.trace.manifest import SCHEMA_VERSION, Manifest, RankManifest, Timed
from diagnose.trace.measured import EVENT_NS
from diagnose.trace.model import Context, Ground, IntegrityNote, Rank, Severity, Step
from diagnose.trace.units import duration

MANIFEST, TRIALS = "manifest.json", "trials.json"
RECORD_AGAIN = "Record again to have them."
NOT_TIMED = "Times are those of steps in which ops were recorded, which takes the host time."
MOST_NOTES = 16  # Notes that are shown of each part of a manifest, with LONGEST_NOTE characters of each.
_TRACE_NAME = re.compile(r"\.trace\.(json|json\.gz|sqlite)\Z")
_BESIDE = {
    "device": (".device.json.gz", ".device.json", ".device.sqlite"),
    "detail": (".detail.json.gz", ".detail.json"),  # By torch.profiler, whatever made the other.
    **{kind: (f".{kind}.json.gz",) for kind in ("graph", "values", "costs")},
}
_AGAIN = "Record again to know it."
_ADDED: dict[str, tuple[str, Callable[[Place], tuple[Any, list[str]]], str, str]] = {
    "graph": ("graph", read_graph, "How ops depend on each other", _AGAIN),
    "values": ("values", read_values, "Which ops compute the same again", _AGAIN),
    "costs": ("measured", read_costs, "What changed ops take on this machine", "Measure again: diagnose measure."),
}
"""By the kind of a file the field of Rank that it fills, how, what it tells, and what to do without it."""


class RankFiles(Struct, frozen=True):
    """What is read as one rank."""

    trace: TraceFile
    beside: dict[str, Place] = field(default_factory=dict)
    """By kind: "device" work and runtime calls alone, "detail" (stacks, shapes), autograd's "graph", which ops made
    equal "values", measured "costs" of changed ops."""
    context: Context | None = None

    def without(self, kind: str) -> RankFiles:
        """The same without one file."""
        return replace(self, beside={one: path for one, path in self.beside.items() if one != kind})

    def absolute(self) -> RankFiles:
        """The same for a process that runs in another folder."""
        beside = {kind: path.absolute() for kind, path in self.beside.items()}
        return replace(self, trace=replace(self.trace, path=self.trace.path.absolute()), beside=beside)


class Recordings(Struct, frozen=True):
    """The files that were given, and what is known of them besides."""

    ranks: tuple[RankFiles, ...]
    manifest: Manifest | None = None  # Of the first folder that has one.
    trials: Report | None = None  # What was tried of it; the same.
    integrity: tuple[IntegrityNote, ...] = ()


def find(paths: Sequence[str | Path]) -> Recordings:
    """The recordings in the paths. A trace that was named, rather than its folder, is used alone. Raises InputError."""
    listings = Listings()
    told: dict[Place, _Told | None] = {}
    notes: list[IntegrityNote] = []
    found: list[RankFiles] = []
    tried: list[Report] = []
    for trace in ranks.find(paths, listings):
        if trace.named:
            found.append(RankFiles(trace))
            continue
        folder = trace.path.parent
        if folder not in told:
            manifest, problems = _manifest_beside(trace.path, listings)
            trials, others = _trials_beside(trace.path, listings)
            told[folder] = None if manifest is None else _Told(manifest)
            tried += [] if trials is None else [trials]
            notes += [*problems, *others]
        there = {kind: _beside(trace.path, names, listings) for kind, names in _BESIDE.items()}
        known = told[folder]
        context = None if known is None else known.context(trace.path.name)
        found.append(RankFiles(trace, {kind: path for kind, path in there.items() if path is not None}, context))
    manifests = [one.manifest for one in told.values() if one is not None]
    used = {one.context.rank.rank for one in found if one.context is not None}
    notes += [note for one in manifests for note in _run_notes(one, used)]
    return Recordings(
        tuple(found), manifests[0] if manifests else None, tried[0] if tried else None, integrity=tuple(notes)
    )


def read(files: RankFiles) -> Rank:
    """The rank in a trace, with what its detail recording and manifest add. Raises InputError if there is no trace."""
    rank = ranks.read(files.trace.path, files.trace.part)
    rank = replace(rank, context=files.context)
    if files.context is not None:
        told = files.context.rank
        rank = replace(rank, integrity=(*rank.integrity, *_notes(told.notes), *notes(told)))
    for kind in (one for one in _ADDED if one in files.beside):
        rank = _with(rank, files.beside[kind], *_ADDED[kind])
    rank = _timed(_settled(rank), files)
    if "detail" not in files.beside:
        return rank
    try:
        rank = joined(rank, replace(ranks.read(files.beside["detail"]), context=files.context))
    except InputError as error:
        lost = IntegrityNote(str(error), "Source lines and shapes are not known.", Severity.WARNING)
        return replace(rank, integrity=(*rank.integrity, lost))
    obsolete = [WITHOUT[option] for option in rank.provenance.joined]
    return replace(rank, integrity=tuple(note for note in rank.integrity if note not in obsolete))


def _settled(rank: Rank) -> Rank:
    timing = None if rank.context is None else rank.context.rank.timing
    return rank if timing is None else retiming.without_first(rank, timing.settling or 0)


def _timed(rank: Rank, files: RankFiles) -> Rank:
    """At the times of the recording without ops, where there is one that shows the same steps."""
    known = None if rank.context is None else rank.context.rank
    if "device" not in files.beside or known is None or known.device_timing is None:
        return rank
    try:
        device = ranks.read(files.beside["device"])
    except InputError as error:
        return replace(rank, integrity=(*rank.integrity, IntegrityNote(str(error), NOT_TIMED, Severity.WARNING)))
    measured = known.event_cost
    op_ns = EVENT_NS if measured is None or measured.op_ns is None else measured.op_ns
    marks = _marks(device, known.device_timing)
    moved = attempt("the times of the recording without ops", rank, retiming.retimed, rank, device, marks, op_ns)
    if moved.provenance.timed_by is None or rank.context is None:
        return moved
    timed = msgspec.structs.replace(known, timing=known.device_timing)
    return replace(moved, context=replace(rank.context, rank=timed))


def _marks(device: Rank, timed: Timed) -> tuple[Step, ...]:
    """The steps of a recording without ops on its clock: it marks none itself, unless Nsight Systems made it."""
    bounds = [at - device.zero_unix_ns for at in timed.bounds_unix_ns]
    by_clock = [Step(timed.first_step + k, *pair) for k, pair in enumerate(pairwise(bounds))]
    return (device.steps if device.provenance.step_marker == "ProfilerStep" else tuple(by_clock))[timed.settling or 0 :]


def _manifest_beside(trace: Place, listings: Listings) -> tuple[Manifest | None, list[IntegrityNote]]:
    lost = "It is not used: times without the profiler and the run's settings are not known."
    path = listings.there(trace.with_name(MANIFEST))
    return (None, []) if path is None else beside.read(path, Manifest, SCHEMA_VERSION, lost, RECORD_AGAIN)


def _trials_beside(trace: Place, listings: Listings) -> tuple[Report | None, list[IntegrityNote]]:
    lost, again = "The report lacks the trials.", "Try again: diagnose try."
    path = listings.there(trace.with_name(TRIALS))
    return (None, []) if path is None else beside.read(path, Report, TRIALS_VERSION, lost, again)


def _with(
    rank: Rank, path: Place, name: str, read: Callable[[Place], tuple[Any, list[str]]], lost: str, again: str
) -> Rank:
    try:
        added, dropped = read(path)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        note = IntegrityNote(f"{path.name} {why}.", f"{lost} is not known. {again}", Severity.WARNING)
        return replace(rank, integrity=(*rank.integrity, note))
    partly = (beside.partly(path.name, dropped, again),) if dropped else ()
    return replace(rank, integrity=(*rank.integrity, *partly), **{name: added})


def costs_beside(trace: Place) -> str | None:
    """Name of the file for what changed ops take, beside a trace; None of a trace that our recorder did not name."""
    name = _TRACE_NAME.sub("", trace.name)
    return None if name == trace.name else name + _BESIDE["costs"][0]


def _beside(trace: Place, names: Sequence[str], listings: Listings) -> Place | None:
    found = _TRACE_NAME.search(trace.name)
    beside = [trace.with_name(trace.name[: found.start()] + name) for name in names] if found else []
    return next((file for file in map(listings.there, beside) if file is not None), None)


class _Told:
    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._by_name = {rank.trace: rank for rank in reversed(manifest.ranks)}
        self._by_number = {rank.rank: rank for rank in reversed(manifest.ranks)}

    def context(self, trace: str) -> Context | None:
        """Of the rank that names the file, else of the one of its number."""
        told, index = self.manifest, ranks.rank_in_name(trace)
        own = self._by_name.get(trace) or (None if index is None else self._by_number.get(index))
        if own is None:
            return None
        here = own.peers or len(told.ranks)
        return Context(own, told.host, here, told.environment, told.versions, told.command)


def _run_notes(manifest: Manifest, used: set[int]) -> Iterator[IntegrityNote]:
    yield from _notes(manifest.notes)
    if not manifest.complete:
        yield IntegrityNote("The recording is incomplete.", "Later parts are missing.", Severity.WARNING)
    for rank in manifest.ranks:
        if rank.rank not in used and rank.recorded:
            yield from _absent(rank)
    if timed := [rank.rank for rank in manifest.ranks if not rank.recorded]:
        yield _timed_only(timed)


def _absent(rank: RankManifest) -> Iterator[IntegrityNote]:
    said = " ".join(rank.notes[:MOST_NOTES])[:LONGEST_NOTE]
    yield IntegrityNote(f"Rank {rank.rank} left no trace.", said, Severity.WARNING)


def _timed_only(ranks: Sequence[int]) -> IntegrityNote:
    said = f"{units.ranks(ranks).capitalize()} {'were' if len(ranks) > 1 else 'was'} timed but not recorded."
    return IntegrityNote(said[:LONGEST_NOTE], "Choose ranks with diagnose profile --ranks.", Severity.NOTE)


def _notes(sentences: Sequence[str]) -> list[IntegrityNote]:
    return [IntegrityNote(sentence[:LONGEST_NOTE], "", Severity.NOTE) for sentence in sentences[:MOST_NOTES]]


CHANGED = 0.05
"""Share by which median steps differ; equal runs on one GPU machine differ by 0.1 to 8 %, by what bounds them."""


def notes(rank: RankManifest) -> Iterator[IntegrityNote]:
    """On switches that cost time, and on steps without the profiler, before the recordings and after.

    None on steps if half of either lie about the others'.
    """
    flags, algorithms = rank.flags, "torch.use_deterministic_algorithms"
    fills = " and its fill_uninitialized_memory" * bool(flags.fill_uninitialized_memory)
    switches = {algorithms + fills: flags.deterministic_algorithms, "cudnn.deterministic": flags.cudnn_deterministic}
    if on := [name for name, is_on in {**switches, "anomaly detection": flags.anomaly_mode}.items() if is_on]:
        said = "Each costs some time: leave it on only where you need it."
        yield IntegrityNote(f"Switched on: {', '.join(on)}.", said, Severity.NOTE)
    if flags.onednn is False and rank.device is None:
        said = "Convolutions and matmuls on the CPU take longer without it."
        yield IntegrityNote("Switched off: oneDNN (torch.backends.mkldnn).", said, Severity.WARNING)
    before, after = _quartiles(rank.unprofiled), _quartiles(rank.unprofiled_after)
    if before is None or after is None:
        return
    faster, slower = sorted((before, after), key=lambda one: one[1])
    if slower[1] > (1 + CHANGED) * faster[1] and slower[0] > faster[1] and slower[1] > faster[2]:
        if slower is after and rank.unprofiled and _rises(rank.unprofiled.wall_ns):
            said = f"Step time rises from {duration(before[1])} to {duration(after[1])} over the timed steps."
            yield IntegrityNote(said, "Later steps may take longer still.", Severity.NOTE)
            return
        yield IntegrityNote(
            f"Step time drifted from {duration(before[1])} to {duration(after[1])} during the recording.",
            "CPU times may be off by as much. Record again on an idle machine.",
            Severity.WARNING,
            (Ground.HOST_TIMES,),
        )


def _rises(times_ns: Sequence[int]) -> bool:
    first, second = (np.median(some) for some in np.array_split(times_ns, 2))
    return bool(second > (1 + CHANGED) * first)


def _quartiles(timed: Timed | None) -> tuple[int, int, int] | None:
    """Of the steps' times by the process's clock; None without any."""
    if timed is None or not timed.wall_ns:
        return None
    low, middle, high = np.percentile(timed.wall_ns, (25, 50, 75))
    return round(low), round(middle), round(high)
