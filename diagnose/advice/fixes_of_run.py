"""Fixes as this run can follow them: without those that it has already, or that its devices cannot follow; in the words
of what owns its loop, as changes of its own calls, and with its command. And what findings say of installed packages.
"""

import ast
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.contracts.finding import Evidence, Finding, Fix, Kind, RuleName
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.callees import LibraryCall, framework_frame, library_call, runs_loop
from diagnose.facts.run.program import Language, Program, loop_owner
from diagnose.fixes.frameworks import NAMES, OWNERS, own_work
from diagnose.fixes.setting import DS_CONFIG, Argument, Code, Loop, NotPossible, Run, Safety, Setting
from diagnose.replay.edits import Edit, Move, Remove, Shorten, Times
from diagnose.replay.shown import selected
from diagnose.trace import enums
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.manifest import Made, training_loaders
from diagnose.trace.model import Context, Device
from diagnose.trace.units import duration

PLACEHOLDER = "python train.py"  # What stands in fixes for the command.
IN_PYTHON = "# in Python:"  # Label of code for programs in other languages.
LONGEST_COMMAND = 200  # Characters of a command shown in its place; further words are left out (our choice).
MOST_POSITIONS = 3  # Arguments of a call by position: of more, one may be what is to be set (our choice).

NONE_FITS = Fix(
    "Rewrite the code with fewer ops: torch.compile does not support this GPU.", safety=Safety.ROUNDING, effort=3
)


class Situation(Struct, frozen=True):
    """What is known of the run that fixes are fitted to."""

    context: Context | None
    devices: Sequence[Device]
    program: Program
    before: tuple[int, int] | None = None  # A version of PyTorch that its own is older than.

    @property
    def run(self) -> Run | None:
        """Its settings, where they are known."""
        if self.context is None:
            return None
        return Run(self.context.rank, training_loaders(self.context.rank), self.context.environment)


def fitted(here: Situation, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings with fixes that the program can follow; those of which all fixes are in force already go."""
    left = []
    for page, finding in found:
        fixes = [fix for fix in finding.fixes if not _in_force(fix.setting, here.run)]
        if fixes or not finding.fixes:
            left.append((page, _fitted(here, replace(finding, fixes=_followable(here.devices, fixes)))))
    return left


def _in_force(setting: Setting | None, run: Run | None) -> bool:
    """Whether the run already has this setting; False if that is not known."""
    try:
        return setting is not None and run is not None and setting.in_force(run)
    except NotPossible:
        return False


def _followable(devices: Iterable[Device], fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """The fixes that all devices can follow; NONE_FITS if there were some, and no device can follow any."""
    capabilities = [device.compute_capability for device in devices]
    left = [fix for fix in fixes if fix.setting is None or all(map(fix.setting.fits, capabilities))]
    return tuple(left) or (NONE_FITS,) * bool(fixes)


def _fitted(here: Situation, finding: Finding) -> Finding:
    """The finding with fixes in the words of its framework and version, without duplicates."""
    fixes, site = list[Fix](), finding.site
    for fix in finding.fixes:
        if here.program.language is not Language.PYTHON:
            labelled = replace(fix, before="", after=f"{IN_PYTHON}\n{fix.after}", trial=None)
            fixes.append(labelled if _is_python(fix.after) else fix)
            continue
        in_words, own_change = _in_its_words(here, _of_version(here.before, fix))
        site = site or (own_change.site if own_change else None)
        in_words = _with_command(() if here.context is None else here.context.command, in_words)
        # A framework may have one setting for two fixes.
        if not in_words.after or in_words.after not in [one.after for one in fixes]:
            fixes.append(in_words)
    return replace(finding, fixes=tuple(fixes), site=site)


def _of_version(before: tuple[int, int] | None, fix: Fix) -> Fix:
    """The fix, with the version of PyTorch that it needs where the run's is older."""
    setting = fix.setting
    if setting is None or before is None or setting.since < before:
        return fix
    return replace(fix, do=f"{fix.do} First update PyTorch to {'.'.join(map(str, setting.since))} or newer.")


def _in_its_words(here: Situation, fix: Fix) -> tuple[Fix, Made | None]:
    """The fix as an argument of the framework (and None), else as a change of the script's call if it is known to be
    only one, with the place of that call; else the fix with a comment on where its code goes."""
    setting, run = fix.setting, here.run
    if setting is None or run is None:
        return fix, None
    if caution := setting.caution(run):
        fix = replace(fix, do=f"{fix.do} {caution}", safety=Safety.NEEDS_JUDGEMENT)
    theirs = setting.framework(here.program.loop, run) if here.program.loop is not Loop.OWN else None
    if isinstance(theirs, Argument):
        return replace(fix, before="", after=written(theirs)), None
    _, places = setting.made(run) or ("", ())
    made = places[0] if len(set(places)) == 1 else None  # Of several it is not known which.
    if made is not None:
        changed = with_settings(made.call, setting.arguments)
        before = f"{made.call}  # {PurePath(made.file).name}:{made.line}"
        fix = replace(fix, before=before, after=changed) if changed else fix
    elif theirs:
        fix = replace(fix, after=f"# {theirs}\n{fix.after}")
    return fix, made


def written(told: Argument) -> str:
    """An argument of a framework's class as a line of code; a comment where its value depends on the present one."""
    if told.owner == DS_CONFIG:
        value = told.value if isinstance(told.value, Code) else json.dumps(told.value)
        return f"{json.dumps(told.name)}: {value},  # in DeepSpeed's configuration"
    owner = f"{told.owner.rpartition('.')[2]}(...)"
    if isinstance(told.value, Code):
        return f"# {told.name} of {owner}: {told.value}"
    value = json.dumps(told.value) if isinstance(told.value, str) else repr(told.value)
    return f"{told.name}={value},  # of {owner}"


def with_settings(call: str, settings: Mapping[str, Any]) -> str:
    """A call with other values of some of its named arguments; empty where it cannot be told what that would be.

    >>> with_settings("DataLoader(data, **options)", {"num_workers": 2})
    "DataLoader(data, **{**options, 'num_workers': 2})"
    """
    try:
        made = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if not isinstance(made, ast.Call) or not settings or len(made.args) > MOST_POSITIONS:
        return ""
    packed = [keyword for keyword in made.keywords if keyword.arg is None]
    if any(isinstance(arg, ast.Starred) for arg in made.args) or len(packed) > 1:
        return ""
    left = {name: ast.Constant(value) for name, value in settings.items()}
    for one in made.keywords:
        one.value = left.pop(one.arg, one.value) if one.arg else one.value
    if left and packed:  # They may hold the same names, and those that come last hold.
        keys: list[ast.expr | None] = [None, *map(ast.Constant, left)]
        packed[-1].value = ast.Dict(keys, [packed[-1].value, *left.values()])
    elif left:
        made.keywords += [ast.keyword(name, value) for name, value in left.items()]
    return ast.unparse(made)


def _is_python(text: str) -> bool:
    """Whether the text is Python source, with at least one statement."""
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


def _with_command(command: tuple[str, ...], fix: Fix) -> Fix:
    """The fix with the command that ran in place of PLACEHOLDER, shortened; unchanged if not even two words fit."""
    words = [PurePath(command[0]).name, *command[1:]] if command else []
    short = next(many for many in range(len(words), -1, -1) if len(shlex.join(words[:many])) <= LONGEST_COMMAND)
    if short < min(len(words), 2) or not words:
        return fix
    typed = shlex.join(words[:short]) + " ..." * (short < len(words))
    before, after = (text.replace(PLACEHOLDER, typed) for text in (fix.before, fix.after))
    return replace(fix, before=before, after=after)


_ANYONES_CODE = (SpanKind.LOADER, SpanKind.PYTHON, SpanKind.ANNOTATION)  # Spans around it; ops are PyTorch's.


def with_library(facts: Facts, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings; those on host time name the library function that takes most of it, if frames were recorded."""
    try:
        return [(page, _with_call(finding, _call(facts, finding))) for page, finding in found]
    except Missing:
        return list(found)


def with_framework(facts: Facts, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings; those on host time in a framework's own code get the framework's setting for it as their fix."""
    loop = loop_owner(facts)
    return [(page, finding if loop is Loop.OWN else _of_framework(facts, loop, finding)) for page, finding in found]


def _of_framework(facts: Facts, loop: Loop, finding: Finding) -> Finding:
    """The finding with the framework's setting as its fix, if most of its time is in the framework's own code; without
    such a setting, with a sentence on that. Unchanged if it is not on host time, or the user's code takes it."""
    edits = [edit for edit in finding.edits if isinstance(edit, Shorten | Remove | Move)]
    if not edits or finding.per_sample or not (finding.host_bound or any(isinstance(edit, Remove) for edit in edits)):
        return finding
    on_host, names = (facts.rank.tracks["device"] < 0).to_numpy(), facts.rank.spans["name"]
    times, tracks = _times(facts, edits, lambda owner, track: on_host[track])
    spans = [edit.what for edit in edits if not isinstance(edit.what, Times)]
    ops = frozenset(str(name) for ids in spans for name in names.iloc[ids].unique())
    own, settings = finding.site, tuple(fix for fix in finding.fixes if fix.setting is not None)
    # Where the user's innermost function runs the framework's loop, none of the user's code can do less.
    inside = loop in OWNERS and not settings and own is not None and (own.file, own.function) in runs_loop(facts)
    site = framework_frame(facts, times, tracks, inside)
    if site is None:
        return finding
    work, name = own_work(loop, site.file, site.function, ops), NAMES[loop]
    where = f"`{site.function}` ({replace(site, file=PurePath(site.file).name).place})"
    if work is None and settings:
        return finding
    if work is None:
        itself = f"{name} does this itself, mostly in {where}; no setting is known to avoid it."
        evidence = (*finding.evidence, Evidence(itself))
        if not inside:
            return replace(finding, evidence=evidence)
        newer = Fix(f"Try a newer version of {name}.", effort=3)
        title = f"Python of {name} itself stalls the training"
        return replace(finding, evidence=evidence, fixes=(newer,), title=title, kind=Kind.WHERE_TO_LOOK)
    cause = Evidence(f"Most of this is in {where} of {name}, which {work.what}.")
    fix_text = f"Set {work.setting.name}: {name} {work.what}."
    fix = Fix(fix_text, after=written(work.setting))
    return replace(finding, evidence=(*finding.evidence, cause), fixes=(fix, *settings))


def _call(facts: Facts, finding: Finding) -> LibraryCall | None:
    """The library function with most of the host time that the finding's fix would shorten; None without any such."""
    kind, own = facts.rank.spans["kind"].cat.codes.to_numpy(), [enums.code(one) for one in _ANYONES_CODE]

    def anyones(owner: IntArray | int, track: IntArray) -> npt.NDArray[np.bool_]:
        return np.ones(len(track), dtype=bool) if isinstance(owner, int) else np.isin(kind[owner], own)

    edits = [edit for edit in finding.edits if isinstance(edit, Shorten | Move)]
    times, tracks = _times(facts, edits, anyones)
    return library_call(facts, times, tracks) if times.size else None


def _times(
    facts: Facts, edits: Iterable[Edit], fits: Callable[[IntArray | int, IntArray], npt.NDArray[np.bool_]]
) -> tuple[Intervals, IntArray]:
    """Of the times that edits select those that fit, and the track of each. `fits(owner, track)`: for each time whether
    it fits; `owner`: the span (row) that each time is of, or the one track that all are of."""
    found, none = list[tuple[IntArray, ...]](), np.zeros(0, dtype=np.int64)
    for times, owner in (selected(facts, edit) for edit in edits):
        track = np.full(times.size, owner) if isinstance(owner, int) else facts.rank.spans["track"].to_numpy()[owner]
        chosen = fits(owner, track)
        found.append((times.starts[chosen], times.ends[chosen], track[chosen].astype(np.int64)))
    starts, ends, tracks = (np.concatenate(column) for column in zip((none,) * 3, *found, strict=True))
    return Intervals(starts, ends), tracks


def _with_call(finding: Finding, call: LibraryCall | None) -> Finding:
    """Adds evidence that names the library call, unless the title names it already."""
    if call is None or not call.ns or call.function in finding.title:
        return finding
    where = "" if call.site == finding.site else f" ({call.site.place})"
    text = f"{duration(call.ns)}/step of this is in {call.function}, called by `{call.site.function}`{where}."
    return replace(finding, evidence=(*finding.evidence, Evidence(text, call.ns, "ns")))
