"""Run a script and say what a step takes, by the clock alone: `field_timer.py OUT SKIP COUNT SECONDS SCRIPT ARGS`.

A step is one end of a backward pass to the next. After SKIP of them COUNT are timed, or as many as there are in
SECONDS; then the process ends. OUT gets the mean in nanoseconds. Nothing of diagnose is used: it is what predictions
are held against.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    """Time the script that the command line names."""
    out, skip, count, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    sys.argv = sys.argv[5:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    inner, passes, begun_s = torch.autograd.backward, 0, 0.0

    def now_s() -> float:
        if torch.cuda.is_initialized() and passes - skip in (0, count):
            torch.cuda.synchronize()
        return time.perf_counter()

    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes, begun_s
        result = inner(*args, **kwargs)
        passes += 1
        if passes == skip:
            begun_s = now_s()
        timed, took_s = passes - skip, now_s() - begun_s
        if timed > 0 and (timed >= count or took_s > seconds):
            out.write_text(f"{took_s / timed * 1e9:.0f}")
            sys.stdout.flush()
            os._exit(0)
        return result

    torch.autograd.backward = backward
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
