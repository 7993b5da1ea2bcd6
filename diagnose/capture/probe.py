"""What torch can do here, as a program of its own.

Prints a line of JSON per stage, so that what crashes in one leaves what the stages before it found.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

MARK = "diagnose-probe:"  # Begins the lines that are ours: importing torch may print others.


def import_torch() -> dict[str, object]:
    """Version of torch and what it was built for; `error` if it cannot be imported."""
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}


def find_devices() -> dict[str, object]:
    """Names of the GPUs that torch can use, and what it says if it can use none."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if usable else []
    return {"devices": names, "device_warning": last_line(str(said[-1].message)) if said else None}


def find_cupti() -> dict[str, object]:
    """The CUPTI library that torch has loaded, else one beside it, else None."""
    import torch

    maps, site = Path("/proc/self/maps"), Path(torch.__file__).parents[1]
    loaded = [line.split()[-1] for line in maps.read_text().splitlines()] if maps.exists() else []
    # Wheels for CUDA up to 12, for CUDA 13, and those that bring their own copy.
    patterns = ("nvidia/cuda_cupti/lib/*cupti*", "nvidia/cu*/lib/*cupti*", "torch/lib/*cupti*")
    beside = [str(path) for pattern in patterns for path in sorted(site.glob(pattern))]
    found = [path for path in loaded + beside if "libcupti" in Path(path).name or "cupti64" in Path(path).name]
    return {"cupti": found[0] if found else None}


def record_kernel() -> dict[str, object]:
    """How many device operations a recording of one addition on the GPU has; nothing without a GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        return {}
    numbers = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recording:
        numbers.add(1)
        torch.cuda.synchronize()
    on_device = [event for event in recording.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    return {"kernels": len(on_device)}


def last_line(text: str) -> str:
    """The last line that is not empty, or nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run(stage: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What a stage found, or `error`: its last line and the stage that met it."""
    try:
        return stage()
    except BaseException as error:  # SystemExit too: a broken torch may raise anything.
        said = last_line(str(error))
        return {"error": f"{type(error).__name__}: {said}" if said else type(error).__name__, "stage": stage.__name__}


def main() -> None:
    """Run the stages in turn, up to the first that fails."""
    for stage in (import_torch, find_devices, find_cupti, record_kernel):
        found = run(stage)
        print(f"\n{MARK}{json.dumps(found)}", flush=True)
        if "error" in found:
            sys.exit(1)


if __name__ == "__main__":
    main()
