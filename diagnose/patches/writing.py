"""Writing a patch into the files: all of them or none, and none that is not as it was recorded."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from diagnose.contracts.patches import Patch, PatchedFile
from diagnose.patches.errors import CannotPatch


def write(patch: Patch) -> None:
    """Write all files. Raises CannotPatch, with nothing written, if one may not be changed or cannot be."""
    if patch.notes:
        raise CannotPatch(f"{patch.notes[0]} Nothing was written. Record again, or apply the diff by hand.")
    for file in patch.files:
        _refuse(file)
    ready = list[tuple[Path, PatchedFile]]()
    try:
        for file in patch.files:
            ready.append((_beside(file.path, file.after), file))
        _replace(ready)
    except OSError as error:
        raise CannotPatch(f"Nothing was written: {error.strerror or error}.") from error
    finally:
        for scratch, _ in ready:
            scratch.unlink(missing_ok=True)


def _refuse(one: PatchedFile) -> None:
    try:
        writable = bool(one.path.stat().st_mode & stat.S_IWUSR) and os.access(one.path, os.W_OK)
        same = one.path.read_bytes() == one.before
    except OSError as error:
        raise CannotPatch(f"{one.name} cannot be read: {error.strerror}. Nothing was written.") from error
    if not writable:
        raise CannotPatch(f"{one.name} is read-only. Nothing was written. Make it writable, or apply the diff.")
    if not same:
        raise CannotPatch(f"{one.name} has just changed. Nothing was written. Run the command again.")


def _replace(ready: Sequence[tuple[Path, PatchedFile]]) -> None:
    """Put the new files in the places of the old ones; if that fails for one, the old ones come back."""
    done = list[PatchedFile]()
    try:
        for scratch, one in ready:
            scratch.replace(one.path)
            done.append(one)
    except BaseException:  # Ctrl-C as well.
        for one in done:
            _beside(one.path, one.before).replace(one.path)
        raise


def _beside(path: Path, content: bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return Path(name)
