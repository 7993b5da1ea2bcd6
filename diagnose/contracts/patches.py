"""What a patch of the user's files holds: the fixes that are in it, those that are not and why, the files."""

from pathlib import Path

from msgspec import Struct

from diagnose.contracts.finding import Fix, RankedFinding


class PatchedFix(Struct, frozen=True):
    """A fix that is in the patch."""

    finding: RankedFinding
    fix: Fix
    places: tuple[str, ...]
    """What it changes, as in "train.py:41: DataLoader(num_workers=4)"; lines are those of the file as it is."""


class FixByHand(Struct, frozen=True):
    """A fix that is not in the patch."""

    finding: RankedFinding
    fix: Fix
    why: str  # A clause that says why.


class PatchedFile(Struct, frozen=True):
    """A file with all its changes."""

    path: Path
    name: str  # Relative to the folder in which the patch is applied, with slashes.
    before: bytes
    after: bytes


class Patch(Struct, frozen=True):
    """All of it."""

    root: Path
    """The folder in which it is applied: the top of the git checkout, or the working folder where there is none."""
    fixes: tuple[PatchedFix, ...]
    by_hand: tuple[FixByHand, ...]
    files: tuple[PatchedFile, ...]
    notes: tuple[str, ...]  # Sentences on what is not as it was recorded.
