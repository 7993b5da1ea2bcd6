"""The order of measuring: switches in blocks of one running process, other fixes in pairs of runs on top of those that
these kept, and all that is kept in pairs of runs against the script as it is, until enough is known."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from diagnose import statistics as looks
from diagnose.capture.agent.screening import FEWEST_PAIRS
from diagnose.contracts.trials import Both, GpuState, Range, Trial, Verdict
from diagnose.statistics import CPU, Spread, wait_alike
from diagnose.trace import units
from diagnose.trace.measured import Screened
from diagnose.trials import arms, screening
from diagnose.trials.arms import Arm, Size, Void
from diagnose.trials.selection import Candidate, CannotTry, named

NOTHING = "The unmodified script could not be measured."
SPENT = "The budget ran out. Raise --budget."
LEAST_FOR_INTERVAL = 2  # Pairs.
FEWEST_STEPS = 5  # Of a script that can be timed.
COOLING_S = 10.0  # Before a run is repeated in which heat held the GPU back (our choice).
MOST_REPEATS = 3  # Of such runs; heat that stays belongs to the machine (our choice).
LONGER_S = 1.0  # By which a start has to be longer to count: starts of Python differ as well (our choice).


class _Spent(Exception):
    """The budget does not last for another pair; the message is a sentence."""


@dataclass
class Bench:
    """Runs arms of one command, one after the other, within a budget."""

    command: Sequence[str]
    folder: Path  # For the working files of arms.
    size: Size
    least_pairs: int
    budget_s: float
    say: Callable[[str], None]  # Told before each run.
    without: list[Arm] = field(default_factory=list)  # Arms of the script as it is.
    trials: list[Trial] = field(default_factory=list)
    repeated: int = 0  # Runs, as heat held the GPU back in them.
    held_back: int = 0  # Runs that count all the same.
    written: Sequence[str] = ()  # What the recorded run has written.
    screens: Callable[[Sequence[Screened]], None] = lambda found: None  # Told now and then while a process screens.
    in_blocks: list[Trial] = field(default_factory=list)  # Of switches.
    base: list[Candidate] = field(default_factory=list)  # Kept by screening: runs of pairs have them on both sides.
    together: Trial | None = None  # All that is kept, against the script as it is.
    between: Spread = CPU  # How equal runs of such a training usually differ.
    tried: list[Sequence[Candidate]] = field(default_factory=list)  # By each of `trials`.
    _bases: list[list[Candidate]] = field(default_factory=list)  # Of each of `trials`.
    spent: set[int] = field(default_factory=set)  # Numbers, from 0, of trials that the budget has ended.
    _pairs_of: list[list[tuple[Arm, Arm]]] = field(default_factory=list)  # Of each trial.
    _unpaired: Arm | None = None  # The script as it is, before the first pair.
    _screened: list[Screened] = field(default_factory=list)
    _count: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Run the script as it is, which sizes all other runs. Raises CannotTry if it cannot be timed."""
        self.say("running unmodified script: run 1")
        try:
            self._unpaired = self._sized(())
        except Void as error:
            raise CannotTry(f"{NOTHING} {error}") from error
        self.without.append(self._unpaired)

    def screen(self, some: Sequence[Candidate], limit_s: float) -> list[Candidate]:
        """Measure switches in one process; if one of them, or its own end, ends the script, the rest in another one.
        Returns those that could not be measured so. Raises CannotTry if nothing could."""
        left, until_s, block_s = list(some), time.monotonic() + limit_s, screening.BLOCK_S
        begun: Screened | None = None  # The first of them, where a process has ended while it was measured.
        while left and (left_s := until_s - time.monotonic()) > 0:
            self._count += 1
            base = [one.trial for one in self.base]
            earlier = () if begun is None else begun.added if base else begun.alone
            found = screening.screen(
                self.command,
                self.folder / f"arm{self._count}",
                self.size,
                left,
                left_s,
                self.screens,
                self.written,
                screening.Start(base, block_s, earlier),
            )
            if not found.screened and found.failed is not None and not (self.in_blocks or found.ended_after_s):
                raise CannotTry(f"{NOTHING} {found.failed}")
            ended, begun, blamed = self._taken(left, found, begun)
            if found.interrupted:
                raise KeyboardInterrupt
            left = left[ended:]
            if not (blamed or found.ended_after_s):
                break
            pairs = 0 if begun is None else len(begun.added or begun.alone)
            if found.ended_after_s and not ended and pairs < len(earlier) + FEWEST_PAIRS:
                shorter_s = min(block_s, found.ended_after_s / screening.BLOCKS)
                if pairs <= len(earlier) and (block_s < screening.BLOCK_S or shorter_s == block_s):
                    break
                block_s = shorter_s
        if begun is not None and (begun.alone or begun.added):
            self._keep(left.pop(0), begun, SPENT)
        return left

    def _taken(
        self, some: Sequence[Candidate], found: screening.Screen, earlier: Screened | None
    ) -> tuple[int, Screened | None, bool]:
        """Keep what a process has measured. `earlier`: of the first switch, by processes before. Returns how many were
        kept, the one that was being measured when the script ended by itself, and whether a switch has ended it."""
        base, blamed, under_way = [one.trial for one in self.base], False, None
        begun = [one for one in found.screened if one.ended or one.alone or one.is_on]
        if base:  # In force since the process began.
            begun = [screening.on_top_of(base, one) for one in begun]
        if earlier is not None and begun:
            steps, alone = begun[0].steps or earlier.steps, earlier.alone if base else begun[0].alone
            begun[0] = msgspec.structs.replace(begun[0], steps=steps, alone=alone)
        if begun and found.ended_after_s and not begun[-1].ended:
            under_way = begun.pop()
        elif found.ended_after_s and not begun:
            under_way = earlier
        elif begun and begun[-1].is_on and found.failed is not None:
            begun[-1], blamed = screening.blamed(begun[-1], found.failed), True
        why = "Interrupted." if found.interrupted else str(found.failed or SPENT)
        for candidate, one in zip(some, begun, strict=False):
            self._keep(candidate, one, "" if one.ended else why)
        return len(begun), under_way, blamed

    def _keep(self, candidate: Candidate, one: Screened, why: str) -> None:
        """Note a switch that was measured in blocks; if it is kept, what follows is measured on top of it."""
        self._screened.append(one)
        numbers = {other.trial: other.number for other in (*self.base, candidate)}
        trial = screening.trial_of(candidate, one, self._screened, numbers, why)
        self.in_blocks.append(trial)
        if trial.verdict == "keep":
            self.base = [*self.base, candidate]

    def in_runs_again(self, some: Sequence[Candidate]) -> list[Candidate]:
        """Switches that gained nothing in blocks, but may in other processes: to be measured in runs, as many as the
        budget has time for. Their trials in blocks are dropped."""
        paid = {one.number for one in self.base}
        again = [one for one in some if one.varies_by_process and one.number not in paid]
        again = again[: int(self.left_s / (4 * self.least_pairs * self.size.expected_s))]
        numbers = {(one.number,) for one in again}
        self.in_blocks = [trial for trial in self.in_blocks if trial.numbers not in numbers]
        return again

    def confirm(self, some: Sequence[Candidate], predicted: Range | None) -> Trial:
        """Measure all that is kept against the script as it is; what came of it stays even if it is interrupted."""
        self.base = []
        try:
            self.measure(some, predicted)
        finally:
            self.together = msgspec.structs.replace(self.trials.pop(), confirms=True)
        return self.together

    def measure(self, some: Sequence[Candidate], predicted: Range | None, rest: int = 0) -> Trial:
        """Try fixes on top of those in `base`; what came of it is kept even if it is interrupted.
        `rest`: how many trials are to come, which get as much of the budget each."""
        self._pairs_of.append([])
        self.tried.append(some)
        self._bases.append(self.base)
        self.trials.append(self._trial(some, predicted, (), "inconclusive", "Interrupted."))
        return self.go_on(len(self.trials) - 1, rest)

    def go_on(self, number: int, rest: int = 0) -> Trial:
        """More pairs of the trial of this number, from 0, where others have left something of the budget."""
        some, predicted, pairs = self.tried[number], self.trials[number].predicted, self._pairs_of[number]
        self.base = self._bases[number]
        verdict: Verdict | None = None
        why = "Interrupted."
        self.spent.discard(number)
        try:
            why = self._pairs(some, pairs, self.left_s * rest / (rest + 1))
        except _Spent as spent:
            self.spent.add(number)
            why = str(spent)
        except Void as error:
            why, verdict = str(error), error.verdict
        finally:
            self.trials[number] = self._trial(some, predicted, pairs, verdict, why)
        return self.trials[number]

    def _pairs(self, some: Sequence[Candidate], pairs: list[tuple[Arm, Arm]], rest_s: float) -> str:
        """Fill `pairs` until enough is known. Returns a sentence on why it ended before that, if it did.
        `rest_s`: what others are to have of the budget; only the least pairs may use that as well. Raises _Spent."""
        with_first = random.random() < 0.5 and self._unpaired is None
        while True:
            early, pair_s = len(pairs) < self.least_pairs, 2 * self.size.expected_s
            if self.left_s - (0 if early else rest_s) < pair_s:
                raise _Spent(f"The budget ran out after {len(pairs)} pairs. Raise --budget.")
            pairs.append(self._pair(some, len(pairs) + 1, with_first))
            with_first = not with_first
            if len(pairs) >= self.least_pairs:
                measured = self._interval(pairs)
                if looks.enough(measured.low, measured.high):
                    return ""
                if (more_s := pair_s * looks.pairs_to_go(measured, len(pairs))) > self.left_s:
                    return f"A decision needs about {units.long_duration(1e9 * more_s)} more: raise --budget."

    def _pair(self, some: Sequence[Candidate], pair: int, with_first: bool) -> tuple[Arm, Arm]:
        """A run without and one with the fixes, in this order; `with_first`: which of them runs first."""
        name = " + ".join(f"{one.rule} ({named(one.trial)})" for one in some)
        self.say(f"running {name}: pair {pair}")
        base, both = [one.trial for one in self.base], dict[bool, Arm]()
        begun = None if base else self._unpaired
        if begun is not None:
            both[False], self._unpaired = begun, None
        for with_fix in (with_first, not with_first):
            try:
                both[with_fix] = both.get(with_fix) or self._sized([*base, *(one.trial for one in some if with_fix)])
            except Void as error:
                raise error if with_fix else Void("inconclusive", f"Without the fix: {error}") from error
        if not base and begun is None:
            self.without.append(both[False])
        return both[False], both[True]

    def _sized(self, fixes: Sequence[str]) -> Arm:
        """A run of `size` with these settings. The first sets that size; a script with fewer steps is timed whole."""
        try:
            arm = self._run(fixes)
        except Void as error:
            if error.made < FEWEST_STEPS or not self.size.warmup:
                raise
            self.size = arms.whole_size(self.size, error.made)
            return self._sized(fixes)
        if self.size.timed_s > 0:
            self.size = arms.next_size(self.size, arm)
        return arm

    def _run(self, fixes: Sequence[str]) -> Arm:
        """A run with these settings; repeated after a pause if heat has throttled the GPU, but MOST_REPEATS in all."""
        self._count += 1
        arm = arms.run_arm(self.command, self.folder / f"arm{self._count}", self.size, fixes, self.written)
        if not arm.held_back_by:
            return arm
        if self.repeated < MOST_REPEATS:
            self.repeated += 1
            time.sleep(COOLING_S)
            return self._run(fixes)
        self.held_back += 1
        return arm

    def _interval(self, pairs: Sequence[tuple[Arm, Arm]]) -> looks.Interval:
        """The speed-up of a trial's pairs with its interval; pairs of other trials help to tell how runs differ."""
        others = [_log_ratios(some) for some in self._pairs_of if some is not pairs]
        return looks.speed_up(_log_ratios(pairs), self.between, others)

    @property
    def blocks_as_it_is(self) -> list[float]:
        """Mean times of a step in blocks without any fix, in ns."""
        return [without for one in self._screened for without, _ in one.alone]

    @property
    def left_s(self) -> float:
        """Seconds that are left of the budget."""
        return self.budget_s - (time.monotonic() - self._begun_s)

    def _trial(
        self,
        some: Sequence[Candidate],
        predicted: Range | None,
        pairs: Sequence[tuple[Arm, Arm]],
        verdict: Verdict | None,
        why: str,
    ) -> Trial:
        """The result of trying these fixes together; `verdict`: None to conclude it from the pairs."""
        measured = Range(*self._interval(pairs)) if len(pairs) >= LEAST_FOR_INTERVAL else None
        factor, last = arms.batch_factor([one.trial for one in some]), pairs[-1][1] if pairs else None
        numbers = [one.losses for one in ([pair[0] for pair in pairs] if self.base else self.without)[:2]]
        same = arms.compared(numbers[0], numbers[1], last.losses) if last and len(numbers) == 2 else None
        concluded: Verdict = verdict or _verdict(some, measured, same)
        return Trial(
            rule=" + ".join(one.rule for one in some),
            numbers=tuple(one.number for one in some),
            fix=" ".join(one.fix.do for one in some),
            trial=tuple(one.trial for one in some),
            injected="; ".join(line for line in last.injected if line not in pairs[-1][0].injected) if last else None,
            predicted=predicted,
            measured=None if self.base else measured,
            added=measured if self.base else None,
            on_top_of=tuple(one.number for one in self.base) if measured else (),
            pairs=len(pairs),
            steps=last.steps if last else 0,
            losses=same,
            losses_compared=min(map(len, (*numbers, last.losses))) if same and last else 0,
            peak_bytes=_both(pairs, lambda one: one.peak_bytes),
            warmup_s=_both(pairs, lambda one: one.warmup_s),
            pays_after_steps=_pays_after(pairs) if concluded == "keep" and factor == 1 else None,
            batch_factor=factor,
            gpu=_gpu(pairs),
            verdict=concluded,
            why="" if concluded in looks.DECIDED else why,
        )


def _log_ratios(pairs: Sequence[tuple[Arm, Arm]]) -> list[float]:
    """The logarithm of each pair's speed-up, with both arms waiting for the CPU alike."""
    steps_ns = [(without.step_ns, changed.step_ns) for without, changed in pairs]
    waited = [(without.waited, changed.waited) for without, changed in pairs]
    return [math.log(without / changed) for without, changed in wait_alike(steps_ns, waited)]


def _gpu(pairs: Sequence[tuple[Arm, Arm]]) -> GpuState | None:
    clock, temperature, power = (
        _both(pairs, lambda one, name=name: None if one.gpu is None else getattr(one.gpu, name))  # type: ignore[misc]
        for name in ("sm_clock_mhz", "temperature_c", "power_w")
    )
    if clock is temperature is power is None:
        return None
    return GpuState(sm_clock_mhz=clock, temperature_c=temperature, power_w=power)


def _both(pairs: Sequence[tuple[Arm, Arm]], of: Callable[[Arm], float | None]) -> Both | None:
    """The medians without and with the fix; None unless known for all runs."""
    without, changed = ([of(pair[k]) for pair in pairs] for k in (0, 1))
    known = [[one for one in some if one is not None] for some in (without, changed)]
    if not pairs or any(len(some) < len(pairs) for some in known):
        return None
    return Both(statistics.median(known[0]), statistics.median(known[1]))


def _pays_after(pairs: Sequence[tuple[Arm, Arm]]) -> int | None:
    """Steps after which a fix has made up for its longer start; None if the start is no longer, or steps no shorter."""
    step_ns = _both(pairs, lambda one: one.step_ns)
    start_ns = _both(pairs, lambda one: 1e9 * one.warmup_s - one.first_step * one.step_ns)
    if step_ns is None or start_ns is None:
        return None
    longer_ns, shorter_ns = start_ns.with_ - start_ns.without, step_ns.without - step_ns.with_
    return math.ceil(longer_ns / shorter_ns) if longer_ns > LONGER_S * 1e9 and shorter_ns > 0 else None


def _verdict(some: Sequence[Candidate], measured: Range | None, same: str | None) -> Verdict:
    """The verdict by the speed-up, unless losses differ (`same`, as `arms.compared`) and no fix may change them."""
    if same == "differ" and not any(one.is_judged for one in some):
        return "changes_numbers"
    return "inconclusive" if measured is None else looks.verdict(measured.low, measured.high)
