"""Rules about training do not apply to inference, and those of both still look."""

from pathlib import Path

import diagnose
from diagnose.contracts.finding import OutcomeKind
from tests.drawing import Drawing

GEMM = "ampere_sgemm_128x64_tn"


def ended(draw: Drawing, path: Path) -> dict[str, OutcomeKind]:
    return {outcome.code: outcome.outcome for outcome in diagnose.analyze(draw.write(path / "trace.json")).outcomes}


def steps(backward: bool) -> Drawing:
    draw = Drawing()
    for at in (0, 1000, 2000, 3000):
        draw.step(at // 1000, at, at + 1000).op("aten::mm", at + 10, at + 20)
        draw.launch(GEMM, (at + 12, at + 14), (at + 16, at + 990))
        if backward:
            draw.op("autograd::engine::evaluate_function: MmBackward0", at + 30, at + 40)
    return draw


def test_rules_about_training_do_not_apply_to_inference(tmp_path: Path) -> None:
    found = ended(steps(backward=False), tmp_path)
    assert {found[code] for code in ("OP01", "OP02", "CO03")} == {OutcomeKind.NOT_APPLICABLE}
    assert found["DL02"] is OutcomeKind.CANNOT_TELL


def test_a_training_without_optimizer_steps_in_its_recording_cannot_tell(tmp_path: Path) -> None:
    assert ended(steps(backward=True), tmp_path)["OP01"] is OutcomeKind.CANNOT_TELL
