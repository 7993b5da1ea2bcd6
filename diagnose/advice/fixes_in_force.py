"""Fixes that are in force already, by what is known of a run's settings: they are not advised again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from diagnose.contracts.finding import Finding, Fix, RuleName
from diagnose.trace.loaders import training_loaders
from diagnose.trace.manifest import Loader
from diagnose.trace.model import Context

_SETTING = re.compile(
    r"(?:patch|wrap):(DataLoader|torch\.optim|DistributedDataParallel)\((\w+)=([\w.]+)\)\Z|env:(\w+)=(.*)\Z"
)
"""A trial that sets one thing: what is made with which argument of which value; or a variable and its value."""


def dropped(context: Context | None, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings without fixes that set what is set already, or to less; those without any other fix go."""
    if context is None:
        return list(found)
    loaders = training_loaders(context.rank)
    left = []
    for page, finding in found:
        fixes = tuple(one for one in finding.fixes if not _in_force(one, context, loaders))
        if fixes or not finding.fixes:
            left.append((page, replace(finding, fixes=fixes)))
    return left


def _in_force(fix: Fix, context: Context, loaders: tuple[Loader, ...]) -> bool:
    setting = _SETTING.match(fix.trial or "")
    if setting is None:
        return False
    owner, name, value, variable, variable_value = setting.groups()
    if variable:
        return context.environment.get(variable) == variable_value
    distributed = context.rank.distributed
    owners = {
        "DataLoader": [getattr(one, name, None) for one in loaders],
        "torch.optim": [getattr(one, name, None) for one in context.rank.optimizers],
        "DistributedDataParallel": [one.get(name) for one in distributed.ddp] if distributed else [],
    }[owner]
    return bool(owners) and all(_as_much(present, value) for present in owners)


def _as_much(present: object, value: str) -> bool:
    """Whether a setting is at least what is advised. So many times what it is (`4x`) is always more."""
    if value in ("True", "False"):
        return present is (value == "True")
    if isinstance(present, bool) or not isinstance(present, int | float):
        return str(present) == value
    try:
        return present >= float(value)
    except ValueError:
        return False
