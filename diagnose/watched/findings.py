"""All that a run is looked at for, and what of it is found, by what it would save."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from diagnose import failures
from diagnose.contracts.watched_run import NotFound, RunFinding, RunFindingKind
from diagnose.trace.run_log import RunLog
from diagnose.watched import growth, outliers, pauses, waiting
from diagnose.watched.pricing import CannotTell, worth
from diagnose.watched.restarts import restarts
from diagnose.watched.stragglers import lost_ranks, stragglers

T = TypeVar("T")

OF_A_RANK: dict[RunFindingKind, Callable[[RunLog], list[RunFinding]]] = {
    RunFindingKind.GROWING_STEPS: growth.growing_steps,
    RunFindingKind.SLOWER_STEPS: growth.slower_steps,
    RunFindingKind.OUTLIER_STEPS: lambda log: outliers.outlier_steps(log, waiting.starts_ns(log)),
    RunFindingKind.SLOW_FIRST_EPOCH: waiting.slow_first_epoch,
    RunFindingKind.EPOCH_STARTS: waiting.epoch_starts,
    RunFindingKind.DATA_WAIT: waiting.data_wait,
    RunFindingKind.EVALUATION: pauses.evaluation,
    RunFindingKind.EVALUATION_DATA_WAIT: pauses.evaluation_data_wait,
    RunFindingKind.GROWING_EVALUATION: growth.growing_evaluation,
    RunFindingKind.CHECKPOINTS: pauses.checkpoints,
    RunFindingKind.GROWING_CHECKPOINTS: growth.growing_checkpoints,
    RunFindingKind.COLLECTION: outliers.collection,
    RunFindingKind.COMPILATION: outliers.compilation,
    RunFindingKind.OUTSIDE: pauses.outside,
    RunFindingKind.GROWING_MEMORY: growth.growing_memory,
}
OF_RANKS: dict[RunFindingKind, Callable[[Sequence[RunLog]], list[RunFinding]]] = {
    RunFindingKind.STRAGGLER: stragglers,
    RunFindingKind.LOST_RANK: lost_ranks,
}
EXPLAINED = 0.7  # Of what slower steps cost, the share that a straggler costs if it is why (our choice).

_ORDER = list(RunFindingKind)


def findings(
    logs: Sequence[RunLog], earlier: Sequence[RunLog] = ()
) -> tuple[tuple[RunFinding, ...], tuple[NotFound, ...]]:
    """Those of all ranks, and all other kinds. `earlier`: attempts of the first rank, in order."""
    length_ns = max(log.length_ns for log in logs)
    looked = {kind: _of_each(kind, look, logs) for kind, look in OF_A_RANK.items()}
    if max(log.world_size for log in logs) > 1:
        looked |= {kind: _looked(kind, look, logs, length_ns) for kind, look in OF_RANKS.items()}
    whole_ns = logs[0].started_unix_ns + logs[0].length_ns - [*earlier, *logs][0].started_unix_ns
    looked[RunFindingKind.RESTARTS] = _looked(RunFindingKind.RESTARTS, restarts, [*earlier, logs[0]], whole_ns)
    found = [one for some, _ in looked.values() for one in some]
    others = tuple(NotFound(kind, why) for kind, (some, why) in looked.items() if not some)
    return ranked([one for one in found if not _is_told(one, found)]), others


def of_rank(log: RunLog) -> tuple[tuple[RunFinding, ...], tuple[NotFound, ...]]:
    """Those of one rank by itself, and all other kinds that one can be looked at for."""
    looked = {kind: _looked(kind, look, log, log.length_ns) for kind, look in OF_A_RANK.items()}
    others = tuple(NotFound(kind, why) for kind, (some, why) in looked.items() if not some)
    return ranked([one for some, _ in looked.values() for one in some]), others


def ranked(found: Sequence[RunFinding]) -> tuple[RunFinding, ...]:
    """Those first that would save most."""
    return tuple(sorted(found, key=lambda one: (-one.saving.likely_ns, _ORDER.index(one.kind))))


def _is_told(one: RunFinding, found: Sequence[RunFinding]) -> bool:
    """Whether steps take longer from a moment on as one rank does, or outliers or pauses are those that get longer."""
    if one.kind in (RunFindingKind.OUTLIER_STEPS, RunFindingKind.OUTSIDE):
        grown = max((other.saving.high_ns for other in found if other.title == growth.LONGER_PAUSES), default=0)
        return grown >= EXPLAINED * one.saving.likely_ns > 0
    held_up = max((other.saving.high_ns for other in found if other.kind is RunFindingKind.STRAGGLER), default=0)
    return one.kind is RunFindingKind.SLOWER_STEPS and held_up >= EXPLAINED * one.saving.likely_ns


def _looked(
    kind: RunFindingKind, look: Callable[[T], list[RunFinding]], given: T, length_ns: int
) -> tuple[list[RunFinding], str]:
    try:
        return [one for one in look(given) if worth(one, length_ns)], ""
    except CannotTell as error:
        return [], str(error)
    except Exception as error:
        failure = failures.note(f"the look for {kind.value.replace('_', ' ')}", error)
        return [], f"diagnose itself failed ({failure.error})"


def _of_each(
    kind: RunFindingKind, look: Callable[[RunLog], list[RunFinding]], logs: Sequence[RunLog]
) -> tuple[list[RunFinding], str]:
    """What is found on any rank, each with the ranks that have it; else why it cannot be told on the first."""
    looked = [_looked(kind, look, log, log.length_ns) for log in logs]
    by_name = dict[str, list[tuple[int, RunFinding]]]()
    for log, (some, _) in zip(logs, looked, strict=True):
        for one in some:
            by_name.setdefault(_name(one), []).append((log.rank, one))
    return [_together(some) for some in by_name.values()], looked[0][1]


def _name(one: RunFinding) -> str:
    """Of one kind there may be several, as of several memories; all others are one."""
    return one.title if one.kind is RunFindingKind.GROWING_MEMORY else one.kind.value


def _together(some: Sequence[tuple[int, RunFinding]]) -> RunFinding:
    _, worst = max(some, key=lambda pair: pair[1].saving.likely_ns)
    return msgspec.structs.replace(worst, ranks=tuple(sorted(rank for rank, _ in some)))
