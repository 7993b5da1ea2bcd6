"""Which job a command belongs to, and which folders a recording may go to."""

import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from diagnose.capture.agent.plan import LEFT, WORK, Part, Plan
from diagnose.capture.doctor import CannotRecord

# Variables that name a job: of srun, MPI, torchrun's workers or init_method="env://", and torchrun's own options.
_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_ID")
_TORCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_PET = ("PET_RDZV_ID", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "MASTER_ADDR", "MASTER_PORT")
_SIZES = {  # Variables that say how many processes or machines a job has, and those that name it then.
    "SLURM_STEP_NUM_TASKS": _STEP,
    "OMPI_COMM_WORLD_SIZE": _MPI,
    "PMI_SIZE": _MPI,
    "WORLD_SIZE": _TORCH,
    "PET_NNODES": _PET,
}

_NODES = {"nnodes", "num_nodes", "num_machines"}
_MEETING = {"rdzv_id", "rdzv_endpoint", "master_addr", "master_port", "main_process_ip", "main_process_port"}
"""Options of torchrun, accelerate and deepspeed, with - for _ as well: how many machines, and where they meet."""


def of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """A name of the job that all its commands agree on; None if no other command records it, as far as can be seen."""
    for size, names in _SIZES.items():
        if _most(environment.get(size, "")) > 1:
            return "/".join([size, *(environment.get(name, "") for name in names)])
    options = _options(command)
    if not any(_most(options.get(name, "")) > 1 for name in _NODES) or not _MEETING & set(options):
        return None
    return "/".join(f"{name}={options[name]}" for name in sorted(_MEETING & set(options)))


def _options(command: Sequence[str]) -> dict[str, str]:
    """Options of a launcher in the command, by name without dashes: number of nodes and rendezvous."""
    options: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, is_set, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word.startswith("-") and name in _NODES | _MEETING:
            options.setdefault(name, value if is_set else following)
    return options


def _most(text: str) -> int:
    """A number of processes or machines, or the greater of a range as in 1:4; 0 if there is none."""
    found = re.fullmatch(r"(?:\d+:)?(\d+)", text)
    return int(found[1]) if found else 0


# Files that hold recorded steps, or a log of the run, and those that we write beside them.
_RECORDING = re.compile(
    r"rank\d+\.(device|trace|detail)\.(json\.gz|sqlite)|.*\.nsys-rep|rank\d+(\.attempt-\d+)?\.watch"
)
_BESIDE = re.compile(
    r"manifest\.json(\.tmp)?|report\.(html|json)|trials\.json|rank\d+\.(graph|values|costs)\.json\.gz|rank\d+(\.attempt-\d+)?\.watch\.open(\.\d+)?"
)
_INNER = re.compile(r"recording-\d+")  # Folders with recordings of a run that was watched.
HEARTBEAT_S = 10.0  # Between two signs of life of a command.
SILENT_S = 180.0
"""A command on another machine that gave no sign of life for so long has ended: NFS shows changes after 60 s at most
by default (acdirmax in nfs(5))."""

APPEARS_S = 90.0  # That a file may take to be seen from another machine (the same, with some reserve).
OWNER = "owner.json"  # File of a part that says which process it belongs to.
JOB, LOCK = "job.json", ".diagnose-lock"  # What a run says of itself; a folder while a command looks for its place.
LOCKED_S = 10.0  # After which such a folder was left behind: nobody needs it for a second (our choice).


class Owner(msgspec.Struct, frozen=True):
    """The process of a command that records."""

    host: str
    pid: int
    started: str = ""  # As /proc counts, if it tells: a container that starts anew gives the same number again.

    def alive(self, file: Path) -> bool:
        """Whether it may still be there; on another machine by the age of its `file`, which it touches all the time."""
        if self.host != socket.gethostname():
            with suppress(OSError):
                return _now_s(file.parent) - file.stat().st_mtime < SILENT_S
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return not self.started or started(self.pid) in ("", self.started)


def started(pid: int) -> str:
    """When a process started, in ticks since the machine did (proc(5), field 22); empty where nothing tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class Begun(msgspec.Struct, frozen=True):
    """What a run says of itself to other commands of its job."""

    run: str
    first: str  # The part that began it.
    job: str | None
    plan: Plan


def take(folder: Path, plan: Plan, job: str | None, overwrite: bool = False) -> tuple[Part, bool]:
    """Make the folder, empty, and ours; of a job that other commands record, too, join them.
    Returns this command's part, and whether it is the first. What an attempt without a recording has left goes;
    `overwrite`: an earlier recording goes, too. Nothing but files of ours is ever removed. Raises CannotRecord if the
    folder holds anything else, or if another recording is being made there; OSError if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder):
        if any(alive(folder)):
            return _joined(folder, plan, job), False
        paths = sorted(path for path in folder.iterdir() if path.name not in (WORK, LOCK))
        inner = [path for path in paths if _INNER.fullmatch(path.name) and path.is_dir()]
        files = [one for path in paths for one in (path.iterdir() if path in inner else (path,)) if one.name != WORK]
        if not all(_BESIDE.fullmatch(path.name) or _RECORDING.fullmatch(path.name) for path in files):
            raise CannotRecord(f"{folder} is not empty. Name a new folder.")
        if any(_RECORDING.fullmatch(path.name) for path in files) and not overwrite:
            raise CannotRecord(
                f"{folder} already has a recording. Name a new folder, or replace it with --overwrite (overwrite=True)."
            )
        shutil.rmtree(folder / WORK, ignore_errors=True)
        for path in files:
            path.unlink()
        for path in inner:
            shutil.rmtree(path / WORK, ignore_errors=True)
            path.rmdir()
        (folder / WORK).mkdir()
        part = _part(folder, uuid4().hex)
        _write(part.shared / JOB, Begun(part.run, part.name, job, plan))
        return part, True


def join(folder: Path) -> Part:
    """A part of the run that another process has begun. Raises OSError or msgspec.MsgspecError if there is none."""
    run = begun(Part(folder)).run
    if not any(alive(folder)):
        raise FileNotFoundError(folder / WORK)
    return _part(folder, run)


def begun(part: Part) -> Begun:
    """What the run of a part says of itself. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode((part.shared / JOB).read_bytes(), type=Begun)


class Heartbeat:
    """Signs of life of a part's command, for those on other machines."""

    def __init__(self, part: Part) -> None:
        self._file, self._last_s = part.work / OWNER, time.monotonic()

    def beat(self) -> None:
        """Show that the command is still there, every HEARTBEAT_S; may be called more often."""
        if time.monotonic() - self._last_s > HEARTBEAT_S:
            self._last_s = time.monotonic()
            with suppress(OSError):
                os.utime(self._file)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """A lock in the folder, so that a command sees what another has begun before; waits LOCKED_S for it at most."""
    lock, until = folder / LOCK, time.monotonic() + LOCKED_S
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            if time.monotonic() > until:  # Whoever made it was killed.
                break
            time.sleep(0.05)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.rmdir()


def _joined(folder: Path, plan: Plan, job: str | None) -> Part:
    """A part of the recording that another command has begun. Raises CannotRecord if it is of another job."""
    known: Begun | None = None
    with suppress(OSError, msgspec.MsgspecError):
        known = begun(Part(folder))
    if known is None or job is None or known.job != job:
        raise CannotRecord(f"Another command is recording into {folder}. Name a new folder, or wait.")
    if known.plan != plan:
        raise CannotRecord(
            f"Other commands of this job use different options in {folder}. Use the same options for all."
        )
    return _part(folder, known.run)


def _part(folder: Path, run: str) -> Part:
    """A new part of the recording: its work folder, with a file that names the process it belongs to."""
    part = Part(folder, f"{run}-{uuid4().hex[:8]}")
    part.work.mkdir()
    _write(part.work / OWNER, Owner(socket.gethostname(), os.getpid(), started(os.getpid())))
    return part


def alive(folder: Path) -> Iterator[Path]:
    """Working folders of parts whose commands may still run; the first is known by name, if not listed yet."""
    parts = {path.parent for path in (folder / WORK).glob(f"*/{OWNER}")}
    with suppress(OSError, msgspec.MsgspecError):
        parts.add(Part(folder, begun(Part(folder)).first).work)
    return (work for work in parts if is_alive(work))


def is_alive(work: Path) -> bool:
    """Whether the command of a part may still run; of one that says nothing of itself, nobody can tell."""
    try:
        owner = msgspec.json.decode((work / OWNER).read_bytes(), type=Owner)
    except (OSError, msgspec.MsgspecError):
        owner = Owner("", 0)
    return not (work / LEFT).exists() and owner.alive(work / OWNER)


def _now_s(folder: Path) -> float:
    """The time by the file system's clock, in s: that may be another machine's."""
    mark = folder / f"now-{uuid4().hex}"
    mark.touch()
    try:
        return mark.stat().st_mtime
    finally:
        mark.unlink()


def _write(path: Path, what: msgspec.Struct) -> None:
    written = path.with_suffix(f".{uuid4().hex}")
    written.write_bytes(msgspec.json.encode(what))
    written.replace(path)
