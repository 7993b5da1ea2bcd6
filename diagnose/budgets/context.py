"""`with diagnose.budget(step="50ms"): ...`: a training that is recorded while it runs, and judged at its end."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from os import PathLike
from pathlib import Path
from types import TracebackType

import msgspec

from diagnose import pipeline
from diagnose.budgets.judging import judge
from diagnose.budgets.limits import limits
from diagnose.capture.agent import place
from diagnose.capture.inline import Recording, recording
from diagnose.contracts.budget import Judged, Kept, Limits
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import budget as text
from diagnose.source import cache
from diagnose.source.base import InputError
from diagnose.trace.manifest import Manifest


class BudgetExceeded(AssertionError):
    """A limit is exceeded for sure: the whole interval lies over it."""


class BudgetWarning(UserWarning):
    """Whether a limit is kept cannot be told, which is no pass."""


class Budget:
    """Limits of the training between `with` and its end."""

    def __init__(self, limits: Limits, folder: str | PathLike[str] | None, steps: int, warmup: int) -> None:
        """The recording goes to `folder`, or to a temporary one, which stays if a limit is exceeded."""
        self.limits = limits
        self.judged: tuple[Judged, ...] = ()
        """What came of each limit."""
        self.diagnosis: Diagnosis | None = None
        """Of the recording; None until the end, and where too few steps were made."""
        self._temporary, self._folder = folder is None, Path(folder or "")
        self._steps, self._warmup = steps, warmup
        self._recording: Recording | None = None

    @property
    def finished(self) -> bool:
        """All is recorded: the loop may end, or go on undisturbed."""
        return self._recording is not None and self._recording.finished

    def step(self) -> None:
        """A training step has ended. Without any call, steps end with an optimizer's."""
        if self._recording is not None:
            self._recording.step()

    def __enter__(self) -> Budget:
        """Raises CannotRecord as `diagnose.record` does, and ValueError if ranks have no folder to share."""
        if self._temporary:
            if place.find().world_size > 1:
                raise ValueError("Several ranks train. Set the same folder for all of them.")
            self._folder = Path(tempfile.mkdtemp(prefix="diagnose-budget-"))
        try:
            self._recording = recording(
                self._folder, steps=self._steps, warmup=self._warmup, memory=False, overwrite=False, finds_steps=True
            )
            self._recording.__enter__()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises BudgetExceeded, in the process that completes the recording, unless the training failed by itself."""
        __tracebackhide__ = True  # pytest shows the training's lines, not ours.
        assert self._recording is not None
        over = False
        try:
            self._recording.__exit__(kind, error, trace)
            if kind is None and self._recording.completed:
                over = self._judge()
        finally:
            if not over:
                self._clear()
        if over:
            raise BudgetExceeded(text.exceeded(self.judged, self.diagnosis, str(self._folder)))
        if any(one.kept is Kept.CANNOT_TELL for one in self.judged):
            warnings.warn(text.unsure(self.judged), BudgetWarning, stacklevel=2)

    def _clear(self) -> None:
        """Remove the recording that nobody needs."""
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _judge(self) -> bool:
        """Whether a limit is exceeded."""
        try:
            with cache.unused():
                self.diagnosis = pipeline.diagnose([self._folder])
        except InputError:
            self.diagnosis = None
        manifest = msgspec.json.decode((self._folder / "manifest.json").read_bytes(), type=Manifest)
        self.judged = tuple(judge(self.limits, manifest, self.diagnosis))
        return any(one.kept is Kept.OVER for one in self.judged)


def budget(
    *,
    step: str | None = None,
    idle: float | str | None = None,
    steps: int = 5,
    warmup: int = 10,
    folder: str | PathLike[str] | None = None,
) -> Budget:
    """Hold the training in a `with` block to limits, as a test does:

        with diagnose.budget(step="50ms", idle=0.1):
            train()

    `step` limits the time of a step without the profiler, `idle` the share of it in which the GPU is idle (0.1 or
    "10%"). Steps are recorded as by `diagnose.record`, and end with an optimizer's step, or where the code calls
    `step()` of what `with` gives. `folder` keeps the recording; else it is temporary, and stays if a limit is exceeded.

    At its end the block raises `diagnose.BudgetExceeded`, an AssertionError, if a limit lies below the whole interval
    that was measured. It warns with `diagnose.BudgetWarning` if that cannot be told. Raises ValueError if no limit is
    set, or one cannot be read, and `diagnose.capture.run.CannotRecord` on entering, as `diagnose.record` does.
    """
    return Budget(limits(step, idle), folder, steps, warmup)
