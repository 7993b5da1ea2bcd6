"""The course of a recording in one process: warm up, time without a profiler, record, record with stacks, end."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from . import about
from .alone import tried, uses_gpu
from .backwards import graph_of_a_step
from .board import Board
from .clocks import WINDOW, Clock, Cycle, cycle, long_enough, settling, steady, to_be_timed
from .foreign import turns
from .loaders_measured import SAMPLING
from .nsys import NO_OPS, CannotRecord, tells_ops
from .place import Agreement, Course, Place, RankLost, RecordingEnded, T
from .plan import APART, FILES, GRAPH, LEFT, OF_TIMES, REFUSED, VALUES, Part, Plan
from .recordings import OpenRecording, Recording, Recordings, event_cost, make_room
from .screening import LIVE, Screening, Stepped
from .steps import Epochs
from .threads import CompetingThreads, owner
from .values import values_of_two_steps

DETAILED = 3  # Steps of the attribution recording, of which analysis drops the first (chosen).
ATTEMPTS = 4  # At a recording that the script's own profiler interrupts, or that takes memory as it goes.
MORE, MORE_S = 10, 2.0  # Steps that are timed without the profiler after all recordings, in at most this time (chosen).
FOREIGN_STEPS = 1_000  # Steps to wait for the end of a profiler that the script itself has started (chosen).
NONE, AGAIN = "none", "again"  # What the first rank joins if another command is recorded as it, or an earlier attempt.
_OCCUPIED = "the script records itself with torch.profiler; run it without, or analyze its own trace"


class Session:
    """The recording of one process: a course, `_whole`, that `step_ended(number)`, which never raises, moves on."""

    def __init__(
        self, part: Part, plan: Plan, here: Place, epochs: Epochs | None = None, stepped: Stepped = tuple
    ) -> None:
        self.epochs = epochs or Epochs()
        self.plan, self.here, self._part, self._number = plan, here, part, -1
        self.machine = about.machine()
        self.board = Board(part.work)
        folder = part.shared / f"machine-{self.machine:x}"
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
        self._ranks = Agreement(Board(folder), here, lambda: self._number, self._tell)
        self.refused = False  # The recording is of another run, of which this rank is none.
        self.may_end = True  # All ranks end the run at the same step.
        self.settled = False  # Warm-up is over: what counts as a step must not change any more.
        self.undisturbed = True  # No profiler of ours has been used yet.
        self.found: dict[str, object] = {}  # What has been measured and recorded, by the names of `RankManifest`.
        self.recordings = Recordings(part, plan, here, self.found)
        self.notes: list[str] = []
        self.screening: Screening | None = None
        self._stepped = stepped
        self._finished = self._broken = False  # Nothing is left to do; what is timed or recorded must begin again.
        self._fetched = self._own_ns = self._more = 0  # Bytes a step; Clock.own_ns; steps to time after recordings.
        self._timing: Clock | None = None
        self._cycle = Cycle(plan.every, plan.long_step)
        self._course = self._whole()

    def join(self) -> bool:
        """Claim this rank for the process. False if another process has it, of this command or another."""
        board, name = Board(self._part.shared), f"rank{self.here.rank}"
        first, again = board.claim(name, self._part.name), board.claimed(name) == self._part.name
        if first or again:
            self.board.post(name if first else f"ignored.{os.getpid()}")
        else:
            self._refuse()
        self._ranks.join(self._part.run if first else AGAIN if again else NONE)
        return first

    def _tell(self, what: str, steps: int) -> None:
        if self.board.read(what) is None:
            self.board.post(what, steps=steps)

    def step_ended(self, number: int) -> bool:
        """The step of this number has ended. Returns whether nothing is left to record, so that the run may end."""
        self._broken |= number != self._number + 1
        self._number = number
        try:
            if turns.wanted:
                self.make_way()
            next(self._course, None)
        except Exception as error:
            self.may_end &= not isinstance(error, RankLost)
            self._give_up("Recording stopped", error)
            self._finished = True
        return self._finished

    def note(self, sentence: str) -> None:
        """Have the report tell the user this sentence, once however often it is noted."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def make_way(self) -> None:
        """The script's own profiler is about to start: stop ours, and drop its recording, which is made again later."""
        if self.recordings.abandon():
            self._broken = True
            self.note("The script's own profiler started during a recording, so diagnose recorded again afterwards.")

    def stop(self) -> None:
        """The process ends: keep the open recording if it has two steps, and an arm's step times if they are enough."""
        made = self.recordings.open
        if made is not None and made.clock.steps >= 2 and made.kind not in self.recordings.kept:
            self.recordings.keep(made.clock.steps)
        elif made is not None:
            self.recordings.abandon()
        if self._timing is not None and self._timing.steps >= (self.plan.timed or sys.maxsize):
            self.found["unprofiled"] = self._timing.timed()
        with suppress(ValueError):  # It is at work: a signal has come while a step was ending.
            self._course.close()

    def record_window(self, seconds: float) -> None:
        """Record a stretch of time without steps, while this thread sleeps. Raises what the profiler raises."""
        self.note("diagnose found no steps, so it recorded a stretch of time. Mark steps with diagnose.record.")
        if not turns.take():
            return self.note(f"Recording stopped: {_OCCUPIED}.")
        self.board.post("window", seconds=seconds)
        try:
            recording = self.recordings.start("timing", None, all_threads=True)
        except CannotRecord as error:
            return self.note(f"Recording stopped: {error}.")
        time.sleep(seconds)
        target = self.recordings.file("timing")
        recording.end(target, self._part.work)
        self.found[FILES["timing"]] = target.name

    def _give_up(self, what: str, error: Exception) -> None:
        says_why = isinstance(error, CannotRecord | RankLost)
        self.note(f"{what}: {error}." if says_why else f"{what}: {type(error).__name__}: {error}.")
        tried("the end of a recording", self.recordings.abandon)

    def _whole(self) -> Course[None]:
        """The course of this rank. One that cannot record, or fails, waits for the others to end all the same."""
        run = yield from self._ranks.joined()
        if run == NONE:
            (self._part.shared / f"rank{self.here.rank}.claim").unlink(missing_ok=True)
            self._refuse()
            return
        if run != self._part.run:
            self._ranks.write_elsewhere()
        try:
            yield from self._phases()
        except RecordingEnded:
            self.note("The other ranks ended the recording before this rank started.")
        except RankLost:
            raise
        except Exception as error:
            self._give_up("Recording stopped", error)
        self.board.post(f"done.{os.getpid()}")
        if self._ranks.some_write_elsewhere():
            self.board.post(APART)
        yield from self._ranks.end(self.plan.patience_s, self.note)
        self._finished = True

    def _refuse(self) -> None:
        self.board.post(REFUSED)
        (self._part.work / LEFT).touch()
        self.refused, self.may_end, self._finished = True, False, True

    def _phases(self) -> Course[None]:
        """Warm up, time steps, screen switches if asked to, and make all recordings if this rank is to be recorded."""
        steps = yield from self._ranks.begin("unprofiled", (yield from self._warmed_up()))
        self.settled = True
        self.epochs.steady(2 * WINDOW)
        yield from self._alone("timing without a profiler", self._timed(steps))
        if self.plan.switches:
            yield from self._alone("screening", self._screened())
        if self.plan.timed is not None:
            return
        chosen = yield from self._ranks.choose(self.plan.ranks, self.plan.most_ranks, self._own_ns)
        if not chosen and self._ranks.leads:
            world = self.here.world_size
            self.note(f"No rank is recorded: the run has {world} ranks, but --ranks names {self.plan.ranks}.")
        if self.here.rank not in chosen:
            self.found["recorded"] = False
            return
        self.undisturbed = False
        self.epochs.close()
        recorded = self._cycle.whole(self.plan.steps) + 1
        yield from self._alone("timing recording", self._recorded("timing", recorded))
        if uses_gpu():
            yield from self._alone("recording without ops", self._recorded("device_timing", recorded))
        self.found["event_cost"] = event_cost() if self.plan.tracer == "torch" else None
        with suppress(OSError):  # On a full disk the rest may still be recorded.
            (self._part.work / SAMPLING).touch()
        if self.plan.tracer == "torch" or tells_ops():
            detailed = self._recorded("attribution", min(DETAILED, self.plan.steps + 1))
            yield from self._alone("attribution recording", detailed)
        else:
            self.note(NO_OPS)
        begins = str(self._part.recording / f"rank{self.here.rank}.")
        self.found["graph"] = yield from self._alone("graph of a step", graph_of_a_step(Path(begins + GRAPH)))
        self.found["values"] = yield from self._alone("record of values", values_of_two_steps(Path(begins + VALUES)))
        yield from self._alone("second timing without a profiler", self._timed_again())

    def _screened(self) -> Course[None]:
        yield from self._no_other_profiler()
        live = self._part.work / LIVE if self._ranks.leads else None
        self.screening = Screening(
            self.plan, self._ranks, lambda: self._number, self._stepped, self.epochs, self._cycle, live
        )
        yield from self.screening.course()

    def _warmed_up(self) -> Course[int]:
        """Wait until steps are steady. Returns how many to time without a profiler; 0 on all ranks but the leader."""
        if not self._ranks.leads:
            return 0
        while True:
            clock, self._broken = Clock(self._number + 1), False
            while not self._broken:
                yield
                clock.tick()
                if clock.steps < self.plan.warmup:
                    continue
                is_steady = steady(clock)
                if is_steady or long_enough(clock, self.plan.warmup):
                    self.found |= {"warm_up": clock.timed(), "steady": is_steady}
                    if not is_steady:
                        self.note("Step times were not steady yet when the measurement began.")
                    usual = self._cycle.whole(to_be_timed(clock, self.plan.warmup, self.plan.steps))
                    return usual if self.plan.timed is None else max(self.plan.timed, clock.fitting(self.plan.timed_s))

    def _timed(self, steps: int) -> Course[None]:
        """Time steps without a profiler, again from the first if disturbed; find the cycle of long steps in them."""
        while True:
            yield from self._no_other_profiler()
            clock, competing_threads = Clock(self._number + 1, by_phase=True), CompetingThreads()
            self._timing = clock
            if (yield from self._ticked(clock, steps)):
                break
        self._timing = None
        if self.plan.every == 1:
            self._cycle = cycle(clock.first_step, clock.wall_ns(), self.epochs.found())
            if self._cycle.every > 1 and self._ranks.leads:
                self.note(self._cycle.said)
        every, self._fetched = self._cycle.every, clock.fetched_bytes
        timed, self._own_ns = clock.timed(), clock.own_ns
        self._more = min(self._cycle.whole(MORE), clock.fitting(MORE_S)) // every * every
        self.found |= {"python_threads": competing_threads.found(), "unprofiled": timed, "cycle": every}
        self.found["loop"] = owner()

    def _timed_again(self) -> Course[None]:
        """Time some more steps without any profiler, to see whether steps have become slower or faster meanwhile."""
        wait = self._cycle.wait if self._more else None
        steps = yield from self._ranks.begin("unprofiled_after", self._more, wait)
        yield from self._no_other_profiler()
        clock = Clock(self._number + 1)
        if (yield from self._ticked(clock, steps)) and steps:
            self.found["unprofiled_after"] = clock.timed()

    def _ticked(self, clock: Clock, steps: int) -> Course[bool]:
        """Time so many steps. False if their numbers had a gap, or the script's own profiler started before that."""
        self._broken = False
        while clock.steps < steps and not self._broken and not turns.foreign:
            yield
            clock.tick()
        return clock.steps >= steps

    def _alone(self, part: str, course: Course[T]) -> Course[T | None]:
        """What a part returns; None if it failed, which is noted: all else can be recorded without it."""
        try:
            return (yield from course)
        except (RecordingEnded, RankLost, CannotRecord):
            raise
        except Exception as error:
            self._give_up(f"There is no {part}", error)
            return None

    def _recorded(self, kind: str, steps: int) -> Course[None]:
        """Record a single step, for the size of a trace and to warm up the profiler; then so many, and keep these.
        Up to ATTEMPTS times, if the script's own profiler breaks in, or the recording fetches memory as it goes."""
        for _ in range(ATTEMPTS):
            yield from self._apart()
            if not (fitting := (yield from self._fitting(kind, steps))):
                continue
            yield from self._apart()
            if not (count := (yield from self._agreed(kind, steps, fitting))):
                return  # The leader has no GPU, and records none.
            made = yield from self._begun(kind)
            while self.recordings.open is made:
                yield
                made.clock.tick()
                is_open = self.recordings.open is made
                if is_open and made.clock.steps >= count and not self._settles(made, count, fitting):
                    self.recordings.keep(count)
                    if self._had_room(made):
                        return
                elif is_open:
                    made.recording.mark(self._number + 1)
        if kind not in self.recordings.kept:
            self.note(f"There is no {kind.replace('_', ' ')} recording: the script's own profiler kept starting.")

    def _agreed(self, kind: str, steps: int, fitting: int) -> Course[int]:
        """How many steps all ranks record, at most `fitting`; 0 where the leader leaves that recording out."""
        if fitting < steps:
            most = f"{self.plan.most_bytes / 1e6:,.3g} MB"
            self.note(f"The {kind.replace('_', ' ')} recording has {fitting} steps, as more would not fit {most}.")
        later = (*FILES, "unprofiled_after")[[*FILES].index(kind) + 1 :]
        return (yield from self._ranks.begin(kind, min(steps, fitting), self._cycle.wait, later))

    def _fitting(self, kind: str, steps: int) -> Course[int]:
        """How many steps fit `most_bytes`, by recording a single one, at least 2; 0 if that was interrupted."""
        if self.plan.tracer_of(kind) == "nsys":
            return steps  # It does not say how large its reports get.
        probe = yield from self._begun(kind)
        yield
        if self.recordings.open is not probe:
            return 0
        self.recordings.open = None
        assert isinstance(probe.recording, Recording)
        probe.clock.tick()
        make_room(probe.clock.fetched_bytes, self._fetched, steps + 1)
        return max(2, self.plan.most_bytes // max(probe.recording.end_and_measure(self._part.work), 1))

    def _settles(self, made: OpenRecording, steps: int, fitting: int) -> bool:
        """Whether to record one more step as steps still get faster: on GPUs, where ranks and cycles set no length."""
        free = self._ranks.alone and self._cycle.every == 1 and made.clock.steps < fitting
        return free and uses_gpu() and made.kind in OF_TIMES and settling(made.clock, steps - 1)

    def _had_room(self, made: OpenRecording) -> bool:
        """Whether the recording will do. False if it took memory as it went: that is fetched now, for another one."""
        if made.kind != "timing" or not self._ranks.alone or self.plan.tracer == "nsys":
            return True
        return make_room(made.clock.fetched_bytes, self._fetched, made.clock.steps) == 0

    def _begun(self, kind: str) -> Course[OpenRecording]:
        """A recording of that kind that has begun, once the script's own profiler has ended."""
        while not turns.take():
            yield from self._no_other_profiler()
        made = self.recordings.begin(kind, self._number + 1)
        if turns.wanted:
            self.make_way()
        return made

    def _apart(self) -> Course[None]:
        """Pass a step without any profiler: what one recording opens must be closed before the next (foreign.py)."""
        yield
        yield from self._no_other_profiler()

    def _no_other_profiler(self) -> Course[None]:
        """Wait until no profiler of the script's runs. Raises CannotRecord after FOREIGN_STEPS."""
        for _ in range(FOREIGN_STEPS):
            if not turns.foreign:
                return
            if self._ranks.leads and self.board.read("foreign") is None:
                self.board.post("foreign")
            yield
        raise CannotRecord(_OCCUPIED)
