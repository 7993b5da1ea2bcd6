"""Files of the user's checkout that a recording names, wherever it was made."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath


def root_of(folder: Path) -> Path:
    """The top of the git checkout that a folder is in; the folder itself outside of one."""
    folder = folder.resolve()
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


def name_of(recorded: str) -> str:
    """The last part of a path, of Windows or any other system."""
    return _pure(recorded).name


def candidates(recorded: str, here: Path) -> list[Path]:
    """Files of Python that a recorded path may mean: there, or in `here` if it was recorded elsewhere.

    Absolute, without links. They may lie anywhere: who reads them has to look.
    """
    pure = _pure(recorded)
    names = [part for part in pure.parts if part != pure.anchor and part != ".."]
    ends = [Path(*names[first:]) for first in range(len(names))]
    return [one.resolve() for one in [here / recorded, *(here / end for end in ends)] if _is_file(one)]


def _pure(recorded: str) -> PurePosixPath | PureWindowsPath:
    windows = "\\" in recorded and "/" not in recorded
    return PureWindowsPath(recorded) if windows else PurePosixPath(recorded)


def _is_file(path: Path) -> bool:
    try:
        return path.suffix == ".py" and path.is_file()
    except (OSError, ValueError):
        return False
