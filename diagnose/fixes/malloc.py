"""glibc's thresholds of malloc(), set in a running process: https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html"""

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

from .interfaces import CannotSwitch, Switch

OPTIONS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Environment variables, and what mallopt() calls them."""

LEAST, MOST = 128 << 10, 32 << 20
"""Bytes between which glibc moves its threshold of mapping by itself: to the largest mapped block that was freed."""

PAGE = 4096

HEADER = ctypes.sizeof(ctypes.c_size_t)
"""Bytes before a block, which hold its size and in bit 1 whether it is mapped apart."""

MAPPED = 2


class _Used(ctypes.Structure):
    """As mallinfo2() of malloc.h tells it: mapped blocks are the fourth and fifth."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")] + [
        (f"other{number}", ctypes.c_size_t) for number in range(5)
    ]


def switch(variables: Sequence[tuple[str, str]]) -> Switch:
    """Thresholds as these variables set them, and off as glibc has them by now, which has moved them by itself.

    Off they stay where they are from then on. Raises CannotSwitch.
    """
    library = _library()
    if given := [name for name in (*OPTIONS, "GLIBC_TUNABLES") if os.environ.get(name)]:
        raise CannotSwitch(f"{given[0]} is in the environment already")
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(_mapped_from(library)))
    thread.start()  # A thread's heap is small, so that it shows from where on blocks are mapped.
    thread.join()
    moved = {"MALLOC_MMAP_THRESHOLD_": found[0], "MALLOC_TRIM_THRESHOLD_": found[0] * (2 if found[0] > LEAST else 1)}
    refused = list[str]()

    def turn(on: bool) -> None:
        for name, value in variables:
            if not library.mallopt(OPTIONS[name], int(value) if on else moved[name]):
                refused.append(name)
        if not on:
            library.malloc_trim(0)  # What was kept meanwhile is given back, as it would have been.

    turn(False)
    told = " ".join("=".join(pair) for pair in variables)
    return Switch(turn, lambda: f"glibc refuses this {refused[0]}" if refused else "", f"mallopt(): {told}")


def _library() -> Any:
    """glibc, if blocks come from it. Raises CannotSwitch."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallinfo2"):
        raise CannotSwitch("the thresholds of malloc() need glibc 2.33")
    library.mallinfo2.restype = _Used
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    before = library.mallinfo2().hblkhd
    block = library.malloc(2 * MOST)
    mapped = library.mallinfo2().hblkhd - before
    if mapped < 2 * MOST:  # It is not freed: that could move the threshold. Nothing has touched it.
        raise CannotSwitch("malloc() is not glibc's")
    assert block
    return library


def _mapped_from(library: Any) -> int:
    """Bytes from which blocks are mapped apart. Those that are stay: to free them would move that."""
    low, high = LEAST // PAGE - 1, MOST // PAGE
    while high - low > 1:
        middle = (low + high) // 2
        block = library.malloc(middle * PAGE - HEADER)
        if ctypes.c_size_t.from_address(block - HEADER).value & MAPPED:
            high = middle
        else:
            library.free(block)
            low = middle
    return high * PAGE
