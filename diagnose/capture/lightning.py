"""Recording or watching a Lightning training: `Trainer(callbacks=[Record("runs/a")])`. Needs the package lightning."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from diagnose.capture.inline import recording, watching


class Record(Callback):  # type: ignore[misc]  # Any, where lightning is not installed
    """Records some steps of `fit`, as `diagnose profile` would; with `stop`, the training ends once they are."""

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
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._recording.__enter__()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Called by Lightning; a batch ends a step only if the optimizer stepped."""
        if trainer.global_step > self._seen:
            self._seen = trainer.global_step
            self._recording.step()
            trainer.should_stop |= self._stop and self._recording.finished

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._recording.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Called by Lightning."""
        self._recording.__exit__(type(exception), exception, exception.__traceback__)


class Watch(Record):
    """Writes a log of `fit`, as `diagnose watch` would."""

    def __init__(self, folder: str | Path, *, overwrite: bool = False) -> None:
        self._recording, self._stop, self._seen = watching(folder, overwrite=overwrite), False, 0
