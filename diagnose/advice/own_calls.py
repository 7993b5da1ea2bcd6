"""Advice in the user's own words: the call that makes a loader, an optimizer or a wrapped model, with the change, and
the command that runs the training.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

import msgspec

from diagnose.contracts.finding import Finding, Fix, RuleName
from diagnose.trace.frames import Site
from diagnose.trace.loaders import training_loaders
from diagnose.trace.manifest import Made, RankManifest
from diagnose.trace.model import Context

PLACEHOLDER = "python train.py"
"""What stands in fixes for the command."""

LONGEST_COMMAND = 200
"""Characters of a command that are shown in place of that; further words are left out (our choice)."""

MOST_POSITIONS = 3
"""Arguments of a call that are given by position: of more, one may be what is to be set (our choice)."""


def at_their_place(
    context: Context | None, found: Iterable[tuple[RuleName, Finding]]
) -> list[tuple[RuleName, Finding]]:
    """The findings, with the fixes of calls that the script makes once as changes of these calls, and their lines."""
    return [(page, one if context is None else _at_its_place(context, one)) for page, one in found]


def _at_its_place(context: Context, finding: Finding) -> Finding:
    fixes, site, rank = list[Fix](), finding.site, context.rank
    for fix in (_with_command(context.command, one) for one in finding.fixes):
        asked = _call(fix.after)
        made = None if asked is None else _made(rank, _name(asked))
        if asked is None or made is None:
            fixes.append(fix)
            continue
        site = site or Site(made.file, made.line, made.function)
        changed = with_settings(made.call, _settings(asked, _call(fix.before)))
        before = f"{made.call}  # {PurePath(made.file).name}:{made.line}"
        fixes.append(msgspec.structs.replace(fix, before=before, after=changed) if changed else fix)
    return replace(finding, fixes=tuple(fixes), site=site)


def _with_command(command: tuple[str, ...], fix: Fix) -> Fix:
    """The fix for the command that ran, as the user would type it."""
    words = [PurePath(command[0]).name, *command[1:]] if command else []
    short = next(many for many in range(len(words), -1, -1) if len(shlex.join(words[:many])) <= LONGEST_COMMAND)
    if short < min(len(words), 2) or not words:
        return fix
    typed = shlex.join(words[:short]) + " ..." * (short < len(words))
    before, after = (text.replace(PLACEHOLDER, typed) for text in (fix.before, fix.after))
    return msgspec.structs.replace(fix, before=before, after=after)


def with_settings(call: str, settings: dict[str, ast.expr]) -> str:
    """A call with other values of some of its named arguments; empty where it cannot be told what that would be.

    >>> with_settings("DataLoader(data, **options)", {"num_workers": ast.Constant(2)})
    "DataLoader(data, **{**options, 'num_workers': 2})"
    """
    made = _call(call)
    if made is None or not settings or len(made.args) > MOST_POSITIONS:
        return ""
    if any(isinstance(one, ast.Starred) for one in made.args):
        return ""
    left = dict(settings)
    for one in made.keywords:
        one.value = left.pop(one.arg, one.value) if one.arg else one.value
    packed = [one for one in made.keywords if one.arg is None]
    if left and packed:  # They may hold the same names, and those that come last hold.
        keys: list[ast.expr | None] = [None, *map(ast.Constant, left)]
        packed[-1].value = ast.Dict(keys, [packed[-1].value, *left.values()])
    elif left:
        made.keywords += [ast.keyword(name, value) for name, value in left.items()]
    return ast.unparse(made)


def _settings(asked: ast.Call, before: ast.Call | None) -> dict[str, ast.expr]:
    """What a fix sets by name to a known value, and has not been so before."""
    had = {one.arg: ast.dump(one.value) for one in before.keywords} if before else {}
    new = [one for one in asked.keywords if one.arg and had.get(one.arg) != ast.dump(one.value)]
    return {str(one.arg): one.value for one in new if isinstance(one.value, ast.Constant)}


def _made(rank: RankManifest, name: str) -> Made | None:
    """The one place where something of that name is made; None if there are several, or it is not known."""
    places: set[Made | None] = set()
    if name == "DataLoader":
        places = {one.made for one in training_loaders(rank)}
    elif name == "DistributedDataParallel" and rank.distributed:
        places = set(rank.distributed.ddp_made)
    else:
        places = {one.made for one in rank.optimizers if one.name == name}
    return places.pop() if len(places) == 1 else None


def _call(text: str) -> ast.Call | None:
    """Of a text that is a call; None of any other."""
    try:
        made = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return made if isinstance(made, ast.Call) else None


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
