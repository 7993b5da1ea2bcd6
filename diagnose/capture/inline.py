"""Recording from within a training loop: `with diagnose.record("runs/a") as rec: ... rec.step()`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import ClassVar
from uuid import uuid4

import msgspec

from diagnose.capture import folders, gathering, manifests
from diagnose.capture.agent import chosen, place
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.recorder import Recorder
from diagnose.capture.run import CannotRecord, prepare


def recording(
    folder: str | PathLike[str], *, steps: int, warmup: int, memory: bool, overwrite: bool, ranks: str = "auto"
) -> Recording:
    """A recording of a training that goes on when it is over. Raises ValueError if there are no steps to record, or
    `ranks` are none."""
    chosen.named(ranks, 1)
    if steps < 1 or warmup < 1:
        raise ValueError("steps and warmup are at least 1")
    plan = Plan(warmup=warmup, steps=steps, memory=memory, ranks=ranks, keep_running=True)
    return Recording(Path(folder), plan, overwrite)


class Recording:
    """Records some of the steps between `with` and its end; call `step()` at the end of each."""

    _active: ClassVar[Recording | None] = None
    _last_run: ClassVar[str | None] = None
    """That this process took part in: its folder may still be there when the next one is looked for."""

    def __init__(self, folder: Path, plan: Plan, overwrite: bool = False) -> None:
        self.folder, self._plan, self._overwrite = folder.resolve(), plan, overwrite
        self._number = -1
        self._alive: folders.Heartbeat | None = None
        self._recorder: Recorder | None = None
        self._part: Part | None = None

    @property
    def finished(self) -> bool:
        """All is recorded: the loop may end, or go on undisturbed."""
        return self._recorder is not None and self._recorder.over

    def __enter__(self) -> Recording:
        """Raises CannotRecord if the folder cannot be used, or another recording is being made in this process."""
        if Recording._active is not None:
            raise CannotRecord("Another recording is being made in this process. End it first.")
        here = place.find()
        self._part = self._begun(here.world_size) if here.rank == 0 else self._joined()
        Recording._last_run, self._alive = self._part.run, folders.Heartbeat(self._part)
        Board(self._part.work).claim("python")
        self._recorder = Recorder(self._part, self._plan, lambda: None)
        self._recorder.steps_by = "code"
        Recording._active = self
        return self

    def step(self) -> None:
        """A training step has ended."""
        self._number += 1
        if self._alive is not None:
            self._alive.beat()
        if self._recorder is not None:
            self._recorder.step_ended(self._number)

    def _begun(self, ranks: int) -> Part:
        job = f"code-{uuid4().hex}" if ranks > 1 else None  # Only those who need no name join.
        return prepare(self.folder, self._plan, sys.argv, self._overwrite, job)

    def _joined(self) -> Part:
        """A part of what the first rank has begun."""
        until = time.monotonic() + folders.APPEARS_S
        while True:
            with suppress(OSError, msgspec.MsgspecError):
                if folders.begun(Part(self.folder)).run != Recording._last_run:
                    part = folders.join(self.folder)
                    self._plan.write(part)
                    return part
            if time.monotonic() > until:
                raise CannotRecord(
                    f"Rank 0 has not begun to record in {self.folder}. See what it says, and whether all machines"
                    " share this folder."
                )
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
        if self._part is None:
            return
        if gathering.completes(self._part):
            gathering.wait_for_all(self._part, lambda what: None)
            manifests.complete(self._part, exit_code=None)
        else:
            gathering.leave(self._part)
