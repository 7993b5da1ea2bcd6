"""What every nanosecond of the mean step goes to: rows that do not overlap and add up to the step exactly.

On a device each moment belongs to the compute that began first of what runs then, else to communication, else to a
copy; a moment without work belongs to the cause of its idle gap. Without device work it belongs to what the training
threads do. So two recordings can be compared row by row, and no part of their difference is lost or counted twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, DeviceTime, TimeCause, device_time, shared_out
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import enclosing_op, host_activities, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.inputs import Inputs, name_codes, recorded_inputs
from diagnose.facts.core.spans import cut_at_frames, host_spans, names_of, sites_at
from diagnose.facts.core.steps import Steps, steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

SMALL_SHARE = 1e-4  # Of the step: smaller rows are told apart by part, kind and op only (our choice).
MOST_ROWS = 1000  # Beyond these the smallest are told apart by part and kind only.
LONGEST = 120  # Characters of the text of an op's shapes.


class Part(str, Enum):
    """What a moment of the step goes to."""

    COMPUTE = "compute"
    EXPOSED_COMMUNICATION = "exposed_communication"
    EXPOSED_COPY = "exposed_copy"
    IDLE = "idle"
    WORK_NOT_RECORDED = "work_not_recorded"  # In a CUDA graph whose kernels were not recorded.
    HOST = "host"  # What the training threads do, where no device work was recorded.


_OF_CLASS = {
    Part.COMPUTE: WorkClass.COMPUTE,
    Part.EXPOSED_COMMUNICATION: WorkClass.COMMUNICATION,
    Part.EXPOSED_COPY: WorkClass.COPY,
}


class AttributedTime(Struct, frozen=True):
    """Time of the mean step that goes to one thing."""

    part: Part
    kind: str  # Kind of kernel, cause of the idle time, or activity of the host.
    op: str  # The innermost framework op that launched the work, or ran on the host; "" for none, or unknown.
    name: str  # Of the kernel, collective or copy; "" where there is none, or where small rows were put together.
    shapes: str  # Of the op's inputs; "" if not recorded.
    site: Site | None
    calls: int  # Kernels, copies, gaps or calls of the op, in all used steps.
    ns: int  # Per step.


class _Pieces(Struct, frozen=True):
    """Pieces of time, all of one part. Arrays of shape (pieces,)."""

    part: Part
    kinds: Sequence[str]
    kind: IntArray  # Position in `kinds`.
    ns: IntArray
    op: IntArray  # Span id of the op, or -1.
    name: IntArray  # Code of the name, or -1.
    sites: Sequence[Site | None]
    counted: npt.NDArray[np.bool_]  # Where a kernel, copy, gap or call begins.


@fact
def time_attribution(facts: Facts) -> tuple[AttributedTime, ...]:
    """The rows, largest first; they add up to the mean step. Raises Missing if no step can be measured."""
    used = steps(facts)
    time = optional(device_time, facts)
    pieces = _on_host(facts, used) if time is None else _on_device(facts, time, used)
    return _bounded([row for piece in pieces for row in _summed(facts, piece)], used)


Sums = tuple[int, int]  # Time in all used steps, and calls.


def _on_device(facts: Facts, time: DeviceTime, used: Steps) -> Iterator[_Pieces]:
    """Device work class by class, each without the moments of those before, then idle time and holes."""
    work = device_work(facts)
    before = intervals.EMPTY
    for part, work_class in _OF_CLASS.items():
        rows = np.flatnonzero(work.work_class == work_class)
        yield _work(facts, part, rows, before, used)
        before = intervals.merge(before, work.of(work_class))
    yield _idle(facts, time)
    holes = time.work_not_recorded
    yield _plain(Part.WORK_NOT_RECORDED, "", holes, [None] * holes.size)


def _work(facts: Facts, part: Part, rows: IntArray, before: Intervals, used: Steps) -> _Pieces:
    """Of each of these rows of device work the time that neither an earlier one of them nor `before` covers."""
    work, spans = device_work(facts), facts.rank.spans
    start, end = (times[rows].clip(used.start_ns, used.end_ns) for times in (work.start_ns, work.end_ns))
    begun = np.maximum.accumulate(np.append(used.start_ns, end))[:-1]
    own = Intervals(np.minimum(np.maximum(start, begun), end), end)
    ns = own.ends - own.starts - intervals.covered(own, before)
    kept = end > start
    rows, ns = rows[kept], ns[kept]
    name, launch, labels = name_codes(facts, work.ids[rows]), work.launch[rows], names_of(facts)
    known = {kind: code for code, kind in enumerate(kinds.KernelKind)}
    of_name = {code: known[kinds.kernel_kind(labels[code])] for code in np.unique(name).tolist()}
    op, called = np.full(len(rows), intervals.NONE), launch >= 0
    op[called] = enclosing_op(facts, launch[called])
    sites: list[Site | None] = [None] * len(rows)
    moments, tracks = (spans[one].to_numpy()[launch[called]].astype(np.int64) for one in ("start_ns", "track"))
    for at, site in zip(np.flatnonzero(called).tolist(), sites_at(facts, moments, tracks), strict=True):
        sites[at] = site
    return _Pieces(
        part=part,
        kinds=[one.value for one in kinds.KernelKind],
        kind=np.array([of_name[code] for code in name.tolist()], dtype=np.int64),
        ns=ns,
        op=op,
        name=name,
        sites=sites,
        counted=np.ones(len(rows), dtype=bool),
    )


def _idle(facts: Facts, time: DeviceTime) -> _Pieces:
    """Idle gaps by cause; of cause "unknown" where nothing was recorded on the host."""
    found = optional(idle_gaps, facts)
    if found is None:
        return _plain(Part.IDLE, TimeCause.UNKNOWN.value, time.idle, [None] * time.idle.size)
    plain = _plain(Part.IDLE, "", found.gaps, found.sites)
    return replace(plain, kinds=[idle_cause.value for idle_cause in IDLE_CAUSES], kind=found.cause.astype(np.int64))


def _plain(part: Part, kind: str, times: Intervals, sites: Sequence[Site | None]) -> _Pieces:
    """Pieces of one kind, one for each time, without op and name. Each counts as a call."""
    none = np.full(times.size, intervals.NONE)
    zero, every = np.zeros(times.size, dtype=np.int64), np.ones(times.size, dtype=bool)
    return _Pieces(part, [kind], zero, times.ends - times.starts, none, none, sites, every)


def _on_host(facts: Facts, used: Steps) -> Iterator[_Pieces]:
    """What the training threads do, by line; ops by op. What lies between ops and is no activity is Python."""
    main, rest = host_threads(facts).main, intervals.of([used.start_ns], [used.end_ns])
    for activity, times in host_activities(facts).items():
        own = intervals.clip(times, used.start_ns, used.end_ns)
        rest = intervals.subtract(rest, own)
        yield _ops(facts, own) if activity is TimeCause.OPS else _at_lines(facts, activity, own, main)
    yield _at_lines(facts, TimeCause.PYTHON, rest, main)


def _at_lines(facts: Facts, activity: TimeCause, times: Intervals, track: int) -> _Pieces:
    """One activity of a thread by source line; Python is cut where its innermost frame changes."""
    pieces = times
    if activity is TimeCause.PYTHON:
        with suppress(Missing):
            pieces = cut_at_frames(facts, times, track)
    sites = sites_at(facts, pieces.starts, np.full(pieces.size, track, dtype=np.int64))
    begins = np.isin(pieces.starts, times.starts)
    return replace(_plain(Part.HOST, activity.value, pieces, sites), counted=begins)


def _ops(facts: Facts, times: Intervals) -> _Pieces:
    """Time in ops by the innermost one: of the main thread, where that is in one, else of another training thread."""
    every, threads = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE), host_threads(facts)
    every = every.where(np.isin(every.track, threads.training))
    pieces = intervals.cut(times, np.concatenate((every.start_ns, every.end_ns)))[0]
    row = np.full(pieces.size, intervals.NONE)
    for track in (threads.main, *threads.training.tolist()):
        open_at = np.flatnonzero(row < 0)
        tracks = np.full(len(open_at), track, dtype=np.int64)
        row[open_at] = intervals.innermost_at(pieces.starts[open_at], tracks, every.track, every.start_ns, every.end_ns)
    ran = np.unique(row[row >= 0])
    site_of = dict(zip(ran.tolist(), sites_at(facts, every.start_ns[ran], every.track[ran]), strict=True))
    op = np.where(row >= 0, every.ids[row], intervals.NONE) if len(every.ids) else row
    plain = _plain(Part.HOST, TimeCause.OPS.value, pieces, [site_of.get(one) for one in row.tolist()])
    first = np.zeros(pieces.size, dtype=bool)
    first[np.unique(row, return_index=True)[1]] = True
    return replace(plain, op=op, counted=first & (row >= 0))


def _summed(facts: Facts, pieces: _Pieces) -> Iterator[tuple[AttributedTime, Sums]]:
    """One part's rows by kind, op, shapes, name and line, each with its total (ns, calls) over all steps."""
    ops, op = np.unique(pieces.op, return_inverse=True)
    position, inputs = recorded_inputs(facts, ops)
    number: dict[Site | None, int] = {}
    site = np.array([number.setdefault(one, len(number)) for one in pieces.sites], dtype=np.int64)
    columns = (pieces.kind, name_codes(facts, ops)[op.reshape(-1)], position[op.reshape(-1)], pieces.name, site)
    keys, group = np.unique(np.stack(columns).astype(np.int64), axis=1, return_inverse=True)
    ns, calls = np.zeros(keys.shape[1], dtype=np.int64), np.zeros(keys.shape[1], dtype=np.int64)
    np.add.at(ns, group.reshape(-1), pieces.ns)
    np.add.at(calls, group.reshape(-1), pieces.counted)
    sites, texts = list(number), [*map(shapes_text, inputs), ""]
    labels = [*names_of(facts), ""]
    for (kind, op_code, shapes, name, line), *sums in zip(keys.T.tolist(), ns.tolist(), calls.tolist(), strict=True):
        key = AttributedTime(
            pieces.part, pieces.kinds[kind], labels[op_code], labels[name], texts[shapes], sites[line], 0, 0
        )
        yield key, (sums[0], sums[1])


def shapes_text(inputs: Inputs) -> str:
    """The shapes of an op's inputs as they are read, as in "(64, 512) (512,)"; no more than LONGEST characters."""
    text = " ".join(
        "[" * (len(input_) > 1) + " ".join(str(tensor.shape) for tensor in input_) + "]" * (len(input_) > 1)
        for input_ in inputs
        if input_
    )
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _bounded(rows: Sequence[tuple[AttributedTime, Sums]], used: Steps) -> tuple[AttributedTime, ...]:
    """Rows with ns per step, longest first. Small ones, and those beyond MOST_ROWS, are merged with less detail."""
    least = SMALL_SHARE * used.window_ns
    total = _merged(rows, 0, lambda key: key)
    total = _merged(total.items(), least, lambda key: replace(key, name="", shapes="", site=None))
    if len(total) > MOST_ROWS:
        least = sorted(ns for ns, _ in total.values())[-MOST_ROWS]
        total = _merged(total.items(), least, lambda key: replace(key, op="", name="", shapes="", site=None))
    ranked = sorted(total.items(), key=lambda item: -item[1][0])
    per_step = shared_out([ns for _, (ns, _) in ranked], used.count)
    return tuple(replace(key, calls=calls, ns=ns) for (key, (_, calls)), ns in zip(ranked, per_step, strict=True) if ns)


def _merged(
    rows: Iterable[tuple[AttributedTime, Sums]], least_ns: float, coarse: Callable[[AttributedTime], AttributedTime]
) -> dict[AttributedTime, Sums]:
    """Total (ns, calls) by key; rows below `least_ns` are added under the coarser key."""
    found: dict[AttributedTime, Sums] = {}
    for key, (ns, calls) in rows:
        place = key if ns >= least_ns else coarse(key)
        before = found.get(place, (0, 0))
        found[place] = before[0] + ns, before[1] + calls
    return found
