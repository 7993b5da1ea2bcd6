"""Measuring what changed ops take, in a process of its own, once a training has ended."""

import gzip
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from diagnose.capture.agent import about
from diagnose.capture.timed import MARK
from diagnose.trace.manifest import Flags
from diagnose.trace.measured import MeasuredOp, Measurements, OpSpec

PACKAGES = str(Path(__file__).parents[2])
DIED = "the benchmark process died"


class CannotMeasure(Exception):
    """Why nothing can be measured, as a sentence, with what to do."""


class Setting(Struct, frozen=True):
    """How ops ran when they were recorded."""

    device: str  # Name of the GPU; "" of the CPU.
    flags: Flags = Flags()
    cpu: str = ""  # Name of the processor; "" unknown.


class _Found(Struct):
    """What the process that measures has said so far; `done`: by index of the op and change."""

    device: str | None = None
    torch: str = ""
    done: dict[tuple[int, str], MeasuredOp] = field(default_factory=dict)
    why: str = "the time limit was reached"  # Why it said no more.


def measure(
    asked: Sequence[tuple[OpSpec, Sequence[str]]],
    setting: Setting,
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
    python: str = sys.executable,
) -> Measurements:
    """Measure ops and their changes in this order, for at most so many seconds.

    What is not reached, cannot be called again, or fails, is in the result with the reason. An interrupt ends it early.
    `progress` gets (changes done, all). Raises CannotMeasure without torch, or on another device or processor.
    """
    here = about.host()["cpu"]
    if not setting.device and setting.cpu and here and setting.cpu != here:
        raise CannotMeasure(
            f"The recording is from an {setting.cpu}, but this is an {here}. Run diagnose measure on that machine."
        )
    begin, total = time.monotonic(), sum(len(changes) for _, changes in asked)
    found = _Found()
    with closing(_lines(python, _question(asked, setting, seconds), begin + seconds, found)) as lines:
        try:
            for line in lines:
                if "torch" in line:
                    found.device, found.torch = str(line["device"]), str(line["torch"])
                    _check(found.device, setting.device)
                    continue
                spec = asked[int(str(line["index"]))][0]
                one = msgspec.convert({**line, "spec": msgspec.to_builtins(spec)}, MeasuredOp)
                found.done[int(str(line["index"])), one.change] = one
                progress(len(found.done), total)
        except KeyboardInterrupt:
            found.why = "interrupted"
    if found.device is None and found.why == DIED:
        raise CannotMeasure(f"Nothing was measured: {python} cannot import torch.")
    ops = tuple(
        found.done.get((at, change), MeasuredOp(spec, change, why=found.why))
        for at, (spec, changes) in enumerate(asked)
        for change in changes
    )
    return Measurements(found.device or setting.device, found.torch, time.monotonic() - begin, ops)


def _check(here: str, there: str) -> None:
    """Raise CannotMeasure unless the GPU here is the one recorded `there`; an empty name: no GPU."""
    if here != there:
        names = (f"an {name}" if name else "no GPU" for name in (there, here))
        raise CannotMeasure(
            "The recording is from {}, but this machine has {}. Run diagnose measure on that machine.".format(*names)
        )


def _question(asked: Sequence[tuple[OpSpec, Sequence[str]]], setting: Setting, seconds: float) -> bytes:
    """What to time, as the JSON that the process reads: device, threads, flags, time limit in s, ops with changes."""
    ops = [{**msgspec.to_builtins(spec), "changes": list(changes)} for spec, changes in asked]
    where, known = "cuda" if setting.device else "cpu", setting.flags
    flags = {
        "matmul_tf32": bool(known.cuda_matmul_allow_tf32),
        "cudnn_tf32": known.cudnn_allow_tf32 is not False,
        "benchmark": bool(known.cudnn_benchmark),
        "deterministic": bool(known.cudnn_deterministic),
    }
    asked_for = {"device": where, "threads": known.threads, "flags": flags, "seconds": seconds, "ops": ops}
    return json.dumps(asked_for).encode()


def _lines(python: str, question: bytes, deadline: float, found: _Found) -> Generator[dict[str, object]]:
    """What the process says until it ends, the time is over, or somebody interrupts; then it is killed."""
    # By its own path, and without the user's folder: nothing there is to stand in the way of a module.
    begin = f"import sys; sys.path[0] = {PACKAGES!r}; from diagnose.capture.timed.program import main; main()"
    command = [python, "-c", begin]
    # A session of its own: an interrupt at the terminal is ours, and what was measured is kept.
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(question)
        yield from _answers(child.stdout.fileno(), deadline, found)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def _answers(output: int, deadline: float, found: _Found) -> Generator[dict[str, object]]:
    """Answers of the process, one JSON object a line, until it closes its output or the deadline has passed."""
    rest = b""
    with selectors.DefaultSelector() as ready:
        ready.register(output, selectors.EVENT_READ)
        while (remaining_s := deadline - time.monotonic()) > 0:
            if not ready.select(remaining_s):
                return
            chunk = os.read(output, 1 << 16)
            if not chunk:
                found.why = DIED
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(MARK.encode()):
                    yield json.loads(line[len(MARK) :])


def together(before: Measurements, now: Measurements) -> Measurements:
    """Both as one; of each op and change only the later measurement, even if that failed."""
    again = {(one.spec, one.change) for one in now.ops}
    kept = [one for one in before.ops if (one.spec, one.change) not in again]
    return msgspec.structs.replace(now, ops=(*kept, *now.ops), seconds=before.seconds + now.seconds)


def write(path: Path, measured: Measurements) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(gzip.compress(msgspec.json.encode(measured)))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
