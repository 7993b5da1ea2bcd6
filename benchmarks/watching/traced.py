"""`loop.py` or `trainings.py` with the two calls that TraceML wants in a loop: `python traced.py NAME ARGS`."""

import sys
from typing import Any

import loop  # type: ignore[import-not-found]  # In this script's folder.
import traceml_ai  # type: ignore[import-not-found]  # In an environment of its own.
import trainings  # type: ignore[import-not-found]

plain_step, plain_training = loop.step, trainings.Training.step


def step(model: Any, *others: Any) -> Any:
    """A step of `loop.py`."""
    with traceml_ai.trace_step(model):
        return plain_step(model, *others)


def training(self: Any, *batch: Any) -> None:
    """A step of `trainings.py`."""
    with traceml_ai.trace_step(self.model):
        plain_training(self, *batch)


if __name__ == "__main__":
    traceml_ai.init(mode="auto")
    loop.step, trainings.Training.step = step, training
    _, name, *sys.argv[1:] = sys.argv
    if name == "loop":
        loop.main(sys.argv[1], int(sys.argv[2]))
    else:
        trainings.main()
