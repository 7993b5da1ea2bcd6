"""The user's files: where they are, and their text as bytes that can be written again."""

from __future__ import annotations

import hashlib
import io
import tokenize
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from diagnose.patches.errors import CannotEdit
from diagnose.storage import checkout

LARGEST_BYTES = 1 << 20  # Of a file that is patched (our choice).


class SourceText(Struct, frozen=True):
    """A file of Python, as it is now."""

    path: Path  # Absolute, without links.
    name: str  # Relative to the root of the patch, with slashes.
    content: bytes
    encoding: str  # As it declares, with its byte order mark if it has one ("utf-8-sig").

    @property
    def text(self) -> str:
        """With line ends as they are."""
        return self.content.decode(self.encoding)

    @property
    def sha256(self) -> str:
        """Of all of it, as hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    def encoded(self, text: str) -> bytes:
        """Another text for the file. Raises UnicodeEncodeError."""
        return text.encode(self.encoding)


def located(recorded: str, root: Path, here: Path) -> Path:
    """The file that a recording names, inside `root`: there, or in `here` if it was recorded elsewhere.

    Links are followed, but not out of `root`. Raises CannotEdit if it is not inside, or not there.
    """
    found = checkout.candidates(recorded, here)
    inside = [one for one in found if one.is_relative_to(root)]
    if inside:
        return inside[0]
    raise CannotEdit(f"{checkout.name_of(recorded)} is {f'outside of {root.name}/' if found else 'not here'}")


def read(path: Path, root: Path) -> SourceText:
    """A file that was located. Raises CannotEdit if it cannot be read, or not be written again as it is."""
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
