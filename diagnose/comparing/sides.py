"""What a side of a comparison is given as: recordings, reports as JSON, or a baseline."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from diagnose.comparing.runs import baseline_of, middle
from diagnose.contracts.baseline import SCHEMA_VERSION as BASELINE_VERSION
from diagnose.contracts.baseline import Baseline
from diagnose.contracts.diagnosis import SCHEMA_VERSION, Diagnosis
from diagnose.source import beside
from diagnose.source.base import InputError

HEAD_BYTES = 200
_BASELINE = re.compile(rb'\s*\{\s*"what"\s*:\s*"diagnose baseline"')
_REPORT = re.compile(rb'\s*\{\s*"schema_version"\s*:')
"""How files of ours begin; those of torch.profiler begin otherwise."""

Analyse = Callable[[Sequence[str]], Diagnosis]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Inconclusive(Exception):
    """A recording in which nothing can be measured; its sentence names it."""


class Side(Struct, frozen=True):
    """What is known of one side."""

    baseline: Baseline
    shown: Diagnosis | None
    """Of the recording with the middle step, which findings and settings are of; None if that is in a baseline."""


def side(given: str, analyse: Analyse) -> Side:
    """Read one side. A pattern of folders, or of reports, stands for several recordings of it.

    Raises InputError if it cannot be read, and Inconclusive if nothing can be measured in it.
    """
    diagnoses, kept = list[Diagnosis](), list[Baseline]()
    for paths in recordings(given):
        read = _ours(paths[0]) if len(paths) == 1 else None
        if isinstance(read, Baseline):
            kept.append(read)
            continue
        diagnosis = read or analyse(paths)
        if not diagnosis.conclusive:
            raise Inconclusive(f"{paths[0]} has nothing to measure. Run diagnose analyze {paths[0]} to see why.")
        diagnoses.append(diagnosis)
    found = baseline_of(diagnoses)
    runs = (*found.runs, *(run for baseline in kept for run in baseline.runs))
    shown = dict(enumerate(diagnoses)).get(middle(runs))
    return Side(msgspec.structs.replace(found, runs=runs), shown)


def recordings(given: str) -> list[list[str]]:
    """The paths of each recording: each folder or report of a pattern is one, other files are ranks of one."""
    if Path(given).exists() or not glob.has_magic(given):
        return [[given]]
    matches = sorted(glob.glob(given, recursive=True))  # noqa: PTH207 (an absolute pattern is no Path.glob)
    apart = [path for path in matches if Path(path).is_dir() or _kind(path) is not None]
    ranks = [path for path in matches if path not in apart]
    return [*([path] for path in apart), *([ranks] if ranks else [])] or [[given]]


def _ours(path: str) -> Diagnosis | Baseline | None:
    """What a file of ours holds; None if it is none. Raises InputError if it is damaged."""
    kind = _kind(path)
    if kind is Baseline:
        return _read(path, Baseline, BASELINE_VERSION, "baseline", "Create it again: diagnose baseline.")
    if kind is Diagnosis:
        return _read(path, Diagnosis, SCHEMA_VERSION, "report", "Create it again: diagnose analyze --json.")
    return None


def _kind(path: str) -> type[Diagnosis] | type[Baseline] | None:
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    return Baseline if _BASELINE.match(head) else Diagnosis if _REPORT.match(head) else None


def _read(path: str, form: type[_Struct], newest: int, what: str, again: str) -> _Struct:
    """Raises InputError."""
    found, notes = beside.read(Path(path), form, newest, "", again, what)
    if found is None or notes:  # What is compared must be whole.
        raise InputError(f"{notes[0].what} {notes[0].effect.strip()}")
    return found
