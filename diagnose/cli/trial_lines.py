"""What `diagnose try` would run, and how trials stand while they run."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from diagnose.contracts.trials import NotTried, Trial
    from diagnose.trace.manifest import Manifest, Screened
    from diagnose.trials.protocol import Standing
    from diagnose.trials.selection import Candidate


def lines(
    words: Sequence[str], candidates: Sequence[Candidate], others: Sequence[NotTried], pairs: int, arm_s: float
) -> list[str]:
    """What would be run, with the time it is expected to take."""
    from diagnose.trials.course import seconds_of

    switches = [fix for fix in candidates if fix.is_switch]
    whole_s, plan = 0.0, [f"Command: {shlex.join(words)}"]
    if switches:
        plan.append(f"One run that toggles fixes: about {arm_s:.0f} s, plus the time of each fix below")
        whole_s += arm_s
    elif candidates:
        plan.append(f"Baseline: a run of about {arm_s:.0f} s")
        whole_s += arm_s
    for fix in candidates:
        took_s = seconds_of(fix, arm_s, pairs)
        how = "in blocks of steps, usually within" if fix.is_switch else f"at least {pairs} pairs of runs, about"
        plan.append(f"{fix.number}. {fix.rule}: {fix.trial}, {how} {took_s:.0f} s")
        whole_s += took_s
    if switches or len(candidates) > 1:
        plan.append(f"The kept fixes together: at least {pairs} pairs of runs, about {2 * pairs * arm_s:.0f} s")
        whole_s += 2 * pairs * arm_s
    plan.append(f"Total: about {whole_s:.0f} s, limited by --budget")
    return [*plan, *(f"Not tried: {other.number}. {other.rule}: {other.why}." for other in others)]


def warn(
    candidates: Sequence[Candidate], pairs: int, arm_s: float, budget_s: float, say: Callable[[str], None]
) -> None:
    """Say for which fixes the budget is too short, and what would do."""
    from diagnose.trials.course import seconds_of

    ends_s = [*accumulate((seconds_of(fix, arm_s, pairs) for fix in candidates), initial=arm_s)][1:]
    if ends_s[-1] > budget_s:
        left_out = (
            f"{fix.number} ({fix.rule})" for fix, end_s in zip(candidates, ends_s, strict=True) if end_s > budget_s
        )
        say(f"--budget is too short for {', '.join(left_out)}. All fixes need about {math.ceil(ends_s[-1] / 60)}m.")


def ask(manifest: Manifest, yes: bool, say: Callable[[str], None]) -> None:
    """Whether the script may write its files again, which only its user knows. Raises CannotTry if it may not."""
    from diagnose.trials.selection import CannotTry

    say("the runs get no standard input; W&B, MLflow, Comet, Neptune and ClearML stay offline")
    names, unknown = written(manifest), all(rank.writes is None for rank in manifest.ranks)
    if names:
        what = f"The script writes {', '.join(names)}. Each run writes there again."
    elif unknown:
        what = "diagnose does not know which files the script writes. Each run writes them again."
    else:
        return
    if yes:
        say(what)
    elif not sys.stdin.isatty():
        raise CannotTry(f"{what} To allow this, add --yes.")
    elif not click.confirm(f"{what} Continue?", err=True):
        raise click.Abort


def written(manifest: Manifest) -> list[str]:
    """What the recorded run has written, as far as that is known."""
    return list(dict.fromkeys(name for rank in manifest.ranks for name in rank.writes or ()))


class Lines:
    """A line for each pair, and for what came of it."""

    def __init__(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> None:
        self._rules = {one.trial: one.rule for one in candidates}
        self._say, self._screened = say, set[str]()

    def begins(self, standing: Standing) -> None:
        """A run begins."""
        self._say(f"running {standing.name}: {'pair' if standing.numbers else 'run'} {standing.pair}")

    def screens(self, found: Sequence[Screened]) -> None:
        """A line for each that has ended."""
        for one in found:
            if one.ended and one.name not in self._screened:
                self._screened.add(one.name)
                pairs = 0 if one.void else len(one.added or one.alone)
                measured = f"{pairs} pairs of blocks of {one.steps} steps" if pairs else "not measured"
                self._say(f"{self._rules.get(one.name, one.name)}: {measured}")

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""
        from diagnose.reports import trials

        self._say(trials.brief(trial))
