"""Recordings of a run while it is watched: as someone asks for one, or as its log shows what is worth a closer look."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnose import failures
from diagnose.capture import folders, manifests
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import RECORDING as VARIABLE
from diagnose.capture.agent.plan import WORK, Part, Plan
from diagnose.capture.agent.watch.watcher import ASK, MADE, RECORDING
from diagnose.capture.doctor import CannotRecord
from diagnose.capture.run import prepare


class Wish(Struct, frozen=True):
    """What a recording is wanted for, and what it should hold."""

    why: str  # A clause, in the present tense.
    every: int = 1
    long_step: int = 0  # As in `Plan`.
    memory: bool = False  # With allocations.


class Recordings:
    """Recordings of a run that a command of this machine watches, one at a time. A failure ends them, not the run."""

    def __init__(
        self, part: Part, command: Sequence[str], most: int, wish: Callable[[], Wish | None], say: Callable[[str], None]
    ) -> None:
        """`wish()` gives the log's next wish, or None; at most `most` of these are made, and all that users ask for."""
        self._part, self._command, self._left, self._wish, self._say = part, command, most, wish, say
        self._number, self._made, self._why = 1, Part(part.recording), ""
        self._under_way = self._failed = False
        self._granted: set[Path] = set()

    def look(self) -> None:
        """Begin or complete a recording if it is time. To be called about every second."""
        self._try(self._go_on)

    def end(self) -> None:
        """The run has ended: complete what it has left."""
        if self._under_way:
            self._try(self._complete)

    def _go_on(self) -> None:
        """Begin a recording if one is asked for, or complete the current one once all ranks of this command made it."""
        if not self._under_way:
            self._begin()
        elif self._is_recorded():
            self._complete()

    def _try(self, act: Callable[[], None]) -> None:
        """After a first failure nothing more is recorded, and the run continues."""
        if self._failed:
            return
        try:
            act()
        except Exception as error:  # Whatever it is: the training goes on, and the log is whole.
            self._failed = True
            known = isinstance(error, OSError | CannotRecord)
            why = str(error) if known else f"diagnose itself failed ({failures.told(error)})"
            self._say(f"no more recordings of this run: {why}")

    def _begin(self) -> None:
        """Begin a recording that a user or the log asks for; commands of other machines join what the first began."""
        folder = self._part.recording / f"{RECORDING}-{self._number}"
        if manifests.completes(self._part):
            wish = self._asked()
            if wish is None and self._left and (wish := self._wish()) is not None:
                self._left -= 1
            if wish is None:
                return
            job = None if folders.begun(self._part).job is None else f"{self._part.run}-{self._number}"
            plan = Plan(keep_running=True, every=wish.every, long_step=wish.long_step, memory=wish.memory)
            self._made, self._why = prepare(folder, plan, self._command, job=job), wish.why
            self._say(f"recording some steps into {folder}: {wish.why}")
            if job is not None:
                Board(self._part.shared).post(RECORDING + str(self._number), why=wish.why)
        else:
            message = Board(self._part.shared).read(RECORDING + str(self._number))
            if message is None:
                return
            self._made, self._why = folders.join(folder), message["why"]
            folders.begun(self._made).plan.write(self._made)
        Board(self._part.work).post(f"{RECORDING}-{self._number}", part=str(self._made.work))
        self._number, self._under_way = self._number + 1, True

    def _asked(self) -> Wish | None:
        """The next request of a user that has not been granted yet; None if there is none."""
        for path in sorted(self._part.shared.glob(f"{ASK}.*.post")):
            if path not in self._granted:
                self._granted.add(path)
                message = Board(path.parent).read(path.name.removesuffix(".post")) or {}
                return Wish(str(message.get("why", "on request")))
        return None

    def _is_recorded(self) -> bool:
        """Whether all ranks of this command that take part in the current recording have made it."""
        shared, made = Board(self._made.shared), Board(self._made.work).posted(f"{MADE}.")
        names = [path.name.removesuffix(".claim") for path in self._made.shared.glob("rank*.claim")]
        return made > 0 and made >= sum(shared.claimed(name) == self._made.name for name in names)

    def _complete(self) -> None:
        """Write the manifest of the recording and report where it lies; an empty recording is removed."""
        self._under_way = False
        if not any(self._made.shared.glob("rank*")):
            shutil.rmtree(self._made.recording, ignore_errors=True)
        elif manifests.completes(self._made):
            manifests.wait_for_all(self._made, self._say)
            manifest = manifests.complete(self._made, None, [f"Recorded during diagnose watch: {self._why}."])
            if any(rank.trace for rank in manifest.ranks):
                self._say(f"recorded; see it with: diagnose analyze {self._made.recording}")
            else:
                self._say(f"nothing could be recorded: {' '.join(note for note in manifest.notes if note)}")
        else:
            manifests.leave(self._made)


def ask(folder: Path) -> Path:
    """Ask for a recording of a run that is watched into this folder. Returns where it will lie.
    Raises CannotRecord if nobody watches it."""
    part = _watched(folder)
    board = Board(part.shared)
    try:
        board.post(f"{ASK}.{board.posted(f'{ASK}.') + 1}-asked", why="on request")
    except OSError as error:
        raise CannotRecord(
            f"Cannot write to {folder}: {error.strerror}. Run the command as the user of diagnose watch."
        ) from error
    numbers = [int(found[1]) for path in folder.iterdir() if (found := re.fullmatch(rf"{RECORDING}-(\d+)", path.name))]
    return folder / f"{RECORDING}-{max(numbers, default=0) + 1}"


def is_made(target: Path) -> bool:
    """Whether a recording is complete, in the folder that `ask` has named."""
    return (target / manifests.NAME).exists() and not (target / WORK).exists()


def goes_on(folder: Path) -> bool:
    """Whether the command that watches a run is still there."""
    return any(folders.alive(folder))


def folder_of(pid: int) -> Path:
    """The folder into which a process, or a child of it, is watched. Raises CannotRecord if that is not known."""
    wanted = f"{VARIABLE}=".encode()
    for process in (pid, *_children(pid)):
        with suppress(OSError):
            for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if word.startswith(wanted):
                    return Part.at(Path(os.fsdecode(word.removeprefix(wanted)))).recording
    if not Path(f"/proc/{pid}").exists():
        raise CannotRecord(f"There is no process {pid}. Name the folder of the run instead.")
    raise CannotRecord(
        f"Process {pid} was not started by diagnose watch, or belongs to another user. Name the folder of its run."
    )


def _children(pid: int) -> Iterator[int]:
    """Ids of the processes whose parent is `pid` (proc(5): the second field after the name)."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[1] == str(pid):
                yield int(path.name)


def _watched(folder: Path) -> Part:
    """The part of the watched run that goes on in this folder. Raises CannotRecord if there is none."""
    try:
        run = folders.begun(Part(folder))
        if run.plan.watch and goes_on(folder):
            return Part(folder, run.first)
    except (OSError, msgspec.MsgspecError):
        pass
    why = "has ended" if folder.is_dir() and any(folder.glob("rank*.watch")) else "is not there"
    raise CannotRecord(f"A run in {folder} {why}. Start one with diagnose watch, and run this command during the run.")
