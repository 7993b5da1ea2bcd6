"""All that a rule sees but facts: files of rules take it whole, and facts from where they live.

A rule is a file. Its docstring is its page, its constants are its thresholds, its function looks at facts and yields
findings, its EXAMPLES are drawings that are tests and documentation. Its parameters are names of facts; one with the
default None is optional, and a missing one that is not ends the rule as "cannot tell".
"""

from diagnose.contracts.finding import (
    Caution,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fix,
    Kind,
    Level,
    NotApplicable,
    Risk,
)
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunSaving
from diagnose.costs.changes import Enlarged, InPrecision, Padded, Pinned, Recost, Searched, WellChosen
from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import Steps
from diagnose.facts.host.waits import HostWait
from diagnose.facts.values.wasted_work import Cause
from diagnose.facts.watched.log import OTHER_CODE, RunFacts
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.setting import Safety
from diagnose.replay.edits import (
    Between,
    Detach,
    Edit,
    Estimate,
    Even,
    Move,
    Own,
    Rechunk,
    Remove,
    Replace,
    Shorten,
    Times,
)
from diagnose.replay.saving import Basis
from diagnose.rulekit.check import CannotTell, Check, Fires, RuleError, Silent, Verdicts, rule, run_rule
from diagnose.rulekit.run_advice import PART_NAMES, STANDS_OUT, Shares, cost, costs, saved, sentences, times, widened
from diagnose.rulekit.shared_advice import (
    attended,
    avoidable,
    chains_taken,
    cheaper_batches,
    function_said,
    fusing,
    gave_up,
    guard_evidence,
    guard_fixes,
    guard_site,
    known,
    launched,
    loading_evidence,
    parts_evidence,
    set_workers,
    torchs_own,
    unsorted,
    updated_at_once,
    why_not,
)
from diagnose.rulekit.wasted import wasted
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.frames import Site
from diagnose.trace.kinds import CalleeKind
from diagnose.trace.manifest import Loader, Optimizer, RankManifest
from diagnose.trace.run_log import RunLog
from diagnose.trace.steps import seen_again
from diagnose.trace.units import about, long_duration, number, percent, ranks, share
from diagnose.trace.units import duration as ms
from diagnose.trace.units import size as bytes_

_CALLS = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()", "aten::is_nonzero": "bool(tensor)"}
_CALLS |= {"aten::to": ".to()", "aten::copy_": ".copy_()", "aten::equal": "torch.equal()"}


def called(op: str) -> str:
    """An op or call as users write it."""
    return _CALLS.get(op, op)


def waited(wait: HostWait, steps: Steps) -> str:
    """How often a call waits for the GPU, for how long, and for how long the GPU is idle after it, if it is why."""
    often = wait.total_calls / steps.count
    then = f", then the GPU idles {ms(wait.drained_idle_ns)}" * bool(wait.drained_idle_ns)
    many = "once" if often == 1 else f"{often:.3g} times"
    return f"`{called(wait.asked_by or wait.call)}` {many} per step: the CPU blocks {ms(wait.blocked_ns)}{then}."
