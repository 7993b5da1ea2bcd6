"""All that a rule sees but facts: files of rules take it whole, and facts from where they live.

A rule is a file. Its docstring is its page, its constants are its thresholds, its function looks at facts and yields
findings, its EXAMPLES are drawings that are tests and documentation. Its parameters are names of facts; one with the
default None is optional, and a missing one that is not ends the rule as "cannot tell".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from diagnose import facts
from diagnose.facts.core.base import FACTS, Missing
from diagnose.facts.core.steps import Steps
from diagnose.findings.finding import Caution, Clean, Confidence, Evidence, Finding, Fix, Level, NotApplicable, Safety
from diagnose.replay.balancing import balanced
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten, Times, toward
from diagnose.replay.saving import Basis
from diagnose.rulekit.examples import CannotTell, Fires, Silent
from diagnose.rulekit.fusing_advice import chains_taken, fusing, gave_up, known, torchs_own
from diagnose.rulekit.known_results import left_out, ops_named
from diagnose.rulekit.loading_advice import (
    HANDED_OVER_NS,
    batches_that_wait,
    cheaper_batches,
    cores_for_workers,
    dear,
    dear_batches,
    epoch_batches,
    in_workers,
    loading_evidence,
    more_batches,
    mostly_sampling,
)
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.long_steps import seen_again
from diagnose.trace.manifest import Loader, RankManifest
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent
from diagnose.trace.units import size as bytes_

__all__ = [
    "HANDED_OVER_NS",
    "Basis",
    "Between",
    "CannotTell",
    "Caution",
    "Clean",
    "Confidence",
    "Detach",
    "Direction",
    "Edit",
    "Evidence",
    "Finding",
    "Fires",
    "Fix",
    "HostMemory",
    "Level",
    "Loader",
    "Missing",
    "Move",
    "NotApplicable",
    "RankManifest",
    "Remove",
    "Replace",
    "Safety",
    "Shorten",
    "Silent",
    "Steps",
    "Times",
    "Verdicts",
    "balanced",
    "batches_that_wait",
    "bytes_",
    "chains_taken",
    "cheaper_batches",
    "cores_for_workers",
    "dear",
    "dear_batches",
    "epoch_batches",
    "fusing",
    "gave_up",
    "in_workers",
    "known",
    "left_out",
    "loading_evidence",
    "more_batches",
    "mostly_sampling",
    "ms",
    "ops_named",
    "percent",
    "rule",
    "seen_again",
    "torchs_own",
    "toward",
]

Verdicts: TypeAlias = "Iterator[Finding | Caution | Clean | NotApplicable]"


@dataclass(frozen=True)
class Check:
    """A rule's function with the facts it asks for."""

    code: str
    run: Callable[..., Verdicts]
    needs: tuple[str, ...]
    wishes: tuple[str, ...]
    """Facts it cannot do without, and those that are None where the recording lacks them."""


def rule(code: str) -> Callable[[Callable[..., Verdicts]], Check]:
    """Make a function a rule. `code` is its short name (`DL01`), by which `--select` and `--ignore` also know it."""

    def made(run: Callable[..., Verdicts]) -> Check:
        parameters = inspect.signature(run).parameters.values()
        if any(one.name not in FACTS for one in parameters):
            facts.import_all()
        unknown = [one.name for one in parameters if one.name not in FACTS]
        if unknown:
            raise RuleError(f"{run.__name__} asks for {', '.join(unknown)}, which is no fact.")
        return Check(
            code=code,
            run=run,
            needs=tuple(one.name for one in parameters if one.default is inspect.Parameter.empty),
            wishes=tuple(one.name for one in parameters if one.default is None),
        )

    return made


class RuleError(Exception):
    """A file of rules that cannot be used, in one sentence."""
