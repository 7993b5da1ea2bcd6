"""Which files of the user's own a process has imported, and what was in them: lines are only good for that."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

from . import made

MOST_FILES = 200  # That are named (our choice).
LARGEST_BYTES = 1 << 20  # Of a file whose content is told by a hash (our choice).

_BEGAN_S = time.time()


def script() -> str | None:
    """The file that runs; Python forgets it before it ends."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def imported(script: str | None) -> list[dict[str, object]]:
    """The script and all modules, as `SourceFile`. Modules that are no files have names that are no paths."""
    modules = {name: module for name, module in sys.modules.items() if name != "sitecustomize"}  # That is ours.
    names = [script, *(getattr(module, "__file__", None) for module in modules.values())]
    files = [name for name in names if isinstance(name, str) and name.endswith(".py") and Path(name).is_absolute()]
    own = [name for name in dict.fromkeys(files) if made.is_users(name)][:MOST_FILES]
    return [{"file": name, "sha256": _sha256(Path(name)), "script": name == script} for name in own]


def _sha256(path: Path) -> str | None:
    try:
        there = path.stat()
        if there.st_size > LARGEST_BYTES or there.st_mtime > _BEGAN_S:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
