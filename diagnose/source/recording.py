"""A recording as `diagnose profile` leaves it: which files of a folder belong together, and its manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diagnose.contracts.trials import SCHEMA_VERSION as TRIALS_VERSION
from diagnose.contracts.trials import Report
from diagnose.failures import attempt
from diagnose.source import arrangement, beside, ranks
from diagnose.source.base import InputError
from diagnose.source.beside import KINDS, LONGEST_NOTE
from diagnose.source.integrity import WITHOUT
from diagnose.source.ranks import TraceFile
from diagnose.storage.remote import Place
from diagnose.trace import retiming, units
from diagnose.trace.joining import joined
from diagnose.trace.manifest import SCHEMA_VERSION, Manifest, RankManifest, Timed
from diagnose.trace.measured import EVENT_NS
from diagnose.trace.model import Context, Ground, IntegrityNote, Rank, Severity, Step
from diagnose.trace.units import duration

NOT_TIMED = "Times are those of steps in which ops were recorded, which takes the host time."
MOST_NOTES = 16  # Notes that are shown of each part of a manifest, with LONGEST_NOTE characters of each.
_TRACE_NAME = re.compile(r"\.trace\.(json|json\.gz|sqlite)\Z")


class RankFiles(Struct, frozen=True):
    """What is read as one rank."""

    trace: TraceFile
    beside: dict[str, Place] = field(default_factory=dict)  # By kind, as in `beside.KINDS`.
    context: Context | None = None

    def without(self, kind: str) -> RankFiles:
        """The same without the file of one kind."""
        return replace(self, beside={one: path for one, path in self.beside.items() if one != kind})

    def absolute(self) -> RankFiles:
        """The same for a process that runs in another folder."""
        trace = replace(self.trace, path=self.trace.path.absolute())
        return replace(self, trace=trace, beside={kind: path.absolute() for kind, path in self.beside.items()})


class Recordings(Struct, frozen=True):
    """The files that were given, and what is known of them besides."""

    ranks: tuple[RankFiles, ...]
    manifest: Manifest | None = None  # Of the first folder that has one.
    trials: Report | None = None  # What was tried of it; the same.
    integrity: tuple[IntegrityNote, ...] = ()


def find(paths: Sequence[str | Path]) -> Recordings:
    """The recordings in the paths. Files beside a trace count only if its folder was named. Raises InputError."""
    seen: dict[str, Place] = {}
    manifests: dict[Place, _Contexts | None] = {}
    notes: list[IntegrityNote] = []
    found: list[RankFiles] = []
    tried: list[Report] = []
    for trace in ranks.find(paths, seen):
        if trace.named:
            found.append(RankFiles(trace))
            continue
        folder = trace.path.parent
        if folder not in manifests:
            manifest, trials, problems = _about(trace.path, seen)
            manifests[folder] = None if manifest is None else _Contexts(manifest)
            tried += [] if trials is None else [trials]
            notes += problems
        contexts = manifests[folder]
        context = None if contexts is None else contexts.of(trace.path.name)
        found.append(RankFiles(trace, _beside(trace.path, seen), context))
    known = [one.manifest for one in manifests.values() if one is not None]
    used = {one.context.rank.rank for one in found if one.context is not None}
    notes += [note for one in known for note in _run_notes(one, used)]
    return Recordings(tuple(found), known[0] if known else None, tried[0] if tried else None, tuple(notes))


def _about(trace: Place, seen: dict[str, Place]) -> tuple[Manifest | None, Report | None, list[IntegrityNote]]:
    """The manifest and trials in the trace's folder, None if not there or not usable, and notes on both."""
    manifest: Manifest | None = None
    trials: Report | None = None
    manifest_notes, trials_notes = list[IntegrityNote](), list[IntegrityNote]()
    if path := seen.get(ranks.address(trace.with_name("manifest.json"))):
        lost = "It is not used: times without the profiler and the run's settings are not known."
        manifest, manifest_notes = beside.read(path, Manifest, SCHEMA_VERSION, lost, "Record again to have them.")
    if path := seen.get(ranks.address(trace.with_name("trials.json"))):
        lost, again = "The report lacks the trials.", "Try again: diagnose try."
        trials, trials_notes = beside.read(path, Report, TRIALS_VERSION, lost, again)
    return manifest, trials, [*manifest_notes, *trials_notes]


def _beside(trace: Place, seen: dict[str, Place]) -> dict[str, Place]:
    """The files beside a trace, by kind; none for a trace whose name is not as our recorder's."""
    if (stem := _stem(trace)) is None:
        return {}
    there = {
        kind: [seen[name] for end in about.ends if (name := ranks.address(trace.with_name(stem + end))) in seen]
        for kind, about in KINDS.items()
    }
    return {kind: files[0] for kind, files in there.items() if files}


def _stem(trace: Place) -> str | None:
    found = _TRACE_NAME.search(trace.name)
    return trace.name[: found.start()] if found else None


def costs_beside(trace: Place) -> str | None:
    """Name of the file for what changed ops take, beside a trace; None of a trace that our recorder did not name."""
    stem = _stem(trace)
    return None if stem is None else stem + KINDS["costs"].ends[0]


def read(files: RankFiles) -> Rank:
    """The rank in a trace, with what its manifest and the files beside it add. Raises InputError if unreadable."""
    rank = replace(ranks.read(files.trace.path, files.trace.part), context=files.context)
    own = None if files.context is None else files.context.rank
    if own is not None:
        rank = _noted(rank, *_notes(own.notes), *notes(own))
    for kind, path in files.beside.items():
        if KINDS[kind].read is not None:
            rank = _with(rank, path, KINDS[kind])
    if own is not None and own.timing is not None:
        rank = retiming.without_first(rank, own.timing.settling or 0)
    rank = _timed(rank, files)
    if "detail" not in files.beside:
        return rank
    try:
        rank = joined(rank, replace(ranks.read(files.beside["detail"]), context=files.context))
    except InputError as error:
        return _noted(rank, IntegrityNote(str(error), "Source lines and shapes are not known.", Severity.WARNING))
    obsolete = [WITHOUT[option] for option in rank.provenance.joined]
    return replace(rank, integrity=tuple(note for note in rank.integrity if note not in obsolete))


def _noted(rank: Rank, *notes: IntegrityNote) -> Rank:
    return replace(rank, integrity=(*rank.integrity, *notes))


def _timed(rank: Rank, files: RankFiles) -> Rank:
    """The rank, and the timing in its context, by the recording without ops, if there is one of the same steps."""
    known = None if rank.context is None else rank.context.rank
    if "device" not in files.beside or known is None or known.device_timing is None:
        return rank
    try:
        device = ranks.read(files.beside["device"])
    except InputError as error:
        return _noted(rank, IntegrityNote(str(error), NOT_TIMED, Severity.WARNING))
    measured = known.event_cost
    op_ns = EVENT_NS if measured is None or measured.op_ns is None else measured.op_ns
    marks = _marks(device, known.device_timing)
    moved = attempt("the times of the recording without ops", rank, retiming.retimed, rank, device, marks, op_ns)
    if moved.provenance.timed_by is None or rank.context is None:
        return moved
    timed = replace(known, timing=known.device_timing)
    return replace(moved, context=replace(rank.context, rank=timed))


def _marks(device: Rank, timed: Timed) -> tuple[Step, ...]:
    """The steps, without settling ones, of a recording without ops, on its clock: its marks, else by the manifest."""
    bounds = [at - device.zero_unix_ns for at in timed.bounds_unix_ns]
    by_clock = [Step(timed.first_step + k, *pair) for k, pair in enumerate(pairwise(bounds))]
    return (device.steps if device.provenance.step_marker == "ProfilerStep" else tuple(by_clock))[timed.settling or 0 :]


def _with(rank: Rank, path: Place, kind: beside.Kind) -> Rank:
    """The rank with the content of a file beside its trace, or with a note on why that is not used."""
    assert kind.read is not None
    try:
        added, dropped = kind.read(path)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        lost = f"{kind.lost} is not known. {kind.again}"
        return _noted(rank, IntegrityNote(f"{path.name} {why}.", lost, Severity.WARNING))
    rank = replace(rank, **{kind.attribute: added})
    return _noted(rank, beside.partly(path.name, dropped, kind.again)) if dropped else rank


class _Contexts:
    """What a manifest knows of the ranks of its folder."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._by_name = {rank.trace: rank for rank in reversed(manifest.ranks)}
        self._by_number = {rank.rank: rank for rank in reversed(manifest.ranks)}

    def of(self, trace: str) -> Context | None:
        """The context of a trace by its name: of the rank that names it, else of the one of its number; else None."""
        about, index = self.manifest, arrangement.rank_in_name(trace)
        own = self._by_name.get(trace) or (None if index is None else self._by_number.get(index))
        if own is None:
            return None
        here = own.peers or len(about.ranks)
        return Context(own, about.host, here, about.environment, about.versions, about.command)


def _run_notes(manifest: Manifest, used: set[int]) -> Iterator[IntegrityNote]:
    """Notes of a manifest: its own, that it is incomplete, and on ranks without a trace or that were only timed."""
    yield from _notes(manifest.notes)
    if not manifest.complete:
        yield IntegrityNote("The recording is incomplete.", "Later parts are missing.", Severity.WARNING)
    for rank in manifest.ranks:
        if rank.rank not in used and rank.recorded:
            said = " ".join(rank.notes[:MOST_NOTES])[:LONGEST_NOTE]
            yield IntegrityNote(f"Rank {rank.rank} left no trace.", said, Severity.WARNING)
    if timed := [rank.rank for rank in manifest.ranks if not rank.recorded]:
        said = f"{units.ranks(timed).capitalize()} {'were' if len(timed) > 1 else 'was'} timed but not recorded."
        yield IntegrityNote(said[:LONGEST_NOTE], "Choose ranks with diagnose profile --ranks.", Severity.NOTE)


def _notes(sentences: Sequence[str]) -> list[IntegrityNote]:
    return [IntegrityNote(sentence[:LONGEST_NOTE], "", Severity.NOTE) for sentence in sentences[:MOST_NOTES]]


CHANGED = 0.05  # Share by which medians differ; of equal runs on one GPU machine by 0.1 to 8 %.


def notes(rank: RankManifest) -> Iterator[IntegrityNote]:
    """On switches that cost time, and on step times without the profiler that differ before and after the recordings.
    These differ if the medians do by over CHANGED, and each median lies outside the other's quartiles."""
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
    """(lower quartile, median, upper quartile) of the wall times of steps, in ns; None without any."""
    if timed is None or not timed.wall_ns:
        return None
    low, middle, high = np.percentile(timed.wall_ns, (25, 50, 75))
    return round(low), round(middle), round(high)
