"""Earlier attempts of a run: processes of the same rank that ended before the one that the log tells of began."""

from collections.abc import Sequence
from itertools import pairwise

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import Attempt, RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import long_duration, number
from diagnose.watched.parts import steps_of
from diagnose.watched.pricing import finding

MIDDLE = 0.5  # Of a window of the log, where a checkpoint in it is taken to be: windows tell no more (our choice).


def attempts(logs: Sequence[RunLog]) -> tuple[Attempt, ...]:
    """Of one rank, in order; the last one is the run itself, and is none of them."""
    return tuple(
        Attempt(log.started_unix_ns, log.length_ns, steps_of(log), log.ended, _saved(log), log.start.get("step", 0))
        for log in logs[:-1]
    )


def restarts(logs: Sequence[RunLog]) -> list[RunFinding]:
    """What it costs that attempts did not end by themselves, and others took their place.

    Between the last step of one and the first of the next nothing is trained. What was trained after the last
    checkpoint is lost, or all of it if there is none that the log knows. Whether the next attempt went on from there
    it does not tell.
    """
    pairs = [(one, following) for one, following in pairwise(logs) if one.ended != "itself"]
    if not pairs:
        return []
    pause_ns = sum(max(_first_step_ns(following) - _last_step_ns(one), 0) for one, following in pairs)
    least_ns, lost_ns = (sum(_after_ns(one, share) for one, _ in pairs) for share in (1.0, MIDDLE))
    all_ns = sum(one.windows[-1].ended_ns - one.windows[0].began_ns for one, _ in pairs if one.windows)
    lost = sum(steps_of(one) - _saved(one) for one, _ in pairs)
    unsaved = "" if all(_saves(one) for one, _ in pairs) else " Not every attempt saved a checkpoint."
    paused = f"{long_duration(pause_ns)} passed between the last steps of attempts and the first steps of the next."
    return finding(
        RunFindingKind.RESTARTS,
        f"The training restarted {_times(len(pairs))}",
        (
            Evidence(paused, pause_ns, "ns", primary=True),
            f"About {number(lost)} steps ({long_duration(lost_ns)}) came after the last checkpoint.{unsaved}",
        ),
        RunSaving(pause_ns + least_ns, pause_ns + lost_ns, pause_ns + all_ns, RunBasis.COMPARED),
        "Find out what ended the attempts. Until then, save more often in the background, and shorten the start-up.",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{number(count)} times"


def _saves(log: RunLog) -> list[Window]:
    return [window for window in log.windows if window.of("save").count]


def _saved(log: RunLog) -> int:
    known = _saves(log)
    return known[-1].first_step + int(MIDDLE * known[-1].steps) if known else 0


def _after_ns(log: RunLog, share: float) -> int:
    """From the last checkpoint to the last step, if it was after such a share of its window; all if there is none."""
    if not log.windows:
        return 0
    since_ns = float(log.windows[0].began_ns)
    for window in _saves(log)[-1:]:
        since_ns = window.began_ns + share * (window.ended_ns - window.began_ns)
    return int(log.windows[-1].ended_ns - since_ns)


def _first_step_ns(log: RunLog) -> int:
    return log.started_unix_ns + sum(log.start.get(name, 0) for name in ("step", "save", "evaluation"))


def _last_step_ns(log: RunLog) -> int:
    return log.started_unix_ns + log.windows[-1].ended_ns if log.windows else _first_step_ns(log)
