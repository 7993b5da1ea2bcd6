"""Running a command so that its training processes record themselves, and ending it when they have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO

from diagnose.capture import folders, manifests, nsys
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import INTERRUPTED, WORK, Plan
from diagnose.capture.limits import CannotRecord as CannotRecord
from diagnose.trace.manifest import Manifest

BOOTSTRAP = Path(__file__).parent / "bootstrap"

GRACE_S = 30.0
"""Between the end of recording and asking the command to end, which it should do by itself (our choice)."""

LEAST_FREE_BYTES = 500_000_000
"""Free space without which a recording is not begun: traces before compression, twice."""

WRITING_S = 1800.0
"""Time for nsys to write its reports once the training has ended; those of some GB take minutes."""

PATIENCE_S = 5.0
"""For each way to end what is left of a run."""

POLL_S = 0.1

HEARD_S = 0.5
"""In which a script that was interrupted by itself has said so (our choice)."""

INSISTING_S = 1.0
"""Between two interrupts, from which on the second one is meant as one (our choice)."""

ASKED, OVERDUE = 0, -1
"""Among the signals that came: that we ourselves asked the command to end, as it was done or took too long."""

NEWS = {
    "foreign": "the script's own torch.profiler is recording; waiting for it to end",
    "unprofiled": "steps are steady; timing {steps:.0f} of them without a profiler",
    "timing": "recording {steps:.0f} steps",
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
"""What to say when the run's processes have agreed on something."""


@dataclass(frozen=True)
class Recorded:
    """What came of a run."""

    folder: Path
    manifest: Manifest
    exit_code: int
    """Of the command, as a shell would give it; 0 where it was ended after recording."""
    interrupted: bool
    signals: tuple[int, ...] = ()
    """That came, in order, with ASKED and OVERDUE."""


def prepare(folder: Path, plan: Plan, command: Sequence[str], overwrite: bool = False) -> None:
    """Make the folder and put into it what the processes need. Raises CannotRecord.

    `overwrite`: a recording that is there is replaced.
    """
    if plan.tracer == "nsys":
        nsys.find()
    try:
        folders.take(folder, overwrite)
        plan.write(folder)
        manifests.begin(folder, command)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CannotRecord(f"Cannot write to {folder}: {error.strerror}. Name another folder with --out.") from error
    if free < LEAST_FREE_BYTES:
        raise CannotRecord(
            f"{folder} has {free / 1e6:,.0f} MB free, and {LEAST_FREE_BYTES / 1e6:,.0f} MB may be needed while a"
            " recording is written. Free some, or name another folder with --out."
        )


def run(
    command: Sequence[str],
    folder: Path,
    plan: Plan,
    say: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    limit_s: float = inf,
) -> Recorded:
    """Run a command to its end, or until all is recorded. Raises CannotRecord if it does not start.

    `variables` are added to its environment. With `output`, which gets all that it prints, it has no input. It is ended
    once it has run for `limit_s` seconds.
    """
    environment = {**os.environ, **(variables or {}), "DIAGNOSE_RECORDING": str(folder.resolve())}
    no_input = None if output is None else subprocess.DEVNULL
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BOOTSTRAP), os.environ.get("PYTHONPATH")]))
    if plan.tracer == "nsys":
        environment.update([nsys.HEARS_PLAIN_NAMES])
        command = nsys.command(nsys.find(), folder, command, say)
    try:
        child = subprocess.Popen(command, env=environment, stdin=no_input, stdout=output, stderr=output)
    except OSError as error:
        raise CannotRecord(f"Cannot run {command[0]}: {error.strerror}. Check its name and path.") from error
    with _signals_for(child, Board(folder / WORK)) as received:
        ended_by_us = _watch(child, folder, plan, say, received, limit_s)
    if ended_by_us or OVERDUE in received or signal.SIGINT in received:
        end_orphans(folder)
    code = _shell_code(child.returncode)
    ended_well = ended_by_us and (code == 0 or ASKED in received)
    try:
        notes: list[str] = []
        if plan.tracer == "nsys":
            notes += nsys.collect(folder, nsys.find(), manifests.said(folder)[0])
            if any(folder.glob("*.nsys-rep")):
                say("its *.nsys-rep are for Nsight Systems itself; they hold the environment of all processes here")
        manifest = manifests.complete(folder, exit_code=None if ended_well else code, notes=notes)
    except OSError as error:
        raise CannotRecord(f"Cannot write to {folder}: {error.strerror}. What it holds may be incomplete.") from error
    failed = bool(code) or plan.tracer == "nsys"  # An nsys that is interrupted exits with 0.
    interrupted = failed and signal.SIGINT in received
    return Recorded(folder, manifest, 0 if ended_well else code, interrupted, tuple(received))


def _watch(
    child: subprocess.Popen[bytes],
    folder: Path,
    plan: Plan,
    say: Callable[[str], None],
    received: list[int],
    limit_s: float,
) -> bool:
    """Wait for the end of the child. Returns whether it ended because all was recorded."""
    board, told, over, begun = Board(folder / WORK), set[str](), 0.0, time.monotonic()
    while child.poll() is None:
        _end_overdue(child, time.monotonic() - begun - limit_s, received)
        for name, words in NEWS.items():
            post = board.read(name)
            if name not in told and post is not None and not (name == "end" and plan.keep_running):
                told.add(name)
                say(words.format(**post))
        if "end" in told:
            over = over or time.monotonic()
            waited = time.monotonic() - over
            grace_s = 0.0 if "window" in told else GRACE_S  # Without steps it knows no moment to end at.
            if waited > grace_s + GRACE_S:
                _signal(child, folder, plan, signal.SIGKILL)
            elif waited > grace_s and ASKED not in received:
                if grace_s:
                    say("the run does not end by itself; asking it to")
                received.append(ASKED)
                _signal(child, folder, plan, signal.SIGTERM)
            if waited > WRITING_S:
                child.kill()
        time.sleep(POLL_S)
    return board.read("end") is not None and not plan.keep_running and signal.SIGINT not in received


def _end_overdue(child: subprocess.Popen[bytes], over_s: float, received: list[int]) -> None:
    """Ask a run that takes too long to end, and end it if it does not."""
    if over_s > 0 and OVERDUE not in received:
        received.append(OVERDUE)
        child.terminate()
    elif over_s > PATIENCE_S:
        child.kill()


def _signal(child: subprocess.Popen[bytes], folder: Path, plan: Plan, number: int) -> None:
    """To the run; under nsys to its training processes, as nsys itself has reports to write when they have ended."""
    if plan.tracer == "torch":
        child.send_signal(number)
        return
    for process in _trained(folder).intersection(_processes_of(folder)):  # One that has ended may have left its number.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _trained(folder: Path) -> set[int]:
    """Processes that were recorded."""
    return {int(path.name.split(".")[1]) for path in (folder / WORK).glob("done.*.post")}


@contextmanager
def _signals_for(child: subprocess.Popen[bytes], board: Board) -> Iterator[list[int]]:
    """Pass signals on to the child, as if it stood in our place. Yields those that came."""
    received, first_s = list[int](), 0.0

    def pass_on(number: int, frame: FrameType | None) -> None:
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

    numbers = [
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
    ]
    earlier = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


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


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def end_orphans(folder: Path) -> None:
    """End processes of the run that are still there: first by patience, then by asking, then by force."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in _processes_of(folder) if number is not None else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number or 0)
        until = time.monotonic() + PATIENCE_S
        while _processes_of(folder):
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        else:
            return


def _processes_of(folder: Path) -> list[int]:
    """Other processes whose environment names this recording; none where there is no /proc to tell.

    One that has left this session is meant to outlive the run, unless it trained.
    """
    wanted, found = f"DIAGNOSE_RECORDING={folder.resolve()}".encode(), []
    trained = _trained(folder)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            number = int(entry.name)
            ours = number != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0")
            if ours and (os.getsid(number) == os.getsid(0) or number in trained):
                found.append(number)
        except OSError:
            continue
    return found
