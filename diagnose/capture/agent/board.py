"""Messages between the processes of a run, by which they agree on when to do what: one posts, the others read.

On one machine they are files. Across machines they are in the store by which torch.distributed brought the ranks
together: file systems that machines share show new files late.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from .alone import process_group, text_of

T = TypeVar("T")


class Board:
    """Messages by name, as files in a folder. Each is posted once and whole, as readers keep what they have read."""

    delay_s = 0.0  # So long it may take until a message can be read.
    lost = False  # Nothing can be read any more.

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def post(self, name: str, /, **values: float | str) -> None:
        """Post these values under a name, for all processes to read."""
        target = self._folder / f"{name}.post"
        written = target.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(values), encoding="utf-8")
        os.replace(written, target)  # noqa: PTH105 (Path.replace is slower to import than this module)

    def read(self, name: str) -> dict[str, Any] | None:
        """What was posted under that name; None if nothing has been yet."""
        if name not in self._known:
            try:
                self._known[name] = json.loads((self._folder / f"{name}.post").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
        return self._known[name]

    def count(self, name: str) -> None:
        """Count this process under that name, once however often it is called."""
        self.post(f"{name}.{os.getpid()}")

    def counted(self, name: str) -> int:
        """How many processes are counted under that name."""
        return self.posted(f"{name}.")

    def posted(self, beginning: str) -> int:
        """How many posts there are whose names begin so."""
        return sum(1 for _ in self._folder.glob(f"{beginning}*.post"))

    def offer(self, name: str, rank: int, value: int) -> None:
        """Offer a rank's value, for `greatest` to compare with those of other ranks."""
        self.post(f"{name}.{rank}", value=value)

    def greatest(self, name: str) -> int | None:
        """The rank that has offered the greatest value, of equal ones the lowest; None if none has."""
        names = [path.name.removesuffix(".post") for path in self._folder.glob(f"{name}.*.post")]
        found = {int(one.rpartition(".")[2]): word["value"] for one in names if (word := self.read(one)) is not None}
        return max(found, key=lambda rank: (found[rank], -rank)) if found else None

    def rest(self) -> None:
        """Nothing is read for a while: nothing to do for files."""

    def claim(self, name: str, by: str = "") -> bool:
        """Claim the name, once for all processes; whether this call did. `by`: what `claimed` returns from then on."""
        try:
            file = os.open(self._folder / f"{name}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except OSError:
            return False
        os.write(file, by.encode())
        os.close(file)
        return True

    def claimed(self, name: str) -> str:
        """The `by` of the claim of that name; empty if there is none, or it is not written yet."""
        return text_of(self._folder / f"{name}.claim")


ANSWER_S = 5.0  # How long a rank waits for the store; one that takes longer is not asked again (chosen).
REQUESTS_PER_S = 10_000  # That all ranks together ask of a store, at most (chosen: one on this machine answers 70,000).
_recordings = 0  # That this process has joined; ranks count alike, so messages of two recordings are kept apart.


class StoreBoard:
    """The same, but claims, in the store of torch.distributed. Once it fails or is slow (ANSWER_S), it is `lost`."""

    def __init__(self, store: Any, world_size: int) -> None:
        global _recordings
        _recordings += 1
        self._store, self._prefix = store, f"diagnose/{_recordings}/"
        self._known: dict[str, dict[str, Any]] = {}
        self._asked_s: dict[str, float] = {}  # When each message was last asked for.
        self._each_s = world_size / REQUESTS_PER_S  # Between two requests for one message, at least.
        self.delay_s = 2 * self._each_s
        self._acts: Acts | None = None
        self._answers: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.lost = False  # It has not answered.

    def post(self, name: str, /, **values: float | str) -> None:
        """Post these values under a name, for all processes to read."""
        self._known[name] = dict(values)
        self._ask(lambda: self._store.set(self._prefix + name, json.dumps(values)), None)

    def read(self, name: str) -> dict[str, Any] | None:
        """What was posted under that name; None if nothing has been yet, or it was asked for a moment ago."""
        if name not in self._known and time.monotonic() - self._asked_s.get(name, -self._each_s) >= self._each_s:
            self._asked_s[name] = time.monotonic()
            if (word := self._ask(lambda: self._value(name), None)) is not None:
                self._known[name] = json.loads(word)
        return self._known.get(name)

    def count(self, name: str) -> None:
        """Count this process under that name. Unlike a Board it counts each call."""
        self._ask(lambda: self._store.add(self._prefix + name, 1), 0)

    def counted(self, name: str) -> int:
        """How many processes are counted under that name; 0 once the store is lost."""
        return self._ask(lambda: int(self._store.add(self._prefix + name, 0)), 0)

    def offer(self, name: str, rank: int, value: int) -> None:
        """Offer a rank's value, for `greatest` to compare with those of other ranks."""
        self._ask(lambda: self._offer(name, rank, value), None)

    def greatest(self, name: str) -> int | None:
        """The rank that has offered the greatest value, of equal ones the first; None if none has."""
        word = self._ask(lambda: self._value(name), None)
        return None if word is None else int(word.split()[1])

    def rest(self) -> None:
        """Nothing is read for a while: end our thread, so that no recording has it. The next request starts another."""
        if self._acts is not None:
            self._acts.put(None)
            self._acts = None

    def _offer(self, name: str, rank: int, value: int) -> None:
        """Keep the greatest value that any rank offers, with its rank; one that sees a greater value does not write."""
        known = self._value(name) or b""
        while not known or value > int(known.split()[0]):
            known = self._store.compare_set(self._prefix + name, known.decode(), f"{value} {rank}")

    def _value(self, name: str) -> bytes | None:
        key = self._prefix + name
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def _ask(self, act: Callable[[], T], otherwise: T) -> T:
        """What our thread gets from `act()`; `otherwise` if it raises or takes over ANSWER_S, and from then on."""
        if self.lost:
            return otherwise
        if self._acts is None:
            self._acts = SimpleQueue()
            threading.Thread(target=_answer, args=(self._acts, self._answers), name="diagnose", daemon=True).start()
        self._acts.put(act)
        try:
            (answer,) = self._answers.get(timeout=ANSWER_S)
        except (Empty, ValueError):
            self.lost = True
            return otherwise
        return answer  # type: ignore[no-any-return]


Words = Board | StoreBoard
Acts = SimpleQueue[Callable[[], Any] | None]


def _answer(acts: Acts, answers: SimpleQueue[tuple[Any, ...]]) -> None:
    """Run what the queue holds, in order, until None; the answer is a tuple of the result, empty if it failed."""
    while (act := acts.get()) is not None:
        try:
            answers.put((act(),))
        except Exception:  # Torch has its own kinds.
            answers.put(())


def store() -> Any:
    """The store of the default process group; None if there is none."""
    with suppress(Exception):
        return process_group().distributed_c10d._get_default_store()
    return None
