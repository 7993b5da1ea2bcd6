"""What frameworks do in each step by themselves, and which setting of theirs has them do it less often."""

import re
from functools import partial
from typing import NamedTuple

from .setting import DS_CONFIG, Argument, Code, Loop

NAMES = {  # Of what owns or wraps the loop, as users know it.
    Loop.TRANSFORMERS: "transformers.Trainer",
    Loop.LIGHTNING: "lightning.Trainer",
    Loop.FABRIC: "lightning.Fabric",
    Loop.ACCELERATE: "Accelerate",
    Loop.DEEPSPEED: "DeepSpeed",
}
OWNERS = (Loop.TRANSFORMERS, Loop.LIGHTNING)  # Those whose own code is the loop.
READS = r"aten::(is_nonzero|item|_local_scalar_dense|equal)"


class OwnWork(NamedTuple):
    """Work that a framework's own code does in steps, and the setting by which it does so less often or not at all."""

    loop: Loop
    frame: str  # Of `file: function`, by a regular expression.
    what: str  # A clause without a subject.
    setting: Argument
    ops: str = ""  # Only time in ops of these names, by a regular expression; empty: all that it does.


def _own(loop: Loop, owner: str, frame: str, what: str, name: str, value: object, ops: str = "") -> OwnWork:
    return OwnWork(loop, frame, what, Argument(owner, name, value), ops)


_trainer = partial(_own, Loop.TRANSFORMERS, "transformers.TrainingArguments")
_lightning = partial(_own, Loop.LIGHTNING, "lightning.Trainer")
_saving = partial(_own, Loop.LIGHTNING, "lightning.pytorch.callbacks.ModelCheckpoint")
_deepspeed = partial(_own, Loop.DEEPSPEED, DS_CONFIG)

OWN_WORK = (
    _trainer(
        r"/trainer\.py: (_run_epoch|_inner_training_loop)",
        "checks each step's loss for NaN/inf before logging it",
        "logging_nan_inf_filter",
        False,
        READS,
    ),
    _trainer(
        r"/trainer\.py: _track_num_input_tokens",
        "counts the tokens of each step",
        "include_num_input_tokens_seen",
        "no",
    ),
    _trainer(
        r"/trainer\.py: (_maybe_log_save_evaluate|log|_get_learning_rate)\Z|/trainer_callback\.py: on_log",
        "logs",
        "logging_steps",
        Code("100 * logging_steps"),
    ),
    _trainer(r"/trainer\.py: _save", "saves a checkpoint", "save_steps", Code("10 * save_steps")),
    _trainer(
        r"/trainer\.py: (evaluate|evaluation_loop|prediction_step)",
        "evaluates the model",
        "eval_steps",
        Code("10 * eval_steps"),
    ),
    _lightning(r"/callbacks/progress/", "updates its progress bar", "enable_progress_bar", False),
    _lightning(
        r"/logger_connector/|/loggers/|/core/module\.py: log(_dict)?\Z",
        "logs the values of `self.log`; `on_step=False` keeps them for the epoch",
        "log_every_n_steps",
        500,
    ),
    _saving(
        r"/callbacks/model_checkpoint\.py", "saves checkpoints", "every_n_train_steps", Code("10 * every_n_train_steps")
    ),
    _deepspeed(r"/engine\.py: _report_progress|/utils/logging\.py", "prints its progress", "steps_per_print", 1000),
    _deepspeed(
        r"/utils/timer\.py|/engine\.py: _(start|stop)_timers",
        "synchronises the GPU for its timers",
        "wall_clock_breakdown",
        False,
    ),
)


def own_work(loop: Loop, file: str, function: str, ops: frozenset[str]) -> OwnWork | None:
    """The entry of OWN_WORK on a function of the framework, or None; `ops`: the ops that its time is spent in."""
    frame = f"{file}: {function}"
    works = [work for work in OWN_WORK if work.loop is loop and re.search(work.frame, frame)]
    return next((work for work in works if not work.ops or any(re.fullmatch(work.ops, op) for op in ops)), None)
