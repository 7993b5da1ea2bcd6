"""How the processes of a run agree on when to do what: small files that one writes and the others read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Board:
    """Posts by name. A post is written once, whole, and never changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def post(self, name: str, **values: float | str) -> None:
        """Let all know."""
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

    def posted(self, beginning: str) -> int:
        """How many posts there are whose names begin so."""
        return sum(1 for _ in self._folder.glob(f"{beginning}*.post"))

    def claim(self, name: str) -> bool:
        """Whether this process is the first to claim it."""
        try:
            os.close(os.open(self._folder / f"{name}.claim", os.O_CREAT | os.O_EXCL))
        except OSError:
            return False
        return True
