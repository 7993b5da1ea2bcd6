"""Ranks hold up the others, are lost, or start again.

One rank takes longer than the others by itself, or has no complete log. Or attempts end, and others take their place.

Why it costs
    Where gradients are averaged, each step takes as long as that of the slowest rank. Nothing trains until the next
    attempt makes its first step, and steps after the last checkpoint are lost.
How to fix
    Even out the work of the ranks, and check the machine of the slow one: other processes, clocks, storage. Find out
    what ends attempts. Until then, save more often in the background, and shorten the start-up.
Ignore when
    ranks do different work on purpose, or attempts are ended on purpose, as on preemptible machines.
Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from itertools import pairwise

from diagnose.facts.watched.log import MIDDLE, saved_steps, steps_of
from diagnose.facts.watched.side_by_side import SlowRank, slow_ranks
from diagnose.rulekit.vocabulary import *

EVENED: Shares = (0.7, 1.0, 1.0)
"""Of the difference to the next slowest rank, on devices of their own (ST01: our choice)."""
CPU_EVENED: Shares = (0.4, 0.7, 1.0)  # Where ranks share a machine (ST01).
EARLY_NS = 15_000_000_000  # A log loses ten seconds of a rank that is killed at most (our choice).
LATE_NS = 60_000_000_000  # Ranks of one job start within a minute (our choice).
MOST_RANKS = 4096  # Among which those without a log are looked for.
MOST_TOLD = 8  # Sentences.
RESTARTED = "Find out what ended the attempts. Until then, save more often in the background, and shorten the start-up."


@run_rule("RU08")
def stragglers_and_restarts(logs: tuple[RunLog, ...], attempts: tuple[RunLog, ...], facts: RunFacts) -> Verdicts:
    yield from _restarts(attempts)
    if max(log.world_size for log in logs) > 1:
        yield from _lost_ranks(logs)
        for one in slow_ranks(facts):
            yield _straggler(one, max(logs, key=lambda log: log.length_ns))


def _lost_ranks(logs: tuple[RunLog, ...]) -> Verdicts:
    world, have = max(log.world_size for log in logs), {log.rank for log in logs}
    said = list[str]()
    if missing := [rank for rank in range(min(world, MOST_RANKS)) if rank not in have]:
        who = ranks(missing[:MOST_TOLD]) + (" and more" if len(missing) > MOST_TOLD else "")
        why = "lost before the first step, or writing to another folder"
        said.append(f"{number(world - len(have))} of {number(world)} ranks have no log ({who}): {why}.")
    latest = max(log.started_unix_ns + log.length_ns for log in logs)
    began = min(log.started_unix_ns for log in logs)
    for log in logs:
        early, late = latest - log.started_unix_ns - log.length_ns, log.started_unix_ns - began
        if early > EARLY_NS:
            said.append(f"The log of rank {log.rank} ends {long_duration(early)} before the last rank's.")
        if late > LATE_NS:
            said.append(f"Rank {log.rank} started {long_duration(late)} after the first rank.")
    if len(said) > MOST_TOLD:
        said[MOST_TOLD:] = [f"{number(len(said) - MOST_TOLD)} more cases."]
    if said:
        change = "Check the output of these ranks, and the system log for killed processes."
        saving = RunSaving(0, 0, 0, RunBasis.NONE)
        yield RunFinding("Some ranks have no complete log", sentences(*said), saving, change, "lost_rank")


def _straggler(one: SlowRank, log: RunLog) -> RunFinding:
    who = f"Rank {one.rank}" if one.since_step is None else f"From step {number(one.since_step)} on, rank {one.rank}"
    said = f"{who} takes {ms(one.behind_ns)} longer per step than the other ranks, and they wait for it."
    where = f"The extra time is in {PART_NAMES[one.part]}: {ms(one.longer_ns)}."
    waits = f"The other ranks wait in their backward passes, which take {ms(one.others_backward_ns)} longer."
    told = sentences(
        Evidence(said, one.behind_ns, "ns", primary=True),
        where if one.longer_ns >= STANDS_OUT * one.behind_ns else "No part of its step stands out.",
        waits if one.others_backward_ns >= STANDS_OUT * one.behind_ns else "",
        f"At the speed of the next slowest rank, the job would save {cost(one.lost_ns, log)}.",
    )
    saving = saved(one.lost_ns, EVENED if one.on_device else CPU_EVENED)
    change = f"Check what rank {one.rank} does more than the others, and its machine: other processes, clocks, storage."
    return RunFinding(f"Straggler: rank {one.rank}", told, saving, change, "straggler")


def _restarts(attempts: tuple[RunLog, ...]) -> Verdicts:
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
    after = f"About {number(lost)} steps ({long_duration(lost_ns)}) came after the last checkpoint.{unsaved}"
    told = sentences(Evidence(paused, pause_ns, "ns", primary=True), after)
    saving = RunSaving(pause_ns + least_ns, pause_ns + lost_ns, pause_ns + all_ns, RunBasis.COMPARED)
    title = f"The training restarted {'once' if len(pairs) == 1 else f'{number(len(pairs))} times'}"
    yield RunFinding(title, told, saving, RESTARTED, "restarts")


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
    Fires("500 steps of 80, forward 20, backward 60\n---\n500 steps of 80, forward 40, backward 40", (4000, 10_000)),
    Fires("500 steps of 10, every 300 save 1\n=== 4000\n500 steps of 10", saving_ms=(7000, 10_000)),
    Silent("500 steps of 80, forward 20\n---\n500 steps of 80, forward 20"),
]
