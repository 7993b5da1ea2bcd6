"""Memory that a recording takes, fetched before it, so that steps do not fetch it page by page.

The profiler's records come to lie in memory that ops let go, and part it: what the next op asks for fits no more, and
is taken anew from the system. In a net that filled 64 tensors of 1.3 MB a step each recorded step fetched 80 MB so,
and took 46 ms where it took 14 without the profiler; with that memory fetched before, 26 (torch 2.13, glibc 2.36).
"""

from __future__ import annotations

import ctypes
import os
import sys
from math import ceil
from pathlib import Path

from .alone import uses_gpu

LEAST_BYTES = 16_000_000
MOST_BYTES = 1_000_000_000
MOST_SHARE = 0.25  # What is fetched at least and at most, and of what is free (our choice).

SPARE = 2
"""Times what steps took is fetched: records part memory otherwise in each recording. With once as much, repeated up to
twice, 3 of 24 of such recordings still took 11 to 21 MB a step, with this none of 20."""

USUAL_SHARE = 0.1  # Of what a recorded step fetches, what one without the profiler may fetch as well (our choice).
BLOCK_BYTES = 24 << 20  # Less than what glibc takes from the system apart from the rest, and gives back at once.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20  # As in glibc's malloc.h; larger ones it does not take.


def fetched_bytes() -> int:
    """Of memory that this process has touched for the first time so far; 0 where that is not told."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()


def make_room(recorded: int, usual: int, steps: int) -> int:
    """Fetch more than so many steps will, which take `recorded` bytes each and `usual` ones without the profiler.

    Returns how much that was, 0 if it is not worth it. From then on glibc gives nothing back to the system: so nothing
    is done where steps fetch memory anyway, as they would stop to. Nor with another library than glibc, or with a GPU,
    where tensors lie elsewhere.
    """
    size = (recorded - usual) * steps
    if size < LEAST_BYTES or usual > USUAL_SHARE * recorded or uses_gpu():
        return 0
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return 0
    count = min(ceil(SPARE * size / BLOCK_BYTES), int(min(MOST_BYTES, MOST_SHARE * free_bytes())) // BLOCK_BYTES)
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    blocks = [block for _ in range(count) if (block := library.malloc(BLOCK_BYTES))]
    for block in blocks:
        ctypes.memset(block, 0, BLOCK_BYTES)
    for block in blocks:
        library.free(block)
    return len(blocks) * BLOCK_BYTES


def free_bytes(root: Path = Path("/")) -> int:
    """Of the machine, or what the control group of the process leaves. `root` is the folder that holds sys."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for most, now in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = ((root / "sys/fs/cgroup" / name).read_text(encoding="ascii").strip() for name in (most, now))
            free = min(free, int(limit) - int(used))
        except (OSError, ValueError):
            continue
    return max(free, 0)
