"""Recording from within a training loop: `with diagnose.record("runs/a") as rec: ... rec.step()`."""

from __future__ import annotations

import sys
import time
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from diagnose.capture import manifests
from diagnose.capture.agent import place
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.place import Place
from diagnose.capture.agent.plan import WORK, Plan
from diagnose.capture.agent.recorder import Recorder
from diagnose.capture.run import CannotRecord, prepare

PATIENCE_S = 60.0
"""How long the leading rank waits at the end for what others have to say (our choice)."""


def recording(folder: str | PathLike[str], *, steps: int, warmup: int, memory: bool, overwrite: bool) -> Recording:
    """A recording of a training that goes on when it is over. Raises ValueError if there are no steps to record."""
    if steps < 1 or warmup < 1:
        raise ValueError("steps and warmup are at least 1")
    return Recording(Path(folder), Plan(warmup=warmup, steps=steps, memory=memory, keep_running=True), overwrite)


class Recording:
    """Records some of the steps between `with` and its end; call `step()` at the end of each."""

    _active: ClassVar[Recording | None] = None

    def __init__(self, folder: Path, plan: Plan, overwrite: bool = False) -> None:
        self.folder, self._plan, self._overwrite = folder.resolve(), plan, overwrite
        self._number = -1
        self._recorder: Recorder | None = None
        self._here: Place | None = None

    @property
    def finished(self) -> bool:
        """All is recorded: the loop may end, or go on undisturbed."""
        return self._recorder is not None and self._recorder.over

    def __enter__(self) -> Recording:
        """Raises CannotRecord if the folder cannot be used, or another recording is being made in this process."""
        if Recording._active is not None:
            raise CannotRecord("Another recording is being made in this process. End it first.")
        self._here = place.find()
        if self._here.leads:
            prepare(self.folder, self._plan, sys.argv, self._overwrite)
            Board(self.folder / WORK).claim("python")
        else:
            self._wait_for_leader()
        self._recorder = Recorder(self.folder, self._plan, lambda: None)
        self._recorder.steps_by = "code"
        Recording._active = self
        return self

    def step(self) -> None:
        """A training step has ended."""
        self._number += 1
        if self._recorder is not None:
            self._recorder.step_ended(self._number)

    def _wait_for_leader(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not (self.folder / WORK / "plan.json").exists():
            if time.monotonic() > until:
                raise CannotRecord(f"The leading rank has not begun to record in {self.folder}. See what it says.")
            time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end("itself" if kind is None else "crashed")

    def end(self, how: str) -> None:
        """No more steps come: the training has ended "itself", or has "crashed"."""
        recorder, Recording._active = self._recorder, None
        if recorder is None:
            return
        recorder.end(how)
        here = self._here if recorder.session is None else recorder.session.here
        if here is not None and here.leads:
            if recorder.session is not None:
                _wait_for(self.folder, here)
            manifests.complete(self.folder, exit_code=None)


def _wait_for(folder: Path, here: Place) -> None:
    """Until all ranks of this machine have said what they know."""
    until = time.monotonic() + PATIENCE_S
    while Board(folder / WORK).posted("said.") < here.peers and time.monotonic() < until:
        time.sleep(0.1)
