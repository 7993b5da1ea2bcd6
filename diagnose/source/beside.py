"""What our own commands have left as JSON beside a trace: as untrusted as the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from diagnose.source.columns import printable
from diagnose.source.packed import check_size, unpacked, within
from diagnose.storage.remote import Place
from diagnose.trace import lenient
from diagnose.trace.measured import SCHEMA_VERSION, Measurements
from diagnose.trace.model import AutogradGraph, IntegrityNote, Severity, ValueGraph

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
