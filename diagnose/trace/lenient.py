"""JSON as typed structs, without what cannot be read of it: a wrong value costs its own place, never the rest."""

import json
from collections.abc import Sequence
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T")

_LARGEST = 1 << 63
_MOST_REASONS, _MOST_NAMED = 3, 20


def read(content: bytes, form: type[T]) -> tuple[T, list[str]]:
    """As `converted`, from JSON. Raises msgspec.MsgspecError."""
    try:
        return msgspec.json.decode(content, type=form), []
    except msgspec.MsgspecError:
        return converted(decoded(content), form)


def decoded(content: bytes) -> Any:
    """JSON, with numbers that fit no column as texts: not finite, or beyond int64. Raises msgspec.DecodeError."""
    try:
        return json.loads(content, parse_int=_number, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError("is not valid JSON") from error


def _number(text: str) -> int | float | str:
    value = float(text)
    return text if not abs(value) < _LARGEST else int(text) if text.lstrip("-").isdigit() else value


def converted(raw: Any, form: type[T]) -> tuple[T, list[str]]:
    """What can be read of `raw`, and of the rest paths and reasons: "ranks[0].pid (Expected `int`, got `str`)".

    An unreadable field takes its default, an unreadable element is left out. What then is empty or lacks a required
    field is left out too, and a list of numbers with a bad one. Raises msgspec.ValidationError if nothing is left.
    """
    dropped = list[str]()
    return msgspec.convert(_readable(raw, form, "", dropped), form), dropped


def said(dropped: Sequence[str]) -> str:
    """What cannot be read, as the end of a sentence: the first with their reasons, many more by their names."""
    named = [*dropped[:_MOST_REASONS], *(one.partition(" (")[0] for one in dropped[_MOST_REASONS:_MOST_NAMED])]
    more = f", and {len(dropped) - _MOST_NAMED} more" if len(dropped) > _MOST_NAMED else ""
    return f"cannot be read in part: {', '.join(named)}{more}"


def _readable(raw: Any, form: Any, path: str, dropped: list[str]) -> Any:
    """What of `raw` converts to `form`; the rest is noted in `dropped`. Raises if nothing does."""
    try:
        msgspec.convert(raw, form)
        return raw
    except msgspec.ValidationError as error:
        whole, kept = error, dict[Any, Any]()
    for key, name, part in _parts(raw, form):
        before = len(dropped)
        try:
            kept[key] = _readable(raw[key], part, path + name, dropped)
        except msgspec.ValidationError as error:
            if len(dropped) == before:
                dropped.append(f"{(path + name).removeprefix('.')} ({error})")
    if not kept:
        raise whole
    found = kept if isinstance(raw, dict) else list(kept.values())
    msgspec.convert(found, form)
    return found


def _parts(raw: Any, form: Any) -> list[tuple[Any, str, Any]]:
    """(key, name in messages, type) of each field, item or entry of `raw`; empty if `form` has no parts."""
    form = get_args(form)[0] if isinstance(form, UnionType) else form  # The other one is None.
    if isinstance(form, type) and issubclass(form, msgspec.Struct) and isinstance(raw, dict):
        fields = msgspec.structs.fields(form)
        return [(one.encode_name, f".{one.encode_name}", one.type) for one in fields if one.encode_name in raw]
    inner = get_args(form)
    if get_origin(form) is dict and isinstance(raw, dict):
        return [(key, f".{key}", inner[1]) for key in raw]
    listed = get_origin(form) is list or (get_origin(form) is tuple and inner[-1] is ...)
    if listed and isinstance(raw, list) and inner[0] not in (int, float):
        return [(place, f"[{place}]", inner[0]) for place in range(len(raw))]
    return []
