"""The line of each moment in Python frames, where it is known.

torch.profiler names a frame that was on the stack when it began by the line that ran at that moment. `diagnose profile`
marks to which lines it comes later (`capture.agent.lines`): the frame's span is cut there, and each piece has its line.
Where nothing tells, no line is better than that of another moment.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.source.columns import Array
from diagnose.trace import enums, frames, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray


class Rows(Struct, frozen=True):
    """Rows as a reader has them."""

    raw: dict[str, Array]
    keep: npt.NDArray[np.bool_]  # Rows that are used.
    names: list[str]  # The text of each code of the column `name`.


class _Marks(Struct, frozen=True):
    """That a frame comes to a line. Arrays of shape (marks,)."""

    frame: IntArray  # Row of its span.
    start_ns: IntArray
    line: IntArray  # 0: not known from then on.


def marked(rows: Rows) -> Rows:
    """The rows with Python frames cut where their line changes, line 0 where it is not known, and without mark rows."""
    raw, names = rows.raw, rows.names
    python = np.flatnonzero(rows.keep & (raw["kind"] == enums.code(SpanKind.PYTHON)))
    python = python[np.lexsort((-raw["dur_ns"][python], raw["start_ns"][python]))]
    standing = _standing(rows, python)
    if not len(standing):
        return rows
    line_of = np.array([frames.marked_line(name) for name in names])[raw["name"]]
    at = np.flatnonzero(rows.keep & (line_of != frames.NO_MARK))
    marks = _marks(raw, names, python, standing, at, line_of[at])
    unmarked = standing[~np.isin(raw["track"][standing], raw["track"][marks.frame])]
    keep = rows.keep.copy()
    keep[at] = False
    named, code = list(names), raw["name"].copy()
    code[unmarked] = _at_lines(named, code[unmarked], np.zeros(len(unmarked), dtype=np.int64))
    return _cut({**raw, "name": code}, keep, named, marks)


def _standing(rows: Rows, python: IntArray) -> IntArray:
    """The rows of frames that were on the stack when recording began; none if torch.profiler's own is not among them.

    `python`: rows by start, longer first. The frames sought come first, each within the one before of its thread. They
    end at a built-in, at a frame that begins after another of its thread has ended, or at one that the profiler calls.
    """
    raw, innermost, found, by_torch = rows.raw, dict[int, int](), list[int](), False
    for row in python.tolist():
        name, outer = rows.names[raw["name"][row]], innermost.get(raw["track"][row])
        ended = outer is not None and raw["start_ns"][row] >= raw["start_ns"][outer] + raw["dur_ns"][outer]
        is_profiler = frames.is_profiler(name)
        profiler_calls = outer is not None and not is_profiler and frames.is_profiler(rows.names[raw["name"][outer]])
        if name.startswith("<built-in") or ended or profiler_calls:
            break
        innermost[raw["track"][row]] = row
        found.append(row)
        by_torch |= is_profiler
    return np.array(found if by_torch else [], dtype=np.int64)


def _marks(
    raw: dict[str, Array], names: Sequence[str], python: IntArray, standing: IntArray, at: IntArray, line: IntArray
) -> _Marks:
    """The marks in rows `at`, by frame and time: of the innermost frame around each, if its function is the mark's."""
    start, end = raw["start_ns"][python], raw["start_ns"][python] + raw["dur_ns"][python]
    moment, track = raw["start_ns"][at], raw["track"][at].astype(np.int64)
    inner = intervals.innermost_at(moment, track, raw["track"][python].astype(np.int64), start, end)
    functions = np.array([frames.function(name) for name in names])
    same = (inner >= 0) & (functions[raw["name"][at]] == functions[raw["name"][python[inner]]])
    frame, moment, line = python[inner[same]], moment[same], line[same]
    last = np.flatnonzero(line == 0)  # Also for all other `standing` frames of the thread that still run.
    ends = raw["start_ns"][standing] + raw["dur_ns"][standing]
    others = [standing[(raw["track"][standing] == raw["track"][frame[k]]) & (ends > moment[k])] for k in last]
    frame, moment, line = (
        np.concatenate((own, *(np.broadcast_to(value, len(one)) for value, one in zip(of_last, others, strict=True))))
        for own, of_last in ((frame, others), (moment, moment[last]), (line, line[last]))
    )
    order = np.lexsort((moment, frame))
    return _Marks(frame[order], moment[order], line[order])


def _cut(raw: dict[str, Array], keep: npt.NDArray[np.bool_], names: list[str], marks: _Marks) -> Rows:
    """The rows with each marked frame cut at its marks: it ends at the first, and a new row goes from mark to mark."""
    frame, start, dur = marks.frame, raw["start_ns"], raw["dur_ns"].copy()
    first, ends = np.append(True, frame[1:] != frame[:-1])[: len(frame)], (start + dur)[frame]
    until = np.where(np.append(first[1:], True)[: len(frame)], ends, np.append(marks.start_ns[1:], 0)[: len(frame)])
    dur[frame[first]] = marks.start_ns[first] - start[frame[first]]
    pieces = {name: values[frame] for name, values in raw.items()}
    pieces |= {"start_ns": marks.start_ns, "dur_ns": until - marks.start_ns}
    pieces["name"] = _at_lines(names, pieces["name"], marks.line)
    whole = {**raw, "dur_ns": dur}
    joined = {name: np.concatenate((values, pieces[name].astype(values.dtype))) for name, values in whole.items()}
    return Rows(joined, np.append(keep, np.ones(len(frame), dtype=np.bool_)), names)


def _at_lines(names: list[str], code: Array, line: IntArray) -> Array:
    """The name code of each frame (`code`) at its line; the new names are added to `names`."""
    new: dict[tuple[int, int], int] = {}
    for pair in zip(code.tolist(), line.tolist(), strict=True):
        new.setdefault(pair, len(names) + len(new))
    names += [frames.at_line(names[of], number) for of, number in new]
    return np.array([new[pair] for pair in zip(code.tolist(), line.tolist(), strict=True)], dtype=code.dtype)
