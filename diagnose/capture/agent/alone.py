"""Parts of the agent fail alone: what one raises is told by its name, and the training and the other parts go on."""

import sys
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

MOST_S = 5.0  # That a part may take and still be asked again (our choice).

T = TypeVar("T")

failures: list[str] = []  # Of this process: parts, each with what it raised.
_given_up: dict[str, TimeoutError | None] = {}  # Nothing that was raised: it holds on to what the script computes.


def failed(part: str, error: Exception) -> None:
    """Tell of it, once."""
    failure = f"{part}: {type(error).__name__}: {error}"
    if failure not in failures:
        failures.append(failure)


def tried(part: str, act: Callable[..., object], *given: Any) -> None:
    """Do what has to be done even if the part has failed before, such as ending what was begun."""
    try:
        act(*given)
    except Exception as error:
        failed(part, error)


def alone(part: str, ask: Callable[..., T], *given: Any, default: Any = None, most_s: float | None = None) -> T | Any:
    """What `ask(*given)` returns. Once it has raised: `default`. So, too, after one that took longer than `most_s`.

    A call that never returns holds up the thread that asks. `most_s`: MOST_S if it is not said.
    """
    if part in _given_up:
        if (slow := _given_up[part]) is not None:
            failed(part, slow)
        return default
    begun_s = time.monotonic()
    try:
        found = ask(*given)
    except Exception as error:
        _given_up[part] = None
        failed(part, error)
        return default
    if (took_s := time.monotonic() - begun_s) > (MOST_S if most_s is None else most_s):
        _given_up[part] = TimeoutError(f"it took {took_s:.1f} s")
    return found


def in_time(part: str, ask: Callable[[], T], default: Any = None) -> T | Any:
    """The same by another thread, which is left alone after MOST_S: for what is the same in all threads."""
    found = [default]
    thread = threading.Thread(target=lambda: found.append(alone(part, ask, default=default)), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # From Python 3.12 on none starts while Python ends.
        return alone(part, ask, default=default)
    thread.join(MOST_S)
    if thread.is_alive():
        failed(part, TimeoutError(f"no answer in {MOST_S:.1f} s"))
    return found[-1]


def each_alone(**parts: Callable[[], object]) -> dict[str, object]:
    """What these parts of the manifest hold, by their names; without those that failed."""
    found = {name: alone(f"the {name}".replace("_", " "), ask, default=..., most_s=inf) for name, ask in parts.items()}
    return {name: value for name, value in found.items() if value is not ...}


def whole(target: Path, write: Callable[[Path], bool]) -> str | None:
    """The name of a file that has been written; None if there was nothing to write, or no room."""
    try:
        return target.name if write(target) else None
    except OSError as error:
        target.unlink(missing_ok=True)
        failed(target.name, error)
        return None


def uses_gpu() -> bool:
    """Whether this process computes on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(alone("whether a GPU is used", torch.cuda.is_initialized, default=False))


def capturing() -> bool:
    """Whether a CUDA graph is captured: nothing of ours may wait for the device then."""
    cuda = sys.modules["torch"].cuda
    what = "whether a CUDA graph is captured"
    return bool(alone(what, lambda: cuda.is_initialized() and cuda.is_current_stream_capturing(), default=True))
