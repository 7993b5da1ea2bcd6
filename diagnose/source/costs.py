"""Reading what changed ops were measured to take, as `diagnose measure` leaves it."""

from __future__ import annotations

from msgspec.structs import replace

from diagnose.source.columns import printable
from diagnose.source.packed import check_size, unpacked
from diagnose.storage.remote import Place
from diagnose.trace.measured import SCHEMA_VERSION, Measurements

_WHAT = "list of measurements"


def read_costs(path: Place) -> Measurements:
    """What is in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, Measurements, _WHAT)
    if found.schema_version > SCHEMA_VERSION:
        raise ValueError("is from a newer diagnose")
    check_size(_WHAT, 0, len(found.ops), 0)
    return replace(found, device=printable(found.device), torch=printable(found.torch))
