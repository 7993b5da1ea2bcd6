"""Reports that only Nsight Systems itself can read, exported by the nsys on this machine."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from diagnose.source.base import InputError
from diagnose.source.columns import printable
from diagnose.trace import nsys_files

SUFFIXES = (".nsys-rep", ".qdrep")


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
    if failure := nsys_files.export(nsys, report, target):
        raise InputError(
            f"nsys could not export {report}: {printable(failure)}. An older nsys does not read reports of a newer one."
            f" Run it by hand: {by_hand}"
        )
    return target
