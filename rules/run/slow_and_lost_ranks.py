"""Ranks wait for a straggler, or some are lost.

One rank takes longer than the others by itself, or has no complete log.

Why it costs
    Where gradients are averaged, each step takes as long as that of the slowest rank.

How to fix
    Even out the work of the ranks, and check the machine of the slow one: other processes, clocks, storage.

Ignore when
    ranks do different work on purpose, as the stages of a pipeline do.

Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from diagnose.facts.watched.side_by_side import SlowRank, slow_ranks
from diagnose.rulekit.vocabulary import *

EVENED: Shares = (0.7, 1.0, 1.0)
"""Of the difference to the next slowest rank, on devices of their own (ST01: our choice)."""
CPU_EVENED: Shares = (0.4, 0.7, 1.0)  # Where ranks share a machine (ST01).

EARLY_NS = 15_000_000_000  # A log loses ten seconds of a rank that is killed at most (our choice).
LATE_NS = 60_000_000_000  # Ranks of one job start within a minute (our choice).
MOST_RANKS = 4096  # Among which those without a log are looked for.
MOST_TOLD = 8  # Sentences.


@run_rule("RU08")
def slow_and_lost_ranks(logs: tuple[RunLog, ...], facts: RunFacts) -> Verdicts:
    if max(log.world_size for log in logs) == 1:
        yield NotApplicable("the run has one rank")
        return
    yield from _lost_ranks(logs)
    for one in slow_ranks(facts):
        yield _straggler(one, max(logs, key=lambda log: log.length_ns))


def _lost_ranks(logs: tuple[RunLog, ...]) -> Verdicts:
    """Ranks without a log, that ended before the others, or were started after them."""
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
        yield RunFinding(
            kind="lost_rank",
            title="Some ranks have no complete log",
            evidence=sentences(*said),
            saving=NO_TIME,
            change="Check the output of these ranks, and the system log for killed processes.",
        )


def _straggler(one: SlowRank, log: RunLog) -> RunFinding:
    who = f"Rank {one.rank}" if one.since_step is None else f"From step {number(one.since_step)} on, rank {one.rank}"
    said = f"{who} takes {ms(one.behind_ns)} longer per step than the other ranks, and they wait for it."
    where = f"The extra time is in {PART_NAMES[one.part]}: {ms(one.longer_ns)}."
    waits = f"The other ranks wait in their backward passes, which take {ms(one.others_backward_ns)} longer."
    return RunFinding(
        kind="straggler",
        title=f"Straggler: rank {one.rank}",
        evidence=sentences(
            Evidence(said, one.behind_ns, "ns", primary=True),
            where if one.longer_ns >= STANDS_OUT * one.behind_ns else "No part of its step stands out.",
            waits if one.others_backward_ns >= STANDS_OUT * one.behind_ns else "",
            f"At the speed of the next slowest rank, the job would save {cost(one.lost_ns, log)}.",
        ),
        saving=saved(one.lost_ns, EVENED if one.on_device else CPU_EVENED),
        change=f"Check what rank {one.rank} does more than the others, and its machine: other processes, clocks,"
        " storage.",
    )


EXAMPLES = [
    Fires(
        """
        500 steps of 80, forward 20, backward 60
        ---
        500 steps of 80, forward 40, backward 40
        """,
        saving_ms=(4000, 10_000),
    ),
    Silent(
        """
        500 steps of 80, forward 20
        ---
        500 steps of 80, forward 20
        """
    ),
]
