"""Screening: settings that are switches are turned on and off in one running training, block by block, and measured."""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import injection
from .arm import Called, Difference, Peak, SameBatch, update_compared
from .clocks import LONG, Clock, Cycle
from .interruptions import COLLECTION, SAVE
from .place import Agreement, Course
from .plan import Plan
from .script_files import standalone
from .steps import Epochs

if TYPE_CHECKING:
    from diagnose import statistics as looks
    from diagnose.statistics import Interval, Pair
else:
    looks = standalone("statistics")

LEAST_STEPS = 5  # Of a block (docs/trying-fixes.md).
LEAST_OF_COLLECTIONS_S = 0.6  # Of a block where collections of garbage are what is measured: they are seldom (chosen).
FEWEST_PAIRS = 3  # Of blocks, before the first look: the spread of fewer is not known (chosen).
SHARES = 1.5  # So many times an equal share of the remaining time one switch may take (chosen).
MOST_REPEATS = 2  # Of a disturbed block, see `_Block.fault` (chosen).
COMPARED = 3  # Steps whose median is compared with that of as many before, to see if they still get faster (chosen).
STILL_FASTER = 0.05  # Share by which it is lower if they do (chosen).
MOST_SETTLING, MOST_SETTLING_S = 40, 20.0  # Steps, and time after the first two, in which a switch settles (chosen).
SETTLING_OF_RANKS = 8  # Steps in which a switch settles on several ranks, which all have to count alike (chosen).
COLLECTED = 0.02  # Share of a block that collections of garbage may take without a fault (chosen).
PAUSED = 0.05  # Share of a block that steps of another kind may add without a fault (chosen).
LIVE = "screening.json"  # File of the part's working folder with all results so far.
RAISES = "with it PyTorch raises "  # How `Screened.void` begins for such a switch.
SEED = 20261127  # Of the order of blocks, which has to be the same on all ranks.

Stepped = Callable[[], Sequence[Any]]  # Optimizers that stepped, where that is known.


@dataclass
class Screened:
    """A switch and what has been measured of it by now: `Screened` in the manifest."""

    name: str
    injected: list[str] = field(default_factory=list)  # Where it took effect.
    void: str = ""  # A clause on why it could not be measured here; empty if it could.
    out_of_memory: bool = False
    alone: list[Pair] = field(default_factory=list)  # Step times (without, with) of blocks with no other switch on.
    added: list[Pair] = field(default_factory=list)  # The same with those on that were kept before.
    on_top_of: list[str] = field(default_factory=list)  # Their names.
    steps: int = 0  # Of a block, at least.
    settling_s: float = 0.0  # By which the first steps, and a forward pass before, took longer: compiling, mostly.
    outputs: Difference | None = None
    updates: Difference | None = None
    peak_bytes: list[int] = field(default_factory=list)  # Without and with it; empty where it is not known.
    repeated_for: dict[str, int] = field(default_factory=dict)  # Fault of a block -> blocks repeated for it.
    seconds: float = 0.0  # That screening it took.
    kept: bool = False  # It made steps faster, and stays on.
    ended: bool = False  # Its screening is over.
    is_on: bool = False  # While blocks with it run: an error that ends the script then is its error.


class Screening:
    """Screens the switches of a plan in one process; `course` is part of a session's course."""

    def __init__(
        self,
        plan: Plan,
        ranks: Agreement,
        number: Callable[[], int],
        stepped: Stepped,
        epochs: Epochs,
        cycle: Cycle,
        live: Path | None,
    ) -> None:
        """`number()`: of the last step. `stepped()`: the optimizers. `live`: a file for results so far, None: none."""
        self._limit_s, self._block_s = plan.screen_s, plan.block_s
        self._ranks, self._number, self._stepped = ranks, number, stepped
        self._epochs, self._cycle, self._live = epochs, cycle, live
        self._screened = [Screened(name) for name in plan.switches]
        self._screened[0].alone += [(without, changed) for without, changed in plan.earlier]
        self._switches: dict[str, Any] = {}
        self._on: set[str] = set()
        self._batch: SameBatch | None = None
        self._order = random.Random(SEED)
        self._agreed = 0  # Times that ranks have agreed, for the name of the next message.
        self._usual_ns = dict[tuple[str, ...], float]()  # A step without what is being measured, by what is kept.
        self._blocks = list[tuple[_Block, _Block]]()  # Pairs without and with the switch that is being measured.
        self._steps_of = dict[bool, int]()  # Of blocks without and with the switch that is being measured.

    def found(self) -> list[dict[str, Any]]:
        """What is known of each switch by now, by the fields of `Screened`."""
        return [asdict(one) for one in self._screened]

    def course(self) -> Course[None]:
        """Screen all switches in order, for as long as the time lasts; in the end all are off."""
        begun_s, kept = time.monotonic(), list[Screened]()
        model = yield from self._model()
        try:
            for place, one in enumerate(self._screened):
                left_s = self._limit_s - (time.monotonic() - begun_s)
                if not (yield from self._agree(int(left_s > 0))):
                    break
                since_s = time.monotonic()
                self._publish()
                share_s = SHARES * left_s / (len(self._screened) - place)
                yield from self._try(one, model, kept, since_s + min(left_s, share_s))
                one.seconds, one.ended, one.is_on = time.monotonic() - since_s, True, False
                if one.kept:
                    kept.append(one)
                self._publish()
        finally:
            self._turn(())

    def _model(self) -> Course[Any]:
        """Find the largest model that a step calls, in one step; keep its batch of the next. None if none is called."""
        called = Called()
        try:
            yield
        finally:  # Also where the training ends here.
            model = called.largest()
        if model is None:
            return None
        batch = SameBatch(model)
        yield
        self._batch = batch if batch.close() else None
        return model

    def _try(self, one: Screened, model: Any, kept: Sequence[Screened], until_s: float) -> Course[None]:
        """Measure a switch alone, then on top of those kept; `one.kept` if both are faster. All ranks decide alike."""
        switch, one.void = injection.switch(one.name, model, self._stepped())
        if not (yield from self._agree(int(switch is not None))):
            return
        if switch is None:  # The first rank has it all the same, and all compute alike.
            switch = standalone("fixes.interfaces").Switch(turn=lambda on: None, why_none=str)
        self._switches[one.name] = switch
        self._numbers(one, switch)
        if not (yield from self._agree(int(not one.void and not one.out_of_memory))):
            return
        begun_s = time.monotonic()
        faster = yield from self._measured(one, switch, [], one.alone, until_s)
        faster = bool((yield from self._agree(int(faster))))
        if faster and kept:
            one.on_top_of = [other.name for other in kept]
            faster = yield from self._measured(
                one, switch, one.on_top_of, one.added, until_s + time.monotonic() - begun_s
            )
        kinds = {found.kind for found in (one.outputs, one.updates) if found is not None}
        changed = injection.may_not_change(one.name) and "differ" in kinds
        one.kept = bool((yield from self._agree(int(faster and not one.void and not changed))))
        self._turn([other.name for other in (*kept, *[one] * one.kept)])

    def _numbers(self, one: Screened, switch: Any) -> None:
        """Compare outputs on the kept batch, and updates, without and with the switch; what fails is in `one.void`."""
        self._turn(())
        begun_s = time.perf_counter()
        try:
            if self._batch is not None:
                one.outputs = self._batch.compared(lambda on: self._turn([one.name] * on))
                if switch.changes_outputs and one.outputs.largest == 0:
                    one.void = "the model's results are bit-identical with it: it is already in effect"
            one.settling_s = time.perf_counter() - begun_s
            if switch.of_optimizer is not None:
                one.updates = update_compared(self._stepped(), switch.of_optimizer)
        except Exception as error:
            one.out_of_memory = type(error).__name__ == "OutOfMemoryError"
            one.void = f"{RAISES}{type(error).__name__}: {str(error)[: injection.MOST_SAID]}"
            self._turn(())

    def _measured(self, one: Screened, switch: Any, base: list[str], pairs: list[Pair], until_s: float) -> Course[bool]:
        """Measure blocks without and with the switch, on top of `base`, and add to `pairs`; whether it is faster."""
        if tuple(base) not in self._usual_ns:
            self._usual_ns[tuple(base)] = yield from self._settled([*base], one, counts=False)
        without_ns = self._usual_ns[tuple(base)]
        with_ns = yield from self._settled([*base, one.name], one, counts=not base)
        one.void = one.void or switch.why_none()
        one.is_on = False
        least_ns = 1e9 * (LEAST_OF_COLLECTIONS_S if switch.collects else self._block_s)
        for on, usual_ns in ((False, without_ns), (True, with_ns)):
            steps = self._cycle.whole(max(LEAST_STEPS, math.ceil(least_ns / max(usual_ns, 1))))
            self._steps_of[on] = yield from self._agree(steps)
        one.steps = min(self._steps_of.values())
        self._blocks = []
        if not (yield from self._agree(int(not one.void))):
            return False
        earlier = tuple(pairs)
        while True:
            yield from self._pair(one, switch, base, until_s)
            waited = [(without.waited, changed.waited) for without, changed in self._blocks]
            steps_ns = [(without.step_ns, changed.step_ns) for without, changed in self._blocks]
            pairs[:] = [*earlier, *looks.wait_alike(steps_ns, waited)]
            self._publish()
            if len(pairs) < FEWEST_PAIRS and not (self._ranks.alone and (one.void or until_s < time.monotonic())):
                continue
            over = one.void or len(pairs) < FEWEST_PAIRS or until_s < time.monotonic()
            if not (yield from self._agree(int(not (over or looks.enough(*self._interval(pairs)[::2]))))):
                break
        if one.void or len(pairs) < FEWEST_PAIRS:
            return False
        return self._interval(pairs).low > 1

    def _interval(self, pairs: Sequence[Pair]) -> Interval:
        """The speed-up with its interval; pairs of all other switches help to estimate how measurements spread."""
        others = [
            log_ratios(other)
            for one in self._screened
            for other in (one.alone, one.added)
            if other is not pairs and len(other) >= FEWEST_PAIRS
        ]
        return looks.speed_up(log_ratios(pairs), others=others)

    def _pair(self, one: Screened, switch: Any, base: Sequence[str], until_s: float) -> Course[None]:
        """Measure a block without and a block with the switch, in random order; disturbed blocks are repeated."""
        blocks, wanted = dict[bool, _Block](), self._order.sample((False, True), 2)
        faults = dict[bool, str]()
        for _ in range(1 + MOST_REPEATS * self._ranks.alone):
            for on in wanted:
                if why := faults.pop(on, ""):
                    one.repeated_for[why] = one.repeated_for.get(why, 0) + 1
                blocks[on] = yield from self._block(one, [*base, *[one.name] * on])
                if on and (why := switch.why_none()):
                    one.void = why
            one.is_on = False
            for on in wanted:
                blocks[on].read()
            faults = {on: blocks[on].fault(self._epochs, self._cycle, switch.collects) for on in wanted}
            wanted = [on for on in wanted if faults[on]]
            if not wanted or until_s < time.monotonic():
                break
        self._blocks.append((blocks[False], blocks[True]))
        one.injected = [] if one.void else injection.lines(one.name) or [switch.what or one.name]

    def _block(self, one: Screened, on: Sequence[str]) -> Course[_Block]:
        """Steps timed with the switches `on`, and their peak memory; the step in which they are turned is left out."""
        self._turn(on)
        one.is_on = one.name in on
        yield  # The step in which it is turned is of neither side.
        block = _Block(self._number() + 1)
        for _ in range(self._steps_of[one.is_on]):
            yield
            block.clock.tick()
        if (peak := block.peak.found()) is not None:
            one.peak_bytes = one.peak_bytes or [0, 0]
            one.peak_bytes[one.is_on] = max(one.peak_bytes[one.is_on], peak)
        return block

    def _settled(self, on: Sequence[str], one: Screened, counts: bool) -> Course[float]:
        """Turn the switches `on`; a step's usual ns once steps no longer get faster. `counts`: in `one.settling_s`."""
        self._turn(on)
        one.is_on = one.name in on
        clock = Clock(self._number() + 1)
        while True:
            yield
            clock.tick()
            if self._has_settled(clock):
                break
        times = clock.wall_ns()
        usual = statistics.median(times[-COMPARED:])
        if counts:
            one.settling_s += max(0.0, sum(times) - usual * len(times)) / 1e9
        return usual

    def _has_settled(self, clock: Clock) -> bool:
        """Whether steps no longer get faster, or have been waited for as long as is allowed."""
        if not self._ranks.alone:
            return clock.steps >= SETTLING_OF_RANKS
        if clock.steps < 2 * COMPARED:
            return False
        times = clock.wall_ns()
        if clock.steps >= MOST_SETTLING or sum(times[2:]) > MOST_SETTLING_S * 1e9:
            return True
        before, last = times[-2 * COMPARED : -COMPARED], times[-COMPARED:]
        return statistics.median(last) >= (1 - STILL_FASTER) * statistics.median(before)

    def _turn(self, on: Sequence[str]) -> None:
        """Turn on the switches of these names, and all others off."""
        for name in self._on - set(on):
            self._switches[name].turn(False)
        for name in on:
            if name not in self._on:
                self._switches[name].turn(True)
        self._on = set(on)

    def _agree(self, own: int) -> Course[int]:
        """The leader's `own`, which all ranks get at the same step; at once, without a step, if there is one rank."""
        if self._ranks.alone:
            return own
        self._agreed += 1
        return (yield from self._ranks.begin(f"screening{self._agreed}", own))

    def _publish(self) -> None:
        """Write the results so far to the live file, whole or not at all."""
        if self._live is not None:
            with suppress(OSError):
                written = self._live.with_suffix(".new")
                written.write_text(json.dumps(self.found()), encoding="utf-8")
                written.replace(self._live)


class _Block:
    """Steps without, or with, a switch. `read` waits for the device, so it is called after both blocks of a pair."""

    def __init__(self, first_step: int) -> None:
        self.peak, self.clock, self._first = Peak(), Clock(first_step, by_phase=True), first_step
        self.step_ns = 0.0
        self.waited = 0.0  # Share of its time in which its thread could run and got no CPU; 0 where a device is timed.

    def read(self) -> None:
        """Compute the step times; waits for the device. To be called before `fault`, and before `step_ns` is read."""
        timed: Any = self.clock.timed()
        self._times = timed["device_ns"] or timed["wall_ns"]
        self._phases = timed["phases_ns"]
        self.step_ns = statistics.fmean(self._times)
        self.waited = 0.0 if timed["device_ns"] else looks.waited_share(timed["waited_ns"], self.step_ns)

    def fault(self, epochs: Epochs, cycle: Cycle, collects: bool) -> str:
        """What disturbed this block, so that it must be repeated: save, epoch, collection or pause; "" for nothing."""
        known: dict[str, Any] = epochs.found() or {}
        began = known.get("began", ())
        last = self._first + len(self._times) - 1
        often = cycle.epoch or 2 * len(self._times) >= (known.get("steps") or math.inf)  # Each block has some.
        turned = not often and any(self._first <= number <= last + 1 for number in began)
        usual = statistics.median(self._times)
        paused = sum(one - usual for one in self._times if one > LONG * usual) if cycle.every == 1 else 0.0
        long = paused > PAUSED * sum(self._times)
        collected = not collects and sum(self._phases.get(COLLECTION, ())) > COLLECTED * sum(self._times)
        saved = not often and any(self._phases.get(SAVE, ()))
        fell = {"save": saved, "epoch": turned, "collection": collected, "pause": long}
        return next((what for what, did in fell.items() if did), "")


def log_ratios(pairs: Sequence[Pair]) -> list[float]:
    """The natural logarithm of each pair's speed-up: of the time without over the time with."""
    return [math.log(without / changed) for without, changed in pairs]
