"""What our own commands have left as JSON beside a trace: as untrusted as the trace.

torch.profiler names such a frame by the line that ran at that moment. `diagnose profile` marks to which lines it comes
later (`capture.agent.lines`): the frame's span is cut there, and each piece has its line. Where nothing tells, no line
is better than that of another moment.
"""

import gzip
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.source.columns import Array, printable
from diagnose.storage.remote import Place
from diagnose.trace import enums, frames, intervals, lenient
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import SCHEMA_VERSION, Measurements
from diagnose.trace.model import AutogradGraph, IntegrityNote, Severity, ValueGraph

MOST_PACKED_BYTES = 64 << 20  # Uncompressed: a node or an op takes some tens.

MOST_NAMES = 10_000

MOST_ITEMS, MOST_EDGES = 200_000, 4_000_000
"""Nodes or ops, and edges between them: the agent writes up to 60,000 (our choice)."""

T = TypeVar("T", bound=msgspec.Struct)


def unpacked(path: Place, content: type[T], what: str) -> tuple[T, list[str]]:
    """What a file holds, and what of it cannot be read. Raises ValueError, in a few words, and OSError."""
    try:
        with path.open("rb") as packed, gzip.open(packed) as file:
            raw = file.read(MOST_PACKED_BYTES + 1)
        if len(raw) > MOST_PACKED_BYTES:
            raise ValueError(f"is larger than {MOST_PACKED_BYTES >> 20} MB")
        return lenient.read(raw, content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError("is cut off or damaged") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no {what}: {error}") from error


def check_size(what: str, names: int, items: int, edges: int) -> None:
    """Raises ValueError if there is more than anything of ours writes."""
    if names > MOST_NAMES or items > MOST_ITEMS or edges > MOST_EDGES:
        raise ValueError(f"is no {what}: it is too large")


def within(values: list[int], low: int, high: int, what: str) -> IntArray:
    """As an array. Raises ValueError if one is not in [low, high)."""
    if any(not low <= value < high for value in values):
        raise ValueError(f"is no {what}: a number is out of its range")
    return np.array(values, dtype=np.int64)


MOST_BYTES = 256 << 20  # A rank's part of a manifest takes some kilobytes, and there may be ten thousand.
LONGEST_NOTE = 500  # Characters.
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read(
    path: Place, form: type[_Struct], newest: int, lost: str, again: str, what: str = ""
) -> tuple[_Struct | None, list[IntegrityNote]]:
    """What is in the file and what is wrong with it; None if it cannot be used.

    Only what `form` names is kept, with text made printable. `newest`: the schema version that is known here.
    `lost`, `again`: sentences on what is not known without it, and on how to make it again.
    """
    try:
        found, dropped = _decoded(path, form, newest, again)
        return found, [partly(path.name, dropped, again)] if dropped else []
    except _Unusable as error:
        why, do = error.args
    except OSError as error:
        why, do = f"cannot be read: {error.strerror or error}", again
    except msgspec.ValidationError as error:
        why, do = f"is no {what or path.name.partition('.')[0]}: {printable(str(error))[:LONGEST_NOTE]}", again
    except msgspec.MsgspecError:
        why, do = "is not valid JSON", again
    return None, [IntegrityNote(f"{path.name} {why}.", f"{lost} {do}", Severity.WARNING)]


def partly(name: str, dropped: Sequence[str], again: str) -> IntegrityNote:
    """That a file was read without some of its values."""
    said = printable(f"{name} {lenient.said(dropped)}")[:LONGEST_NOTE]
    return IntegrityNote(f"{said}.", f"The rest is used. {again}", Severity.WARNING)


class _Unusable(Exception):
    """What is wrong with a file, and what to do."""


def _decoded(path: Place, form: type[_Struct], newest: int, again: str) -> tuple[_Struct, list[str]]:
    """Raises _Unusable, OSError or msgspec.MsgspecError."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _Unusable(f"is larger than {MOST_BYTES >> 20} MB", again)
    raw = lenient.decoded(content)
    version = raw.get("schema_version", newest) if isinstance(raw, dict) else None
    if type(version) is int and version > newest:
        newer = f"has schema version {version}, but this version of diagnose reads {newest}"
        raise _Unusable(newer, "Update diagnose.")
    return lenient.converted(_clean(raw), form)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): _clean(one) for name, one in value.items()}
    return value


def read_costs(path: Place) -> tuple[Measurements, list[str]]:
    """What is in a file, and what of it cannot be read. Raises ValueError, in a few words, and OSError."""
    what = "list of measurements"
    found, dropped = unpacked(path, Measurements, what)
    if found.schema_version > SCHEMA_VERSION:
        raise ValueError("is from a newer diagnose")
    check_size(what, 0, len(found.ops), 0)
    return replace(found, device=printable(found.device), torch=printable(found.torch)), dropped


_LARGEST_OF_AUTOGRAD = 1 << 62


class _Graph(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    number: list[int]
    uses: list[int]
    used: list[int]
    optimizer: list[int] | None = None


def read_graph(path: Place) -> tuple[AutogradGraph, list[str]]:
    """The graph in a file, and what of it cannot be read. Raises ValueError, in a few words, and OSError."""
    found, dropped = unpacked(path, _Graph, "graph")
    nodes = len(found.name)
    found = replace(found, optimizer=[-1] * nodes if found.optimizer is None else found.optimizer)
    bounds = {"name": (0, len(found.names)), "uses": (0, nodes), "used": (0, nodes)}
    bounds |= dict.fromkeys(("number", "optimizer"), (-1, _LARGEST_OF_AUTOGRAD))
    return AutogradGraph(**_columns(found, bounds, "graph")), dropped


class _Values(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    thread: list[int]
    step: list[int]
    backward: list[int]
    makes: list[int]
    same: list[int]
    uses: list[int]
    used: list[int]
    sparse: list[int] | None = None
    looked_up: list[int] | None = None
    repeats: list[int] | None = None


def read_values(path: Place) -> tuple[ValueGraph, list[str]]:
    """What is in a file, and what of it cannot be read. Raises ValueError, in a few words, and OSError."""
    what = "list of ops"
    found, dropped = unpacked(path, _Values, what)
    ops = len(found.name)
    if found.step != sorted(found.step):
        raise ValueError(f"is no {what}: its steps are mixed")
    bounds = {"name": (0, len(found.names)), "thread": (0, max(ops, 1)), "sparse": (0, 1001), "uses": (0, ops)}
    bounds |= dict.fromkeys(("step", "backward", "makes", "repeats"), (0, 2))
    bounds |= dict.fromkeys(("same", "used", "looked_up"), (-1, ops))
    return ValueGraph(**_columns(found, bounds, what)), dropped


def _columns(found: _Graph | _Values, bounds: dict[str, tuple[int, int]], what: str) -> dict[str, Any]:
    """Columns by name, within their bounds, and names as texts. Raises ValueError if they do not fit together."""
    items, edges = len(found.name), len(found.uses)
    check_size(what, len(found.names), items, edges)
    columns = {name: getattr(found, name) for name in bounds}
    for name, column in columns.items():
        if column is not None and len(column) != (edges if name in ("uses", "used") else items):
            raise ValueError(f"is no {what}: its parts do not fit")
    arrays = {name: None if column is None else within(column, *bounds[name], what) for name, column in columns.items()}
    return {"names": tuple(printable(name) for name in found.names), **arrays}


_BUILT_IN = "<built-in"


class Told(Struct, frozen=True):
    """Rows as a reader has them, of which some are no more to be kept and others were added."""

    raw: dict[str, Array]
    keep: npt.NDArray[np.bool_]
    names: list[str]  # The text of each code of the column `name`.


class _Marks(Struct, frozen=True):
    """That a frame comes to a line. Arrays of shape (marks,)."""

    frame: IntArray  # Row of its span.
    start_ns: IntArray
    line: IntArray  # 0: not known from then on.


def told(rows: Told) -> Told:
    """The rows with the line of each moment, or with line 0 where that is not known."""
    raw, names = rows.raw, rows.names
    python = np.flatnonzero(rows.keep & (raw["kind"] == enums.code(SpanKind.PYTHON)))
    python = python[np.lexsort((-raw["dur_ns"][python], raw["start_ns"][python]))]
    standing = _standing(rows, python)
    if not len(standing):
        return rows
    line_of = np.array([frames.marked_line(name) for name in names])[raw["name"]]
    at = np.flatnonzero(rows.keep & (line_of != frames.NO_MARK))
    marks = _marks(raw, names, python, standing, at, line_of[at])
    not_told = standing[~np.isin(raw["track"][standing], raw["track"][marks.frame])]
    keep = rows.keep.copy()
    keep[at] = False
    named, code = list(names), raw["name"].copy()
    code[not_told] = _at_lines(named, code[not_told], np.zeros(len(not_told), dtype=np.int64))
    return _cut({**raw, "name": code}, keep, named, marks)


def _standing(rows: Told, python: IntArray) -> IntArray:
    """The rows of frames that were on the stack at the beginning; none if it was not torch's profiler that began.

    These come before all others, those of a thread each in the one before. The last one of the thread that began is of
    the profiler itself.
    """
    raw, innermost, found, began = rows.raw, dict[int, int](), list[int](), False
    for row in python.tolist():
        name, outer = rows.names[raw["name"][row]], innermost.get(raw["track"][row])
        ended = outer is not None and raw["start_ns"][row] >= raw["start_ns"][outer] + raw["dur_ns"][outer]
        is_profiler = frames.is_profiler(name)
        left = outer is not None and not is_profiler and frames.is_profiler(rows.names[raw["name"][outer]])
        if name.startswith(_BUILT_IN) or ended or left:
            break
        innermost[raw["track"][row]] = row
        found.append(row)
        began |= is_profiler
    return np.array(found if began else [], dtype=np.int64)


def _marks(
    raw: dict[str, Array], names: Sequence[str], python: IntArray, standing: IntArray, at: IntArray, line: IntArray
) -> _Marks:
    """Of the rows `at`, which are marks, each with the frame in which it lies, if that has the function it tells."""
    start, end = raw["start_ns"][python], raw["start_ns"][python] + raw["dur_ns"][python]
    moment, track = raw["start_ns"][at], raw["track"][at].astype(np.int64)
    inner = intervals.innermost_at(moment, track, raw["track"][python].astype(np.int64), start, end)
    functions = np.array([frames.function(name) for name in names])
    same = (inner >= 0) & (functions[raw["name"][at]] == functions[raw["name"][python[inner]]])
    frame, moment, line = python[inner[same]], moment[same], line[same]
    last = np.flatnonzero(line == 0)  # From then on none of the thread is known.
    ends = raw["start_ns"][standing] + raw["dur_ns"][standing]
    others = [standing[(raw["track"][standing] == raw["track"][frame[k]]) & (ends > moment[k])] for k in last]
    frame, moment, line = (
        np.concatenate((own, *(np.broadcast_to(value, len(one)) for value, one in zip(of_last, others, strict=True))))
        for own, of_last in ((frame, others), (moment, moment[last]), (line, line[last]))
    )
    order = np.lexsort((moment, frame))
    return _Marks(frame[order], moment[order], line[order])


def _cut(raw: dict[str, Array], keep: npt.NDArray[np.bool_], names: list[str], marks: _Marks) -> Told:
    """The rows, each frame with marks ending at its first one, and a new row from each mark to the next."""
    frame, start, dur = marks.frame, raw["start_ns"], raw["dur_ns"].copy()
    first, ends = np.append(True, frame[1:] != frame[:-1])[: len(frame)], (start + dur)[frame]
    until = np.where(np.append(first[1:], True)[: len(frame)], ends, np.append(marks.start_ns[1:], 0)[: len(frame)])
    dur[frame[first]] = marks.start_ns[first] - start[frame[first]]
    pieces = {name: values[frame] for name, values in raw.items()}
    pieces |= {"start_ns": marks.start_ns, "dur_ns": until - marks.start_ns}
    pieces["name"] = _at_lines(names, pieces["name"], marks.line)
    whole = {**raw, "dur_ns": dur}
    joined = {name: np.concatenate((values, pieces[name].astype(values.dtype))) for name, values in whole.items()}
    return Told(joined, np.append(keep, np.ones(len(frame), dtype=np.bool_)), names)


def _at_lines(names: list[str], code: Array, line: IntArray) -> Array:
    """The codes of these frames at these lines; their names are added to `names`."""
    new: dict[tuple[int, int], int] = {}
    for pair in zip(code.tolist(), line.tolist(), strict=True):
        new.setdefault(pair, len(names) + len(new))
    names += [frames.at_line(names[of], number) for of, number in new]
    return np.array([new[pair] for pair in zip(code.tolist(), line.tolist(), strict=True)], dtype=code.dtype)
