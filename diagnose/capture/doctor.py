"""What this machine can record, and how to fix what it cannot.

Torch is asked in a process of its own: importing it may fail, hang or crash.

Each check looks at one thing and changes nothing. `root` is where /proc, /sys and the like are found.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from diagnose.capture import probe


class CannotRecord(Exception):
    """The recording cannot begin; the message is a sentence that says why and what to do."""


State = Literal["ok", "limited", "missing"]

ROOT = Path("/")
FOLDER = Path("diagnose-runs")  # Where recordings go unless told otherwise.
NEEDED = ("torch", "folder")  # Names of the checks without which nothing can be recorded.
PROBE_S = 120  # Importing torch from a cold network disk takes a minute.
NSYS_S = 20
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38  # Bits of linux/capability.h.
NO_SAMPLING_ABOVE = 2  # perf_event_paranoid above which an unprivileged process may not sample itself.
INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")  # By which profilers are loaded into CUDA programs.
ALLOW_COUNTERS = (  # How to let every user read GPU performance counters.
    "As root, on the host: `echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 > "
    "/etc/modprobe.d/nvidia-profiling.conf` and reboot; or `docker run --cap-add=SYS_ADMIN`."
)


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
    what, fix = f"allowed: kernel.perf_event_paranoid is {level}", ""
    if not level:
        what, fix = "this kernel has no perf events", "Use another kernel for nsys sampling."
    elif _has_capability(root, CAP_SYS_ADMIN) or _has_capability(root, CAP_PERFMON):
        what = "allowed, by capability"
    elif int(level) > NO_SAMPLING_ABOVE:
        what = f"not for nsys: kernel.perf_event_paranoid is {level}"
        fix = f"As root, on the host: `sysctl kernel.perf_event_paranoid={NO_SAMPLING_ABOVE}`."
    elif any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        what = "not for nsys: this container lacks CAP_SYS_ADMIN"
        fix = "Start it with `docker run --cap-add=SYS_ADMIN`."
    yield Check("CPU sampling", "limited" if fix else "ok", what, fix)


def check_counters(root: Path) -> Iterator[Check]:
    """Whether GPU performance counters may be read; nothing without NVIDIA's driver."""
    lines = _read(root / "proc/driver/nvidia/params").splitlines()
    if "RmProfilingAdminOnly: 1" in lines and not _has_capability(root, CAP_SYS_ADMIN):
        yield Check("GPU counters", "limited", "for administrators only (RmProfilingAdminOnly is 1)", ALLOW_COUNTERS)
    elif lines:
        yield Check("GPU counters", "ok", "allowed")


def _has_capability(root: Path, capability: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _read(root / "proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> capability & 1)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Torch(Struct, frozen=True):
    """What the probe found; None is what it did not come to, or what is not there."""

    torch: str | None = None
    cuda: str | None = None  # The version that torch was built for, as for `hip`.
    hip: str | None = None
    devices: tuple[str, ...] = ()
    device_warning: str | None = None
    cupti: str | None = None  # Path of the library.
    kernels: int | None = None  # Device operations in the recording of one; None if it was not tried.
    error: str | None = None  # Why it ended early.
    said_of_cupti: str | None = None  # A line on standard error.


def checks(python: str = sys.executable) -> list[Check]:
    """All that applies to this machine, most important first."""
    torch = look_at_torch(python)
    return [
        check_torch(python, torch),
        *check_gpu(torch, ROOT),
        check_folder(FOLDER),
        check_nsys(os.environ.get("PATH")),
        *check_sampling(ROOT),
        *check_counters(ROOT),
    ]


def can_record(found: Sequence[Check]) -> bool:
    """Whether a training can be recorded at all."""
    return not any(check.name in NEEDED and check.state == "missing" for check in found)


def look_at_torch(python: str, timeout_s: float = PROBE_S) -> Torch:
    """What the probe finds of torch in this Python; `error` says why if it fails, crashes or takes too long."""
    # As text: run as a file, it would put this folder before the modules that torch imports.
    command = [python, "-c", Path(probe.__file__).read_text(encoding="utf-8")]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
        out, err = done.stdout, done.stderr
        ended = f"the process ended with {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired as late:
        out, err, ended = late.stdout or b"", late.stderr or b"", f"no answer within {timeout_s:g} s"
    found: dict[str, object] = {"error": ended}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(probe.MARK):
            found |= json.loads(line.removeprefix(probe.MARK))
    cupti = [line.strip() for line in err.decode(errors="replace").splitlines() if "CUPTI_ERROR" in line]
    return msgspec.convert(found | {"said_of_cupti": cupti[0] if cupti else None}, Torch)


def check_torch(python: str, torch: Torch) -> Check:
    """Whether torch can be imported."""
    if torch.torch is None:
        fix = (
            "If your training uses another Python, install torch-diagnose there and run its `python -m diagnose`; "
            f"otherwise install torch here: `{python} -m pip install torch`."
        )
        return Check("torch", "missing", f"{python} cannot import it: {torch.error or 'the process died'}", fix)
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU only"
    return Check("torch", "ok", f"{torch.torch}, built for {built} ({python})")


def check_gpu(torch: Torch, root: Path) -> Iterator[Check]:
    """The GPUs, and whether what runs on them can be recorded: tried on one small kernel."""
    if torch.torch is None:
        return
    if not torch.devices:
        yield _no_gpu(torch, root)
        return
    yield Check("GPU", "ok", ", ".join(torch.devices))
    library = torch.cupti or "torch has no CUPTI library"
    if torch.kernels:
        yield Check("GPU kernels", "ok", f"a test kernel was recorded ({library if torch.cuda else 'ROCm'})")
        return
    why = torch.error or torch.said_of_cupti or "the recording of a test kernel is empty"
    fix = "Run `diagnose doctor` again without any other profiler or monitor of this GPU (nsys, ncu, DCGM)."
    if "INSUFFICIENT_PRIVILEGES" in why:
        fix = ALLOW_COUNTERS
    elif torch.cuda and not torch.cupti:
        major = torch.cuda.partition(".")[0]
        package = f"nvidia-cuda-cupti-cu{major}" if major in ("11", "12") else "nvidia-cuda-cupti"
        fix = f"Install CUPTI beside torch: `pip install {package}`."
    elif torch.error:
        fix = "Free the GPU and its memory, check that a small program runs on it, and try again."
    yield Check("GPU kernels", "missing", f"not recorded: {why} ({library if torch.cuda else 'ROCm'})", fix)


def _no_gpu(torch: Torch, root: Path) -> Check:
    """Why torch has no GPU: the machine has none, torch is built for the CPU, or the driver fails."""
    drivers = [name for name in ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/kfd") if (root / name).exists()]
    if not drivers and not torch.error:
        return Check("GPU", "ok", "none; CPU trainings can be recorded")
    if not (torch.cuda or torch.hip):
        fix = "Install a torch built for this GPU: https://pytorch.org/get-started/locally."
        return Check("GPU", "limited", "this machine has one, but torch was built for the CPU only", fix)
    why = torch.error or torch.device_warning
    fix = (
        "Check that `nvidia-smi` (or `rocm-smi`) works and that CUDA_VISIBLE_DEVICES hides no GPU; "
        "update a driver that is too old for this torch."
    )
    return Check("GPU", "limited", f"torch cannot use this machine's{f': {why}' if why else ''}", fix)


def check_folder(folder: Path) -> Check:
    """Whether a recording can be written, tried on a file that leaves nothing."""
    near = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=near).close()
    except OSError as error:
        fix = "Give another folder with `diagnose profile --out DIR`."
        return Check("folder", "missing", f"{near} is not writable: {error.strerror}", fix)
    return Check("folder", "ok", f"{folder} is writable")
