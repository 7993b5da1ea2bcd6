"""Writing to URLs: a file is there whole or not at all, and a folder's most important file comes last."""

import errno
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from diagnose.storage import urls
from diagnose.storage.remote import asked, filesystem
from diagnose.storage.urls import StorageError

_PUT_WHOLE = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")  # Show a file once all of it is there.


def address(url: str) -> tuple[str, str]:
    """What is equal for all spellings of a place: its kind of storage, and the path there. Raises StorageError."""
    storage, path = filesystem(url)
    return type(storage).__name__, path


def refuse(url: str) -> None:
    """Raises StorageError if nothing can be written to such a URL: before any work is done."""
    if urls.is_web(url):
        raise StorageError(
            errno.EROFS, "diagnose cannot write to web servers. Name a file, or a URL such as s3://bucket/report"
        )
    filesystem(url)


def is_taken(folder: str) -> bool:
    """Whether there is anything in a folder. Raises StorageError."""
    storage, path = filesystem(folder)
    try:
        return bool(asked(storage, lambda: storage.ls(path, detail=False)))
    except StorageError as error:
        if error.is_missing:
            return False
        raise


def write(url: str, content: bytes) -> None:
    """Put a file at a URL, in place of one that is there. Raises StorageError, OSError if there is no room here."""
    refuse(url)
    storage, path = filesystem(url)
    with TemporaryDirectory(prefix="diagnose-") as folder:
        local = Path(folder) / f"content{PurePosixPath(path).suffix}"  # Storages tell a file's type by that.
        local.write_bytes(content)
        _put(storage, url, local, path)


def upload(folder: Path, url: str, last: str) -> None:
    """Put all files of a folder to a URL, and the one that is called `last` when the others are there.

    Raises StorageError; what has been put by then stays.
    """
    refuse(url)
    storage, root = filesystem(url)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name == last, name)):
        _put(storage, url, folder / name, f"{root.rstrip('/')}/{name}")


def _put(storage: Any, url: str, local: Path, path: str) -> None:
    """Copies a file to storage so that it is there whole or not at all."""
    if urls.scheme(url) in _PUT_WHOLE:
        asked(storage, lambda: storage.put_file(str(local), path))
        return
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}.part"
    asked(storage, lambda: storage.makedirs(folder, exist_ok=True))
    try:
        asked(storage, lambda: storage.put_file(str(local), beside))
        asked(storage, lambda: storage.mv(beside, path))
    except BaseException:
        with suppress(Exception):
            storage.rm_file(beside)
        raise
