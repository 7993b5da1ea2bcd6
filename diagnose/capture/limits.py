"""What the machine lets profilers do.

Each check looks at one thing and changes nothing. `root` is where /proc, /sys and the like are found.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct


class CannotRecord(Exception):
    """The recording cannot begin; the message is a sentence that says why and what to do."""


State = Literal["ok", "limited", "missing"]

NSYS_S = 20

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38  # Bits of linux/capability.h.
NO_SAMPLING_ABOVE = 2  # perf_event_paranoid above which an unprivileged process may not sample itself.

INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""Variables by which a profiler gets itself loaded into CUDA programs."""
ALLOW_COUNTERS = (
    "As root, on the host: `echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 > "
    "/etc/modprobe.d/nvidia-profiling.conf` and reboot; or `docker run --cap-add=SYS_ADMIN`."
)
"""How to let every user read GPU performance counters."""


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    state: State
    what: str  # A clause: what was found.
    fix: str = ""  # A sentence: what to do about it; empty if it is ok.


def check_nsys(path: str | None) -> Check:
    """Nsight Systems, for `--tracer nsys`."""
    nsys, fix = shutil.which("nsys", path=path or ""), "Only `--tracer nsys` needs it: install nsight-systems-cli, and"
    if nsys is None:
        return Check("nsys", "missing", "not on PATH", f"{fix} put it on PATH.")
    try:
        done = subprocess.run([nsys, "--version"], capture_output=True, text=True, timeout=NSYS_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return Check("nsys", "missing", f"{nsys} does not run", f"{fix} see that it runs.")
    return Check("nsys", "ok", f"{nsys} ({done.stdout.strip().rpartition('version ')[2]})")


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
    for line in _read(root / "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
