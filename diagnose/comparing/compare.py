"""Two sides -> a Comparison."""

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from diagnose.comparing import changes, noise
from diagnose.comparing.runs import baseline_of, middle
from diagnose.contracts.baseline import SCHEMA_VERSION as BASELINE_VERSION
from diagnose.contracts.baseline import Baseline, Run
from diagnose.contracts.comparison import Basis, Comparison, Ns, Range, Verdict
from diagnose.contracts.diagnosis import SCHEMA_VERSION, Diagnosis
from diagnose.source import beside
from diagnose.source.base import InputError
from diagnose.version import __version__

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
    shown: Diagnosis | None  # Of the recording with the middle step, as findings and settings; None: in a baseline.


def side(given: str, analyse: Analyse) -> Side:
    """Read one side. A pattern of folders, or of reports, stands for several recordings of it.
    Raises InputError if it cannot be read, and Inconclusive if nothing can be measured in it."""
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
    """Whether a file is a report or a baseline, by its first bytes; None if it is neither."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    return Baseline if _BASELINE.match(head) else Diagnosis if _REPORT.match(head) else None


def _read(path: str, form: type[_Struct], newest: int, what: str, again: str) -> _Struct:
    """A file of ours as a `form`. Raises InputError if anything in it cannot be read, or it is of a newer version."""
    found, notes = beside.read(Path(path), form, newest, "", again, what)
    if found is None or notes:  # What is compared must be whole.
        raise InputError(f"{notes[0].what} {notes[0].effect.strip()}")
    return found


def compare(before: Baseline, after: Baseline) -> Comparison:
    """How `after` differs from `before`; findings and settings are of the recordings with the middle steps."""
    sides = before.runs, after.runs
    timed = noise.are_timed([*before.runs, *after.runs])
    then, now = (noise.side_of(runs, timed) for runs in sides)
    before_ns, after_ns = round(then.mean_ns), round(now.mean_ns)
    basis = noise.basis_of(*sides)
    first, second = (runs[middle(runs)] for runs in sides)
    found = changes.parts(*sides, before_ns, after_ns)
    usual = noise.difference(then, now)
    share = noise.decided(usual, found, then, now)
    verdict = verdict_of(share)
    low, high = (None if bound is None else round(bound * before_ns) for bound in (share.low, share.high))
    return Comparison(
        tool_version=__version__,
        before_ns=before_ns,
        after_ns=after_ns,
        difference_ns=Ns(low, after_ns - before_ns, high),
        difference_share=share,
        verdict=verdict,
        why=_DECIDED if share != usual else _why(verdict, share, basis, sides),
        basis=basis,
        recordings=(len(before.runs), len(after.runs)),
        smallest_visible_share=noise.visible_share(share),
        parts=found,
        findings=changes.findings(first, second),
        settings=changes.settings(first, second, found),
        incomparable=tuple(changes.incomparable(first, second)),
        per=tuple(changes.per(first, second, before_ns, after_ns)),
        ranks=changes.ranks(first, second),
        groups=changes.groups(first, second),
    )


def verdict_of(share: Range) -> Verdict:
    """The verdict by the interval alone: "same" if it holds 0 and is narrow, "cannot_tell" if it is wide or missing."""
    if share.low is None or share.high is None:
        return "cannot_tell"
    if share.low > 0:
        return "slower"
    if share.high < 0:
        return "faster"
    return "cannot_tell" if share.high - share.low > 2 * noise.WIDE else "same"


_DECIDED = "Parts that are new, gone or doubled are more than noise between runs, so the recorded steps decide."
_BASES = {
    Basis.RECORDINGS: "The interval comes from the spread of recordings on each side.",
    Basis.UNPROFILED_STEPS: "The interval comes from unprofiled steps and the usual spread between runs.",
    Basis.RECORDED_STEPS: "The interval comes from profiled (slower) steps and the usual spread between runs.",
}

ENOUGH_RECORDINGS = 3  # Of each side: these show how runs differ here, as far as few can.


def _why(verdict: Verdict, share: Range, basis: Basis, sides: tuple[Sequence[Run], Sequence[Run]]) -> str:
    """A sentence on what the verdict rests on, or on what keeps it from being one."""
    if share.low is None or share.high is None:
        least = min(len(run.times_ns) for runs in sides for run in runs)
        return f"One side has only {least} measured step{'s' * (least != 1)}: too few to rule out noise."
    if verdict != "cannot_tell":
        return _BASES[basis]
    if min(map(len, sides)) < ENOUGH_RECORDINGS:
        return f"Runs vary too much for this comparison. Use at least {ENOUGH_RECORDINGS} recordings per side."
    return "Recordings of the same side vary too much. Record more of them, on an idle machine."
