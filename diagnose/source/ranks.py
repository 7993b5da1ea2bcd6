"""Which files are read, and what reads them: from paths that a user gives, by names and beginnings, to ranks."""

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from diagnose.source import arrangement, beside, kineto, nsight, run_log, stream
from diagnose.source.base import InputError
from diagnose.storage import remote, urls
from diagnose.storage.remote import Place, Remote
from diagnose.storage.urls import StorageError
from diagnose.trace.model import IntegrityNote, Rank, Run, Severity

_TRACES = re.compile(r".*(\.(json|trace)(\.gz)?|\.sqlite)", re.DOTALL)  # Of names, also of what lies beside a trace.
_BESIDE = rf"\.({'|'.join(beside.KINDS)})\.(json(\.gz)?|sqlite)$"
_NO_TRACES = re.compile(rf"(^|/)({'|'.join(beside.OTHERS)})\.json$|{_BESIDE}|(^|/)\.work/")

_OTHER_FORMATS = (
    (
        b"\x80",
        "a pickle, perhaps a memory snapshot, which diagnose never loads because a pickle can run code."
        " Open a snapshot at pytorch.org/memory_viz;"
        " for the curve in a report, record with profile_memory=True or diagnose profile --memory",
    ),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"\x0a", "binary, perhaps a Perfetto or XPlane protobuf, which this version cannot read"),
)


class TraceFile(Struct, frozen=True):
    """A file to read as one rank."""

    path: Place
    named: bool  # The user named this very file, so it must be readable; otherwise it was found in a folder.
    part: int | None = None  # Which of the ranks in it; None if it holds one.


def find(paths: Sequence[str | Path], seen: dict[str, Place] | None = None) -> tuple[TraceFile, ...]:
    """The trace files that the paths (files, folders, glob patterns, URLs of them) stand for, in a stable order.

    A folder is listed once. What is in it is added to `seen`, by `address`.
    Raises InputError if a path does not exist or holds no trace.
    """
    found: dict[str, TraceFile] = {}
    for path in (path for given in paths for path in _expanded(given)):
        if path.is_dir():
            for inside in _in_folder(path, {} if seen is None else seen):
                found.setdefault(_identity(inside), TraceFile(inside, named=False))
        else:
            read = nsight.exported(path) if path.suffix in nsight.REPORTS else path
            found[_identity(path)] = TraceFile(read, named=True)
    if not found:
        raise InputError("No trace was given. Name a file of torch.profiler or Nsight Systems, or a folder of them.")
    return tuple(part for file in found.values() for part in _parts(file))


def address(place: Place) -> str:
    """The URL, with its secrets, or path of a place, as it was given: the key of `seen`."""
    return place.url if isinstance(place, Remote) else str(place)


def _identity(path: Place) -> str:
    return path.url if isinstance(path, Remote) else os.path.realpath(path)


def _parts(file: TraceFile) -> Iterator[TraceFile]:
    """The ranks in a file, each as a file of its own; an unreadable file is one, whose reading then fails."""
    path = file.path
    try:  # Of what lies elsewhere only the end of its name tells without reading it.
        may_be = path.suffix == ".sqlite" if isinstance(path, Remote) else path.is_file()
        parts = nsight.parts(path) if may_be and nsight.claims(stream.head(path, raw=True)) else ()
    except InputError:
        parts = ()
    yield from (replace(file, part=part) for part in parts or (None,))


def _expanded(given: str | Path) -> Sequence[Place]:
    """Paths or objects that a path, pattern or URL stands for. Raises InputError if there are none."""
    text = str(given)
    try:
        found: Sequence[Place] = (
            remote.named(text) if urls.is_url(text) else [Path(text)] if Path(text).exists() else []
        )
    except OSError as error:
        raise InputError(f"Cannot read {urls.shown(text)}: {error.strerror or error}.") from error
    if not found and not urls.is_url(text):
        found = list(map(Path, sorted(glob.glob(text, recursive=True))))  # noqa: PTH207 (Path.glob takes no absolute one)
    if not found:
        raise InputError(f"{urls.shown(text)} does not exist. Check the {'URL' if urls.is_url(text) else 'path'}.")
    return found


def _in_folder(folder: Place, seen: dict[str, Place]) -> list[Place]:
    """The traces in a folder and its subfolders, in natural order; adds all files to `seen`. Raises InputError."""
    try:
        inside: Mapping[str, Place] = remote.inside(folder) if isinstance(folder, Remote) else _local(folder)
    except StorageError as error:
        raise InputError(f"Cannot read {folder}: {error.strerror}.") from error
    seen |= {address(file): file for file in inside.values()}
    names = [name for name, file in inside.items() if _TRACES.fullmatch(file.name) and not _NO_TRACES.search(name)]
    if not names and isinstance(folder, Path) and run_log.logs_in(folder):
        raise InputError(
            f"{folder} holds the log of a whole run, and no recorded steps. `diagnose analyze` alone reads it; "
            "record steps with `diagnose profile`."
        )
    if not names:
        raise InputError(
            f"{folder} holds no trace (no *.json, *.json.gz or *.sqlite). Record one with torch.profiler, "
            "for example with on_trace_ready=torch.profiler.tensorboard_trace_handler(folder)."
        )
    return [inside[name] for name in sorted(sorted(names), key=_natural)]


def _local(folder: Path) -> dict[str, Place]:
    """Files whose name may be that of a trace or of a file beside one, by their path from the folder."""
    files = (file for file in folder.rglob("*") if _TRACES.fullmatch(file.name) and file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def _natural(path: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path)
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts]


def read(path: Place, part: int | None = None) -> Rank:
    """The rank in one file; of several that of `part`. Raises InputError with the reason if it cannot be had."""
    path = _a_file(path)
    head = stream.head(path)
    if not head:
        raise InputError(f"{path} is empty, or its compressed content is broken from the start. Record it again.")
    try:
        if kineto.claims(head):
            return kineto.read(path)
        if nsight.claims(head):
            return nsight.read(path, part)
    except MemoryError:
        raise InputError(f"{path} needs more memory than is free here. Record fewer steps.") from None
    for magic, what in _OTHER_FORMATS:
        if head.startswith(magic):
            raise InputError(f"{path} is {what}.")
    raise InputError(f"{path} is not a profiler trace: it is not JSON, and no SQLite export.")


def _a_file(path: Place) -> Place:
    """The place, a URL with its size looked up. Raises InputError for a folder, a pipe, or a URL without an answer."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a trace.")
    if isinstance(path, Remote):
        try:
            return path.looked_up()
        except StorageError as error:
            raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a pipe or a device, and a trace is read more than once. Save it to a file first.")
    return path


def load(paths: Sequence[str | Path]) -> Run:
    """All ranks of a run as tables, in this process. Raises InputError if there is nothing to load, or several jobs."""
    ranks, notes = [], []
    for file in find(paths):
        try:
            ranks.append(read(file.path, file.part))
        except InputError as error:
            if file.named:
                raise
            notes.append(unreadable(error))
    if not ranks:
        raise InputError(notes[0].what if notes else "No trace was given.")
    arranged = arrangement.arrange([rank.provenance for rank in ranks], [rank.times_ns for rank in ranks])
    kept = [
        replace(rank, index=index) for rank, index in zip(ranks, arranged.indexes, strict=True) if index is not None
    ]
    return Run(tuple(sorted(kept, key=lambda rank: rank.index)), (*arranged.integrity, *notes))


def unreadable(error: InputError) -> IntegrityNote:
    """The note on a file of a folder that could not be read."""
    return IntegrityNote(str(error), "It is left out.", Severity.WARNING)
