"""How truth is measured: steps without any profiler, bad and fixed in turn, each block in a process of its own."""

import importlib
import json
import multiprocessing
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planted_cases import Machine, Trial, Truth

PAIRS = 5  # Blocks each way. They alternate (A B, B A, A B, ...), so that a drift of the machine meets both alike.

STEPS = 70
STEADY_SHARE = 0.05
"""Warm-up ends when the last ten steps differ by less (coefficient of variation), or after half of the steps."""

CLOCKS_APART = 0.03  # A pair is measured again if the device's clocks differ by more, twice at most.

RESAMPLES = 10_000
BLOCK_LIMIT_S = 120.0


def measured(trial: Trial, fixed: tuple[str, ...] = ()) -> Truth:
    """Run it both ways in turn. Of a mixed case only the faults `fixed` are, or all if none is named."""
    words = ["--fixed", *fixed]
    bad_ns, fixed_ns = list[int](), list[int]()
    for pair in range(PAIRS):
        ways: tuple[list[str], list[str]] = ([], words) if pair % 2 == 0 else (words, [])
        times = _pair(trial, ways)
        bad_ns.append(times[pair % 2])
        fixed_ns.append(times[1 - pair % 2])
    return truth_of(bad_ns, fixed_ns, machine())


def _pair(trial: Trial, ways: tuple[list[str], list[str]]) -> tuple[int, int]:
    """The mean steps of two blocks, at the same clock if that can be had."""
    again = 2
    while True:
        (first_ns, first_mhz), (second_ns, second_mhz) = (block(trial, way) for way in ways)
        alike = not (first_mhz and second_mhz) or abs(first_mhz / second_mhz - 1) <= CLOCKS_APART
        if alike or not again:
            return first_ns, second_ns
        again -= 1


def by_turns(bad: Callable[[], int], fixed: Callable[[], int], pairs: int) -> Truth:
    """Time steps both ways (A B, B A, ...)."""
    took: tuple[list[int], list[int]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            took[which].append((bad, fixed)[which]())
    return truth_of(*took, machine())


def truth_of(bad_ns: list[int], fixed_ns: list[int], machine: Machine) -> Truth:
    """The speed-up and its interval from blocks in pairs."""
    ratios = np.array(bad_ns) / np.array(fixed_ns)
    synthetic = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[synthetic], axis=1), [0.025, 0.975])
    return Truth(tuple(bad_ns), tuple(fixed_ns), float(np.median(ratios)), float(low), float(high), machine)


def block(trial: Trial, way: list[str]) -> tuple[int, int | None]:
    """The mean step (ns) of one run, once it is steady, and the clock of its device (MHz)."""
    arguments = ["--level", trial.level, "--steps", str(STEPS), "--device", "cuda" if trial.on_gpu else "cpu", *way]
    told = ran(trial.case.module, arguments, trial.ranks)
    taken = told["times_ns"]
    begin = len(taken) // 2 if trial.on_gpu else warm_up(taken)
    return int(statistics.mean(taken[begin:])), told["clock_mhz"]


def ran(module: str, arguments: list[str], ranks: int) -> dict[str, Any]:
    """What rank 0 of a training tells of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times.json")
        environment = {"PLANTED_TIMES": str(times)}
        if ranks > 1:
            environment |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        spawned(_run, [(module, arguments, {**environment, "RANK": str(rank)}) for rank in range(ranks)])
        told: dict[str, Any] = json.loads(times.read_text(encoding="utf-8"))
        return told


def spawned(target: Callable[..., None], given: Sequence[tuple[object, ...]]) -> None:
    """Run a function in fresh processes at once, one for each tuple of arguments.

    They are forked from one that has imported torch and done nothing else. Raises RuntimeError if one fails or takes
    too long.
    """
    spawning = multiprocessing.get_context("forkserver")
    spawning.set_forkserver_preload(["torch", "sample_traces.harness"])
    os.environ["OMP_NUM_THREADS"] = "1"
    processes = [spawning.Process(target=target, args=one) for one in given]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(BLOCK_LIMIT_S)
    finally:
        for process in processes:
            process.kill()
            process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"{given[0][:2]} ended with {[process.exitcode for process in processes]}")


def _run(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    train(module, arguments)


def train(module: str, arguments: list[str]) -> None:
    """Run a case's training in this process, made for it. Of standard error only what it fails with is kept."""
    # A process that a fork server has made would start loader workers by another fork server.
    multiprocessing.set_start_method("fork", force=True)
    sys.argv = [module, *arguments]
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            importlib.import_module(module).main()
        except BaseException as error:
            print(f"{module} {' '.join(arguments)}: {type(error).__name__}: {error}", flush=True)
            raise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def warm_up(times_ns: list[int]) -> int:
    """How many steps to leave out."""
    for begin in range(10, len(times_ns) // 2):
        last = times_ns[begin - 10 : begin]
        if statistics.stdev(last) < STEADY_SHARE * statistics.mean(last):
            return begin
    return len(times_ns) // 2


def machine() -> Machine:
    """What this is."""
    load = round(os.getloadavg()[0], 2)
    own = Machine(_cpu(), os.cpu_count() or 1, load, metadata.version("torch"))
    asked = ["name", "driver_version", "power.limit", "temperature.gpu", "clocks.sm", "clocks.max.sm"]
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    except (OSError, subprocess.CalledProcessError):
        return own
    gpu, driver, *numbers = [*told, *[""] * len(asked)][: len(asked)]
    return Machine(own.cpu, own.cores, load, own.torch, gpu, driver, *map(_number, numbers))


def _number(text: str) -> float | None:
    """None for what a driver answers instead of a number, as "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return None


def _cpu() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())
