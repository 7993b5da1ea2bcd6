"""Recording from within a training loop: `with diagnose.record("runs/a") as rec: ... rec.step()`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar
from uuid import uuid4

import msgspec

from diagnose.capture import folders, gathering, manifests
from diagnose.capture.agent import chosen, place
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.recorder import Recorder
from diagnose.capture.agent.steps import Steps
from diagnose.capture.run import CannotRecord, prepare


def recording(
    folder: str | PathLike[str],
    *,
    steps: int,
    warmup: int,
    memory: bool,
    overwrite: bool,
    ranks: str = "auto",
    finds_steps: bool = False,
) -> Recording:
    """A recording of a training that goes on when it is over. With `finds_steps`, steps end with an optimizer's, unless
    the code marks them. Raises ValueError if there are no steps to record, or `ranks` are none."""
    chosen.named(ranks, 1)
    if steps < 1 or warmup < 1:
        raise ValueError("steps and warmup are at least 1")
    plan = Plan(warmup=warmup, steps=steps, memory=memory, ranks=ranks, keep_running=True)
    return Recording(Path(folder), plan, overwrite, finds_steps)


class Recording:
    """Records some of the steps between `with` and its end; call `step()` at the end of each."""

    _active: ClassVar[Recording | None] = None
    _last_run: ClassVar[str | None] = None
    """That this process took part in: its folder may still be there when the next one is looked for."""

    def __init__(self, folder: Path, plan: Plan, overwrite: bool = False, finds_steps: bool = False) -> None:
        self.folder, self._plan, self._overwrite = folder.resolve(), plan, overwrite
        self.completed = False
        """This process has completed the recording: in a run of many ranks, one does."""
        self._found = Steps(self._step_ended) if finds_steps else None
        self._hook: Any = None
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
        if self._found is not None:
            self._recorder.steps_by, self._hook = "optimizer", _after_optimizers(self._optimizer_stepped)
        return self

    def step(self) -> None:
        """A training step has ended."""
        if self._hook is not None:
            self._leave_optimizers()
        self._number += 1
        self._step_ended(self._number)

    def _step_ended(self, number: int) -> None:
        if self._alive is not None:
            self._alive.beat()
        if self._recorder is not None:
            self._recorder.step_ended(number)

    def _optimizer_stepped(self, optimizer: object) -> None:
        """In this process, without a mark of the code so far."""
        if self._found is None or self._recorder is None:
            return
        self._found.optimizer_stepped(optimizer)
        session = self._recorder.session
        self._found.fixed |= session is not None and session.settled

    def _leave_optimizers(self) -> None:
        self._hook.remove()
        self._hook = None
        if self._recorder is not None:
            self._recorder.steps_by = "code"

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
        if self._hook is not None:
            self._hook.remove()
        if recorder is None:
            return
        recorder.end(how)
        if self._part is None:
            return
        if gathering.completes(self._part):
            gathering.wait_for_all(self._part, lambda what: None)
            manifests.complete(self._part, exit_code=None)
            self.completed = True
        else:
            gathering.leave(self._part)


def _after_optimizers(act: Callable[[object], None]) -> Any:
    """Have `act(optimizer)` called after each optimizer's step, until `remove()` of what this returns."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def stepped(optimizer: object, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            act(optimizer)

    return register_optimizer_step_post_hook(stepped)
