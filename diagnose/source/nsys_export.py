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
            f"{report} needs conversion by Nsight Systems, which reads only local files."
            f" Download the report, or run on its machine: {by_hand}"
        )
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{report} needs conversion by Nsight Systems, but this machine has no nsys."
            f" On a machine with nsys, run: {by_hand}"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="diagnose-nsys-"))
    except OSError as error:
        raise InputError(f"No space to export {report}: {error}. Run it manually: {by_hand}") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / f"{report.stem}.sqlite"
    if failure := nsys_files.export(nsys, report, target):
        raise InputError(
            f"nsys could not export {report}: {printable(failure)}. An old nsys cannot read newer reports."
            f" Run it manually: {by_hand}"
        )
    return target
