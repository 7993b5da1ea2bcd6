"""Kineto's events as typed structs, and their fields as columns: numbers whatever stands in their place."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from diagnose.source.base import Damage
from diagnose.source.columns import Array

Time = TypeVar("Time")
Scalar = int | float | str | None  # A number, or what stood in its place: text, "<unsupported metadata type>".


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is read of an event's `args`; every other key is passed over.

    In the order in which Kineto writes the keys of ops and kernels: msgspec looks for a key behind the one before it.
    """

    external_id: Scalar = msgspec.field(name="External id", default=-1)
    sequence: Scalar = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Scalar = msgspec.field(name="Fwd thread id", default=-1)
    scalars: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw(b""))
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    shapes_2021: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw(b""))
    stack: Any = msgspec.field(name="Call stack", default="")
    finished: bool | str | None = True
    device: Scalar = -1
    stream: Scalar = -1
    correlation: Scalar = -1
    registers: Scalar = msgspec.field(name="registers per thread", default=-1)
    shared_bytes: Any = msgspec.field(name="shared memory", default=-1)
    grid: Any = (0, 0, 0)
    block: Any = (0, 0, 0)
    occupancy_percent: Scalar = msgspec.field(name="est. achieved occupancy %", default=float("nan"))
    graph_id: Scalar = msgspec.field(name="graph id", default=0)
    bytes: Any = -1
    external_id_2021: Scalar = msgspec.field(name="external id", default=-1)
    python_id: Any = msgspec.field(name="Python id", default=None)
    operation: Any = msgspec.field(name="Collective name", default="")
    dtype: Any = ""
    group: Any = msgspec.field(name="Process Group Name", default="")
    group_description: Any = msgspec.field(name="Process Group Description", default="")
    to_rank: Scalar = msgspec.field(name="Dst Rank", default=-1)
    from_rank: Scalar = msgspec.field(name="Src Rank", default=-1)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    group_size: Scalar = msgspec.field(name="Group size", default=-1)
    group_sequence: Scalar = msgspec.field(name="Seq", default=-1)
    in_elements: Scalar = msgspec.field(name="In msg nelems", default=-1)
    out_elements: Scalar = msgspec.field(name="Out msg nelems", default=-1)
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default="")
    wait_on_stream: Scalar = -1
    wait_on_correlation: Scalar = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    device_type: Scalar = msgspec.field(name="Device Type", default=-1)
    device_id: Scalar = msgspec.field(name="Device Id", default=-1)
    size: Scalar = msgspec.field(name="Bytes", default=0)
    allocated_bytes: Scalar = msgspec.field(name="Total Allocated", default=-1)
    reserved_bytes: Scalar = msgspec.field(name="Total Reserved", default=-1)
    name: Any = ""


NO_ARGS = Args()


class Event(msgspec.Struct, Generic[Time], gc=False):
    """One event of `traceEvents`. `ts` and `dur` are microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Time | None = None
    dur: Scalar = None
    args: Args = NO_ARGS


def event_type(exact: bool) -> type[Event[Any]]:
    """The struct of an event: times as decimals if `exact`, else as doubles."""
    return Event[Decimal] if exact else Event[float | str]


Rows = Sequence[Event[Any]] | Sequence[Args]


def times(events: Sequence[Event[Any]], exact: bool) -> Array:
    """Start of each event: float64 us (NaN unknown), or, if `exact`, int64 ns (-1 unknown)."""
    if not exact:
        return floats(events, "ts", float("nan"))
    try:
        stamps: Iterable[Any] = map(attrgetter("ts"), events)
        return np.fromiter((int(stamp * 1000) for stamp in stamps), np.int64, len(events))
    except (TypeError, ValueError, ArithmeticError):
        return np.array([_thousandfold(event.ts) for event in events], dtype=np.int64)


def _thousandfold(stamp: object) -> int:
    """A decimal in us as whole ns; -1 for what is none, or none of 64 bits."""
    fits = isinstance(stamp, Decimal) and stamp.is_finite() and stamp.adjusted() < 16
    return _number(cast(Decimal, stamp) * 1000, int, -1) if fits else -1


def floats(rows: Rows, attribute: str, default: float) -> Array:
    """An attribute of each row as float64, numbers in text too; `default` for what is no number."""
    try:
        return np.fromiter(map(attrgetter(attribute), rows), np.float64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value, float, default) for value in map(attrgetter(attribute), rows)], dtype=float)


def ints(rows: Rows, attribute: str, default: int) -> Array:
    """An attribute of each row as int64, numbers in text too; `default` for what is no number, or none of 64 bits."""
    try:
        return np.fromiter(map(attrgetter(attribute), rows), np.int64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value, int, default) for value in map(attrgetter(attribute), rows)], dtype=np.int64)


def texts(args: Sequence[Args], attribute: str) -> Sequence[bytes | str]:
    """An argument of each event as text, or as bytes of raw JSON for `Vocabulary.labels`; empty if none has it."""
    values = list(map(attrgetter(attribute), args))
    if values.count(getattr(NO_ARGS, attribute)) == len(values):
        return ()
    return _bytes(values) if attribute in _RAW else list(map(str, values))


_RAW = ("shapes", "shapes_2021", "dtypes", "strides", "scalars")


def _bytes(values: Sequence[msgspec.Raw]) -> Sequence[bytes]:
    """Each as bytes. Valid JSON holds no NUL, and to join and split costs less than to convert one by one."""
    joined = b"\0".join(values).split(b"\0")
    return joined if len(joined) == len(values) else list(map(bytes, values))


def finished(args: Sequence[Args]) -> Array:
    """Whether each op had ended when recording did. Shape (args,), bool."""
    return np.fromiter(map(_FINISHED.__getitem__, map(attrgetter("finished"), args)), np.bool_, len(args))


class _Finished(dict[object, bool]):
    def __missing__(self, value: object) -> bool:
        return True


_FINISHED = _Finished({True: True, False: False, "false": False})


def triples(args: Sequence[Args], name: str) -> dict[str, Array]:
    """The columns name_x, name_y, name_z of an argument that is a list of three ints; 0 for anything else."""
    values = list(map(attrgetter(name), args))
    try:
        table = np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        table = np.zeros((0, 0), dtype=np.int64)
    if table.shape != (len(values), 3):
        table = np.array([_triple(value) for value in values], dtype=np.int64)
    table = np.clip(table, 0, np.iinfo(np.int32).max)
    return {f"{name}_{axis}": table[:, k] for k, axis in enumerate("xyz")}


def _triple(value: object) -> tuple[int, ...]:
    """The three ints of a list of three, 0 for a part that is none; zeros for anything else."""
    if isinstance(value, (list, tuple)) and len(value) == 3:
        return tuple(_number(part, int, 0) for part in value)
    return (0, 0, 0)


N = TypeVar("N", int, float)


def _number(value: object, kind: Callable[[Any], N], default: N) -> N:
    """The value as an int64 or float of that kind; the default if it is none or does not fit."""
    try:
        number = kind(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -(1 << 63) <= number < (1 << 63) else default


E = TypeVar("E")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NAME_START = re.compile(rb'"name"\s*:\s*"')
_NAME_END = re.compile(rb'"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:')
_BARE_NUMBER = re.compile(rb"(?<=[:\[,\s])[+-]?(?:inf|nan|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_QUOTE = re.compile(rb'(\\.)|"', re.DOTALL)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?')


class EventDecoder(Generic[E]):
    """Decodes events as a msgspec struct; what had to be repaired is counted in `damage`."""

    def __init__(self, event: type[E], damage: Damage) -> None:
        self.many = msgspec.json.Decoder(list[event]).decode  # type: ignore[valid-type]
        """The events of a JSON list. Raises one of UNREADABLE."""
        self._one = msgspec.json.Decoder(event).decode
        self._event = event
        self._damage = damage

    def one(self, text: bytes | memoryview) -> E | None:
        """The event of a text that should be a JSON object; None if it is not."""
        with suppress(*UNREADABLE):
            return self._one(text)
        return None

    def repaired(self, text: bytes) -> E | None:
        """An event from text that is not quite JSON, or whose values have the wrong type; None if it is beyond that."""
        if (event := self.one(text)) is not None:
            return event
        text = text.decode("utf-8", "replace").encode()
        numbers = _BARE_NUMBER.sub(b"null", text)
        for tried in dict.fromkeys((text, numbers, _mend_quotes(numbers))):
            if (event := self.one(tried) or self._loosely(tried)) is not None:
                self._damage.repaired_events += 1
                return event
        return None

    def _loosely(self, text: bytes) -> E | None:
        """The event of JSON that may hold control characters, half surrogate pairs and unfit types."""
        with suppress(ValueError, RecursionError):
            value = json.loads(text, strict=False)
            if isinstance(value, dict):
                return self._converted({**value, "args": value.get("args") or {}})
        return None

    def _converted(self, value: dict[str, Any]) -> E | None:
        """The event as its struct, without arguments of unfit types; None if another field does not fit."""
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, self._event)
        fit: dict[str, Any] = {}
        for key, argument in value["args"].items() if isinstance(value["args"], dict) else ():
            for form in (argument, msgspec.Raw(json.dumps(argument).encode())):
                with suppress(msgspec.ValidationError):
                    msgspec.convert({"args": {key: form}}, self._event)
                    fit.setdefault(key, form)
        with suppress(msgspec.ValidationError):
            return msgspec.convert({**value, "args": fit}, self._event)
        return None


def _mend_quotes(text: bytes) -> bytes:
    """Escape what stands bare inside the value of the first "name" (kineto before 2026-07 did not)."""
    start = _NAME_START.search(text)
    end = _NAME_END.search(text, start.end()) if start else None
    if not start or not end:
        return text
    name = text[start.end() : end.start()]
    if any(len(escape) == 1 for escape in _ESCAPE.findall(name)):  # a Windows path: nothing in it was escaped
        name = name.replace(b"\\", b"\\\\")
    name = _QUOTE.sub(lambda found: found[1] or rb"\"", name)
    return text[: start.end()] + name + text[end.start() :]
