"""Reports that only Nsight Systems itself can read, exported by the nsys on this machine."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from pathlib import Path

from diagnose.source.base import InputError
from diagnose.source.columns import printable

SUFFIXES = (".nsys-rep", ".qdrep")
HELP_S = 20
MOST_S = 1800
"""Exports of reports of some GB take minutes."""

LONGEST_SAID = 200


def exported(report: Path) -> Path:
    """The SQLite export of a report, in a folder of ours until this process ends. Raises InputError with what to do."""
    nsys = shutil.which("nsys")
    by_hand = f"nsys export --type sqlite --output {report.stem}.sqlite {report.name}"
    if nsys is None:
        raise InputError(
            f"{report} is a report that only Nsight Systems can read, and there is no nsys on this machine."
            f" Where there is one, run: {by_hand}"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="diagnose-nsys-"))
    except OSError as error:
        raise InputError(f"There is no room to export {report} to: {error}. Run it by hand: {by_hand}") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / f"{report.stem}.sqlite"
    try:
        known = subprocess.run([nsys, "export", "--help"], capture_output=True, text=True, timeout=HELP_S).stdout
        blobs = ["--include-blobs=true"] if "--include-blobs" in known else []  # NCCL's sizes are in them.
        command = [nsys, "export", "--type", "sqlite", *blobs, "--output", str(target), str(report.absolute())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"nsys could not export {report}: {error}. Run it by hand: {by_hand}") from error
    if done.returncode or not target.is_file():
        said = printable(" ".join((done.stderr or done.stdout).split()))[-LONGEST_SAID:]
        raise InputError(
            f"nsys could not export {report}: {said or f'it ended with {done.returncode}'}. An older nsys does not read"
            " reports of a newer one."
        )
    return target
