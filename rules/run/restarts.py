"""The training was restarted.

Attempts ended, and other processes took their place.

Why it costs
    Nothing trains until the next attempt makes its first step. Steps after the last checkpoint are lost.

How to fix
    Find out what ends the attempts. Until then, save more often in the background, and shorten the start-up.

Ignore when
    the attempts were ended on purpose, as on preemptible machines.

Sources
    https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from itertools import pairwise

from diagnose.facts.watched.windows import MIDDLE, saved_steps, steps_of
from diagnose.rulekit.vocabulary import *


@run_rule("RU09")
def restarts(attempts: tuple[RunLog, ...]) -> Verdicts:
    pairs = [(one, following) for one, following in pairwise(attempts) if one.ended != "itself"]
    if not pairs:
        return
    pause_ns = sum(max(_first_step_ns(following) - _last_step_ns(one), 0) for one, following in pairs)
    # Whether the next attempt went on from the last checkpoint the log does not tell; without one all is lost.
    least_ns, lost_ns = (sum(_after_ns(one, share) for one, _ in pairs) for share in (1.0, MIDDLE))
    all_ns = sum(one.windows[-1].ended_ns - one.windows[0].began_ns for one, _ in pairs if one.windows)
    lost = sum(steps_of(one) - saved_steps(one) for one, _ in pairs)
    unsaved = "" if all(map(saved_steps, (one for one, _ in pairs))) else " Not every attempt saved a checkpoint."
    paused = f"{long_duration(pause_ns)} passed between the last steps of attempts and the first steps of the next."
    yield RunFinding(
        title=f"The training restarted {'once' if len(pairs) == 1 else f'{number(len(pairs))} times'}",
        evidence=sentences(
            Evidence(paused, pause_ns, "ns", primary=True),
            f"About {number(lost)} steps ({long_duration(lost_ns)}) came after the last checkpoint.{unsaved}",
        ),
        saving=RunSaving(pause_ns + least_ns, pause_ns + lost_ns, pause_ns + all_ns, RunBasis.COMPARED),
        change="Find out what ended the attempts. Until then, save more often in the background, and shorten the"
        " start-up.",
    )


def _after_ns(log: RunLog, share: float) -> int:
    """From the last checkpoint to the last step, if it was after such a share of its window; all if there is none."""
    if not log.windows:
        return 0
    since_ns = float(log.windows[0].began_ns)
    for window in [one for one in log.windows if one.of("save").count][-1:]:
        since_ns = window.began_ns + share * (window.ended_ns - window.began_ns)
    return int(log.windows[-1].ended_ns - since_ns)


def _first_step_ns(log: RunLog) -> int:
    return log.started_unix_ns + sum(log.start.get(name, 0) for name in ("step", "save", "evaluation"))


def _last_step_ns(log: RunLog) -> int:
    return log.started_unix_ns + log.windows[-1].ended_ns if log.windows else _first_step_ns(log)


EXAMPLES = [
    Fires(
        """
        500 steps of 10, every 300 save 1
        === 4000
        500 steps of 10
        """,
        saving_ms=(7000, 10_000),
    ),
    Silent("1000 steps of 10"),
]
