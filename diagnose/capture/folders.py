"""Which folders a recording may go to: new ones, empty ones, and those that an earlier attempt has left."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

import msgspec

from diagnose.capture.agent.plan import WORK
from diagnose.capture.limits import CannotRecord

_RECORDING = re.compile(r"rank\d+\.(trace|detail)\.(json\.gz|sqlite)|.*\.nsys-rep")
"""Files that hold recorded steps."""

_BESIDE = re.compile(r"manifest\.json(\.tmp)?|report\.(html|json)|rank\d+\.(graph|values)\.json\.gz")
"""Files that we write beside them."""


class Owner(msgspec.Struct, frozen=True):
    """The process that began a recording."""

    host: str
    pid: int

    def alive(self) -> bool:
        """Whether it may still be there; on other machines nobody can tell, so it may."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True


def take(folder: Path, overwrite: bool = False) -> None:
    """Make the folder, empty, and ours. What an attempt without a recording has left goes.

    `overwrite`: an earlier recording goes, too. Nothing but files of ours is ever removed. Raises CannotRecord if the
    folder holds anything else, or if another recording is being made there; OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in folder.iterdir())
    foreign = [
        name for name in names if name != WORK and not _BESIDE.fullmatch(name) and not _RECORDING.fullmatch(name)
    ]
    if foreign:
        raise CannotRecord(f"{folder} is not empty. Name a new folder.")
    if WORK in names and _owner(folder).alive():
        raise CannotRecord(f"Another recording is being made in {folder}. Name a new folder, or wait for its end.")
    if any(map(_RECORDING.fullmatch, names)) and not overwrite:
        raise CannotRecord(f"{folder} holds a recording. Name a new folder, or use overwrite to replace it.")
    for name in names:
        if name == WORK:
            shutil.rmtree(folder / WORK)
        else:
            (folder / name).unlink()
    (folder / WORK).mkdir()
    (folder / WORK / "owner.json").write_bytes(msgspec.json.encode(Owner(socket.gethostname(), os.getpid())))


def _owner(folder: Path) -> Owner:
    """Who began what is in there; if that is not known, a process that cannot be asked."""
    try:
        return msgspec.json.decode((folder / WORK / "owner.json").read_bytes(), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return Owner("", 0)
