"""The run stops to save checkpoints.

The training's thread writes them, or each takes longer than the one before.

Why it costs
    Nothing trains while a checkpoint is written. With several ranks all wait for the slowest.
How to fix
    Save in the background (`torch.distributed.checkpoint.async_save`), or less often.
Ignore when
    the run may be killed at any time: what comes after the last checkpoint is lost.
Sources
    https://pytorch.org/blog/reducing-checkpointing-times
"""

from diagnose.facts.watched.log import counted, steps_of, total
from diagnose.rulekit.vocabulary import *

from ._growth import growing_pauses

BACKGROUND: Shares = (0.5, 0.9, 0.96)
"""Of a save in the background: it must still copy, and slows the steps that go on meanwhile. 6.3 of 148.8 s were left
of a 7B model's (PA01, https://pytorch.org/blog/reducing-checkpointing-times)."""


@run_rule("RU03")
def checkpoints(log: RunLog) -> Verdicts:
    spent, count = total(log.windows, "save"), counted(log.windows, "save")
    if not count:  # One after the last step holds up nothing.
        return
    longest = max(window.of("save").most_ns for window in log.windows)
    often = f"{times(count, 'checkpoint')}, one every {steps_of(log) / count:,.0f} steps"
    said = f"{often}, {ms(spent / count)} each (up to {ms(longest)})"
    then = "A background save still copies the state, and slows the steps that run concurrently."
    change = "Save in the background (torch.distributed.checkpoint.async_save), or less often."
    yield costs(log, spent, said, "Training stops while a checkpoint is saved", change, then, shares=BACKGROUND)
    yield from growing_pauses(log, "save", "growing_checkpoints", "Checkpoint")


EXAMPLES = [
    Fires("1000 steps of 20, every 100 save 1000", saving_ms=(5000, 9600)),
    Silent("1000 steps of 20, every 500 save 100"),
]
