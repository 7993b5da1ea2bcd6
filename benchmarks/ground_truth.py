"""Try planted cases on the CPU: python -m benchmarks.ground_truth [CASE...] [--only truth|recordings|patterns]

Of every case that needs no GPU it measures what the fix gains, without a profiler; makes the recordings that the
repository keeps, as `diagnose profile` does; and asks torch's own pattern matcher. With --all-levels it makes those of
the other levels as well, and of the strong level without the fault: in build/recordings/. With --missing only what is
not there yet, so that it can be broken off and gone on with. It needs torch, and a machine that does nothing else
meanwhile. On GPUs, `python -m benchmarks.gpu` does this.
"""

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.blocks import measured
from benchmarks.patterns import matched
from benchmarks.planted_cases import LEVELS, Trial, cases, trials
from diagnose.trace import frames

ROOT = Path(__file__).parent.parent
_UNREAD = ("Ev Idx", "Record function id", "Python parent id", "Concrete Inputs", "Input Strides")
"""Arguments of events that count them, which nothing refers to, and what only `diagnose measure` asks for."""


@dataclass(frozen=True)
class Asked:
    """What is to be done of a trial."""

    missing: bool = False  # Only what is not there yet.
    all_levels: bool = False  # Recordings that the repository does not keep, too.


def measure(trial: Trial, asked: Asked) -> None:
    """Find out what the fix gains, and for a mixed case what each subset of its fixes does."""
    if trial.case.is_control:
        return
    for fixed in [(), *trial.case.subsets]:
        if asked.missing and trial.truth(fixed):
            continue
        truth = measured(trial, fixed)
        trial.keep(truth, fixed)
        told = f"x {truth.speedup:.2f} ({truth.low:.2f} to {truth.high:.2f})"
        print(" ".join([trial.case.id, trial.name, *fixed, told]), flush=True)


def record(trial: Trial, asked: Asked) -> None:
    """Record what the diagnosis is to see, unless its fix is known to gain nothing."""
    truth = trial.truth()
    if truth and not truth.counts:
        print(f"{trial.case.id} {trial.name}: not recorded, its fix gains {truth.speedup:.2f} x", flush=True)
        return
    for folder, fixed in _recordings(trial, asked.all_levels):
        if asked.missing and folder.is_dir():
            continue
        with _recorded(trial, fixed) as made:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            keep(made.glob("*.json*"), folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{trial.case.id} {folder.name}: {size / 1000:.0f} kB", flush=True)


def _recordings(trial: Trial, all_levels: bool) -> Iterator[tuple[Path, bool]]:
    if all_levels or trial.is_kept:
        yield trial.recording, False
    if trial.fixed_is_kept or (all_levels and trial.level == "strong" and not trial.case.is_control):
        yield trial.fixed_recording, True


@contextlib.contextmanager
def _recorded(trial: Trial, fixed: bool) -> Iterator[Path]:
    with recorded(trial.program(*["--fixed"] * fixed), trial.ranks, trial.case.recorded_steps) as folder:
        yield folder


@contextlib.contextmanager
def recorded(program: Sequence[str], ranks: int, steps: int) -> Iterator[Path]:
    """The folder of a recording of a module with its arguments, for a while."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        started = ["-m", *program]
        if ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            started = ["--", sys.executable, *launcher, *started]
        command = [sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze"]
        command += ["--steps", str(steps), "-o", str(folder), *started]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as started_run:
            try:
                code = started_run.wait()
            except BaseException:
                os.killpg(started_run.pid, signal.SIGKILL)  # The training is in its group.
                raise
        if code:
            raise subprocess.CalledProcessError(code, command)
        yield folder


def keep(files: Iterable[Path], folder: Path, unread: Sequence[str] = _UNREAD) -> None:
    """Put files of a recording into a folder, as they are published. `unread`: arguments of events to leave out."""
    for path in files:
        (folder / path.name).write_bytes(published(path, unread))


_PRIVATE = ("host_name", "traceName", "trace_id")
_LIBRARY = re.compile(r"/(?:[\w.+-]+/)*lib/python3\.\d+/(?:site-packages/|dist-packages/)?")
_ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)/[\w./+-]*")


_OF_DEVICE = "External id"  # Another one, where there is no work of a device.
TENTHS = 1  # Decimals of times in us: an op takes some us, and two more decimals took a quarter of the room.

_LONG_US = 100
"""Frames of Python that are not the user's are kept if they last longer: shorter ones explain nothing by themselves.
Those of the profiler tell which ones were on the stack when it began."""


def _worth_its_place(event: dict[str, Any]) -> bool:
    if event.get("cat") == "python_function":
        name = event["name"]
        return event["dur"] > _LONG_US or frames.is_user_frame(name) or frames.is_profiler(name)
    return bool(event.get("cat") != "fwdbwd")


def _slim(events: list[dict[str, Any]], unread: Sequence[str]) -> list[dict[str, Any]]:
    """Events of a trace without those that take room and tell nothing, so that many traces fit in the repository."""
    on_device = any(event.get("cat") == "cuda_runtime" for event in events)
    for event in events:
        for name in unread if on_device else (*unread, _OF_DEVICE):
            event.get("args", {}).pop(name, None)
        if "dur" in event:
            begin, end = round(event["ts"], TENTHS), round(event["ts"] + event["dur"], TENTHS)  # nested as it was
            event |= {"ts": begin, "dur": round(end - begin, TENTHS)}
    return [event for event in events if _worth_its_place(event)]


def published(path: Path, unread: Sequence[str] = _UNREAD) -> bytes:
    """A file of a recording without what names this machine or a path on it."""
    packed = path.suffix == ".gz"
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if packed else raw)
    for key in _PRIVATE:
        content.pop(key, None)
    if "traceEvents" in content:
        content["traceEvents"] = _slim(content["traceEvents"], unread)
    if "command" in content:
        content["command"][0] = "python"
        content["host"]["system"] = platform.system()
    text = json.dumps(content, separators=(",", ":")).replace(f"{ROOT}/", "")
    text = _ABSOLUTE.sub("", _LIBRARY.sub("", text))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0) if packed else text.encode()


def match(trial: Trial, asked: Asked) -> None:
    """Ask torch's pattern matcher about the bad variant."""
    path = trial.case.folder / "patterns.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if trial.ranks > 1 or (asked.missing and trial.name in known):
        return
    known[trial.name] = matched(trial)
    path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    print(trial.case.id, trial.name, "patterns:", *known[trial.name], flush=True)


PARTS: dict[str, Callable[[Trial, Asked], None]] = {"truth": measure, "recordings": record, "patterns": match}


def main() -> None:
    """Try what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="name or id")
    parser.add_argument("--only", choices=PARTS, action="append", help="of what to do")
    parser.add_argument("--level", choices=LEVELS, action="append")
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--all-levels", action="store_true", help="recordings that the repository does not keep, too")
    given = parser.parse_args()
    tried = [
        trial
        for trial in trials(cases())
        if (not given.case or {trial.case.name, trial.case.id} & set(given.case))
        and not trial.on_gpu
        and trial.level in (given.level or LEVELS)
    ]
    if not tried:
        print("No such case can be tried without a GPU.")
    for trial in tried:
        for part in given.only or PARTS:
            try:
                PARTS[part](trial, Asked(given.missing, given.all_levels))
            except Exception as error:  # One case that fails must not cost the others their turn.
                print(f"{trial.case.id} {trial.name} {part}: failed: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
