"""Recording or watching a Hugging Face training: `Trainer(callbacks=[Record("runs/a")])`.

Needs the package transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from transformers import TrainerCallback

from diagnose.capture.inline import recording, watching


class Record(TrainerCallback):  # type: ignore[misc]  # Any, where transformers is not installed
    """Records some steps of `train`, as `diagnose profile` would; with `stop`, the training ends once they are."""

    _begun: ClassVar[Record | None] = None  # Whose training has not ended: the Trainer does not say when it fails.

    def __init__(
        self,
        folder: str | Path,
        *,
        steps: int = 5,
        warmup: int = 10,
        memory: bool = False,
        ranks: str = "auto",
        stop: bool = False,
        overwrite: bool = False,
    ) -> None:
        self._recording = recording(folder, steps=steps, warmup=warmup, memory=memory, ranks=ranks, overwrite=overwrite)
        self._stop = stop

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Called by the Trainer."""
        if Record._begun is not None:
            Record._begun._end("crashed")
        self._recording.__enter__()
        Record._begun = self

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer after each step of the optimizer."""
        self._recording.step()
        control.should_training_stop |= self._stop and self._recording.finished

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Called by the Trainer."""
        self._end("itself")

    def _end(self, how: str) -> None:
        """End this recording, as in `Recording.end`."""
        Record._begun = None
        self._recording.end(how)


class Watch(Record):
    """Writes a log of `train`, as `diagnose watch` would."""

    def __init__(self, folder: str | Path, *, overwrite: bool = False) -> None:
        self._recording, self._stop = watching(folder, overwrite=overwrite), False
