"""Writes scalars for TensorBoard, a folder for each rank."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from diagnose.facts.watched.log import quantile_ns
from diagnose.live.now import RankNow
from diagnose.trace.run_log import Window

SHARES = ("loader", "evaluation", "save", "collection", "compilation", "outside")  # Columns told as shares of the time.
PHASES = ("forward", "backward", "optimizer")  # Columns whose mean in a step is told.


class TensorBoard:
    """A point for each window of the log: a second at first, later 1 % of the run."""

    name = "writing for TensorBoard"

    def __init__(self, folder: Path) -> None:
        """`folder`: made if it is not there; gets a folder per rank. Raises OSError if it is not writable."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._folder = folder
        self._writers: dict[int, SummaryWriter] = {}
        self._upto: dict[int, int] = {}  # The last step that was written, by rank.
        self._ranks: Sequence[RankNow] = ()

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Write windows that are complete: all but the last one."""
        self._ranks = ranks
        for one in ranks:
            self._write(one, one.latest[:-1])

    def close(self) -> None:
        """Write the last windows."""
        try:
            for one in self._ranks:
                self._write(one, one.latest)
        finally:
            for writer in self._writers.values():
                writer.close()

    def _write(self, one: RankNow, windows: Sequence[Window]) -> None:
        """Write the windows after the last one that was written, each at the number of its last step."""
        new = [window for window in windows if window.steps and window.first_step > self._upto.get(one.rank, 0)]
        if new and one.rank not in self._writers:
            self._writers[one.rank] = SummaryWriter(self._folder / f"rank{one.rank}")
        for window in new:
            step = self._upto[one.rank] = window.first_step + window.steps - 1
            at_s = (one.run.started_unix_ns + window.ended_ns) / 1e9
            for tag, value in scalars(window):
                self._writers[one.rank].add_scalar(tag, value, step, at_s)
        if new:
            self._writers[one.rank].flush()


def scalars(window: Window) -> Iterator[tuple[str, float]]:
    """(tag, value) of a window of the log: step times in s, shares of the window's time, means of figures."""
    step, length_ns = window.of("step"), window.ended_ns - window.began_ns
    if step.count:
        yield "step_seconds/mean", step.sum_ns / step.count / 1e9
        for name, share in (("median", 0.5), ("p99", 0.99)):
            if (ns := quantile_ns([step], share)) is not None:
                yield f"step_seconds/{name}", ns / 1e9
        for name in PHASES:
            yield f"mean_seconds/{name}", window.of(name).sum_ns / step.count / 1e9
    if length_ns:
        yield "steps_per_second", window.steps / length_ns * 1e9
        for name in SHARES:
            yield f"share/{name}", window.of(name).sum_ns / length_ns
    for name, gauge in window.gauges.items():
        yield f"process_and_device/{name}", gauge.mean
