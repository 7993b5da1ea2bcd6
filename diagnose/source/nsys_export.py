"""Reports that only Nsight Systems itself can read, exported by the nsys on this machine."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path, PurePath

from diagnose.source.base import InputError
from diagnose.source.columns import printable
from diagnose.storage.remote import Place, Remote
from diagnose.trace import nsys_files

SUFFIXES = (".nsys-rep", ".qdrep")


def exported(report: Place) -> Path:
    """The SQLite export of a report, in a folder of ours until this process ends. Raises InputError with what to do."""
    by_hand = f"nsys export --type sqlite --output {PurePath(report.name).stem}.sqlite {report.name}"
    if isinstance(report, Remote):
        raise InputError(
            f"{report} is a report that only Nsight Systems can read, and only from a file."
            f" Download it, or run where it is: {by_hand}"
        )
    nsys = shutil.which("nsys")
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
