"""What a patch of the user's files holds: the fixes that are in it, those that are not and why, the files."""

from pathlib import Path

from msgspec import Struct

from diagnose.contracts.finding import Fix, RankedFinding


class PatchedFix(Struct, frozen=True):
    """A fix that is in the patch."""

    finding: RankedFinding
    fix: Fix
    places: tuple[str, ...]  # Changes, as "train.py:41: DataLoader(num_workers=4)"; lines of the file as it is.


class FixByHand(Struct, frozen=True):
    """A fix that is not in the patch."""

    finding: RankedFinding
    fix: Fix
    why: str  # A clause that says why.


class PatchedFile(Struct, frozen=True):
    """A file with all its changes: its whole content before and after them."""

    path: Path
    name: str  # Relative to the folder in which the patch is applied, with slashes.
    before: bytes
    after: bytes


class Patch(Struct, frozen=True):
    """A patch: its changes of files, and which fixes are in it and which are not."""

    root: Path  # In which it is applied: the top of the git checkout, or the working folder where there is none.
    fixes: tuple[PatchedFix, ...]
    by_hand: tuple[FixByHand, ...]
    files: tuple[PatchedFile, ...]
    notes: tuple[str, ...]  # Sentences on what is not as it was recorded.
