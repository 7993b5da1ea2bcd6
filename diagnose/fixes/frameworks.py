"""What frameworks do in each step by themselves, and which setting of theirs has them do it less often."""

import re
from typing import NamedTuple

from .setting import DS_CONFIG, Argument, Code, Loop

NAMES = {
    Loop.TRANSFORMERS: "transformers.Trainer",
    Loop.LIGHTNING: "lightning.Trainer",
    Loop.FABRIC: "lightning.Fabric",
    Loop.ACCELERATE: "Accelerate",
    Loop.DEEPSPEED: "DeepSpeed",
}
"""Of what owns or wraps the loop, as users know it."""

OWNERS = (Loop.TRANSFORMERS, Loop.LIGHTNING)  # Those whose own code is the loop.

READS = r"aten::(is_nonzero|item|_local_scalar_dense|equal)"


class OwnWork(NamedTuple):
    """Work of a framework's own code."""

    loop: Loop
    frame: str  # Of `file: function`, by a regular expression.
    what: str  # A clause without a subject.
    setting: Argument
    ops: str = ""  # Only time in ops of these names, by a regular expression; empty: all that it does.


_ARGUMENTS, _TRAINER = "transformers.TrainingArguments", "lightning.Trainer"
_CHECKPOINTS = "lightning.pytorch.callbacks.ModelCheckpoint"

OWN_WORK = (
    OwnWork(
        Loop.TRANSFORMERS,
        r"/trainer\.py: (_run_epoch|_inner_training_loop)",
        "checks each step's loss for NaN/inf before logging it",
        Argument(_ARGUMENTS, "logging_nan_inf_filter", False),
        ops=READS,
    ),
    OwnWork(
        Loop.TRANSFORMERS,
        r"/trainer\.py: _track_num_input_tokens",
        "counts the tokens of each step",
        Argument(_ARGUMENTS, "include_num_input_tokens_seen", "no"),
    ),
    OwnWork(
        Loop.TRANSFORMERS,
        r"/trainer\.py: (_maybe_log_save_evaluate|log|_get_learning_rate)\Z|/trainer_callback\.py: on_log",
        "logs",
        Argument(_ARGUMENTS, "logging_steps", Code("100 * logging_steps")),
    ),
    OwnWork(
        Loop.TRANSFORMERS,
        r"/trainer\.py: _save",
        "saves a checkpoint",
        Argument(_ARGUMENTS, "save_steps", Code("10 * save_steps")),
    ),
    OwnWork(
        Loop.TRANSFORMERS,
        r"/trainer\.py: (evaluate|evaluation_loop|prediction_step)",
        "evaluates the model",
        Argument(_ARGUMENTS, "eval_steps", Code("10 * eval_steps")),
    ),
    OwnWork(
        Loop.LIGHTNING,
        r"/callbacks/progress/",
        "updates its progress bar",
        Argument(_TRAINER, "enable_progress_bar", False),
    ),
    OwnWork(
        Loop.LIGHTNING,
        r"/logger_connector/|/loggers/|/core/module\.py: log(_dict)?\Z",
        "logs the values of `self.log`; `on_step=False` keeps them for the epoch",
        Argument(_TRAINER, "log_every_n_steps", 500),
    ),
    OwnWork(
        Loop.LIGHTNING,
        r"/callbacks/model_checkpoint\.py",
        "saves checkpoints",
        Argument(_CHECKPOINTS, "every_n_train_steps", Code("10 * every_n_train_steps")),
    ),
    OwnWork(
        Loop.DEEPSPEED,
        r"/engine\.py: _report_progress|/utils/logging\.py",
        "prints its progress",
        Argument(DS_CONFIG, "steps_per_print", 1000),
    ),
    OwnWork(
        Loop.DEEPSPEED,
        r"/utils/timer\.py|/engine\.py: _(start|stop)_timers",
        "synchronises the GPU for its timers",
        Argument(DS_CONFIG, "wall_clock_breakdown", False),
    ),
)


def own_work(loop: Loop, file: str, function: str, ops: frozenset[str]) -> OwnWork | None:
    """What a function of the framework does that has a setting; `ops`: names of those in which the time passes."""
    frame = f"{file}: {function}"
    return next(
        (
            known
            for known in OWN_WORK
            if known.loop is loop
            and re.search(known.frame, frame)
            and (not known.ops or any(re.fullmatch(known.ops, op) for op in ops))
        ),
        None,
    )
