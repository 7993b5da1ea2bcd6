"""A process that records itself: its session, and what it writes for the manifest at the end."""

import json
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import about, about_devices, interruptions, loaders, place, script_files
from .about_settings import Settings, failed_guards
from .alone import each_alone, failures, in_time
from .arm import Arm
from .foreign import watch_foreign
from .plan import Part, Plan
from .session import Session


class Recorder:
    """Is told of each step's end, and records some steps. Idle until the first; `step_ended` and `end` never raise."""

    def __init__(self, part: Part, plan: Plan, on_batch: Callable[[], None], settings: Settings | None = None) -> None:
        """`on_batch` is called when this process asks a DataLoader for a batch. `settings`: those noted before."""
        self.part, self.plan = part, plan
        self.steps_by: str | None = None  # As in `RankManifest`.
        self.over = False  # All is recorded, or nothing will be.
        self.session: Session | None = None
        self.optimizers: list[weakref.ref[object]] = []  # Those that stepped, where that is known.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # It writes of each recording to standard error at any other.
        self._script: str | None = None
        self._written = False  # What is known at the end, into the manifest.
        self._kept = self._steps_made = 0  # Recordings that the manifest's entry has; steps of the whole run.
        self._settings = settings or Settings()
        self._settings.install()
        self._watch = loaders.use(loaders.LoaderWatch(part.work, on_batch))
        interruptions.mark_saving()
        interruptions.mark_formatting()
        self._arm = None if plan.timed is None else Arm()
        watch_foreign(self._make_way)

    @property
    def begun(self) -> bool:
        """Whether a step has ended, or a stretch of time is recorded."""
        return self.session is not None

    @property
    def settled(self) -> bool:
        """Whether the warm-up is over, so that what counts as a step must not change any more."""
        return self.session is not None and self.session.settled

    @property
    def may_end(self) -> bool:
        """Whether the run may be ended, as all is recorded."""
        return self.over and self.session is not None and self.session.may_end

    def note(self, sentence: str) -> None:
        """Have the report tell the user this; lost if no step has ended yet."""
        if self.session is not None:
            self.session.note(sentence)

    def step_ended(self, number: int) -> None:
        """The step of this number has ended."""
        if self.over:
            return
        self._steps_made = number + 1
        self._watch.epochs.step_ended(number)
        try:
            self.session = self.session or self._new_session()
            self.over = self.session is None or self.session.step_ended(number)
            if self.session is not None and self.session.refused:
                self.session = None
            if self.session is not None:
                self._watch.measuring = self.session.undisturbed
                self._watch.looking = not self.session.settled
            if self.over:
                self.end("recorded")
            elif self.session is not None and len(self.session.recordings.kept) > self._kept:
                self._kept = len(self.session.recordings.kept)
                self._write(f"rank{self.session.here.rank}.json", self._of_this_process(None))
        except Exception as error:
            self.over = True
            print(f"diagnose: recording stopped ({type(error).__name__}: {error})", file=sys.stderr)

    def record_window(self, seconds: float) -> None:
        """Record a stretch of time, while this thread sleeps; only if no step has ended in this process."""
        if self.over or self.session is not None:
            return
        self.over, self.steps_by = True, "time"
        try:
            self.session = self._new_session()
            if self.session is not None:
                self.session.record_window(seconds)
        except Exception as error:
            print(f"diagnose: recording stopped ({type(error).__name__}: {error})", file=sys.stderr)
        if self.session is not None:
            self.end("recorded")
            self.session.board.post("end")

    def end(self, how: str) -> None:
        """Keep what is recorded; write what the manifest has of this rank, and of the run. Later calls do nothing."""
        if self.session is None or self._written:
            return
        self.over = self._written = True
        try:
            self.session.stop()
        except Exception as error:
            self.session.note(f"The last recording could not be kept: {type(error).__name__}: {error}.")
        try:
            if self.session.here.rank == 0 or not (self.part.shared / "run.json").exists():
                of_the_run = each_alone(
                    host=about.host,
                    versions=about.versions,
                    environment=lambda: about.environment(os.environ),
                    devices=lambda: in_time("the devices", about_devices.devices, ()),
                    links=lambda: in_time("the links between devices", about_devices.links, ()),
                    sources=lambda: script_files.imported(self._script),
                )
                self._write("run.json", of_the_run)
            self._write(f"rank{self.session.here.rank}.json", self._of_this_process(how))
        except Exception as error:
            print(f"diagnose: the run's settings could not be kept ({type(error).__name__}: {error})", file=sys.stderr)

    def _new_session(self) -> Session | None:
        """A session of this process, at its first step; None if another process is recorded as this rank."""
        self._script = getattr(sys.modules.get("__main__"), "__file__", None)  # Python forgets it before it ends.
        session = Session(self.part, self.plan, place.find(), self._watch.epochs, self._stepped)
        return session if session.join() else None

    def _stepped(self) -> list[object]:
        return [one for ref in self.optimizers if (one := ref()) is not None]

    def _make_way(self) -> None:
        if self.session is not None:
            self.session.make_way()

    def _of_this_process(self, how: str | None) -> dict[str, object]:
        """The manifest's entry of this rank, short if it is not recorded. `how` it ended; None while it goes on."""
        session = self.session
        assert session is not None
        who = {
            "part": self.part.name,
            **{name: getattr(session.here, name) for name in ("rank", "world_size", "peers", "node")},
            "machine": session.machine,
            "steps_by": self.steps_by,
            "steps_made": self._steps_made,
            "ended": how,
        }
        if session.found.get("recorded") is False:
            timed: Any = session.found["unprofiled"]
            times = {name: timed[name] for name in ("first_step", "wall_ns")}
            return {**who, "recorded": False, "unprofiled": times, "notes": session.notes}
        return {
            **who,
            "pid": os.getpid(),
            **session.found,
            **each_alone(
                loaders=self._watch.loaders,
                optimizers=lambda: about.optimizers(self._stepped() or about.all_optimizers()),
                flags=self._settings.flags,
                failed_guards=failed_guards,
                distributed=self._settings.distributed,
                allocator=self._settings.allocator,
                libraries=about.libraries,
                screened=lambda: None if session.screening is None else session.screening.found(),
                arm=lambda: None if self._arm is None else self._arm.found(),
                writes=script_files.found,
                epochs=self._watch.epochs.found,
            ),
            "notes": [*session.notes, *(f"Could not observe {failure}." for failure in failures)],
        }

    def _write(self, name: str, what: dict[str, object]) -> None:
        """Write JSON into the folder of all parts of the run, whole or not at all."""
        written = self.part.work / f"{name}.{os.getpid()}"
        written.write_text(json.dumps(what), encoding="utf-8")
        written.replace(self.part.shared / name)
