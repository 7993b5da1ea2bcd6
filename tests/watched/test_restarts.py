"""Attempts of a run that ended, and others that took their place."""

from diagnose.contracts.watched_run import RunFindingKind, RunSaving, WatchedRun
from diagnose.reports import terminal
from diagnose.trace.run_log import RunLog
from diagnose.watched.assembly import watched_run
from tests.watched.logs import MS, S, column, log, windows, with_columns


def attempt(began_s: int, ended: str | None, saves_in: int | None = 2) -> RunLog:
    """It takes a second to its first step, then makes 100 steps in each of five seconds, and saves in one of them."""
    some = list(windows([10 * MS] * 5, steps=100))
    if saves_in is not None:
        some[saves_in] = with_columns(some[saves_in], save=column(1, 1))
    return log(tuple(some), started_unix_ns=began_s * S, ended=ended)


def of(*attempts: RunLog) -> WatchedRun:
    return watched_run([attempts[-1]], attempts[:-1])


def test_what_was_trained_after_the_last_checkpoint_is_lost() -> None:
    """The first attempt ends at second 6, and the next one's first step at second 11, as it starts at 10.

    The checkpoint is in the third of five seconds: 2 to 3 s are lost, 250 of 500 steps if it was in the middle.
    """
    found = of(attempt(0, "crashed"), attempt(10, "itself"))
    (one,) = [finding for finding in found.findings if finding.kind is RunFindingKind.RESTARTS]
    saving = one.saving
    assert RunSaving(7 * S, 7_500 * MS, 10 * S, saving.basis) == saving
    assert one.title == "The training was started again once"
    assert one.evidence[0].text == "5.00 s passed between last steps and the first ones of the next attempts."
    assert one.evidence[1].text == "Some 250 steps were made after last checkpoints: 2.50 s."
    (known,) = found.attempts
    assert (known.length_ns, known.steps, known.ended, known.saved_steps) == (6 * S, 501, "crashed", 251)
    shown = terminal.watched(found, 80, False)
    assert "of 16.0 s" in shown
    assert "1: it ended with an error" in shown


def test_without_a_checkpoint_all_is_lost() -> None:
    found = of(attempt(0, None, saves_in=None), attempt(6, "itself"))
    (one,) = [finding for finding in found.findings if finding.kind is RunFindingKind.RESTARTS]
    assert (one.saving.low_ns, one.saving.likely_ns, one.saving.high_ns) == (6 * S, 6 * S, 6 * S)
    assert one.evidence[1].text.endswith("Not each of them saved a checkpoint before.")
    assert "1: it was killed" in terminal.watched(found, 80, False)


def test_one_that_ended_by_itself_was_no_failure() -> None:
    for found in (of(attempt(0, "itself"), attempt(10, "itself")), of(attempt(0, None))):
        assert RunFindingKind.RESTARTS in {other.kind for other in found.not_found}
