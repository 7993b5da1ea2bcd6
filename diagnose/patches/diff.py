"""A patch as a unified diff that `git apply` and `patch -p1` take."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from diagnose.contracts.patches import PatchedFile


def unified(files: Iterable[PatchedFile]) -> bytes:
    """All changes of all files, in the bytes of these files."""
    return b"".join(line for file in files for line in _of(file))


def _of(one: PatchedFile) -> Iterator[bytes]:
    before, after = _lines(one.before), _lines(one.after)
    _, _, *changes = difflib.unified_diff(before, after, n=3) if before != after else ("", "")
    if not changes:
        return
    old, new = _name(f"a/{one.name}"), _name(f"b/{one.name}")
    # git ends a name that has blanks with a tab (diff.c).
    tab = "\t" if " " in one.name else ""
    yield f"diff --git {old} {new}\n--- {old}{tab}\n+++ {new}{tab}\n".encode()
    for line in changes:
        yield line.encode("latin-1") if line.endswith("\n") else line.encode("latin-1") + NO_NEWLINE


NO_NEWLINE = b"\n\\ No newline at end of file\n"


def _lines(content: bytes) -> list[str]:
    """A character a byte, so that lines of any encoding can be compared; only a line feed ends one."""
    text = content.decode("latin-1")
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _name(name: str) -> str:
    """As git writes it: in quotes if it has control characters, quotes or backslashes (quote.c)."""
    if not any(ord(one) < 32 or one in '"\\\x7f' for one in name):
        return name
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    octal = (plain.get(one, one if 32 <= ord(one) != 127 else f"\\{ord(one):03o}") for one in name)
    return f'"{"".join(octal)}"'
