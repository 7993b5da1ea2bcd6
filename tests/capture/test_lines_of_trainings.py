"""Lines that are said of trainings by others, against their own source. Each is recorded as a user would."""

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.others import FOLDER, cases
from tests.capture.scripts import profile
from tests.capture.written import Source, Verdict, Work, judged
from tests.exhaustive import some_of

IN_THE_LOOP = (Work.BACKWARD, Work.OPTIMIZER_STEP, Work.ZERO_GRAD)
"""What these trainings do in the function that has the loop, which is on the stack when the recording begins."""


def test_a_source_tells_where_its_calls_are(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        """import torch
def made(): return torch.nn.Sequential(torch.nn.Linear(2, 2))
def loss_of(x):
    return torch.nn.functional.mse_loss(
        x, x)
net, opt = made(), torch.optim.SGD([], 1)
other = Other()
for x in loader:
    other.step()
    for part in [net]:
        loss_of(part(x)).backward()
    opt.step()
    opt.zero_grad()
"""
    )
    source = Source(tmp_path, [file])
    found = {work: source.calls(file, work, "aten::mse_loss") for work in Work}
    assert found == {
        Work.BACKWARD: [(11, 11)],
        Work.OPTIMIZER_STEP: [(12, 12)],
        Work.ZERO_GRAD: [(13, 13)],
        Work.LOADER: [(8, 8)],
        Work.LOSS: [(4, 5)],
        Work.MODEL: [(11, 11)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", some_of(cases(), list(cases())[::5]))
def test_lines_are_those_of_the_source(case: str, tmp_path: Path) -> None:
    """Of a function that is called, where it starts is known; of the one with the loop, each line."""
    if sys.gettrace() is not None:
        pytest.skip("something else traces lines")
    shutil.copy(FOLDER / case / "train.py", tmp_path)
    done = profile(tmp_path, "-q", "--warmup", 1, "--steps", 1, "train.py")
    assert done.code == 0, done.stderr
    said = judged(done.folder, tmp_path)
    assert [one for one in said if one.verdict is Verdict.WRONG] == []
    assert {one.work for one in said} >= {*IN_THE_LOOP, Work.MODEL}
    source = Source(tmp_path, [tmp_path / "train.py"])
    for work in IN_THE_LOOP:
        ours = [one for one in said if one.work is work]
        assert {one.verdict for one in ours} == {Verdict.LINE}
        named = {one.site.line for one in ours if one.site is not None}
        written = source.calls(tmp_path / "train.py", work, "")
        assert [of for of in written if not any(of[0] <= line <= of[1] for line in named)] == []
