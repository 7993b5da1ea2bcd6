"""Parts of the agent fail alone: what one raises is noted by its name, and the training and the other parts go on."""

import sys
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

MOST_S = 5.0  # That a part may take and still be asked again (chosen).
T = TypeVar("T")
failures: list[str] = []  # Of this process: parts, each with what it raised.
_given_up: dict[str, TimeoutError | None] = {}  # Parts not asked again; None: it raised (errors keep tensors alive).


def failed(part: str, error: Exception) -> None:
    """Add the part and its error to `failures`, each text once."""
    failure = f"{part}: {type(error).__name__}: {error}"
    if failure not in failures:
        failures.append(failure)


def tried(part: str, act: Callable[..., object], *given: Any) -> None:
    """Call `act(*given)` even if the part failed before, as to end what was begun. What it raises is noted only."""
    try:
        act(*given)
    except Exception as error:
        failed(part, error)


def alone(part: str, ask: Callable[..., T], *given: Any, default: Any = None, most_s: float | None = None) -> T | Any:
    """What `ask(*given)` returns; `default` if it raises, and in all later calls of that part.

    The same after a call that took longer than `most_s` (None: MOST_S). Nothing ends a call that never returns.
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
    """The same in another thread, for what does not depend on the thread; `default` if it takes over MOST_S."""
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
    """What each of these functions returns, by its name, a field of the manifest; without those that failed."""
    found = {name: alone(f"the {name}".replace("_", " "), ask, default=..., most_s=inf) for name, ask in parts.items()}
    return {name: value for name, value in found.items() if value is not ...}


def written_name(target: Path, write: Callable[[Path], bool]) -> str | None:
    """Have `write(target)` write a file. Returns its name; None if `write` returned False, or the disk failed."""
    try:
        return target.name if write(target) else None
    except OSError as error:
        target.unlink(missing_ok=True)
        failed(target.name, error)
        return None


def text_of(path: Path) -> str:
    """What is in a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def uses_gpu() -> bool:
    """Whether this process uses a GPU: torch has initialised CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(alone("whether a GPU is used", torch.cuda.is_initialized, default=False))


def process_group() -> Any:
    """torch.distributed, if it has a process group; else None."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def parent_process() -> Any:
    """The process that started this one by multiprocessing, also where a server forked it; None if none did."""
    multiprocessing = sys.modules.get("multiprocessing")
    return None if multiprocessing is None else multiprocessing.parent_process()


def capturing() -> bool:
    """Whether a CUDA graph is captured, or that is unknown: nothing of ours may wait for the device then."""
    cuda = sys.modules["torch"].cuda
    what = "whether a CUDA graph is captured"
    return bool(alone(what, lambda: cuda.is_initialized() and cuda.is_current_stream_capturing(), default=True))
