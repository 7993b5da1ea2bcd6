"""Shapes and source lines of one recording, given to another recording of the same run.

Recording stacks and shapes costs the host time, so that they are recorded apart from times, in other steps. A host
span is the same in both recordings if it is on the same thread, of the same kind and name, and the so-many-th of these
in its step; but only if that step has as many of them as the step of the detail recording that is most like it. Where
it has not, as steps do more or less of the same, what the calls around it are tells (sampling.py).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.trace import enums, frames, intervals, kinds
from diagnose.trace.enums import CALLS, SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity
from diagnose.trace.model import IntegrityNote, Rank, Severity, VaryingShapes
from diagnose.trace.sampling import UNKNOWN, Sequence, lines_table, matching, numbered, ordinals, varying_shapes

MOST_DETAIL_STEPS = 32  # The first steps of the detail recording, with which each is compared (our choice).
FEW = 0.5  # With a smaller share of the ops found again, the two recordings hardly show the same steps (our choice).

OF_DEVICE = (SpanKind.RUNTIME, SpanKind.DRIVER)  # Those that a recording without the device lacks.
MARKS = (Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD)  # Annotations that torch makes itself, in every recording.

SHAPES = ("shapes", "dtypes", "strides")  # Columns of the table `ops`.


class _Calls(Struct, frozen=True):
    """Host spans that are calls or marks, in order of start. Arrays of shape (calls,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    step: IntArray  # Position in `Rank.steps`, or -1.
    what: IntArray  # Thread, kind and name as a number that is the same in both; -1 for what only detail has.
    marks: npt.NDArray[np.bool_]  # Of parts of the optimizer: no call, and may hold some and the pauses between them.

    @property
    def following(self) -> IntArray:
        """For each call that lies in no other the position of the next such one on its thread, else -1."""
        calls = np.flatnonzero(~self.marks)
        outer = calls[intervals.parents(self.track[calls], self.start_ns[calls], self.end_ns[calls]) < 0]
        outer = outer[np.lexsort((self.start_ns[outer], self.track[outer]))]
        same = self.track[outer[1:]] == self.track[outer[:-1]]
        found = np.full(len(self.ids), UNKNOWN, dtype=np.int64)
        found[outer[:-1][same]] = outer[1:][same]
        return found


def joined(timing: Rank, detail: Rank) -> Rank:
    """`timing` with the shapes, lines and memory events of `detail` that it lacks, and a note that says so.

    Memory events keep their times in `detail`: what they tell is how much was allocated, not when.
    """
    lacking = {one for one in ("shapes", "stacks") if not timing.provenance.knows(one)} & detail.provenance.recorded
    ours, theirs = _calls(timing, detail)
    same = _partners(ours, theirs)
    shaped = _also_alike(same, ours, theirs, _shapes_of(detail, theirs)) if "shapes" in lacking else same
    line = _lines_at(detail, theirs.start_ns, theirs.track)
    lined = _also_alike(same, ours, theirs, line) if "stacks" in lacking else same
    partner = lined if "stacks" in lacking else shaped
    is_op = timing.spans["kind"].cat.codes.to_numpy()[ours.ids[ours.step >= 0]] == enums.code(SpanKind.OP)
    share = float((partner[ours.step >= 0][is_op] >= 0).mean()) if is_op.any() else 0.0
    given = frozenset(lacking if share else ())
    return replace(
        timing,
        ops=_ops(timing, detail, ours, theirs, shaped) if "shapes" in given else timing.ops,
        memory=detail.memory if "memory" in detail.provenance.recorded - timing.provenance.recorded else timing.memory,
        lines=_lines(detail, ours, theirs, lined) if "stacks" in given else timing.lines,
        varying=_varying(detail, ours, theirs, shaped) if "shapes" in given else None,
        provenance=replace(timing.provenance, detail=detail.provenance.path, joined=given),
        integrity=(*timing.integrity, _note(detail, given, share)),
    )


def _calls(timing: Rank, detail: Rank) -> tuple[_Calls, _Calls]:
    """The calls of both recordings, `what` numbered alike; UNKNOWN of those in `detail` that `timing` has none like."""
    names = timing.spans["name"].cat.categories
    same_name = names.get_indexer(detail.spans["name"].cat.categories)
    kinds_of = [call for call in CALLS if call not in OF_DEVICE or "launches" in detail.provenance.recorded]
    ours = _picked(timing, kinds_of, np.arange(len(timing.tracks)), np.arange(len(names)), len(names))
    theirs = _picked(detail, kinds_of, _same_tracks(timing, detail), same_name, len(names))
    known, what = np.unique(ours.what, return_inverse=True)
    at = np.searchsorted(known, theirs.what)
    same = np.append(known, UNKNOWN)[at] == theirs.what
    return replace(ours, what=what.reshape(-1)), replace(theirs, what=np.where(same, at, UNKNOWN))


def _picked(rank: Rank, kinds_of: list[SpanKind], track: IntArray, name: IntArray, names: int) -> _Calls:
    """The calls of a rank; `track` and `name` are the number, in the timing recording, of each of its own."""
    spans = rank.spans
    kind = spans["kind"].cat.codes.to_numpy()
    labels = spans["name"].cat
    marked = np.array([kinds.activity(one) in MARKS for one in labels.categories])[labels.codes.to_numpy()]
    marked &= kind == enums.code(SpanKind.ANNOTATION)
    ids = np.flatnonzero(marked | np.isin(kind, [enums.code(one) for one in kinds_of]))
    tracks = spans["track"].to_numpy()[ids].astype(np.int64)
    thread, named = track[tracks], name[spans["name"].cat.codes.to_numpy()[ids]]
    what = (thread * len(SpanKind) + kind[ids]) * names + named
    start = spans["start_ns"].to_numpy()[ids]
    return _Calls(
        ids=ids,
        start_ns=start,
        end_ns=start + spans["dur_ns"].to_numpy()[ids],
        track=tracks,
        step=spans["step"].to_numpy()[ids].astype(np.int64),
        what=np.where((thread >= 0) & (named >= 0), what, UNKNOWN),
        marks=marked[ids],
    )


def _same_tracks(timing: Rank, detail: Rank) -> IntArray:
    """For each track of `detail` the thread of `timing` that it is, or -1: by its id; main threads are the same."""
    ours, theirs = (one.tracks["process"] + " " + one.tracks["thread"] for one in (timing, detail))
    found: IntArray = pd.Index(ours).get_indexer(pd.Index(theirs)).astype(np.int64)
    main = _main_track(timing), _main_track(detail)
    found[found == main[0]] = UNKNOWN
    found[main[1]] = main[0]
    return found


def _main_track(rank: Rank) -> int:
    """The track with most step marks and optimizer steps; without any, that with most spans."""
    names, tracks = rank.spans["name"].cat, rank.spans["track"].to_numpy()
    marks = np.array([kinds.activity(name) in (Activity.STEP, Activity.OPTIMIZER_STEP) for name in names.categories])
    marking = tracks[marks[names.codes.to_numpy()] & (rank.spans["step"].to_numpy() >= 0)]
    return int(np.bincount(marking if len(marking) else tracks).argmax())


def _partners(ours: _Calls, theirs: _Calls) -> IntArray:
    """For each of our calls the position of the one of theirs that is the same, or -1."""
    kinds_of = int(ours.what.max(initial=0)) + 1
    candidates = np.flatnonzero((theirs.step >= 0) & (theirs.what >= 0))
    candidates = candidates[np.argsort(theirs.step[candidates] * kinds_of + theirs.what[candidates], kind="stable")]
    groups = theirs.step[candidates] * kinds_of + theirs.what[candidates]
    mine = np.flatnonzero(ours.step >= 0)
    own, of_own, count = np.unique(
        ours.step[mine] * kinds_of + ours.what[mine], return_inverse=True, return_counts=True
    )
    step, what = own // kinds_of, own % kinds_of
    alike = _most_alike(step, what, count, groups, kinds_of)
    first = np.searchsorted(groups, alike[step] * kinds_of + what)
    past = np.searchsorted(groups, alike[step] * kinds_of + what, side="right")
    agree = (alike[step] >= 0) & (past - first == count)
    ordinal = ordinals(of_own.reshape(-1))
    found = np.full(len(ours.ids), UNKNOWN, dtype=np.int64)
    some = agree[of_own.reshape(-1)]
    found[mine[some]] = candidates[(first[of_own.reshape(-1)] + ordinal)[some]]
    return found


def _most_alike(step: IntArray, what: IntArray, count: IntArray, groups: IntArray, kinds_of: int) -> IntArray:
    """For each step the step of the detail recording with which most calls agree in number, or -1. Shape (steps,).

    Ties go to the earliest step, but to the very first one last if there are over two: in it the recording begins.
    `step`, `what`, `count`: our groups of calls, and how many each has. `groups`: step times `kinds_of` plus what, of
    each call of the detail recording.
    """
    their_groups, their_count = np.unique(groups, return_counts=True)
    steps = int(step.max(initial=-1)) + 1
    best, most = np.full(steps, UNKNOWN, dtype=np.int64), np.zeros(steps)
    their_step = their_groups // kinds_of
    others = np.unique(their_step)[:MOST_DETAIL_STEPS]
    for other in np.roll(others, -(len(others) > 2)).tolist():
        counted = np.zeros(kinds_of, dtype=np.int64)
        counted[their_groups[their_step == other] % kinds_of] = their_count[their_step == other]
        agreeing = np.bincount(step, weights=np.where(counted[what] == count, count, 0), minlength=steps)
        best[agreeing > most] = other
        most = np.maximum(most, agreeing)
    return best


def _also_alike(partner: IntArray, ours: _Calls, theirs: _Calls, label: IntArray) -> IntArray:
    """The partners; for calls without one, a call with the same calls around it, if all such have one `label`."""
    if (partner[ours.step >= 0] >= 0).all():
        return partner
    own, other = (Sequence(one.what, one.track, one.start_ns) for one in (ours, theirs))
    by_calls_around = matching(own, other, label)
    return np.where((partner < 0) & (ours.step >= 0), by_calls_around, partner)


def _shapes_of(detail: Rank, theirs: _Calls) -> IntArray:
    """A number for the shapes, types and strides of each call, equal for equal ones."""
    row = detail.ops.index.get_indexer(pd.Index(theirs.ids))
    codes = np.stack([np.append(detail.ops[name].cat.codes, UNKNOWN)[row] for name in SHAPES])
    return numbered(codes, np.ones(len(row), dtype=np.bool_))


def _ops(timing: Rank, detail: Rank, ours: _Calls, theirs: _Calls, partner: IntArray) -> pd.DataFrame:
    """The timed ops with shapes and scalars of their partners in the detail recording; "" without a partner."""
    some = np.flatnonzero(partner >= 0)
    row = timing.ops.index.get_indexer(pd.Index(ours.ids[some]))
    origin = detail.ops.index.get_indexer(pd.Index(theirs.ids[partner[some]]))
    both = (row >= 0) & (origin >= 0)
    columns = {}
    for name in (*SHAPES, "scalars"):
        texts = detail.ops[name].cat
        codes = np.full(len(timing.ops), texts.categories.get_loc(""), dtype=np.int64)
        codes[row[both]] = texts.codes.to_numpy()[origin[both]]
        columns[name] = pd.Categorical.from_codes(codes, categories=texts.categories)
    return timing.ops.assign(**columns)


def _varying(detail: Rank, ours: _Calls, theirs: _Calls, partner: IntArray) -> VaryingShapes:
    """Varying shapes of the detail recording, with ids of the timed ops that match them."""
    found = varying_shapes(detail.spans, detail.ops, tuple(step.number for step in detail.steps))
    which = np.full(len(detail.spans), UNKNOWN, dtype=np.int64)
    which[found.ids] = found.which
    some = np.flatnonzero(partner >= 0)
    of_ours = which[theirs.ids[partner[some]]]
    return replace(found, ids=ours.ids[some][of_ours >= 0], which=of_ours[of_ours >= 0])


def _lines(detail: Rank, ours: _Calls, theirs: _Calls, partner: IntArray) -> pd.DataFrame:
    """The table `lines`: the line that led to each call, and those of each pause until the next call.

    Of a pause only where the next call is the same in both recordings; each line has the same share of both pauses.
    """
    some = np.flatnonzero(partner >= 0)
    other = partner[some]
    after, their_after = ours.following[some], theirs.following[other]
    alike = (after >= 0) & (their_after >= 0) & (ours.what[after] == theirs.what[their_after])
    before, other_before, after, their_after = some[alike], other[alike], after[alike], their_after[alike]
    calls = Intervals(theirs.start_ns[other], theirs.end_ns[other])
    pauses = Intervals(theirs.end_ns[other_before], theirs.start_ns[their_after])
    parts = _parts(detail, calls, pauses, np.append(theirs.track[other], theirs.track[other_before]))
    start = np.append(ours.start_ns[some], ours.end_ns[before])
    end = np.append(ours.end_ns[some], ours.start_ns[after])
    line, inner, callee, track = parts.line, parts.inner, parts.callee, np.append(ours.track[some], ours.track[before])
    start, end = _shared_out(Intervals(start, end), parts.owner, parts.ns)
    track = track[parts.owner]
    kept = np.flatnonzero((line >= 0) & (end >= start))
    kept = kept[np.lexsort((-end[kept], start[kept]))]
    inside = intervals.parents(track[kept], start[kept], end[kept])
    labels = np.stack((line, inner, callee))[:, kept]
    kept = kept[(inside < 0) | (labels != labels[:, inside]).any(axis=0)]
    names = detail.spans["name"].cat.categories
    frame = pd.Categorical.from_codes(line[kept], categories=names)
    codes, at = np.unique(inner[kept], return_inverse=True)
    owners = pd.Index(["" if code == UNKNOWN else str(names[code]) for code in codes], dtype="str")
    framework = pd.Categorical.from_codes(at.reshape(-1), categories=owners)
    callees = pd.Categorical.from_codes(callee[kept], categories=pd.Index(parts.names, dtype="str"))
    return lines_table(Intervals(start, end).where(kept), track[kept], frame, framework, callees, parts.calls[kept])


class _Parts(Struct, frozen=True):
    """What calls and pauses consist of: a call of one part, a pause of one for each line. Arrays of shape (parts,)."""

    owner: IntArray  # Position of the call or, behind all calls, of the pause, in order.
    line: IntArray
    inner: IntArray  # Of the framework; as `line` the code of a frame, or -1.
    callee: IntArray  # Position in `names`.
    ns: IntArray
    calls: IntArray  # Of the callee.
    names: tuple[str, ...]


def _parts(detail: Rank, calls: Intervals, pauses: Intervals, tracks: IntArray) -> _Parts:
    """A part per call, by its begin, and per distinct line of a pause, by mean time. `tracks`: calls', then pauses'."""
    called = frames.of_frames(detail.spans, detail.libraries)
    some = np.flatnonzero(pauses.ends > pauses.starts)
    pieces, of_some = called.cut(pauses.where(some))
    owner = np.append(np.arange(calls.size), calls.size + some[of_some])
    track, moments = tracks[owner], np.append(calls.starts, (pieces.starts + pieces.ends) // 2)
    pieces = Intervals(np.append(calls.starts, pieces.starts), np.append(calls.ends, pieces.ends))
    callee = called.at(moments, track)
    kept = (owner < calls.size) | (callee != called.names.index(frames.COLLECTION))
    pieces, owner, track, moments, callee = pieces.where(kept), owner[kept], track[kept], moments[kept], callee[kept]
    framework = _innermost(detail, moments, track, lambda name: frames.loop_owner(name) is not None)
    told = np.stack((_lines_at(detail, moments, track), framework, callee))
    label = numbered(told, np.ones(told.shape[1], dtype=np.bool_))
    labels = int(label.max(initial=0)) + 1
    _, first, part = np.unique(owner * labels + label, return_index=True, return_inverse=True)
    lasted = pieces.ends - pieces.starts
    ns = np.bincount(part, lasted, len(first))
    begun = np.bincount(part, called.begun(pieces, track, callee), len(first))
    place = np.bincount(part, moments.astype(np.float64) * lasted, len(first)) / np.maximum(ns, 1)
    order = np.lexsort((place, owner[first]))
    first, ns, begun = first[order], ns[order], begun[order]
    line, inner, callee = told[:, first]
    return _Parts(owner[first], line, inner, callee, ns.astype(np.int64), begun.astype(np.int64), called.names)


def _shared_out(times: Intervals, owner: IntArray, ns: IntArray) -> Intervals:
    """The piece of its owner's time that each part has: in order, in proportion to `ns`. `owner` is sorted."""
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    first, of = np.roll(last, 1), np.cumsum(np.roll(last, 1)) - 1
    past = np.cumsum(ns)
    begun = (past - ns)[first][of]
    share = (past - begun) / np.maximum(past[last][of] - begun, 1)
    ends = times.starts[owner] + ((times.ends - times.starts)[owner] * share).astype(np.int64)
    ends[last] = times.ends[owner[last]]
    return Intervals(np.where(first, times.starts[owner], np.roll(ends, 1)), ends)


def _lines_at(detail: Rank, moments_ns: IntArray, tracks: IntArray) -> IntArray:
    """Code of the innermost frame of the user's code at each moment on its thread, else on the main thread; or -1."""
    return _innermost(detail, moments_ns, tracks, lambda name: frames.is_user_frame(name, detail.libraries))


def _innermost(detail: Rank, moments_ns: IntArray, tracks: IntArray, counts: Callable[[str], bool]) -> IntArray:
    """Name code of the innermost counted Python frame at each moment, else of the main thread's; or UNKNOWN."""
    spans = detail.spans
    names, codes = spans["name"].cat.categories, spans["name"].cat.codes.to_numpy()
    python = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON))
    own = [code for code in np.unique(codes[python]).tolist() if counts(str(names[code]))]
    ids = python[np.isin(codes[python], own)]
    track, start = spans["track"].to_numpy()[ids].astype(np.int64), spans["start_ns"].to_numpy()[ids]
    end = start + spans["dur_ns"].to_numpy()[ids]
    found = intervals.innermost_at(moments_ns, tracks, track, start, end)
    lost = found < 0
    main = np.full(int(lost.sum()), _main_track(detail), dtype=np.int64)
    found[lost] = intervals.innermost_at(moments_ns[lost], main, track, start, end)
    return np.where(found >= 0, np.append(codes[ids], UNKNOWN)[found], UNKNOWN).astype(np.int64)


def _note(detail: Rank, given: frozenset[str], share: float) -> IntegrityNote:
    """The note on what came from the detail recording; a warning if that is nothing or of a small share of ops."""
    name = Path(detail.provenance.path).name
    if not given:
        return IntegrityNote(
            f"Nothing could be taken from {name}.",
            "Its steps have no shapes or stacks that are lacking here, or do other work than those that were timed.",
            Severity.WARNING,
        )
    words = {"shapes": "input shapes", "stacks": "source lines"}
    lost = "The steps differ: most ops have none." if share < FEW else "Ops that it does not have again have none."
    return IntegrityNote(
        f"{' and '.join(words[one] for one in sorted(given)).capitalize()} of {share:.0%} of the ops come from {name}.",
        f"It recorded other steps of the same run, so that times are not distorted. {lost * (share < 1)}".strip(),
        Severity.WARNING if share < FEW else Severity.NOTE,
    )
