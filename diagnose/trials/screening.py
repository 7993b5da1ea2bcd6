"""Fixes that are switches, measured in one running process of the user's command."""

import math
import signal
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from diagnose import statistics as looks
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.screening import FEWEST_PAIRS, LIVE, RAISES, log_ratios
from diagnose.contracts.trials import Both, Numbers, Range, Trial, Verdict
from diagnose.statistics import Pair
from diagnose.trace.manifest import RankManifest
from diagnose.trace.measured import Difference, Screened
from diagnose.trials import arms
from diagnose.trials.arms import Size
from diagnose.trials.selection import Candidate

TIMED, TIMED_S = 10, 1.0  # Steps to time before anything is switched, at least, and for how long (our choice).
BLOCK_S = 0.3  # Of a block, at least (trials.md).
BLOCKS = 10  # In which a script ends that a block of BLOCK_S hardly fits into: shorter ones make three pairs (chosen).
PER_SWITCH_S, COMPILING_S = (
    15.0,
    60.0,
)  # One usually takes at most, and more if it compiles (trials.md: 10 s are usual).
BETWEEN_S = 30.0  # More patience with the script between its start and its end (our choice).
LONGER_S = 1.0  # Settling that has to be paid for: less is not told (our choice).
FAILS = "it fails: "  # How it is told that a script ended while a fix was on.

Told = Callable[[Sequence[Screened]], None]
_SCREENED = msgspec.json.Decoder(tuple[Screened, ...])


class Start(NamedTuple):
    """What a process begins with."""

    fixes: Sequence[str] = ()  # In force all the time.
    block_s: float = BLOCK_S  # Of a block, at least.
    earlier: Sequence[Pair] = ()  # Of the first switch, by processes that have ended.


FROM_THE_START = Start()


class Screen(Struct, frozen=True):
    """What one process has measured."""

    screened: tuple[Screened, ...]  # Of several ranks the slowest of each block.
    failed: arms.Void | None  # Why it ended before all was measured; None if it did not.
    interrupted: bool
    ended_after_s: float = 0.0  # Of steps, a script that ended by itself before all was measured; 0 if it did not.


def seconds_of(candidate: Candidate) -> float:
    """Seconds that screening it usually takes at most."""
    return PER_SWITCH_S + COMPILING_S * candidate.compiles


def screen(
    command: Sequence[str],
    folder: Path,
    size: Size,
    some: Sequence[Candidate],
    screen_s: float,
    told: Told,
    written: Sequence[str] = (),
    start: Start = FROM_THE_START,
) -> Screen:
    """Measure switches in one process, in a folder that is new. Raises CannotTry if the command does not start."""
    plan = Plan(
        warmup=size.warmup,
        steps=1,
        timed=TIMED,
        timed_s=TIMED_S if start.block_s == BLOCK_S else 0.0,
        fixes=tuple(start.fixes),
        switches=tuple(one.trial for one in some),
        screen_s=screen_s,
        block_s=start.block_s,
        earlier=tuple(start.earlier),
        written=tuple(written),
    )
    limit_s = arms.PATIENCE * max(size.expected_s, arms.LEAST_S) + arms.UNKNOWN_S + 2 * screen_s + BETWEEN_S
    limit_s += arms.COMPILING_S * any(one.compiles for one in some)
    seen: tuple[Screened, ...] = ()  # Of a process that is killed nothing else is left.

    def look(part: Part) -> None:
        nonlocal seen
        with suppress(OSError, msgspec.MsgspecError):
            seen = _SCREENED.decode((part.work / LIVE).read_bytes())
            told(seen)

    recorded = arms.run_quietly(command, folder, plan, start.fixes, limit_s, look)
    ranks = recorded.manifest.ranks
    found = _slowest([rank.screened for rank in ranks if rank.screened is not None]) or seen
    interrupted = bool({signal.SIGINT, signal.SIGTERM} & set(recorded.signals))
    if interrupted or any(rank.ended == "recorded" for rank in ranks):
        return Screen(found, None, interrupted)
    failed = arms.void(recorded, limit_s)
    return Screen(found, failed, False, _made_s(ranks) if failed.made else 0.0)


def _made_s(ranks: Sequence[RankManifest]) -> float:
    """For how many seconds the script made steps, on the rank with most; never 0, even if none were timed."""
    timed = [(rank.steps_made or 0, rank.unprofiled.wall_ns) for rank in ranks if rank.unprofiled is not None]
    return max((made * statistics.fmean(wall_ns) for made, wall_ns in timed), default=1.0) / 1e9


def on_top_of(base: Sequence[str], one: Screened) -> Screened:
    """The measurement as one on top of `base`, settings in force since the process began: `alone` becomes `added`."""
    return msgspec.structs.replace(one, alone=(), added=one.added or one.alone, on_top_of=(*base, *one.on_top_of))


def blamed(one: Screened, failed: arms.Void) -> Screened:
    """The measurement as void, since the script ended while the switch was on."""
    void = f"{FAILS}{str(failed).rstrip('.')}"
    return msgspec.structs.replace(one, void=void, out_of_memory=failed.verdict == "out_of_memory")


def _slowest(ranks: Sequence[tuple[Screened, ...]]) -> tuple[Screened, ...]:
    """Switches as all ranks measured them: of each block the time of the slowest rank."""
    return tuple(
        msgspec.structs.replace(
            some[0],
            injected=next((one.injected for one in some if one.injected), ()),
            alone=_slowest_pairs([one.alone for one in some]),
            added=_slowest_pairs([one.added for one in some]),
        )
        for some in zip(*ranks, strict=False)
    )


def _slowest_pairs(ranks: Sequence[tuple[Pair, ...]]) -> tuple[Pair, ...]:
    """The longest times of each pair of blocks, without and with the fix; only pairs that all ranks have."""
    return tuple(
        (max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)) for pairs in zip(*ranks, strict=False)
    )


def so_far(one: Screened, all_of_them: Sequence[Screened]) -> tuple[Range | None, Range | None]:
    """Speed-ups of a switch alone and on top of those kept; None where there are fewer than FEWEST_PAIRS pairs."""
    known = [pairs for other in all_of_them for pairs in (other.alone, other.added)]

    def found(pairs: Sequence[tuple[float, float]]) -> Range | None:
        if len(pairs) < FEWEST_PAIRS:
            return None
        others = [log_ratios(other) for other in known if other is not pairs and len(other) >= FEWEST_PAIRS]
        return Range(*looks.speed_up(log_ratios(pairs), others=others))

    return found(one.alone), found(one.added)


def trial_of(
    candidate: Candidate, one: Screened, all_of_them: Sequence[Screened], kept: dict[str, int], why: str = ""
) -> Trial:
    """What was found of a fix. `kept`: names of settings -> numbers of findings; `why`: it ended early, a sentence."""
    alone, added = so_far(one, all_of_them)
    verdict, because = _verdict(one, alone, added, why, judged=candidate.is_judged)
    return Trial(
        rule=candidate.rule,
        numbers=(candidate.number,),
        fix=candidate.fix.do,
        trial=(candidate.trial,),
        injected="; ".join(one.injected) or None,
        predicted=candidate.predicted,
        measured=alone,
        measured_by="blocks",
        added=added,
        on_top_of=tuple(kept[name] for name in one.on_top_of if name in kept) if added else (),
        outputs=_numbers(one.outputs),
        updates=_numbers(one.updates),
        pairs=len(one.added or one.alone),
        steps=one.steps,
        losses=None,
        losses_compared=0,
        peak_bytes=Both(*one.peak_bytes) if len(one.peak_bytes) == 2 and all(one.peak_bytes) else None,
        warmup_s=Both(0.0, one.settling_s) if one.settling_s >= LONGER_S else None,
        pays_after_steps=_pays_after(one) if verdict == "keep" else None,
        verdict=verdict,
        why=because,
    )


def _verdict(one: Screened, alone: Range | None, added: Range | None, why: str, judged: bool) -> tuple[Verdict, str]:
    """(verdict, why) of a switch; a why only where it is not decided. `judged`: its changes of numbers are accepted."""
    if one.out_of_memory:
        return "out_of_memory", f"{one.void[0].upper()}{one.void[1:]}."
    if one.void:
        failed: Verdict = "inconclusive" if one.void.startswith((FAILS, RAISES)) else "not_injected"
        return failed, f"{one.void[0].upper()}{one.void[1:]}."
    decisive = added or alone
    kinds = {found.kind for found in (one.outputs, one.updates) if found is not None}
    if "differ" in kinds and not judged and alone is not None:
        return "changes_numbers", ""
    verdict = "inconclusive" if decisive is None else looks.verdict(decisive.low, decisive.high)
    pairs = len(one.added if added else one.alone)
    why = why or f"Its share of the budget ended after {pairs} pairs of blocks."
    return verdict, why if verdict == "inconclusive" else ""


def _numbers(found: Difference | None) -> Numbers | None:
    return None if found is None else msgspec.convert(msgspec.to_builtins(found), Numbers)


def _pays_after(one: Screened) -> int | None:
    """Steps after which a switch has made up for settling; None if that was short, or steps are no shorter."""
    pairs = one.added or one.alone
    saved_ns = statistics.fmean(without - changed for without, changed in pairs)
    if one.settling_s < LONGER_S or saved_ns <= 0:
        return None
    return math.ceil(one.settling_s * 1e9 / saved_ns)
