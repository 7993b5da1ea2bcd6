"""Events from their text: as it should be, else repaired where others are known to write it wrong."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from diagnose.source.base import Damage

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
        numbers = _mend_numbers(text)
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


def _mend_numbers(text: bytes) -> bytes:
    return _BARE_NUMBER.sub(b"null", text)


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
