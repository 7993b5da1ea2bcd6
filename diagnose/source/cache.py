"""What took long to read, kept in the user's cache folder for the next look at the same file.

A file counts as the same if its path, inode, size, times of change and both its ends are, and the code that reads it:
a write changes the times, but where it follows the one before so closely that clocks of file systems do not tell them
apart. So a file that has just changed is not kept. Whatever goes wrong with the cache, the file is read again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from stat import S_ISREG

import msgspec

from diagnose.source import stored
from diagnose.storage.remote import Place, Remote
from diagnose.trace.model import Rank
from diagnose.version import __version__

WORTH_SECONDS = 0.3
"""What takes less to read is not kept: nobody waits for it."""

MOST_BYTES = 2 << 30
"""Of all that is kept; a trace of 500 MB takes about 110 MB."""

RECENT_NS = 2_000_000_000
"""A file that changed since is not kept. The coarsest clock of a file system, FAT's, counts in two seconds."""

_OFF = "DIAGNOSE_NO_CACHE"
_END_BYTES = 64 << 10
_SUFFIX = ".tables"


def read(path: Place, part: int | None, reader: Callable[[Place, int | None], Rank]) -> Rank:
    """What `reader` reads of a file, or read of it before; of a URL it is always read. Raises what `reader` raises."""
    if isinstance(path, Remote) or os.environ.get(_OFF) or (place := _place(path, part)) is None:
        return reader(path, part)
    found = _kept(place)
    if found is not None:
        return replace(found, provenance=replace(found.provenance, path=str(path)))
    began = time.perf_counter()
    rank = reader(path, part)
    if time.perf_counter() - began >= WORTH_SECONDS and place == _place(path, part):
        _keep(rank, place)
        _shrink(place.parent)
    return rank


@contextmanager
def unused(really: bool = True) -> Iterator[None]:
    """A context in which nothing is kept and nothing that was kept is used, in processes started in it as well."""
    before = os.environ.get(_OFF)
    if really:
        os.environ[_OFF] = "1"
    try:
        yield
    finally:
        if really and before is None:
            del os.environ[_OFF]


def folder() -> Path:
    """Where tables are kept. Raises RuntimeError if the user has no home."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "diagnose"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "diagnose" / "Cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "diagnose"


def _place(path: Path, part: int | None) -> Path | None:
    """The file in which the tables of this very file are kept; None if they are not to be."""
    try:
        about, where = path.stat(), folder()
        changed_ns = max(about.st_mtime_ns, about.st_ctime_ns)
        if not S_ISREG(about.st_mode) or time.time_ns() - changed_ns < RECENT_NS or _of_others(where):
            return None
        what = (os.path.realpath(path), part, about.st_dev, about.st_ino, about.st_size)
        digest = hashlib.blake2b(repr((_code(), what, about.st_mtime_ns, about.st_ctime_ns)).encode(), digest_size=20)
        with path.open("rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(about.st_size - _END_BYTES, 0))
            digest.update(file.read(_END_BYTES))
        return where / f"{digest.hexdigest()}{_SUFFIX}"
    except (OSError, RuntimeError):
        return None


def _of_others(where: Path) -> bool:
    """Whether somebody else could have put something into a folder."""
    if sys.platform == "win32" or not where.exists():
        return False
    about = where.stat()
    return about.st_uid != os.getuid() or bool(about.st_mode & 0o022)


@cache
def _code() -> str:
    """Tells the code that reads from any other, also where it is being worked on."""
    here = Path(__file__).parent
    files = sorted(file for room in (here, here.parent / "trace") for file in room.glob("*.py"))
    return repr((__version__, [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]))


def _kept(place: Path) -> Rank | None:
    """The rank that is kept there; None if there is none, or the file is damaged."""
    try:
        rank = stored.read(place)
        os.utime(place)
        return rank
    except (OSError, ValueError, MemoryError, msgspec.MsgspecError):
        return None


def _keep(rank: Rank, place: Path) -> None:
    """Keep a rank, for its user alone. Other processes see the whole file or none."""
    with suppress(OSError, ValueError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.chmod(0o700)
        handle, unfinished = tempfile.mkstemp(suffix=".tmp", dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                stored.write(rank, file)
            Path(unfinished).replace(place)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise


def _shrink(where: Path) -> None:
    """Remove what was not used for longest until no more than MOST_BYTES are left."""
    with suppress(OSError):
        left = MOST_BYTES
        for about, file in sorted(((file.stat(), file) for file in where.iterdir()), key=lambda one: -one[0].st_mtime):
            left -= about.st_size
            if left < 0:
                file.unlink(missing_ok=True)
