"""Writing results: whole or not at all, and never over an input or in place of a device."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from diagnose.storage import writing
from diagnose.storage.failures import StorageError
from diagnose.storage.remote import Place, Remote
from diagnose.storage.urls import is_url, shown

STDOUT = "-"


def output(name: str) -> str:
    """The name of an output as it was given; `-` if it leads to standard output, as /dev/stdout does."""
    try:
        there = Path(name).stat()
        return STDOUT if not _stands_alone(there) and os.path.samestat(there, os.fstat(1)) else name
    except OSError:
        return name


def _stands_alone(there: os.stat_result) -> bool:
    """Whether writing it twice is harmless: devices such as /dev/null, not terminals."""
    return stat.S_ISCHR(there.st_mode) and not os.isatty(1)


def refuse_unwritable(outputs: Sequence[str], inputs: Sequence[Place]) -> None:
    """Raise a ClickException if an output cannot be written, or is one of the inputs: before any work is done."""
    if outputs.count(STDOUT) > 1:
        raise click.ClickException("Only one result can go to standard output (-). Name files for the others.")
    _refuse_urls([name for name in outputs if is_url(name)], inputs)
    read = {os.path.realpath(path) for path in inputs if isinstance(path, Path)}
    files = [name for name in outputs if name != STDOUT and not is_url(name) and not _is_stream(name)]
    targets = [os.path.realpath(name) for name in files]
    for name, target in zip(files, targets, strict=True):
        folder = Path(target).parent
        if target in read:
            raise click.ClickException(f"{name} is an input, and writing there would destroy it. Choose another file.")
        if targets.count(target) > 1:
            raise click.ClickException(f"Two results would go to {name}. Name a different file for each.")
        if Path(target).is_dir():
            raise click.ClickException(f"{name} is a folder. Name a file.")
        if Path(target).is_symlink():  # That is where realpath gives up.
            raise click.ClickException(f"{name} is a link to itself. Name a file.")
        if not folder.is_dir():
            raise click.ClickException(f"The folder {folder} does not exist. Create it first.")
        if not os.access(folder, os.W_OK):
            raise click.ClickException(f"The folder {folder} is not writable. Choose another folder.")


def _refuse_urls(outputs: Sequence[str], inputs: Sequence[Place]) -> None:
    targets = [_target(url) for url in outputs]
    read = {writing.address(path.url) for path in inputs if outputs and isinstance(path, Remote)}
    for name, target in zip(map(shown, outputs), targets, strict=True):
        if target in read:
            raise click.ClickException(f"{name} is an input, and writing there would destroy it. Choose another file.")
        if targets.count(target) > 1:
            raise click.ClickException(f"Two results would go to {name}. Name a different file for each.")
        if name.endswith("/"):
            raise click.ClickException(f"{name} is a folder. Name a file.")


def _target(url: str) -> tuple[str, str]:
    try:
        writing.refuse(url)
        return writing.address(url)
    except StorageError as error:
        raise click.ClickException(f"Cannot write {shown(url)}: {error.strerror}.") from error


def write(name: str, text: str | bytes) -> None:
    """Write a result to standard output (`-`), a file, a URL, or whatever else can be written to.

    A file gets all of the text or none, an older one stays until then, and links to it stay links. Devices and pipes
    are written to as they are. Raises a ClickException if that fails.
    """
    content = text.encode() if isinstance(text, str) else text
    try:
        if name == STDOUT:
            click.echo(text, nl=False)
            sys.stdout.flush()
        elif is_url(name):
            writing.write(name, content)
        elif _is_stream(name):
            with Path(name).open("wb") as stream:
                stream.write(content)
        else:
            _replace(Path(os.path.realpath(name)), content)
    except BrokenPipeError as error:
        if name == STDOUT:  # Python flushes it once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = "standard output" if name == STDOUT else name
        raise click.ClickException(f"{what} closed before the result was complete. Write to a file instead.") from error
    except OSError as error:
        raise click.ClickException(f"Cannot write {shown(name)}: {error.strerror or error}.") from error


def _is_stream(name: str) -> bool:
    """Whether it is there and no regular file: a device, a pipe, a socket. Folders are no streams."""
    try:
        mode = Path(name).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _replace(path: Path, content: bytes) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mode = 0o666 & ~_umask()
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(scratch).chmod(mode)
        Path(scratch).replace(path)
    except BaseException:  # Ctrl-C as well.
        with contextlib.suppress(OSError):
            Path(scratch).unlink()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
