"""The user's files: where they are, their text as bytes, and writing a patch into them, all or none."""

import io
import os
import stat
import tokenize
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from diagnose.contracts.patches import Patch, PatchedFile
from diagnose.storage import files, urls


class CannotPatch(Exception):
    """There can be no patch at all; the message is a sentence that says why and what to do."""


class CannotEdit(Exception):
    """A fix cannot be made in the files; the message is a clause that says why."""


LARGEST_BYTES = 1 << 20  # Of a file that is patched (our choice).


class SourceText(Struct, frozen=True):
    """A file of Python, as it is now."""

    path: Path  # Absolute, without links.
    name: str  # Relative to the root of the patch, with slashes.
    content: bytes
    encoding: str  # As it declares, with its byte order mark if it has one ("utf-8-sig").

    @property
    def text(self) -> str:
        """The content as text, with line ends as they are."""
        return self.content.decode(self.encoding)

    def encoded(self, text: str) -> bytes:
        """Another text for the file, in its encoding. Raises UnicodeEncodeError."""
        return text.encode(self.encoding)


def located(recorded: str, root: Path, here: Path) -> Path:
    """The file that a recording names, inside `root`: there, or in `here` if it was recorded elsewhere.
    Links are followed, but not out of `root`. Raises CannotEdit if it is not inside, or not there."""
    found = urls.candidates(recorded, here)
    if inside := [one for one in found if one.is_relative_to(root)]:
        return inside[0]
    raise CannotEdit(f"{urls.name_of(recorded)} is {f'outside of {root.name}/' if found else 'not here'}")


def read(path: Path, root: Path) -> SourceText:
    """A file that was located. Raises CannotEdit if it cannot be read, is too large, or does not encode to the same."""
    name = path.relative_to(root).as_posix()
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        source = SourceText(path, name, content, encoding)
        same = source.encoded(source.text) == content
    except OSError as error:
        raise CannotEdit(f"{name} cannot be read ({error.strerror})") from error
    except (SyntaxError, ValueError, LookupError) as error:
        raise CannotEdit(f"{name} does not match its declared encoding") from error
    if len(content) > LARGEST_BYTES or not same:
        raise CannotEdit(f"{name} is {'too large' if len(content) > LARGEST_BYTES else 'in an encoding of many forms'}")
    return source


def command_files(command: Iterable[str]) -> list[str]:
    """Files of Python that a command names, by path or after `-m`."""
    words = list(command)
    modules = [f"{two.replace('.', '/')}.py" for one, two in pairwise(words) if one == "-m"]
    return [*(word for word in words if word.endswith(".py")), *modules]


def write(patch: Patch) -> None:
    """Write all files. Raises CannotPatch, with nothing written, if one may not be changed or cannot be."""
    if patch.notes:
        raise CannotPatch(f"{patch.notes[0]} Nothing was written. Record again, or apply the diff by hand.")
    for file in patch.files:
        _refuse_changed(file)
    ready = list[tuple[Path, PatchedFile]]()
    try:
        for file in patch.files:
            ready.append((files.beside(file.path, file.after), file))
        _replace(ready)
    except OSError as error:
        raise CannotPatch(f"Nothing was written: {error.strerror or error}.") from error
    finally:
        for scratch, _ in ready:
            scratch.unlink(missing_ok=True)


def _refuse_changed(one: PatchedFile) -> None:
    """Raises CannotPatch if the file cannot be read or written, or has other bytes than when the patch was made."""
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
            files.beside(one.path, one.before).replace(one.path)
        raise
