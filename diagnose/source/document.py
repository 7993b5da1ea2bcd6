"""A chrome-trace JSON text as batches of events, in bounded memory, whatever is wrong with it.

The text is an object with a `traceEvents` list, or the bare list. It is cut where one event ends and the next begins,
and each batch is decoded as a list of typed structs. A cut is a guess (the same characters may stand inside a string),
but a guess that proves itself: reading from a true start, `[` + text + `]` is valid JSON only if the cut is a true end.
Text that does not decode is walked event by event: read, else repaired, else counted as lost.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from diagnose.source.base import Damage, InputError
from diagnose.source.events import UNREADABLE, EventDecoder
from diagnose.storage.remote import Place

E = TypeVar("E")
T = TypeVar("T")

MAX_EVENT_BYTES = MAX_HEADER_BYTES = 16 << 20
MAX_GUESSES = 8  # cuts tried on a batch before it is walked
FAR_BYTES, NEAR_BYTES = 1 << 20, 1 << 9  # how far behind a guess an event's end is looked for: at first, after failures

_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|"', re.DOTALL)
_KEY = re.compile(rb'[\s,]*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*(?=\S)', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+(?=[\s,\]}])")
_SPACE = re.compile(rb"[\s,]*")
_LAST = re.compile(rb'\}(?=\s*\]\s*(?:\}|,\s*"|\Z))')
_GOES_ON = re.compile(rb"[\s,]*(?:[{\]]|\Z)")


class Ahead(Protocol[T]):
    """Decodes texts elsewhere, several at a time."""

    count: int

    def submit(self, text: memoryview) -> Future[T | None]:
        """A future of the batch of events in `text`, the inside of a JSON list; of None if it does not decode."""


class TraceText(Generic[E, T]):
    """One pass over a trace's text: `batches()` first, then `header` holds the named top-level values."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        path: Place,
        event: type[E],
        gather: Callable[[list[E]], T],
        header_keys: frozenset[str],
        damage: Damage,
    ) -> None:
        """`event` is the msgspec struct of one event, `gather` makes of a batch of them what `batches` gives.

        Top-level keys outside `header_keys` are passed over unread.
        """
        self.header: dict[str, Any] = {}
        self._pieces = pieces
        self._path = path
        self._decoder = EventDecoder(event, damage)
        self._gather = gather
        self._header_keys = header_keys
        self._damage = damage
        self._buffer, self._at = b"", 0
        self._reach = FAR_BYTES

    def batches(self, ahead: Ahead[T] | None = None) -> Iterator[T]:
        """All events in file order, decoded by `ahead` if given. Raises InputError if it is no chrome trace."""
        self._ahead = ahead
        first = self._next_byte()
        if first == b"[":
            self._at += 1
            yield from self._event_list()
        elif first == b"{":
            self._at += 1
            yield from self._object()
        else:
            raise InputError(f"{self._path} is not a profiler trace: it is not JSON.")
        if not self._damage.cut_off:
            self._damage.text_after_end = bool(self._next_byte())

    def _object(self) -> Iterator[T]:
        """Pass over the top-level object and yield batches of its events. Raises InputError without an event list."""
        seen_events = False
        while (key := self._key()) is not None:
            if key == "traceEvents" and self._next_byte() == b"[":
                seen_events = True
                self._at += 1
                yield from self._event_list()
            elif not self._value(key):
                break
        if not seen_events:
            why = "it ends before its traceEvents list begins" if self._damage.cut_off else "it has no traceEvents list"
            raise InputError(
                f"{self._path} is JSON, but not a profiler trace: {why}. "
                "diagnose reads what torch.profiler's export_chrome_trace or tensorboard_trace_handler writes."
            )

    def _fill(self) -> bool:
        """Read the next piece and forget the text before the cursor; False if the text has ended."""
        piece = next(self._pieces, b"")
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)

    def _next_byte(self) -> bytes:
        """The next byte that is no white space or comma, the cursor at it; empty at the end of the text."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None
            self._at = space.end()
            if self._buffer[:3] == b"\xef\xbb\xbf" and self._at == 0:
                self._at = 3
            elif self._at < len(self._buffer) or not self._fill():
                return self._buffer[self._at : self._at + 1]

    def _key(self) -> str | None:
        """The next top-level key, the cursor at its value; None when the object ends or is cut off."""
        if (first := self._next_byte()) != b'"':
            self._damage.cut_off |= first != b"}"
            self._at += 1
            return None
        while not (found := _KEY.match(self._buffer, self._at)):
            if len(self._buffer) - self._at > MAX_HEADER_BYTES or not self._fill():
                self._damage.cut_off = True
                return None
        self._at = found.end()
        return found[1].decode("utf-8", "replace")

    def _value(self, key: str) -> bool:
        """Pass over one top-level value, keeping it if its key is named; False when the text ends inside it."""
        keep = key in self._header_keys
        depth, at, kept = 0, self._at, b""
        while True:
            end, depth, at = _value_end(self._buffer, at, depth, len(self._buffer))
            if end is not None:
                break
            kept += self._buffer[self._at : at] if keep else b""
            if len(kept) > MAX_HEADER_BYTES:
                keep, kept = False, b""
                self._damage.header_values_lost.append(key)
            self._at = at
            if len(self._buffer) - at > MAX_EVENT_BYTES or not self._fill():
                self._damage.cut_off = True
                return False
            at = self._at
        if keep:
            self._keep(key, kept + self._buffer[self._at : end])
        self._at = end
        return True

    def _keep(self, key: str, text: bytes) -> None:
        """Decode a top-level value into `header`; if it is not JSON, note it as lost."""
        try:
            self.header[key] = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            self._damage.header_values_lost.append(key)

    def _event_list(self) -> Iterator[T]:
        """Batches of the list the cursor stands in; leaves the cursor behind its closing bracket."""
        if self._ahead is not None:
            yield from self._decoded_ahead(self._ahead)
        more = True
        while more:
            more = self._fill()
            batch = self._whole_events()
            if batch is not None:
                more = True
                yield self._gather(batch)
                continue
            walked: list[E] = []
            closed = self._walk(walked, final=not more)
            if walked:
                yield self._gather(walked)
            if closed:
                return
            if len(self._buffer) - self._at > MAX_EVENT_BYTES:
                raise InputError(f"{self._path} is not a profiler trace: one event is over {MAX_EVENT_BYTES >> 20} MB.")
        self._damage.cut_off = True

    def _decoded_ahead(self, ahead: Ahead[T]) -> Iterator[T]:
        """Batches decoded elsewhere, in order, until one does not decode (its boundary was guessed) or none is found.
        Leaves the cursor at the first text that was not yielded."""
        flying: deque[tuple[memoryview, Future[T | None]]] = deque()
        going = True
        while going:
            going = self._fill()
            cut = next(_last_boundaries(self._buffer), None)
            if cut is None:
                going = False
            else:
                text = memoryview(self._buffer)
                flying.append((text[: cut.end()], ahead.submit(text[: cut.start() + 1])))
                self._at = cut.end()
            while flying and (len(flying) > ahead.count or not going):
                batch = flying[0][1].result()
                if batch is None:
                    going = False
                    break
                flying.popleft()
                yield batch
        self._buffer = b"".join((*(text for text, _ in flying), memoryview(self._buffer)[self._at :]))
        self._at = 0

    def _whole_events(self) -> list[E] | None:
        """Decode the buffer up to its last event boundary; None when no guess holds or a value has the wrong type."""
        buffer = self._buffer
        for cut in _last_boundaries(buffer):
            try:
                batch = self._decoder.many(b"".join((b"[", memoryview(buffer)[: cut.start() + 1], b"]")))
            except msgspec.ValidationError:
                return None
            except UNREADABLE:
                continue
            self._at = cut.end()
            return batch
        return None

    def _walk(self, events: list[E], final: bool) -> bool:
        """Read events one at a time from the buffer, into `events`; True when the list's end was met."""
        buffer, at, guess = self._buffer, 0, 0
        while True:
            found = _SPACE.match(buffer, at)
            assert found is not None
            at = self._at = found.end()
            if buffer[at : at + 1] == b"]":
                self._at = at + 1
                return True
            if at == len(buffer):
                return False
            if guess <= at:
                boundary = _BETWEEN.search(buffer, at)
                guess = boundary.start() + 1 if boundary else len(buffer)
            event, end = self._one(buffer, at, guess, final)
            if end is None:
                self._at = len(buffer) if final else at
                return False
            if event is not None:
                events.append(event)
            else:
                self._damage.lost_events += 1
            at = end

    def _one(self, buffer: bytes, start: int, guess: int, final: bool) -> tuple[E | None, int | None]:
        """The event at `start`, None if unreadable, and where the next begins, None if that cannot be told yet.

        `guess` is the next boundary its text suggests; unless `final`, the text may go on behind the buffer.
        """
        whole = final or guess < len(buffer)
        if (event := self._decoder.one(memoryview(buffer)[start:guess])) is not None:
            return event, guess
        balanced, depth, at = _value_end(buffer, start, 0, guess)
        sure = balanced if balanced and _GOES_ON.match(buffer, balanced) else None
        last = _LAST.search(buffer, start, min(guess, start + FAR_BYTES)) if whole and not sure else None
        for stop in dict.fromkeys((sure, last.end() if last else None, guess if whole else None)):
            if stop and (event := self._decoder.repaired(buffer[start:stop])) is not None:
                return event, stop
        if balanced is None and guess < len(buffer):
            balanced, _, _ = _value_end(buffer, at, depth, guess + self._reach)
            if balanced and (event := self._decoder.repaired(buffer[start:balanced])) is not None:
                self._reach = FAR_BYTES
                return event, balanced
            if balanced is None and guess + self._reach > len(buffer) and not final:
                return None, None
            self._reach = max(self._reach // 2, NEAR_BYTES)
        return None, sure or (guess if guess < len(buffer) else last.end() if last else None)


def _last_boundaries(buffer: bytes) -> Iterator[re.Match[bytes]]:
    """Up to MAX_GUESSES places where an event seems to end and another to begin, the last one first."""
    reach = 1 << 14
    found: list[re.Match[bytes]] = []
    while not found:
        found = list(_BETWEEN.finditer(buffer, max(0, len(buffer) - reach)))
        if reach >= len(buffer):
            break
        reach *= 16
    return reversed(found[-MAX_GUESSES:])


def _value_end(buffer: bytes, at: int, depth: int, limit: int) -> tuple[int | None, int, int]:
    """(where the JSON value at `at` ends, None if not before `limit`; depth and place reached, to resume from)."""
    if depth == 0 and buffer[at : at + 1] not in (b"{", b"[", b'"'):
        scalar = _SCALAR.match(buffer, at)
        return (scalar.end() if scalar else None), 0, at
    for token in _TOKEN.finditer(buffer, at, limit):
        first = token[0][0]
        if first == 0x22 and len(token[0]) == 1:
            return None, depth, token.start()
        depth += (first in b"[{") - (first in b"]}")
        at = token.end()
        if depth <= 0:
            return at, 0, at
    return None, depth, at
