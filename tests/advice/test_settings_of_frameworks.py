"""Time in a framework's own code comes with the setting of the framework that causes it."""

from collections.abc import Callable

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.fixes.frameworks import own_work
from diagnose.fixes.setting import Loop

TRAINER = "transformers/trainer.py"


def test_reads_of_the_loss_by_the_trainer_are_its_filter(analyzed: Callable[[str], Diagnosis]) -> None:
    """Of a recording that does not say what owns the loop: its frames do."""
    found = analyzed("h100/hf_trainer_bert")
    assert found.program is not None
    assert found.program.loop is Loop.TRANSFORMERS
    (reads,) = (finding for finding in found.findings if finding.rule == "scalar_syncs")
    assert [fix.after for fix in reads.fixes] == ["logging_nan_inf_filter=False,  # of TrainingArguments(...)"]
    code = [fix.after for finding in found.findings for fix in finding.fixes]
    assert "tf32=True,  # of TrainingArguments(...)" in code
    assert not any("autocast(" in one or "DataLoader(" in one for one in code)


@pytest.mark.parametrize(
    ("loop", "file", "function", "op", "setting"),
    [
        (Loop.TRANSFORMERS, TRAINER, "_run_epoch", "aten::is_nonzero", "logging_nan_inf_filter"),
        (Loop.TRANSFORMERS, TRAINER, "_run_epoch", "aten::mm", None),
        (Loop.TRANSFORMERS, TRAINER, "log", "aten::item", "logging_steps"),
        (Loop.TRANSFORMERS, TRAINER, "log_metrics", "aten::item", None),
        (Loop.OWN, TRAINER, "_run_epoch", "aten::is_nonzero", None),
        (Loop.LIGHTNING, "lightning/pytorch/callbacks/progress/rich_progress.py", "on_x", "", "enable_progress_bar"),
    ],
)
def test_work_is_known_by_function_and_op(loop: Loop, file: str, function: str, op: str, setting: str | None) -> None:
    work = own_work(loop, f"site/{file}", function, frozenset({op}))
    assert (None if work is None else work.setting.name) == setting
