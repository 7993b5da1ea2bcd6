"""Bringing together what the ranks of a run have left, where machines or ranks start commands of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from diagnose.capture import folders
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import APART, LEFT, Part
from diagnose.trace import lenient, units
from diagnose.trace.manifest import RankManifest

POLL_S = 0.5


def completes(part: Part) -> bool:
    """Whether the command of this part completes the recording: the one of rank 0, else the one that began it."""
    if (part.work / "rank0.post").exists():
        return True
    if not part.shared.exists() and (part.recording / "manifest.json").exists():
        return False  # It has been completed, without waiting for this one any longer.
    return not (part.shared / "rank0.claim").exists() and _first(part)


def leave(part: Part) -> None:
    """The command of this part has ended, and another one completes the recording."""
    with suppress(OSError):
        (part.work / LEFT).touch()


def wait_for_all(part: Part, say: Callable[[str], None]) -> None:
    """Until all ranks and commands of other machines have said their last, or for as long as files may take to be seen.

    What is looked for is opened by its name: folders that machines share list new files late.
    """
    several = folders.begun(part).job is not None
    known = None
    with suppress(msgspec.MsgspecError):
        known = rank(part, 0)
    if not several and (known is None or known.peers in (None, known.world_size)):
        return  # All have ended with the command.
    until, told = time.monotonic() + folders.APPEARS_S, False
    missing = set(range(known.world_size)) if known is not None else set[int]()
    while (missing := {one for one in missing if _may_come(part, one, several)}) or any(_others(part)):
        if time.monotonic() > until:
            break
        if missing and not told and time.monotonic() > until - folders.APPEARS_S + 2 * POLL_S:
            told = True
            say(
                f"waiting up to {folders.APPEARS_S:.0f} s for the results of {units.ranks(missing)} from other commands"
            )
        time.sleep(POLL_S)


def rank(part: Part, number: int) -> RankManifest | None:
    """What a rank has said of itself; None if that is not there. Raises msgspec.MsgspecError."""
    try:
        found, dropped = lenient.read((part.shared / f"rank{number}.json").read_bytes(), RankManifest)
    except OSError:
        return None
    note = f"The report of rank{number} {lenient.said(dropped)}."
    return msgspec.structs.replace(found, notes=(*found.notes, note)) if dropped else found


def _may_come(part: Part, number: int, several: bool) -> bool:
    """Whether a rank has not said its last, and may still; `several` commands record the job."""
    with suppress(msgspec.MsgspecError):
        said = rank(part, number)
        if said is not None and said.ended is not None:
            return False
    claimed = Board(part.shared).claimed(f"rank{number}")
    if not claimed:
        return Board(part.work).read(APART) is None
    if claimed == part.name:
        return not several  # On another machine, whose last words may not be seen here yet.
    return folders.is_alive(part.shared / claimed)


def _others(part: Part) -> Iterable[Part]:
    return (Part(part.recording, work.name) for work in folders.alive(part.recording) if work.name != part.name)


def _first(part: Part) -> bool:
    return folders.begun(part).first == part.name
