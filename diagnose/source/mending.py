"""Events from their text: as it should be, else mended where others are known to write it wrong."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from diagnose.source.base import Damage

E = TypeVar("E")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:)', re.DOTALL)
_BARE_NUMBER = re.compile(rb"(?<=[:\[,\s])[+-]?(?:inf|nan|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')


class EventDecoder(Generic[E]):
    """Decodes events as a msgspec struct; what had to be mended is counted in `damage`."""

    def __init__(self, event: type[E], damage: Damage) -> None:
        self.many = msgspec.json.Decoder(list[event]).decode  # type: ignore[valid-type]
        """The events of a JSON list. Raises one of UNREADABLE."""
        self._one = msgspec.json.Decoder(event).decode
        self._event = event
        self._damage = damage

    def one(self, text: bytes) -> E | None:
        """The event of a text that should be a JSON object; None if it is not."""
        with suppress(*UNREADABLE):
            return self._one(text)
        return None

    def mended(self, text: bytes) -> E | None:
        """An event from text that is not quite JSON, or whose values have the wrong type; None if it is beyond that."""
        if (event := self.one(text)) is not None:
            return event
        for mend in (lambda raw: raw, _mend_numbers, _mend_quotes):
            text = mend(text)
            try:
                value = json.loads(text.decode("utf-8", "replace"), strict=False)
            except (ValueError, RecursionError):
                continue
            if not isinstance(value, dict):
                return None
            event = self._converted({**value, "args": value.get("args") or {}})
            self._damage.mended_events += event is not None
            return event
        return None

    def _converted(self, value: dict[str, Any]) -> E | None:
        """The event of a JSON object, without the arguments whose values have a type they never have."""
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, self._event)
        fit = {}
        for key, argument in value["args"].items() if isinstance(value["args"], dict) else ():
            with suppress(msgspec.ValidationError):
                msgspec.convert({"args": {key: argument}}, self._event)
                fit[key] = argument
        with suppress(msgspec.ValidationError):
            return msgspec.convert({**value, "args": fit}, self._event)
        return None


def _mend_numbers(text: bytes) -> bytes:
    return _BARE_NUMBER.sub(b"null", text)


def _mend_quotes(text: bytes) -> bytes:
    """Escape what stands bare inside the value of the first "name" (kineto before 2026-07 did not)."""

    def escape(found: re.Match[bytes]) -> bytes:
        inner = _BARE_QUOTE.sub(rb"\\" + b'"', _BAD_ESCAPE.sub(rb"\\\\\\\\", found[2]))
        return found[1] + inner + found[3]

    return _NAME.sub(escape, text, count=1)
