"""JSON files that our own commands leave beside a trace: their names and readers. They are as untrusted as a trace."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.source.columns import printable
from diagnose.storage.remote import Place
from diagnose.trace import lenient
from diagnose.trace.measured import SCHEMA_VERSION, Measurements
from diagnose.trace.model import AutogradGraph, IntegrityNote, Severity, ValueGraph

S = TypeVar("S", bound=Struct)

MOST_BYTES = 256 << 20  # A rank's part of a manifest takes some kilobytes, and there may be ten thousand.
LONGEST_NOTE = 500  # Characters.


def read(
    path: Place, form: type[S], newest: int, lost: str, again: str, what: str = ""
) -> tuple[S | None, list[IntegrityNote]]:
    """The content of the file, None if it cannot be used, and notes on what is wrong with it.

    Only what `form` names is kept, with text made printable. `newest`: the schema version that is known here.
    `lost`, `again`: sentences on what is not known without it, and on how to make it again; `what`: its kind in notes.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        raw = lenient.decoded(content) if len(content) <= MOST_BYTES else None
        version = raw.get("schema_version", newest) if isinstance(raw, dict) else None
        if len(content) > MOST_BYTES:
            why, do = f"is larger than {MOST_BYTES >> 20} MB", again
        elif type(version) is int and version > newest:
            why = f"has schema version {version}, but this version of diagnose reads {newest}"
            do = "Update diagnose."
        else:
            found, dropped = lenient.converted(_clean(raw), form)
            return found, [partly(path.name, dropped, again)] if dropped else []
    except OSError as error:
        why, do = f"cannot be read: {error.strerror or error}", again
    except msgspec.ValidationError as error:
        why, do = f"is no {what or path.name.partition('.')[0]}: {printable(str(error))[:LONGEST_NOTE]}", again
    except msgspec.MsgspecError:
        why, do = "is not valid JSON", again
    return None, [IntegrityNote(f"{path.name} {why}.", f"{lost} {do}", Severity.WARNING)]


def _clean(value: Any) -> Any:
    """The JSON value with all text in it made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): _clean(one) for name, one in value.items()}
    return value


def partly(name: str, dropped: Sequence[str], again: str) -> IntegrityNote:
    """A warning that the file `name` was read without the values that `dropped` names."""
    said = printable(f"{name} {lenient.said(dropped)}")[:LONGEST_NOTE]
    return IntegrityNote(f"{said}.", f"The rest is used. {again}", Severity.WARNING)


MOST_PACKED_BYTES = 64 << 20  # Uncompressed: a node or an op takes some tens.
MOST_NAMES, MOST_ITEMS, MOST_EDGES = 10_000, 200_000, 4_000_000
"""Items are nodes or ops, and edges are between them: the agent writes up to 60,000 items (our choice)."""


def _unpacked(path: Place, content: type[S], what: str) -> tuple[S, list[str]]:
    """Content of a gzip file and names of its unreadable parts. Raises OSError, or ValueError("is damaged", ...)."""
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


def read_costs(path: Place) -> tuple[Measurements, list[str]]:
    """The measurements in a file and names of its unreadable parts. Raises OSError, or ValueError on a bad file."""
    found, dropped = _unpacked(path, Measurements, "list of measurements")
    if found.schema_version > SCHEMA_VERSION:
        raise ValueError("is from a newer diagnose")
    if len(found.ops) > MOST_ITEMS:
        raise ValueError("is no list of measurements: it is too large")
    return replace(found, device=printable(found.device), torch=printable(found.torch)), dropped


class _Graph(Struct, frozen=True):
    names: list[str]
    name: list[int]
    number: list[int]
    uses: list[int]
    used: list[int]
    optimizer: list[int] | None = None


def read_graph(path: Place) -> tuple[AutogradGraph, list[str]]:
    """The graph in a file and names of its unreadable parts. Raises OSError, or ValueError on a bad file."""
    found, dropped = _unpacked(path, _Graph, "graph")
    nodes = len(found.name)
    found = replace(found, optimizer=[-1] * nodes if found.optimizer is None else found.optimizer)
    bounds = {"name": (0, len(found.names)), "uses": (0, nodes), "used": (0, nodes)}
    bounds |= dict.fromkeys(("number", "optimizer"), (-1, 1 << 62))
    return AutogradGraph(**_columns(found, bounds, "graph")), dropped


class _Values(Struct, frozen=True):
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
    """The ops in a file and names of its unreadable parts. Raises OSError, or ValueError on a bad file."""
    what = "list of ops"
    found, dropped = _unpacked(path, _Values, what)
    ops = len(found.name)
    if found.step != sorted(found.step):
        raise ValueError(f"is no {what}: its steps are mixed")
    bounds = {"name": (0, len(found.names)), "thread": (0, max(ops, 1)), "sparse": (0, 1001), "uses": (0, ops)}
    bounds |= dict.fromkeys(("step", "backward", "makes", "repeats"), (0, 2))
    bounds |= dict.fromkeys(("same", "used", "looked_up"), (-1, ops))
    return ValueGraph(**_columns(found, bounds, what)), dropped


def _columns(found: _Graph | _Values, bounds: dict[str, tuple[int, int]], what: str) -> dict[str, Any]:
    """`names`, and the fields in `bounds` (low <= value < high) as int64, or None if absent. Raises ValueError."""
    items, edges = len(found.name), len(found.uses)
    if len(found.names) > MOST_NAMES or items > MOST_ITEMS or edges > MOST_EDGES:
        raise ValueError(f"is no {what}: it is too large")
    columns: dict[str, Any] = {"names": tuple(map(printable, found.names))}
    for name, (low, high) in bounds.items():
        column: list[int] | None = getattr(found, name)
        if column is not None and len(column) != (edges if name in ("uses", "used") else items):
            raise ValueError(f"is no {what}: its parts do not fit")
        if column is not None and not all(low <= value < high for value in column):
            raise ValueError(f"is no {what}: a number is out of its range")
        columns[name] = None if column is None else np.array(column, dtype=np.int64)
    return columns


class Kind(Struct, frozen=True):
    """A kind of file beside a trace."""

    ends: tuple[str, ...]  # How its name goes on where that of the trace has `.trace.json.gz`.
    attribute: str = ""  # Of Rank, which it fills; "" of traces.
    read: Callable[[Place], tuple[Any, list[str]]] | None = None
    lost: str = ""  # What is not known without it ...
    again: str = "Record again to know it."  # ... and what to do about that.


KINDS = {
    "device": Kind((".device.json.gz", ".device.json", ".device.sqlite")),
    "detail": Kind((".detail.json.gz", ".detail.json")),  # By torch.profiler, whatever made the trace.
    "graph": Kind((".graph.json.gz",), "graph", read_graph, "How ops depend on each other"),
    "values": Kind((".values.json.gz",), "values", read_values, "Which ops compute the same again"),
    "costs": Kind(
        (".costs.json.gz",),
        "measured",
        read_costs,
        "What changed ops take on this machine",
        "Measure again: diagnose measure.",
    ),
}
"""By name. The first two are traces themselves: of device work and runtime calls alone, and with stacks and shapes."""

OTHERS = ("manifest", "report", "trials", "about", "expected", "diagnose-export")
"""JSON files of ours that are about a whole recording."""
