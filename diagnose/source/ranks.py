"""Which file is which rank: from paths the user gives to recordings, and from recordings to a run."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from diagnose.source import jobs, nsight_system, run_log, stream
from diagnose.source.base import InputError, Reader
from diagnose.source.kineto import KinetoReader
from diagnose.source.nsight import NsightReader
from diagnose.storage import urls
from diagnose.storage.remote import Listings, Place, Remote
from diagnose.storage.urls import StorageError
from diagnose.trace import units
from diagnose.trace.model import IntegrityNote, Provenance, Rank, Run, Severity

READERS: tuple[Reader, ...] = (KinetoReader(), NsightReader())

_TRACE_NAMES = ("*.json", "*.json.gz", "*.trace", "*.trace.gz", "*.sqlite")
_NOT_TRACES = re.compile(
    r"(^|/)(manifest|report|trials|about|expected|diagnose-export)\.json$|\.(device|detail|graph|values|costs)\.(json(\.gz)?|sqlite)$|\.tmp$|(^|/)\.work/"
)
_RANK_IN_NAME = re.compile(r"(?:rank|worker|gpu|node)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_EXPORT = ".sqlite"  # The one kind of file that may hold several ranks.
MAX_NAMED = 8  # ranks or files listed in a sentence before it says how many more there are

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


def find(paths: Sequence[str | Path], listings: Listings | None = None) -> tuple[TraceFile, ...]:
    """The trace files that the paths (files, folders, glob patterns, URLs of them) stand for, in a stable order.

    `listings` keeps what is listed of folders at URLs on the way.
    Raises InputError if a path does not exist or holds no trace.
    """
    found: dict[str, TraceFile] = {}
    listings = listings or Listings()
    for given in paths:
        for path in _expanded(given, listings):
            if path.is_dir():
                for inside in _in_folder(path, listings):
                    found.setdefault(_identity(inside), TraceFile(inside, named=False))
            else:
                read = nsight_system.exported(path) if path.suffix in nsight_system.SUFFIXES else path
                found[_identity(path)] = TraceFile(read, named=True)
    if not found:
        raise InputError("No trace was given. Name a file of torch.profiler or Nsight Systems, or a folder of them.")
    return tuple(part for file in found.values() for part in _parts(file))


def _identity(path: Place) -> str:
    return path.url if isinstance(path, Remote) else os.path.realpath(path)


def _parts(file: TraceFile) -> list[TraceFile]:
    """The ranks in a file, each by itself. What cannot be read is one, and says so when it is read."""
    if isinstance(file.path, Remote) and file.path.suffix != _EXPORT:
        return [file]
    try:
        head = b"" if isinstance(file.path, Path) and not file.path.is_file() else stream.head(file.path)
        parts = next((reader.parts(file.path) for reader in READERS if head and reader.claims(file.path, head)), ())
    except InputError:
        parts = ()
    return [replace(file, part=part) for part in parts] or [file]


def _expanded(given: str | Path, listings: Listings) -> Sequence[Place]:
    if urls.is_url(str(given)):
        return _at_url(str(given), listings)
    path = Path(given)
    try:
        if path.exists():
            return [path]
    except OSError as error:
        raise InputError(f"Cannot read {given}: {error.strerror or error}.") from error
    if matches := sorted(glob.glob(str(given), recursive=True)):  # noqa: PTH207 (an absolute pattern is no Path.glob)
        return [Path(match) for match in matches]
    raise InputError(f"{given} does not exist. Check the path.")


def _at_url(url: str, listings: Listings) -> list[Remote]:
    """What a URL stands for. Raises InputError if that is nothing, or its storage does not say."""
    try:
        if found := listings.named(url):
            return found
    except StorageError as error:
        raise InputError(f"Cannot read {urls.shown(url)}: {error.strerror}.") from error
    raise InputError(f"{urls.shown(url)} does not exist. Check the URL.")


def _in_folder(folder: Place, listings: Listings) -> list[Place]:
    inside = _remote_files(folder, listings) if isinstance(folder, Remote) else _local_files(folder)
    files = [inside[name] for name in sorted(sorted(inside), key=_natural) if not _NOT_TRACES.search(name)]
    if not files and isinstance(folder, Path) and run_log.logs_in(folder):
        raise InputError(
            f"{folder} holds the log of a whole run, and no recorded steps. `diagnose analyze` alone reads it; "
            "record steps with `diagnose profile`."
        )
    if not files:
        raise InputError(
            f"{folder} holds no trace (no *.json, *.json.gz or *.sqlite). Record one with torch.profiler, "
            "for example with "
            "on_trace_ready=torch.profiler.tensorboard_trace_handler(folder)."
        )
    return files


def _local_files(folder: Path) -> Mapping[str, Place]:
    """Files named like traces in a folder and those inside it, by their path from there."""
    files = (file for pattern in _TRACE_NAMES for file in folder.rglob(pattern) if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def _remote_files(folder: Remote, listings: Listings) -> Mapping[str, Place]:
    """The same of a folder at a URL. Raises InputError."""
    try:
        files = listings.inside(folder)
    except StorageError as error:
        raise InputError(f"Cannot read {folder}: {error.strerror}.") from error
    return {
        name: file for name, file in files.items() if any(fnmatchcase(file.name, pattern) for pattern in _TRACE_NAMES)
    }


def _natural(path: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path)
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts]


def read(path: Place, part: int | None = None) -> Rank:
    """The rank in one file, or one of several. Raises InputError with the reason if it cannot be had."""
    path = _a_file(path)
    head = stream.head(path)
    if not head:
        raise InputError(f"{path} is empty, or its compressed content is broken from the start. Record it again.")
    for reader in READERS:
        if reader.claims(path, head):
            try:
                return reader.read(path, part)
            except MemoryError:
                raise InputError(f"{path} needs more memory than is free here. Record fewer steps.") from None
    for magic, what in _OTHER_FORMATS:
        if head.startswith(magic):
            raise InputError(f"{path} is {what}.")
    raise InputError(f"{path} is not a profiler trace: it is not JSON, and no SQLite export.")


def _a_file(path: Place) -> Place:
    """The same file, of a URL with its size. Raises InputError if it is anything else."""
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


class Arrangement(Struct, frozen=True):
    """Which of the files that were read are used as which rank."""

    indexes: tuple[int | None, ...]
    """Rank of each file, None if another file has it already, or is another recording of the same process."""
    integrity: tuple[IntegrityNote, ...]


def arrange(recordings: Sequence[Provenance], times_ns: Sequence[Sequence[int]]) -> Arrangement:
    """Ranks of files: as recorded in the file, else from its name, else the next free number in order.

    `times_ns`: of the steps of each file, which tell what to use of several recordings of one process.
    Raises InputError if they are of several jobs.
    """
    claims = [
        recording.rank if recording.rank is not None else rank_in_name(recording.path) for recording in recordings
    ]
    unused, notes = jobs.unused(recordings, claims, times_ns)
    used = [at for at in range(len(recordings)) if at not in unused]
    found = _arranged([recordings[at] for at in used], [claims[at] for at in used])
    indexes = dict(zip(used, found.indexes, strict=True))
    return Arrangement(tuple(map(indexes.get, range(len(recordings)))), (*notes, *found.integrity))


def _arranged(recordings: Sequence[Provenance], claims: Sequence[int | None]) -> Arrangement:
    taken: dict[int, int] = {}
    indexes: list[int | None] = []
    repeated: list[str] = []
    jobs.require_one(recordings, claims)
    for position, claim in enumerate(claims):
        free = next(k for k in range(len(recordings) + 1) if k not in taken and k not in claims)
        index = free if claim is None else claim
        if index in taken:
            first = Path(recordings[taken[index]].path).name
            repeated.append(f"{Path(recordings[position].path).name} (rank {index}, as {first})")
            indexes.append(None)
        else:
            taken[index] = position
            indexes.append(index)
    return Arrangement(tuple(indexes), tuple(_set_notes(recordings, set(taken), repeated)))


def rank_in_name(path: str) -> int | None:
    """The rank that a file's name tells, as in rank0.trace.json; None if it tells none."""
    found = _RANK_IN_NAME.search(Path(path).name)
    return int(found[1]) if found else None


def _set_notes(recordings: Sequence[Provenance], ranks: set[int], repeated: list[str]) -> list[IntegrityNote]:
    notes = []
    if repeated:
        notes.append(
            IntegrityNote(
                f"Not used, as another file is of the same rank: {_listed(repeated)}.",
                "Analyse one recording of one run at a time.",
                Severity.WARNING,
            )
        )
    if apart_ns := jobs.apart_ns(recordings):
        notes.append(
            IntegrityNote(
                f"By their clocks the ranks ran {units.long_duration(apart_ns)} apart.",
                "Each rank is there once, so they count as one job. If runs are mixed, ignore what compares ranks.",
                Severity.WARNING,
            )
        )
    world = max((recording.world_size or 0 for recording in recordings), default=0)
    if any(rank not in ranks for rank in range(min(world, len(ranks) + 1))):
        one = "The only rank given is" if len(ranks) == 1 else "The ranks given are"
        notes.append(
            IntegrityNote(
                f"{one} {_listed([str(rank) for rank in sorted(ranks)])} of {world}.",
                "Whether a collective was transferring or waiting for a rank that is not here cannot be told.",
                Severity.NOTE,
            )
        )
    return notes


def _listed(items: Sequence[str]) -> str:
    shown = ", ".join(items[:MAX_NAMED])
    return shown if len(items) <= MAX_NAMED else f"{shown} and {len(items) - MAX_NAMED} more"


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
    arranged = arrange([rank.provenance for rank in ranks], [rank.times_ns for rank in ranks])
    kept = [
        replace(rank, index=index) for rank, index in zip(ranks, arranged.indexes, strict=True) if index is not None
    ]
    return Run(tuple(sorted(kept, key=lambda rank: rank.index)), (*arranged.integrity, *notes))


def unreadable(error: InputError) -> IntegrityNote:
    """The note on a file of a folder that could not be read."""
    return IntegrityNote(str(error), "It is left out.", Severity.WARNING)
