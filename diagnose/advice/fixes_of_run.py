"""Fixes as this run can follow them: without those that it has already, or that its devices cannot follow; in the words
of what owns its loop, as changes of its own calls, and with its command.
"""

import ast
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from diagnose.contracts.finding import Finding, Fix, RuleName
from diagnose.facts.run.program import Language, Program
from diagnose.fixes.setting import DS_CONFIG, Argument, Code, Loop, NotPossible, Run, Safety, Setting
from diagnose.trace.manifest import Made, training_loaders
from diagnose.trace.model import Context, Device

PLACEHOLDER = "python train.py"  # What stands in fixes for the command.

IN_PYTHON = "# in Python:"  # Label of code for programs in other languages.

LONGEST_COMMAND = 200
"""Characters of a command that are shown in place of that; further words are left out (our choice)."""

MOST_POSITIONS = 3
"""Arguments of a call that are given by position: of more, one may be what is to be set (our choice)."""

NONE_FITS = Fix(
    "Rewrite the code with fewer ops: torch.compile does not support this GPU.", safety=Safety.ROUNDING, effort=3
)


class Situation(Struct, frozen=True):
    """What is known of the run whose fixes they are."""

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
    try:
        return setting is not None and run is not None and setting.in_force(run)
    except NotPossible:
        return False


def _followable(devices: Iterable[Device], fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    known = [device.compute_capability for device in devices]
    left = [fix for fix in fixes if fix.setting is None or all(map(fix.setting.fits, known))]
    return tuple(left) or (NONE_FITS,) * bool(fixes)


def _fitted(here: Situation, finding: Finding) -> Finding:
    fixes, site = list[Fix](), finding.site
    for fix in finding.fixes:
        if here.program.language is not Language.PYTHON:
            fixes.append(_labelled(fix) if _is_python(fix.after) else fix)
            continue
        told, made = _in_its_words(here, _of_version(here.before, fix))
        site = site or (made.site if made else None)
        command = () if here.context is None else here.context.command
        told = _with_command(command, told)
        if not told.after or told.after not in [one.after for one in fixes]:  # A framework has one setting for two.
            fixes.append(told)
    return replace(finding, fixes=tuple(fixes), site=site)


def _of_version(before: tuple[int, int] | None, fix: Fix) -> Fix:
    """The fix, with the version of PyTorch that it needs where the run's is older."""
    setting = fix.setting
    if setting is None or before is None or setting.since < before:
        return fix
    return msgspec.structs.replace(
        fix, do=f"{fix.do} First update PyTorch to {'.'.join(map(str, setting.since))} or newer."
    )


def _labelled(fix: Fix) -> Fix:
    return msgspec.structs.replace(fix, before="", after=f"{IN_PYTHON}\n{fix.after}", trial=None)


def _in_its_words(here: Situation, fix: Fix) -> tuple[Fix, Made | None]:
    """The fix as the loop's owner has it, or as the change of the one call that the script makes, and where that is."""
    setting, run = fix.setting, here.run
    if setting is None or run is None:
        return fix, None
    if caution := setting.caution(run):
        fix = msgspec.structs.replace(fix, do=f"{fix.do} {caution}", safety=Safety.NEEDS_JUDGEMENT)
    told = setting.framework(here.program.loop, run) if here.program.loop is not Loop.OWN else None
    if isinstance(told, Argument):
        return msgspec.structs.replace(fix, before="", after=written(told)), None
    made = _made(setting, run)
    if made is not None:
        changed = with_settings(made.call, setting.arguments)
        before = f"{made.call}  # {PurePath(made.file).name}:{made.line}"
        fix = msgspec.structs.replace(fix, before=before, after=changed) if changed else fix
    elif told:
        fix = msgspec.structs.replace(fix, after=f"# {told}\n{fix.after}")
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


def _made(setting: Setting, run: Run) -> Made | None:
    """The one place where what takes the setting is made; None if there are several, or it is not known."""
    _, places = setting.made(run) or ("", ())
    return places[0] if len(set(places)) == 1 else None


def with_settings(call: str, settings: Mapping[str, Any]) -> str:
    """A call with other values of some of its named arguments; empty where it cannot be told what that would be.

    >>> with_settings("DataLoader(data, **options)", {"num_workers": 2})
    "DataLoader(data, **{**options, 'num_workers': 2})"
    """
    made = _call(call)
    if made is None or not settings or len(made.args) > MOST_POSITIONS:
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


def _call(text: str) -> ast.Call | None:
    """Of a text that is a call; None of any other."""
    try:
        made = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return made if isinstance(made, ast.Call) else None


def _is_python(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


def _with_command(command: tuple[str, ...], fix: Fix) -> Fix:
    """The fix for the command that ran, as the user would type it."""
    words = [PurePath(command[0]).name, *command[1:]] if command else []
    short = next(many for many in range(len(words), -1, -1) if len(shlex.join(words[:many])) <= LONGEST_COMMAND)
    if short < min(len(words), 2) or not words:
        return fix
    typed = shlex.join(words[:short]) + " ..." * (short < len(words))
    before, after = (text.replace(PLACEHOLDER, typed) for text in (fix.before, fix.after))
    return msgspec.structs.replace(fix, before=before, after=after)
