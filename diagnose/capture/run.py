"""Running a command so that its training processes record themselves, and ending it when they have."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO

from msgspec import Struct

from diagnose.capture import folders, manifests, nsys
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import INTERRUPTED, KILLED, RECORDING, REFUSED, Part, Plan
from diagnose.capture.agent.watch.watcher import ASK, ASKED_BY_SIGNAL
from diagnose.capture.doctor import CannotRecord as CannotRecord
from diagnose.trace.manifest import Manifest

BOOTSTRAP, AGENT = (Path(__file__).resolve().parent / name for name in ("bootstrap", "agent"))

SITE = "site"  # Folder of a part that is put on PYTHONPATH.
GRACE_S = 30.0  # Between the end of recording and asking the command to end, which it should do by itself (our choice).
LEAST_FREE_BYTES = 500_000_000  # Free space without which a recording is not begun: traces before compression, twice.
LEAST_FREE_FOR_LOGS_BYTES = 20_000_000  # The same of a watched run: logs on eight GPUs have some MB (our choice).
WRITING_S = 1800.0  # Time for nsys to write its reports once the training has ended; those of some GB take minutes.
PATIENCE_S = 5.0  # For each way to end what is left of a run.
POLL_S = 0.1
LOOK_S = 0.5  # Between two looks at what processes have agreed on: commands may share a file system (our choice).
HEARD_S = 0.5  # In which a script that was interrupted by itself has said so (our choice).
INSISTING_S = 1.0  # Between two interrupts, from which on the second one is meant as one (our choice).

PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)

ASKED, OVERDUE = 0, -1  # Among the signals that came: we ourselves ended the command, as it was done or took too long.

NEWS = {  # What to say when the run's processes have agreed on something.
    REFUSED: "another run is recording in this folder, so this run is not recorded. Name a new folder",
    "foreign": "the script's own torch.profiler is recording; waiting for it to end",
    "unprofiled": "warmed up; timing {steps:.0f} steps without a profiler",
    "timing": "recording {steps:.0f} steps",
    "device_timing": "recording {steps:.0f} steps without ops",
    "attribution": "recording {steps:.0f} steps with call stacks and shapes",
    "unfound": "no step was found in {seconds:.0f} s. To mark steps, change the script {where},"
    " and run it with python:\n"
    "    import diagnose\n"
    '    with diagnose.record("diagnose-runs/marked") as recording:\n'
    "        {head}\n"
    "            ...\n"
    "            recording.step()",
    "window": "no steps were found; recording {seconds:.0f} s",
    "end": "recorded; ending the run",
}


class Recorded(Struct, frozen=True):
    """What came of a run."""

    folder: Path
    manifest: Manifest
    exit_code: int  # Of the command, as a shell would give it; 0 where it was ended after recording.
    interrupted: bool
    completed: bool = True  # By this command; else the one of the same job that started rank 0 completes it.
    signals: tuple[int, ...] = ()  # That came, in order, with ASKED and OVERDUE.


def prepare(folder: Path, plan: Plan, command: Sequence[str], overwrite: bool = False, job: str | None = None) -> Part:
    """Make the folder and put into it what the processes need. Raises CannotRecord. Where other commands of the same
    `job` record into it, this one joins them. `overwrite`: a recording that is there is replaced."""
    if plan.tracer == "nsys":
        nsys.find()
        if job is not None:
            raise CannotRecord("--tracer nsys needs one command that records all ranks. Omit --tracer.")
    try:
        part, first = folders.take(folder.resolve(), plan, job, overwrite)
        plan.write(part)
        site = part.work / SITE  # PYTHONPATH leads here, into the recording, so that other machines find it as well.
        site.mkdir()
        shutil.copy(BOOTSTRAP / "sitecustomize.py", site)
        (site / "agent.txt").write_text(str(AGENT), encoding="utf-8")
        if first:
            manifests.begin(folder, command)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CannotRecord(f"Cannot write to {folder}: {error.strerror}. Name another folder with --out.") from error
    least = LEAST_FREE_FOR_LOGS_BYTES if plan.watch else LEAST_FREE_BYTES
    if free < least:
        raise CannotRecord(
            f"{folder} has {free / 1e6:,.0f} MB free, and {least / 1e6:,.0f} MB may be needed to write the"
            " recording. Free some space, or name another folder with --out."
        )
    return part


def run(
    command: Sequence[str],
    part: Part,
    plan: Plan,
    say: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    limit_s: float = inf,
    look: Callable[[], None] = lambda: None,
) -> Recorded:
    """Run a command to its end, or until all is recorded. Raises CannotRecord if it does not start, or the recording
    cannot be written. `variables` are added to its environment. With `output`, which gets all that it prints, it has no
    input. It is ended once it has run for `limit_s` seconds. Meanwhile `look()` is called about every LOOK_S."""
    environment = {**os.environ, **(variables or {}), RECORDING: str(part.work)}
    no_input = None if output is None else subprocess.DEVNULL
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(part.work / SITE), os.environ.get("PYTHONPATH")]))
    if plan.tracer == "nsys":
        environment.update([nsys.HEARS_PLAIN_NAMES])
        command = nsys.command(nsys.find(), part.recording, command, say)
    try:
        child = subprocess.Popen(command, env=environment, stdin=no_input, stdout=output, stderr=output)
    except OSError as error:
        raise CannotRecord(f"Cannot run {command[0]}: {error.strerror}. Check its name and path.") from error
    board = Board(part.work)
    with _signals_for(child, part, plan) as received:
        ended_by_us = _watch(child, part, board, plan, say, received, limit_s, look)
    if board.read(REFUSED) is not None:
        raise CannotRecord(f"{part.recording} is in use by another run. Name a new folder.")
    if ended_by_us or OVERDUE in received or signal.SIGINT in received:
        end_orphans(part)
    code = 128 - child.returncode if child.returncode < 0 else child.returncode  # As a shell gives it.
    ended_well = ended_by_us and (code == 0 or ASKED in received)
    try:
        manifest, completed = _completed(part, plan, None if ended_well else code, say)
    except OSError as error:
        raise CannotRecord(
            f"Cannot write to {part.recording}: {error.strerror}. Its contents may be incomplete."
        ) from error
    failed = bool(code) or plan.tracer == "nsys"  # An nsys that is interrupted exits with 0.
    interrupted = failed and signal.SIGINT in received
    return Recorded(part.recording, manifest, 0 if ended_well else code, interrupted, completed, tuple(received))


def _completed(part: Part, plan: Plan, code: int | None, say: Callable[[str], None]) -> tuple[Manifest, bool]:
    """(manifest, True) once all is written; (an empty one, False) if another command completes the recording."""
    if not manifests.completes(part):
        manifests.leave(part)
        return Manifest(), False
    manifests.wait_for_all(part, say)
    notes: list[str] = []
    if plan.tracer == "nsys":
        notes += nsys.collect(part, nsys.find(), manifests.said(part)[0])
        if any(part.recording.glob("*.nsys-rep")):
            say("its *.nsys-rep files are for Nsight Systems and contain the environment of all processes here")
    return manifests.complete(part, exit_code=code, notes=notes), True


def _watch(
    child: subprocess.Popen[bytes],
    part: Part,
    board: Board,
    plan: Plan,
    say: Callable[[str], None],
    received: list[int],
    limit_s: float,
    look: Callable[[], None],
) -> bool:
    """Wait for the end of the child, and end it if it goes on for long after all was recorded, or beyond `limit_s`.
    Returns whether all was recorded, the run was to end then, and nobody interrupted it."""
    over, looked, begun, alive = 0.0, 0.0, time.monotonic(), folders.Heartbeat(part)
    news = _News(board, plan, say, alone=folders.begun(part).job is None)
    while child.poll() is None:
        if time.monotonic() - looked < LOOK_S:
            time.sleep(POLL_S)
            continue
        looked = time.monotonic()
        _end_overdue(child, looked - begun - limit_s, received)
        alive.beat()
        news.tell()
        look()
        if "end" in news.told:
            over = over or time.monotonic()
            waited = time.monotonic() - over
            grace_s = 0.0 if "window" in news.told else GRACE_S  # Without steps it knows no moment to end at.
            if waited > grace_s + GRACE_S:
                _signal(child, part, plan, signal.SIGKILL)
            elif waited > grace_s and ASKED not in received:
                if grace_s:
                    say("the run does not exit; terminating it")
                received.append(ASKED)
                _signal(child, part, plan, signal.SIGTERM)
            if waited > WRITING_S:
                child.kill()
        time.sleep(POLL_S)
    news.tell()
    return board.read("end") is not None and not plan.keep_running and signal.SIGINT not in received


def _end_overdue(child: subprocess.Popen[bytes], over_s: float, received: list[int]) -> None:
    """Terminate a child that is `over_s` seconds past its time limit, and kill it PATIENCE_S later."""
    if over_s > 0 and OVERDUE not in received:
        received.append(OVERDUE)
        child.terminate()
    elif over_s > PATIENCE_S:
        child.kill()


class _News:
    """What the run's processes have agreed on. Of several commands of a job the one of rank 0 tells the user."""

    def __init__(self, board: Board, plan: Plan, say: Callable[[str], None], alone: bool) -> None:
        self._board, self._plan, self._say, self._alone = board, plan, say, alone
        self.told: set[str] = set()

    def tell(self) -> None:
        """Tell all that is new; of several commands of a job only the one with rank 0 speaks."""
        heard = self._alone or any(self._board.read(name) is not None for name in ("rank0", REFUSED))
        for name, words in NEWS.items():
            post = self._board.read(name)
            if name not in self.told and post is not None and not (name == "end" and self._plan.keep_running):
                self.told.add(name)
                if heard:
                    self._say(words.format(**post))


def _signal(child: subprocess.Popen[bytes], part: Part, plan: Plan, number: int) -> None:
    """Send the signal to the run; with nsys to its training processes, as nsys still has to write its reports."""
    if number == signal.SIGKILL:
        Board(part.work).post(KILLED)
    if plan.tracer == "torch":
        child.send_signal(number)
        return
    # A process that has ended may have left its number to another one.
    for process in _trained_processes(part).intersection(_processes_of(part)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _trained_processes(part: Part) -> set[int]:
    """Ids of the training processes that have finished recording, or failed to."""
    return {int(path.name.split(".")[1]) for path in part.work.glob("done.*.post")}


@contextmanager
def _signals_for(child: subprocess.Popen[bytes], part: Part, plan: Plan) -> Iterator[list[int]]:
    """Pass signals on to the child, as if it stood in our place. Yields a list that collects those that came.
    The signal that asks for a recording of a watched run is for us: launchers end at it."""
    received, first_s, board = list[int](), 0.0, Board(part.work)

    def pass_on(number: int, frame: FrameType | None) -> None:
        """Send the signal on. A Ctrl-C at a terminal reaches the child by itself; a second one becomes SIGTERM."""
        nonlocal first_s
        again = number == signal.SIGINT and number in received
        received.append(number)
        if number != signal.SIGINT:
            child.send_signal(number)
        elif again and time.monotonic() - first_s > INSISTING_S:
            child.send_signal(signal.SIGTERM)  # A script that is ending hears of no second interrupt.
        elif not again:
            first_s = time.monotonic()
            if not _from_terminal():
                threading.Timer(HEARD_S, interrupt).start()

    def interrupt() -> None:
        """The child as well, unless it has heard of it by itself: `timeout -s INT` tells the whole process group."""
        if child.poll() is None and board.read(INTERRUPTED) is None:
            child.send_signal(signal.SIGINT)

    handlers = dict.fromkeys(PASSED_ON, pass_on) | (_asking(part) if plan.watch else {})
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _asking(part: Part) -> dict[int, Callable[[int, FrameType | None], None]]:
    """The handler by its signal that asks for a recording of a watched run; none where the system lacks the signal."""
    times = count(1)

    def ask(number: int, frame: FrameType | None) -> None:
        Board(part.shared).post(f"{ASK}.{os.getpid()}-{next(times)}", why="requested by a signal")

    return {} if ASKED_BY_SIGNAL is None else {ASKED_BY_SIGNAL: ask}


def _from_terminal() -> bool:
    """Whether a Ctrl-C reaches the child by itself: the terminal sends it to all processes in the foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except (OSError, AttributeError):
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def end_orphans(part: Part) -> None:
    """End processes of the run that are still there: first by patience, then by asking, then by force."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0 asks for nothing.
        for process in _processes_of(part):
            if number == signal.SIGKILL:
                Board(part.work).post(KILLED)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        until = time.monotonic() + PATIENCE_S
        while _processes_of(part):
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        else:
            return


def _processes_of(part: Part) -> list[int]:
    """Other processes whose environment names this part; none where there is no /proc to tell.
    Without those that have left this session: they are meant to outlive the run, unless they trained."""
    wanted, found = f"{RECORDING}={part.work}".encode(), []
    trained = _trained_processes(part)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            number = int(entry.name)
            ours = number != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0")
            if ours and (os.getsid(number) == os.getsid(0) or number in trained):
                found.append(number)
        except OSError:
            continue
    return found
