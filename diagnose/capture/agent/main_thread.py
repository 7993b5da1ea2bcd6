"""Having the main thread do something, between two instructions of the script."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_asked_for: list[Any] = []  # Kept, as Python calls them when it likes.


def soon(act: Callable[[], object]) -> None:
    """Have `act()` called by the main thread; what it raises is lost.

    Only there may all objects be looked at: a tuple that a script is making, as of a generator, cannot be finished
    while another thread holds it too (SystemError).
    """

    def call(_: object) -> int:
        with suppress(Exception):
            act()
        return 0

    _asked_for.append(_Call(call))
    ctypes.pythonapi.Py_AddPendingCall(_asked_for[-1], None)
