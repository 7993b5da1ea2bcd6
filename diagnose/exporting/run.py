"""The tables of a run's ranks: made where there are processes for them, put into one folder when all are there.

The folder is new, empty, or an earlier export, which is replaced once the new one is whole.
"""

import json
import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from msgspec import Struct
from msgspec.structs import asdict, replace

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.exporting import tables
from diagnose.facts.core.base import Facts, Missing
from diagnose.source import arrangement, processes, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.trace import units
from diagnose.trace.model import Provenance, Rank
from diagnose.version import __version__

FILE = "diagnose-export.json"  # What an export says of itself, in a file beside its tables.
SCHEMA_VERSION = 2

_UNFINISHED = ".unfinished-"  # Beginning of the folder, inside of it, that files are written in until all are there.
_TABLE_FILE = re.compile(r"rank\d+\.parquet")

Progress = Callable[[int, int], None]


class CannotExport(Exception):
    """One or two sentences: what is wrong, and what to do."""


class Export(Struct, frozen=True):
    """What was written, and what was not."""

    ranks: tuple[int, ...]
    rows: dict[str, int]  # Of each table that was written, in all ranks together.
    absent: tuple[str, ...]  # Sentences: which tables some ranks do not have, what is missing, and how to record it.
    notes: tuple[str, ...]  # Sentences on files that could not be read, or were not used.


class _RankTables(Struct, frozen=True):
    """The tables of one rank, as files that are still to be put where they belong."""

    folder: Path  # Has TABLE.parquet of each.
    rank: int  # As it stands in the files: what the recording or its name says, else 0.
    provenance: Provenance  # Without groups.
    times_ns: tuple[int, ...]  # Of its marked steps.
    rows: dict[str, int]
    absent: dict[str, str]  # Of each table that it has not, what is missing and how to record it.


def export(
    given: Recordings,
    folder: Path,
    names: Collection[str],
    diagnosed: Callable[[], Diagnosis],
    jobs: int = 1,
    progress: Progress = lambda done, total: None,
) -> Export:
    """Write the named tables of the ranks to `folder`, all or none; `diagnosed` is asked if `findings` are among them.
    `progress` gets (done, total) files. Raises InputError if a named file, or all files of a folder, cannot be read,
    and CannotExport if nothing can be written."""
    if find_spec("pyarrow") is None:
        raise CannotExport("Parquet needs pyarrow. Run: pip install 'torch-diagnose[parquet]'.")
    with _replaced(folder) as unfinished:
        made, notes = _of_ranks(given, unfinished, names, jobs, progress)
        absent, rows = _absent(made), Counter[str]()
        for rank, one in made.items():
            _arrange(rank, one, unfinished)
            rows.update(one.rows)
        if tables.FINDINGS in names:
            diagnosis = diagnosed()
            if diagnosis.replay is None:
                absent = (*absent, f"{tables.FINDINGS}: no step can be simulated. Run diagnose analyze to see why.")
            else:
                found = tables.findings(diagnosis.findings)
                _write(found, diagnosis.rank, _place(unfinished, tables.FINDINGS, diagnosis.rank))
                rows[tables.FINDINGS] = len(found)
        shown = {name: rows[name] for name in tables.TABLES if name in rows}
        done = Export(ranks=tuple(made), rows=shown, absent=absent, notes=tuple(notes))
        record = {"schema_version": SCHEMA_VERSION, "tool_version": __version__, **asdict(done)}
        (unfinished / FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return done


def _of_ranks(
    given: Recordings, unfinished: Path, names: Collection[str], jobs: int, progress: Progress
) -> tuple[dict[int, _RankTables], list[str]]:
    """The tables of each rank by its number, in order; and sentences on other files. Raises InputError."""
    write = partial(_rank_tables, folder=unfinished, names=tuple(names))
    read, lost = dict[int, _RankTables](), dict[int, InputError]()
    for done, (at, result) in enumerate(processes.results(write, given.ranks, jobs), start=1):
        if isinstance(result, _RankTables):
            read[at] = result
        elif given.ranks[at].trace.named:
            raise result
        else:
            lost[at] = result
        progress(done, len(given.ranks))
    if not read:
        raise InputError(str(lost[min(lost)]))
    places = sorted(read)
    arranged = arrangement.arrange([read[at].provenance for at in places], [read[at].times_ns for at in places])
    made = {index: read[at] for at, index in zip(places, arranged.indexes, strict=True) if index is not None}
    notes = [f"{note.what} {note.effect}".strip() for note in (*given.integrity, *arranged.integrity)]
    return dict(sorted(made.items())), [*notes, *(str(lost[at]) for at in sorted(lost))]


def _rank_tables(files: RankFiles, folder: Path, names: Sequence[str]) -> _RankTables | InputError:
    """Write the tables of a rank inside of `folder`, or say why it cannot be read. Runs in a process of its own.
    Raises OSError if they cannot be written."""
    try:
        return _written(recording.read(files), Path(tempfile.mkdtemp(dir=folder)), names)
    except InputError as error:
        return error
    except Exception as error:
        if isinstance(error, OSError) or failures.raised():
            raise
        kind = type(error).__name__
        return InputError(f"diagnose itself failed on {files.trace.path} ({kind}). Please report it.")


def _written(rank: Rank, folder: Path, names: Sequence[str]) -> _RankTables:
    """Write the tables that the rank has into the folder; the result says which, and why others are absent."""
    about = rank.provenance
    number = (about.rank if about.rank is not None else arrangement.rank_in_name(about.path)) or 0
    rows, absent = dict[str, int](), dict[str, str]()
    for name, frame in tables.made(Facts(rank), names):
        if isinstance(frame, Missing):
            absent[name] = f"{frame.what}. {frame.how_to_record_it}"
        else:
            _write(frame, number, folder / f"{name}.parquet")
            rows[name] = len(frame)
    return _RankTables(folder, number, replace(about, groups=()), rank.times_ns, rows, absent)


def _write(frame: pd.DataFrame, rank: int, path: Path) -> None:
    """Write the table of a rank to a new file. Raises OSError."""
    whole = frame if frame.index.name is None else frame.reset_index()
    whole.insert(0, "rank", pd.Series(rank, index=whole.index, dtype="int32"))
    whole.to_parquet(path, engine="pyarrow", compression="zstd", index=False)


def _arrange(rank: int, one: _RankTables, unfinished: Path) -> None:
    """Move a rank's tables to where the export has them, with the rank's final number, and remove its folder."""
    for name in one.rows:
        source, place = one.folder / f"{name}.parquet", _place(unfinished, name, rank)
        if one.rank == rank:
            source.replace(place)
        else:
            _write(pd.read_parquet(source).drop(columns="rank"), rank, place)
    shutil.rmtree(one.folder)


def _place(unfinished: Path, table: str, rank: int) -> Path:
    (unfinished / table).mkdir(exist_ok=True)
    return unfinished / table / f"rank{rank}.parquet"


def _absent(made: Mapping[int, _RankTables]) -> tuple[str, ...]:
    """Sentences on tables that some or all ranks lack: table names, ranks unless all, and the reason."""
    without = defaultdict[tuple[str, str], list[int]](list)
    for rank, one in made.items():
        for name, why in one.absent.items():
            without[name, why].append(rank)
    named = defaultdict[tuple[str, tuple[int, ...]], list[str]](list)
    for (name, why), some in without.items():
        named[why, tuple(some)].append(name)
    return tuple(
        f"{', '.join(names)}{'' if some == tuple(made) else f' of {units.ranks(some)}'}: {why}"
        for (why, some), names in named.items()
    )


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Make the folder if it is new, and yield a place inside of it to write in, whose content it has at the end.
    If that is not reached, nothing is left there. Raises CannotExport if it holds files that are no export's, or cannot
    be written."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_other_files(folder)
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
        try:
            yield unfinished
            _replace(folder, unfinished)
        finally:
            _remove(unfinished)
    except OSError as error:  # pyarrow's own text names files that are gone by now.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise CannotExport(f"Cannot write to {folder}: {why}. Choose another folder.") from error
    finally:
        if new:
            with suppress(OSError):  # It is not empty.
                folder.rmdir()


def _refuse_other_files(folder: Path) -> None:
    inside = [path for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)]
    if inside and not ((folder / FILE).is_file() and all(map(_is_ours, inside))):
        raise CannotExport(f"{folder} has other files. Name a new folder, or one with only an export.")


def _is_ours(path: Path) -> bool:
    """Whether a path in the export's folder is of an export: the record, or a folder of nothing but tables."""
    if path.name == FILE:
        return path.is_file()
    is_table = path.name in tables.TABLES and path.is_dir() and not path.is_symlink()
    return is_table and all(_TABLE_FILE.fullmatch(one.name) and one.is_file() for one in path.iterdir())


def _replace(folder: Path, unfinished: Path) -> None:
    """Put the new export in place of the old. FILE goes first: if interrupted, the folder still counts as an export."""
    (unfinished / FILE).replace(folder / FILE)
    for name in tables.TABLES:
        old, new = folder / name, unfinished / name
        if old.exists():
            shutil.rmtree(old)
        if new.exists():
            new.replace(old)


def _remove(unfinished: Path) -> None:
    """Remove a place under another name: where work is interrupted, processes may still be writing to this one."""
    gone = unfinished.with_name(f"{unfinished.name}-gone")
    with suppress(OSError):
        unfinished.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
