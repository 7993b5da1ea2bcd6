"""Starting a run under Nsight Systems, and making of its reports one file for each rank."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from diagnose.capture import doctor
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.nsys import CAPTURE, POSTED, SESSION
from diagnose.capture.agent.plan import FILES, OF_TIMES, Part
from diagnose.capture.doctor import CannotRecord
from diagnose.trace import nsys_files
from diagnose.trace.manifest import RankManifest

TRACED = "cuda,nvtx,osrt,cudnn,cublas"
REPORT = "nsys"  # Name of the reports in the recording's folder, until they are named for what they hold.

HEARS_PLAIN_NAMES = ("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0")
"""Without it nsys compares the capture range with registered texts only, and torch registers none (user guide)."""

_TID_BITS = 0xFFFFFF
_BY_PROCESS = (
    *(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "OVERHEAD")),
    *("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "NVTX_EVENTS", "OSRT_API"),
    *("SCHED_EVENTS", "ThreadNames"),
)
_OF_ALL = {
    **dict.fromkeys(("TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "NVTX_PAYLOAD_SCHEMA_ENTRIES"), "1"),
    "DIAGNOSTIC_EVENT": "severity >= 2",
}
"""Tables that are kept for each rank, with a condition. Others hold the environment and names of all processes of the
machine, what they wrote, and the command."""

_TEXTS = ("nameId", "textId", "demangledName", "shortName")  # Columns with ids of StringIds, as of environments.


def find(environment: Mapping[str, str] = os.environ) -> str:
    """The nsys to use. Raises CannotRecord."""
    if environment.get(SESSION):
        raise CannotRecord("diagnose itself runs under nsys. Start it without nsys, or without --tracer.")
    if set_by_others := [name for name in doctor.INJECTIONS if environment.get(name)]:
        raise CannotRecord(f"Another profiler is loaded into CUDA programs: unset {' '.join(set_by_others)}.")
    nsys = shutil.which("nsys", path=environment.get("PATH"))
    if nsys is None:
        raise CannotRecord("nsys is not on PATH. Install NVIDIA's package nsight-systems-cli, or omit --tracer.")
    return nsys


def command(nsys: str, folder: Path, run: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The command that runs `run` under nsys. Says what cannot be recorded here. Raises CannotRecord."""
    try:
        known = subprocess.run(
            [nsys, "profile", "--help"],
            capture_output=True,
            text=True,
            timeout=nsys_files.HELP_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRecord(f"{nsys} does not run: {error}. Reinstall it, or omit --tracer.") from error
    if "repeat[:N]" not in known:
        raise CannotRecord(f"{nsys} is too old to record twice in a run. Use version 2022 or later.")
    limited = [check for check in doctor.check_sampling(Path("/")) if check.state != "ok"]
    for check in limited:
        say(f"CPU scheduling of threads cannot be recorded: {check.what}. {check.fix}")
    return [
        nsys,
        "profile",
        f"--trace={TRACED}",
        "--sample=none",
        f"--cpuctxsw={'none' if limited else 'process-tree'}",
        "--capture-range=nvtx",
        f"--nvtx-capture={CAPTURE}",
        "--capture-range-end=repeat",
        f"--output={str(folder.resolve() / REPORT).replace('%', '%%')}",
        *run,
    ]


def collect(part: Part, nsys: str, ranks: Sequence[RankManifest]) -> Iterator[str]:
    """Make each file that a rank names from the reports of nsys; delete all other reports. Yields what went wrong."""
    for kind in OF_TIMES:
        named = {getattr(rank, FILES[kind]): rank for rank in ranks}
        wanted = {file: rank for file, rank in named.items() if file is not None}
        post = Board(part.work).read(f"{POSTED}{kind}")
        if wanted and post is not None:
            yield from _collected(part, nsys, f"{post['number']:.0f}", FILES[kind], wanted)
    for report in part.recording.glob(f"{REPORT}*.nsys-rep"):
        report.unlink()  # Of recordings that were interrupted, and made again.


def _collected(part: Part, nsys: str, number: str, name: str, wanted: Mapping[str, RankManifest]) -> Iterator[str]:
    """The same of the report with this number, which is renamed to `name`. `wanted`: ranks by their files' names."""
    folder = part.recording
    report = folder / f"{REPORT}.{number}.nsys-rep"
    if number == "1" and not report.is_file():
        report = folder / f"{REPORT}.nsys-rep"  # A single one has no number.
    if not report.is_file():
        raw = next(folder.glob(f"{REPORT}*.qdstrm"), None)
        why = f": it could not convert {raw.name}, as parts of it are not installed" if raw else ""
        yield f"Nsight Systems left no report{why}."
        return
    export = part.work / "trace.sqlite"
    failure = nsys_files.export(nsys, report, export)
    report.rename(folder / f"{name}.nsys-rep")
    if failure:
        export.unlink(missing_ok=True)
        yield f"The report of Nsight Systems could not be exported: {failure}."
        return
    for file, rank in wanted.items():
        try:
            if rank.pid is None or not _cut(export, rank.pid, folder / file):
                yield f"Nsight Systems recorded nothing of rank {rank.rank}."
        except sqlite3.Error as error:
            (folder / file).unlink(missing_ok=True)
            yield f"The Nsight Systems recording of rank {rank.rank} could not be written: {error}."
    export.unlink()


def _cut(export: Path, process: int, target: Path) -> bool:
    """Write what an export holds of one process, by its id, and no texts but those that this refers to.
    Returns whether it holds anything; if not, nothing is written."""
    rows = 0
    with closing(sqlite3.connect(target)) as db:
        db.execute("ATTACH ? AS whole", (str(export),))
        there = [str(name) for (name,) in db.execute("SELECT name FROM whole.sqlite_master WHERE type = 'table'")]
        for table in (one for one in _BY_PROCESS if one in there):
            columns = [str(row[1]) for row in db.execute(f"PRAGMA whole.table_info({table})")]
            owner = next((one for one in ("globalPid", "globalTid") if one in columns), None)
            if owner:
                mine = f"({owner} >> 24) & {_TID_BITS} = {process:d}"
                db.execute(f"CREATE TABLE main.{table} AS SELECT * FROM whole.{table} WHERE {mine}")
                rows += int(db.execute(f"SELECT COUNT(*) FROM main.{table}").fetchone()[0])
        for table, condition in ((one, condition) for one, condition in _OF_ALL.items() if one in there):
            db.execute(f"CREATE TABLE main.{table} AS SELECT * FROM whole.{table} WHERE {condition}")
        references = [
            f"SELECT {column} FROM main.{table}"
            for (table,) in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
            for column in (str(row[1]) for row in db.execute(f"PRAGMA main.table_info({table})"))
            if column in _TEXTS
        ]
        if references and "StringIds" in there:
            wanted = " UNION ".join(references)
            db.execute(f"CREATE TABLE main.StringIds AS SELECT id, value FROM whole.StringIds WHERE id IN ({wanted})")
        db.commit()
    if not rows:
        target.unlink()
    return rows > 0
