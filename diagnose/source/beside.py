"""What our own commands have left as JSON beside a trace: as untrusted as the trace."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from diagnose.source.columns import printable
from diagnose.source.packed import check_size, unpacked, within
from diagnose.storage.remote import Place
from diagnose.trace.measured import SCHEMA_VERSION, Measurements
from diagnose.trace.model import AutogradGraph, IntegrityNote, Severity, ValueGraph

MOST_BYTES = 256 << 20  # A rank's part of a manifest takes some kilobytes, and there may be ten thousand.
LONGEST_NOTE = 500  # Characters.
_LARGEST = 1 << 63
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read(
    path: Place, form: type[_Struct], newest: int, lost: str, again: str, what: str = ""
) -> tuple[_Struct | None, list[IntegrityNote]]:
    """What is in the file and what is wrong with it; None if it cannot be used.

    Only what `form` names is kept, with text made printable. `newest`: the schema version that is known here.
    `lost`, `again`: sentences on what is not known without it, and on how to make it again.
    """
    try:
        return _decoded(path, form, newest, again), []
    except _Unusable as error:
        why, do = error.args
    except OSError as error:
        why, do = f"cannot be read: {error.strerror or error}", again
    except msgspec.ValidationError as error:
        why, do = f"is no {what or path.name.partition('.')[0]}: {printable(str(error))[:LONGEST_NOTE]}", again
    except (ValueError, RecursionError):
        why, do = "is not valid JSON", again
    return None, [IntegrityNote(f"{path.name} {why}.", f"{lost} {do}", Severity.WARNING)]


class _Unusable(Exception):
    """What is wrong with a file, and what to do."""


def _decoded(path: Place, form: type[_Struct], newest: int, again: str) -> _Struct:
    """Raises _Unusable, OSError, RecursionError, or ValueError if the file is none."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _Unusable(f"is larger than {MOST_BYTES >> 20} MB", again)
    raw = msgspec.json.decode(content)
    version = raw.get("schema_version", newest) if isinstance(raw, dict) else None
    if type(version) is int and version > newest:
        newer = f"has schema version {version}, but this version of diagnose reads {newest}"
        raise _Unusable(newer, "Update diagnose.")
    return msgspec.convert(_clean(raw), form)


def _clean(value: Any) -> Any:
    """JSON with printable text and numbers that fit int64. Raises ValueError if one does not."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError("a number that fits no column")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): _clean(one) for name, one in value.items()}
    return value


_WHAT = "list of measurements"


def read_costs(path: Place) -> Measurements:
    """What is in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, Measurements, _WHAT)
    if found.schema_version > SCHEMA_VERSION:
        raise ValueError("is from a newer diagnose")
    check_size(_WHAT, 0, len(found.ops), 0)
    return replace(found, device=printable(found.device), torch=printable(found.torch))


_LARGEST_OF_AUTOGRAD = 1 << 62
_WHAT_OF_AUTOGRAD = "graph"


class _Graph(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    number: list[int]
    uses: list[int]
    used: list[int]
    optimizer: list[int] | None = None


def read_graph(path: Place) -> AutogradGraph:
    """The graph in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, _Graph, _WHAT_OF_AUTOGRAD)
    nodes, edges = len(found.name), len(found.uses)
    check_size(_WHAT_OF_AUTOGRAD, len(found.names), nodes, edges)
    optimizer = [-1] * nodes if found.optimizer is None else found.optimizer
    if not len(found.number) == len(optimizer) == nodes or len(found.used) != edges:
        raise ValueError("is no graph: its parts do not fit")
    return AutogradGraph(
        names=tuple(printable(name) for name in found.names),
        name=within(found.name, 0, len(found.names), _WHAT_OF_AUTOGRAD),
        number=within(found.number, -1, _LARGEST_OF_AUTOGRAD, _WHAT_OF_AUTOGRAD),
        uses=within(found.uses, 0, nodes, _WHAT_OF_AUTOGRAD),
        used=within(found.used, 0, nodes, _WHAT_OF_AUTOGRAD),
        optimizer=within(optimizer, -1, _LARGEST_OF_AUTOGRAD, _WHAT_OF_AUTOGRAD),
    )


_WHAT_OF_VALUES = "list of ops"


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


def read_values(path: Place) -> ValueGraph:
    """What is in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, _Values, _WHAT_OF_VALUES)
    ops = len(found.name)
    columns = [found.thread, found.step, found.backward, found.makes, found.same]
    columns += [one for one in (found.sparse, found.looked_up, found.repeats) if one is not None]
    check_size(_WHAT_OF_VALUES, len(found.names), ops, len(found.uses))
    if any(len(column) != ops for column in columns) or len(found.uses) != len(found.used):
        raise ValueError(f"is no {_WHAT_OF_VALUES}: its parts do not fit")
    if found.step != sorted(found.step):
        raise ValueError(f"is no {_WHAT_OF_VALUES}: its steps are mixed")
    return ValueGraph(
        names=tuple(printable(name) for name in found.names),
        name=within(found.name, 0, len(found.names), _WHAT_OF_VALUES),
        thread=within(found.thread, 0, max(ops, 1), _WHAT_OF_VALUES),
        step=within(found.step, 0, 2, _WHAT_OF_VALUES),
        backward=within(found.backward, 0, 2, _WHAT_OF_VALUES),
        makes=within(found.makes, 0, 2, _WHAT_OF_VALUES),
        same=within(found.same, -1, ops, _WHAT_OF_VALUES),
        uses=within(found.uses, 0, ops, _WHAT_OF_VALUES),
        used=within(found.used, -1, ops, _WHAT_OF_VALUES),
        sparse=None if found.sparse is None else within(found.sparse, 0, 1001, _WHAT_OF_VALUES),
        looked_up=None if found.looked_up is None else within(found.looked_up, -1, ops, _WHAT_OF_VALUES),
        repeats=None if found.repeats is None else within(found.repeats, 0, 2, _WHAT_OF_VALUES),
    )
