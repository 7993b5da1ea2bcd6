"""Which guards of compiled code failed, as dynamo tells of them."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from diagnose.capture.agent import guards
from diagnose.trace.manifest import FailedGuard

CODE = compile("def f(): pass", "/somewhere/else.py", "exec").co_consts[0]
NUMBER = (
    "{form}: self.seen == {form[2]}     # self.seen += 1  # in/model.py:9 in forward (HINT: make it a tensor.)\n"
    'User stack trace:\n  File "/lib/torch/module.py", line 3, in called\n'
    '  File "/home/me/model.py", line 9, in forward\n'
    "    self.seen += 1"
)
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 2, actual {}"


def told(*reasons: str) -> list[FailedGuard]:
    return msgspec.convert(guards.of_function(CODE, reasons), list[FailedGuard])


def test_a_number_is_told_by_what_holds_it_and_the_line_that_asked() -> None:
    """Two forms failed by it, one of them twice."""
    (found,) = told(*(NUMBER.format(form=form) for form in ("0/1", "0/1", "0/2")))
    assert (found.source, found.said, found.is_size, found.forms) == ("self.seen", "self.seen == 2", False, 2)
    assert (found.file, found.line, found.function) == ("/home/me/model.py", 9, "forward")


def test_a_size_is_of_a_tensor_and_of_the_function_where_no_line_is_told() -> None:
    (found,) = told(SIZE.format(3), SIZE.format(4))
    assert (found.source, found.is_size, found.forms) == ("x", True, 1)
    assert (found.file, found.line, found.function) == ("/somewhere/else.py", 1, "f")


@pytest.mark.parametrize(
    ("reason", "is_size"),
    [
        ("1/0: 2 <= L['x'].size()[0] <= 8", True),
        ("1/0: tensor 'x' stride mismatch at index 0. expected 2, actual 4", True),
        ("1/0: tensor 'x' dtype mismatch. expected Float, actual Double", False),
        ("1/0: len(xs) == 3", False),
    ],
)
def test_sizes_and_strides_are_what_dynamic_shapes_are_for(reason: str, is_size: bool) -> None:
    assert told(reason)[0].is_size is is_size


def test_what_is_no_reason_is_left_out() -> None:
    assert told("graph break", "") == []


SCRIPT = """
import json, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rounds = 0
    def forward(self, x):
        self.rounds += 1
        return x * self.rounds
net = torch.compile(Net(), backend="eager")
for size in range(2, 7):
    net(torch.ones(size))
from diagnose.capture.agent import guards
print(json.dumps(guards.failed()))
"""


@pytest.mark.slow
def test_torch_says_so(tmp_path: Path) -> None:
    """The counter fails all forms but the newest, the size the first alone: those after it are for any."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, script], capture_output=True, check=True)
    first, *others = msgspec.json.decode(run.stdout, type=list[FailedGuard])
    assert (first.source, first.is_size, first.forms) == ("self.rounds", False, 3)
    assert (first.file, first.line, first.function) == ("train.py", 8, "forward")
    assert [(one.is_size, one.forms) for one in others] == [(True, 1)]
