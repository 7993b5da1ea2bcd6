"""Files that are there whole or not at all."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def beside(path: Path, content: bytes) -> Path:
    """A temporary file beside `path` with this content and its mode, or a new file's. Raises OSError, nothing left."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(mode)
    except BaseException:  # Ctrl-C as well.
        with suppress(OSError):
            scratch.unlink()
        raise
    return scratch


def replace(path: Path, content: bytes) -> None:
    """Put the content in the place of the file at once. Raises OSError, with the file as it was."""
    scratch = beside(path, content)
    try:
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise
