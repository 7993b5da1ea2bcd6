"""Recording and watching from within a training loop: `with diagnose.record("runs/a") as rec: ... rec.step()`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar
from uuid import uuid4

import msgspec

from diagnose.capture import folders, manifests
from diagnose.capture.agent import place
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.interruptions import OPTIMIZER, phases
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.recorder import Recorder
from diagnose.capture.agent.steps import Steps
from diagnose.capture.agent.watch.watcher import Watcher
from diagnose.capture.asked_recordings import Recordings
from diagnose.capture.run import CannotRecord, prepare


def recording(
    folder: str | PathLike[str], *, steps: int, warmup: int, memory: bool, overwrite: bool, ranks: str = "auto"
) -> Recording:
    """A recording of a training that goes on when it is over. Raises ValueError if there are no steps to record, or
    `ranks` are none."""
    place.named(ranks, 1)
    if steps < 1 or warmup < 1:
        raise ValueError("steps and warmup are at least 1")
    plan = Plan(warmup=warmup, steps=steps, memory=memory, ranks=ranks, keep_running=True)
    return Recording(Path(folder), plan, overwrite)


def watching(folder: str | PathLike[str], *, overwrite: bool, finds_steps: bool = False) -> Recording:
    """A log of a training, as `diagnose watch` writes it. With `finds_steps`, steps end with an optimizer's, unless the
    code marks them."""
    return Recording(Path(folder), Plan(watch=True, keep_running=True), overwrite, finds_steps)


class Recording:
    """Records some of the steps between `with` and its end, or watches all; call `step()` at the end of each."""

    _active: ClassVar[Recording | None] = None
    _last_run: ClassVar[str | None] = None
    """The run that this process took part in last: its folder may still be there when the next one is looked for."""

    def __init__(self, folder: Path, plan: Plan, overwrite: bool = False, finds_steps: bool = False) -> None:
        """`finds_steps`: optimizers mark the steps until the loop calls `step()`."""
        self.folder, self._plan, self._overwrite = folder.resolve(), plan, overwrite
        self._found = Steps(self._step_ended) if finds_steps else None
        self._hook: OptimizerHooks | None = None
        self._number = -1
        self._alive: folders.Heartbeat | None = None
        self._recorder: Recorder | Watcher | None = None
        self._asked: AskedInCode | None = None
        self._part: Part | None = None

    @property
    def finished(self) -> bool:
        """Whether all is recorded: the loop may end, or go on undisturbed."""
        return self._recorder is not None and self._recorder.over

    def __enter__(self) -> Recording:
        """Begin recording. Raises CannotRecord if the folder cannot be used, or this process is recording already."""
        if Recording._active is not None:
            raise CannotRecord("This process is already recording. End that recording first.")
        here = place.find()
        if here.rank == 0:
            job = f"code-{uuid4().hex}" if here.world_size > 1 else None  # Only those who need no name join.
            self._part = prepare(self.folder, self._plan, sys.argv, self._overwrite, job)
        else:
            self._part = self._joined()
        Recording._last_run, self._alive = self._part.run, folders.Heartbeat(self._part)
        Board(self._part.work).claim("python")
        kind = Watcher if self._plan.watch else Recorder
        self._recorder = kind(self._part, self._plan, lambda: None)
        self._recorder.steps_by = "code" if self._found is None else "optimizer"
        Recording._active = self
        if self._plan.watch:
            self._asked = AskedInCode(self._part)
            self._hook = OptimizerHooks(self._optimizer_stepped)
        return self

    def step(self) -> None:
        """To be called when a training step has ended. From the first call on, only calls mark steps."""
        was_found, self._found = self._found is not None and self._number >= 0, None
        if self._recorder is not None:
            self._recorder.steps_by = "code"
        if not was_found:  # Else it is the one that an optimizer has ended.
            self._step_ended(self._number + 1)

    def _step_ended(self, number: int) -> None:
        self._number = number
        if self._alive is not None:
            self._alive.beat()
        if self._recorder is not None:
            self._recorder.step_ended(number)

    def _optimizer_stepped(self, optimizer: object) -> None:
        """Count the step, unless the loop marks steps itself; a settled recorder fixes what counts as a step."""
        if self._found is None or self._recorder is None:
            return
        self._found.optimizer_stepped(optimizer)
        self._found.fixed |= self._recorder.settled

    def _joined(self) -> Part:
        """The part of this rank in the recording that rank 0 begins. Raises CannotRecord if none begins in time."""
        until = time.monotonic() + folders.APPEARS_S
        while True:
            with suppress(OSError, msgspec.MsgspecError):
                if folders.begun(Part(self.folder)).run != Recording._last_run:
                    part = folders.join(self.folder)
                    self._plan.write(part)
                    return part
            if time.monotonic() > until:
                raise CannotRecord(
                    f"Rank 0 has not started recording in {self.folder}. Check its output, and that all machines share"
                    " this folder."
                )
            time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end("itself" if kind is None else "crashed")

    def end(self, how: str) -> None:
        """Complete the recording, as no more steps come: the training has ended "itself", or has "crashed"."""
        recorder, Recording._active = self._recorder, None
        if self._hook is not None:
            self._hook.remove()
        if recorder is None:
            return
        recorder.end(how)
        if self._asked is not None:
            self._asked.end()
        if self._part is None:
            return
        if manifests.completes(self._part):
            manifests.wait_for_all(self._part, lambda what: None)
            manifests.complete(self._part, exit_code=None)
        else:
            manifests.leave(self._part)


class AskedInCode:
    """A thread that makes the recordings users ask for, while a training is watched from its own code."""

    def __init__(self, part: Part) -> None:
        self._recordings = Recordings(part, sys.argv, 0, lambda: None, self._say)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diagnose-recordings", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread, and complete a recording that is under way: the training has ended."""
        self._over.set()
        self._thread.join()
        self._recordings.end()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            self._recordings.look()

    @staticmethod
    def _say(what: str) -> None:
        print(f"diagnose: {what}", file=sys.stderr)


class OptimizerHooks:
    """Has `act(optimizer)` called after each optimizer's step, and times that step, until `remove()`."""

    def __init__(self, act: Callable[[object], None]) -> None:
        """Call `act(optimizer)` after each optimizer step, and time the step as the phase OPTIMIZER."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        def begins(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                phases.begin(OPTIMIZER)

        def stepped(optimizer: object, *_: Any) -> None:
            if not torch.compiler.is_compiling():
                if phases.in_thread == threading.get_ident():
                    phases.end(OPTIMIZER)
                act(optimizer)

        self._hooks = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(stepped)

    def remove(self) -> None:
        """Call `act` no more."""
        for hook in self._hooks:
            hook.remove()
