"""What the machine lets a training and its profilers do: CPUs, shared memory, other profilers, permissions.

Each check looks at one thing and changes nothing. `root` is where /proc, /sys and the like are found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diagnose.capture.agent.about import quotas
from diagnose.trace import units


class CannotRecord(Exception):
    """The recording cannot begin; the message is a sentence that says why and what to do."""


State = Literal["ok", "limited", "missing"]

LITTLE_SHARED_BYTES = 64 * 2**20  # What Docker gives a container unless told otherwise.
NSYS_S = 20

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38  # Bits of linux/capability.h.
NO_SAMPLING_ABOVE = 2
"""perf_event_paranoid above which an unprivileged process may not sample itself."""

INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""Variables by which a profiler gets itself loaded into CUDA programs."""
PROFILERS = frozenset({"nsys", "nsys-launcher", "ncu", "nv-nsight-cu-cli"})
NSYS_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
)
ALLOW_COUNTERS = (
    "As root, on the host: `echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 > "
    "/etc/modprobe.d/nvidia-profiling.conf` and reboot; or `docker run --cap-add=SYS_ADMIN`."
)
"""How to let every user read GPU performance counters."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    what: str
    """A clause: what was found."""
    fix: str = ""
    """A sentence: what to do about it; empty if it is ok."""


def check_cpus(root: Path) -> Check:
    """How many CPUs the training gets of those of the machine."""
    machine = os.cpu_count() or 1
    allowed: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    allowed = min([allowed, *quotas(root)])
    if allowed >= machine:
        return Check("CPUs", "ok", f"all {machine}")
    return Check(
        "CPUs",
        "limited",
        f"{allowed:g} of {machine}",
        f"Count on {max(1, int(allowed))} for DataLoader workers and OMP_NUM_THREADS, or ask for more "
        "(`docker run --cpus`, `srun --cpus-per-task`).",
    )


def check_shared_memory(root: Path) -> Iterator[Check]:
    """Room in /dev/shm, through which DataLoader workers hand over their batches; nothing where there is none."""
    shared = root / "dev/shm"
    if not shared.is_dir():
        return
    free = shutil.disk_usage(shared).free
    little = free <= LITTLE_SHARED_BYTES
    fix = "DataLoader workers need more: `docker run --shm-size=8g` or `--ipc=host`." if little else ""
    yield Check("shared memory", "limited" if little else "ok", f"/dev/shm: {units.size(free)} free", fix)


def check_other_profilers(root: Path, environment: Mapping[str, str]) -> Check:
    """Whether another profiler would be in the training: CUPTI serves one at a time."""
    variables = [name for name in INJECTIONS if environment.get(name)]
    if variables:
        return Check(
            "other profilers",
            "limited",
            f"{' and '.join(variables)} set: another profiler gets loaded",
            f"`unset {' '.join(variables)}`: CUPTI serves one profiler at a time.",
        )
    parents = [name for name in _parents(root) if name in PROFILERS]
    if parents:
        return Check(
            "other profilers",
            "limited",
            f"running under {parents[0]}",
            f"Start diagnose outside {parents[0]}: CUPTI serves one profiler at a time.",
        )
    return Check("other profilers", "ok", "none attached")


def _parents(root: Path) -> Iterator[str]:
    """Names of the processes that this one descends from, itself first."""
    process = "self"
    while process not in ("", "0"):
        lines = dict(line.partition(":\t")[::2] for line in _read(root / "proc" / process / "status").splitlines())
        yield lines.get("Name", "")
        process = lines.get("PPid", "")


def check_nsys(root: Path, path: str | None) -> Check:
    """Nsight Systems, for `--tracer nsys`."""
    on_path = shutil.which("nsys", path=path or "")
    places = [on_path] if on_path else [str(found) for place in NSYS_PLACES for found in sorted(root.glob(place))]
    if not places:
        return Check(
            "nsys",
            "missing",
            "not found",
            "Only `--tracer nsys` needs it: install NVIDIA's package nsight-systems-cli.",
        )
    nsys = places[-1]
    try:
        done = subprocess.run([nsys, "--version"], capture_output=True, text=True, timeout=NSYS_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return Check(
            "nsys",
            "missing",
            f"{nsys} does not run",
            "Only `--tracer nsys` needs it: install NVIDIA's package nsight-systems-cli anew.",
        )
    version = done.stdout.strip().rpartition("version ")[2]
    if on_path:
        return Check("nsys", "ok", f"{nsys} ({version})")
    return Check(
        "nsys",
        "limited",
        f"{nsys} ({version}), not on PATH",
        f"For `--tracer nsys`: `export PATH={Path(nsys).parent}:$PATH`.",
    )


def check_sampling(root: Path) -> Iterator[Check]:
    """Whether nsys may sample what the CPU does; nothing where the system is no Linux."""
    if not (root / "proc/self/status").exists():
        return
    level = _read(root / "proc/sys/kernel/perf_event_paranoid").strip()
    if not level:
        yield Check(
            "CPU sampling", "limited", "this kernel has no perf events", "Use another kernel for nsys sampling."
        )
    elif _may(root, CAP_SYS_ADMIN) or _may(root, CAP_PERFMON):
        yield Check("CPU sampling", "ok", "allowed, by capability")
    elif int(level) > NO_SAMPLING_ABOVE:
        yield Check(
            "CPU sampling",
            "limited",
            f"not for nsys: kernel.perf_event_paranoid is {level}",
            f"As root, on the host: `sysctl kernel.perf_event_paranoid={NO_SAMPLING_ABOVE}`.",
        )
    elif any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        yield Check(
            "CPU sampling",
            "limited",
            "not for nsys: this container lacks CAP_SYS_ADMIN",
            "Start it with `docker run --cap-add=SYS_ADMIN`.",
        )
    else:
        yield Check("CPU sampling", "ok", f"allowed: kernel.perf_event_paranoid is {level}")


def check_counters(root: Path) -> Iterator[Check]:
    """Whether GPU performance counters may be read; nothing without NVIDIA's driver."""
    lines = _read(root / "proc/driver/nvidia/params").splitlines()
    if "RmProfilingAdminOnly: 1" in lines and not _may(root, CAP_SYS_ADMIN):
        yield Check("GPU counters", "limited", "for administrators only (RmProfilingAdminOnly is 1)", ALLOW_COUNTERS)
    elif lines:
        yield Check("GPU counters", "ok", "allowed")


def _may(root: Path, capability: int) -> bool:
    """Whether this process has a capability, by its bit."""
    for line in _read(root / "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def _read(path: Path) -> str:
    """The text of a file, nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
