"""Which paths tools may read: those under the folder in which the server was started, wherever links lead."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from diagnose.agents.refusals import Refused
from diagnose.reports.quoting import quoted
from diagnose.storage.urls import is_url

_READ = (".json", ".gz", ".trace", ".sqlite")
"""Ends of names of files that an analysis reads in a folder."""


def inside(root: Path, given: str) -> Path:
    """The path that was given, without links and absolute. Raises Refused if it is not there, or not under `root`.

    `root` is a folder without links. What is in a folder that is given must not lead out of it either.
    """
    if is_url(given):
        raise Refused(f"{quoted(given)} is a URL. Name a path under {root}.")
    try:
        path = (root / given).resolve()
        there = path.is_relative_to(root) and path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle. ValueError: a zero byte.
        raise Refused(f"{quoted(given)} is no path. Name one under {root}.") from error
    if not path.is_relative_to(root):
        raise Refused(f"{quoted(given)} is outside of {root}, where this server was started. Name a path under it.")
    if not there:
        raise Refused(f"{quoted(given)} does not exist under {root}. Check the path.")
    if (link := _leading_out(root, path)) is not None:
        raise Refused(f"{quoted(given)} holds the link {quoted(link)}, which leads out of {root}. Remove the link.")
    return path


def matching(root: Path, pattern: str) -> list[Path]:
    """What a pattern of paths under `root` stands for, or the one path that it is. Raises Refused as `inside` does."""
    if is_url(pattern) or "\0" in pattern or not glob.has_magic(pattern) or (root / pattern).exists():
        return [inside(root, pattern)]
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise Refused(f"{quoted(pattern)} may lead out of {root}. Name a pattern that starts there, and has no ..")
    found = sorted(glob.glob(pattern, root_dir=root, recursive=True))  # noqa: PTH207 (as the command line reads it)
    if not found:
        raise Refused(f"{quoted(pattern)} stands for nothing under {root}. Check the pattern.")
    return [inside(root, one) for one in found]


def _leading_out(root: Path, folder: Path) -> str | None:
    """A link in a folder to a file that would be read and is outside of `root`."""
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if name.endswith(_READ) and path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                return str(path.relative_to(folder))
    return None


def named(root: Path, path: Path) -> str:
    """A path under `root` as a word of a command that runs there."""
    return word(str(path.relative_to(root)))


def word(name: str) -> str:
    """A path or a pattern that never looks like an option."""
    return f"./{name}" if name.startswith("-") else name
