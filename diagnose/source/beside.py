"""What our own commands have left as JSON beside a trace: as untrusted as the trace."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from diagnose.source.columns import printable
from diagnose.storage.remote import Place
from diagnose.trace.model import IntegrityNote, Severity

MOST_BYTES = 256 << 20  # A rank's part of a manifest takes some kilobytes, and there may be ten thousand.
LONGEST_NOTE = 500  # Characters.

_LARGEST = 1 << 63
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read(
    path: Place, form: type[_Struct], newest: int, lost: str, again: str, what: str = ""
) -> tuple[_Struct | None, list[IntegrityNote]]:
    """What is in the file and what is wrong with it; None if it cannot be used.

    Only what `form` names is kept, with text made printable. `newest`: the schema version that is known here.
    `lost`, `again`: sentences on what is not known without it, and on how to make it again.
    """
    try:
        return _decoded(path, form, newest, again), []
    except _Unusable as error:
        why, do = error.args
    except OSError as error:
        why, do = f"cannot be read: {error.strerror or error}", again
    except msgspec.ValidationError as error:
        why, do = f"is no {what or path.name.partition('.')[0]}: {printable(str(error))[:LONGEST_NOTE]}", again
    except (ValueError, RecursionError):
        why, do = "is no sound JSON", again
    return None, [IntegrityNote(f"{path.name} {why}.", f"{lost} {do}", Severity.WARNING)]


class _Unusable(Exception):
    """What is wrong with a file, and what to do."""


def _decoded(path: Place, form: type[_Struct], newest: int, again: str) -> _Struct:
    """Raises _Unusable, OSError, RecursionError, or ValueError if the file is none."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _Unusable(f"is larger than {MOST_BYTES >> 20} MB", again)
    raw = msgspec.json.decode(content)
    version = raw.get("schema_version", newest) if isinstance(raw, dict) else None
    if type(version) is int and version > newest:
        newer = f"has schema version {version}, and this version of diagnose knows {newest}"
        raise _Unusable(newer, "Update diagnose.")
    return msgspec.convert(_clean(raw), form)


def _clean(value: Any) -> Any:
    """JSON with printable text and numbers that fit int64. Raises ValueError if one does not."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError("a number that fits no column")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): _clean(one) for name, one in value.items()}
    return value
