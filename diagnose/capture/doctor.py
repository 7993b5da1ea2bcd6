"""What this machine can record, and how to fix what it cannot.

Torch is asked in a process of its own: importing it may fail, hang or crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from diagnose.capture import limits, probe
from diagnose.capture.limits import Check

ROOT = Path("/")
FOLDER = Path("diagnose-runs")  # Where recordings go unless told otherwise.
NEEDED = ("torch", "folder")  # Names of the checks without which nothing can be recorded.
PROBE_S = 120  # Importing torch from a cold network disk takes a minute.


class Torch(msgspec.Struct, frozen=True):
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
        limits.check_nsys(os.environ.get("PATH")),
        *limits.check_sampling(ROOT),
        *limits.check_counters(ROOT),
    ]


def can_record(found: Sequence[Check]) -> bool:
    """Whether a training can be recorded at all."""
    return not any(check.name in NEEDED and check.state == "missing" for check in found)


def look_at_torch(python: str, timeout_s: float = PROBE_S) -> Torch:
    """What torch is like for an interpreter."""
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
        return Check(
            "torch",
            "missing",
            f"{python} cannot import it: {torch.error or 'the process died'}",
            f"If your training uses another Python, install torch-diagnose there and run its `python -m diagnose`; "
            f"otherwise install torch here: `{python} -m pip install torch`.",
        )
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
        fix = limits.ALLOW_COUNTERS
    elif torch.cuda and not torch.cupti:
        fix = f"Install CUPTI beside torch: `pip install {_cupti_package(torch.cuda)}`."
    elif torch.error:
        fix = "Free the GPU and its memory, check that a small program runs on it, and try again."
    yield Check("GPU kernels", "missing", f"not recorded: {why} ({library if torch.cuda else 'ROCm'})", fix)


def _no_gpu(torch: Torch, root: Path) -> Check:
    drivers = [name for name in ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/kfd") if (root / name).exists()]
    if not drivers and not torch.error:
        return Check("GPU", "ok", "none; CPU trainings can be recorded")
    if not (torch.cuda or torch.hip):
        return Check(
            "GPU",
            "limited",
            "this machine has one, but torch was built for the CPU only",
            "Install a torch built for this GPU: https://pytorch.org/get-started/locally.",
        )
    why = torch.error or torch.device_warning
    return Check(
        "GPU",
        "limited",
        f"torch cannot use this machine's{f': {why}' if why else ''}",
        "Check that `nvidia-smi` (or `rocm-smi`) works and that CUDA_VISIBLE_DEVICES hides no GPU; "
        "update a driver that is too old for this torch.",
    )


def _cupti_package(cuda: str) -> str:
    major = cuda.partition(".")[0]
    return f"nvidia-cuda-cupti-cu{major}" if major in ("11", "12") else "nvidia-cuda-cupti"


def check_folder(folder: Path) -> Check:
    """Whether a recording can be written, tried on a file that leaves nothing."""
    near = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=near).close()
    except OSError as error:
        fix = "Give another folder with `diagnose profile --out DIR`."
        return Check("folder", "missing", f"{near} is not writable: {error.strerror}", fix)
    return Check("folder", "ok", f"{folder} is writable")
