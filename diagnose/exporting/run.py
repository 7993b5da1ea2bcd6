"""The tables of a run's ranks: made where there are processes for them, put into one folder when all are there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.export import FILE, SCHEMA_VERSION, Absent, Export, Written
from diagnose.exporting import folder as folders
from diagnose.exporting import parquet
from diagnose.facts.core.base import Facts, Missing
from diagnose.source import processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.tables import found, making, schema
from diagnose.trace.model import Provenance, Rank
from diagnose.version import __version__

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RankTables:
    """The tables of one rank, as files that are still to be put where they belong."""

    folder: Path
    """Has TABLE.parquet of each."""
    rank: int
    """As it stands in the files: what the recording or its name says, else 0."""
    provenance: Provenance
    """Without groups."""
    times_ns: tuple[int, ...]
    """Of its marked steps."""
    rows: tuple[tuple[str, int], ...]
    """Of each table."""
    absent: tuple[tuple[str, str, str], ...]
    """Table, what is missing, and how to record it."""


def export(
    given: Recordings,
    folder: Path,
    tables: Collection[str],
    diagnosed: Callable[[], Diagnosis],
    jobs: int = 1,
    progress: Progress = lambda done, total: None,
) -> Export:
    """Write the named tables of the ranks to `folder`, all or none; `diagnosed` is asked if `findings` are among them.

    `progress` gets (done, total) files. Raises InputError if a named file, or all files of a folder, cannot be read,
    and CannotExport if nothing can be written.
    """
    parquet.require()
    with folders.prepared(folder) as unfinished:
        try:
            made, notes = _of_ranks(given, unfinished, tables, jobs, progress)
            written = _arranged(made, unfinished)
            absent = _absent(made)
            if schema.FINDINGS.name in tables:
                diagnosis = diagnosed()
                written += _findings(diagnosis, unfinished)
                absent += _unpriced(diagnosis)
            done = Export(
                schema_version=SCHEMA_VERSION,
                tool_version=__version__,
                ranks=tuple(made),
                tables=_summed(written),
                absent=absent,
                notes=tuple(notes),
            )
            (unfinished / FILE).write_text(done.to_json(), encoding="utf-8")
            folders.place(unfinished, folder)
        except OSError as error:
            raise folders.cannot_write(folder, error) from error
    return done


def _of_ranks(
    given: Recordings, unfinished: Path, tables: Collection[str], jobs: int, progress: Progress
) -> tuple[dict[int, RankTables], list[str]]:
    """The tables of each rank by its number, in order; and sentences on other files. Raises InputError."""
    write = partial(rank_tables, folder=unfinished, tables=tuple(tables))
    read, lost = dict[int, RankTables](), dict[int, InputError]()
    results = processes.results(write, given.ranks, jobs)
    for done, (at, result) in enumerate(results, start=1):
        if isinstance(result, RankTables):
            read[at] = result
        elif given.ranks[at].trace.named:
            raise result
        else:
            lost[at] = result
        progress(done, len(given.ranks))
    if not read:
        raise InputError(str(lost[min(lost)]))
    places = sorted(read)
    arranged = ranks.arrange([read[at].provenance for at in places], [read[at].times_ns for at in places])
    made = {index: read[at] for at, index in zip(places, arranged.indexes, strict=True) if index is not None}
    notes = [f"{note.what} {note.effect}".strip() for note in (*given.integrity, *arranged.integrity)]
    return dict(sorted(made.items())), [*notes, *(str(lost[at]) for at in sorted(lost))]


def rank_tables(files: RankFiles, folder: Path, tables: Sequence[str]) -> RankTables | InputError:
    """Write the tables of a rank inside of `folder`, or say why it cannot be read. Runs in a process of its own.

    Raises OSError if they cannot be written.
    """
    try:
        return _written(recording.read(files), Path(tempfile.mkdtemp(dir=folder)), tables)
    except InputError as error:
        return error
    except OSError:
        raise
    except Exception as error:
        if failures.raised():
            raise
        kind = type(error).__name__
        return InputError(f"diagnose itself failed on {files.trace.path} ({kind}). Please report it.")


def _written(rank: Rank, folder: Path, tables: Sequence[str]) -> RankTables:
    about = rank.provenance
    told = about.rank if about.rank is not None else ranks.rank_in_name(about.path)
    rows, absent = [], []
    for table, frame in making.made(Facts(rank), tables):
        if isinstance(frame, Missing):
            absent.append((table.name, frame.what, frame.how_to_record_it))
        else:
            parquet.write(frame, table, told or 0, folder / f"{table.name}.parquet")
            rows.append((table.name, len(frame)))
    return RankTables(folder, told or 0, replace(about, groups=()), rank.times_ns, tuple(rows), tuple(absent))


def _arranged(made: Mapping[int, RankTables], unfinished: Path) -> list[tuple[str, int]]:
    """Put the files where they belong, as TABLE/rankN.parquet; the rows of each."""
    for rank, one in made.items():
        for table, _ in one.rows:
            (unfinished / table).mkdir(exist_ok=True)
            source, place = one.folder / f"{table}.parquet", unfinished / table / f"rank{rank}.parquet"
            if one.rank == rank:
                source.replace(place)
            else:
                parquet.renumber(source, rank, place)
    return [rows for one in made.values() for rows in one.rows]


def _findings(diagnosis: Diagnosis, unfinished: Path) -> list[tuple[str, int]]:
    """Write the findings, if they could be looked for; the rows of their table."""
    if diagnosis.replay is None:
        return []
    name, frame = schema.FINDINGS.name, found.findings(diagnosis.findings)
    (unfinished / name).mkdir()
    parquet.write(frame, schema.FINDINGS, diagnosis.rank, unfinished / name / f"rank{diagnosis.rank}.parquet")
    return [(name, len(frame))]


def _unpriced(diagnosis: Diagnosis) -> tuple[Absent, ...]:
    """Why there are no findings, if they could not be looked for."""
    if diagnosis.replay is not None:
        return ()
    what, how = "a step that can be replayed", "diagnose analyze says why."
    return (Absent(schema.FINDINGS.name, (diagnosis.rank,), what, how),)


def _summed(written: Sequence[tuple[str, int]]) -> tuple[Written, ...]:
    """Files and rows of each table, in the order of the schema."""
    files = {table.name: [rows for name, rows in written if name == table.name] for table in schema.TABLES}
    return tuple(Written(name, len(rows), sum(rows)) for name, rows in files.items() if rows)


def _absent(made: Mapping[int, RankTables]) -> tuple[Absent, ...]:
    """What ranks do not have, each with its ranks."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for rank, one in made.items():
        for why in one.absent:
            grouped.setdefault(why, []).append(rank)
    return tuple(Absent(table, tuple(some), what, how) for (table, what, how), some in grouped.items())
