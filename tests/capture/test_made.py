"""Where a script makes its loaders and optimizers."""

import sys
from pathlib import Path

import pytest

from diagnose.capture.agent.noticed import Place, call_at
from diagnose.capture.agent.threads import line_of
from diagnose.trace.manifest import Made
from tests.capture.scripts import profile, script

pytestmark = pytest.mark.slow

TRAINING = """
import torch
from torch.utils import data

class Named(data.DataLoader):
    pass

def batches(**options):
    return data.DataLoader(
        data.TensorDataset(torch.randn(4000, 8)),
        batch_size=4, **options,
    )

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for batch, in batches(shuffle=True):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_lines_and_calls_are_known(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)
    done = profile(tmp_path, "--steps", 3, "train.py")
    assert done.code == 0, done.stderr
    (loader,), (optimizer,) = done.rank.loaders, done.rank.optimizers
    call = "data.DataLoader(data.TensorDataset(torch.randn(4000, 8)), batch_size=4, **options)"
    lines = path.read_text().splitlines()
    assert "data.DataLoader(" in lines[loader.made.line - 1]
    assert (loader.made.function, loader.made.call) == ("batches", call)
    assert Path(loader.made.file).name == "train.py"
    assert optimizer.made == Made(
        file=optimizer.made.file,
        line=1 + next(at for at, line in enumerate(lines) if line.startswith("optimizer =")),
        function="<module>",
        call="torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)",
    )


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("x = DataLoader(Files('https://me:secret@host'), 4)", "DataLoader(Files(...), 4)"),
        ("x = DataLoader(Files(f'{a}/b'), start='fork')", "DataLoader(Files(...), start='fork')"),
        ("x = make()", ""),
        ("x = DataLoader(a), DataLoader(b)", ""),
        ("x = (", ""),
    ],
)
def test_a_call_as_it_stands_without_what_may_be_private(tmp_path: Path, text: str, call: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert call_at(Place(str(tmp_path / "a.py"), 1, "main"), "DataLoader") == call
    assert call_at(Place(str(tmp_path / "none.py"), 1, "main"), "DataLoader") == ""


WRAPPED = """
import torch

class Wrapper:
    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Wrapped", (Wrapper, type(optimizer)), {})

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def step(self):
        self._optimizer.step()

model = torch.nn.Linear(8, 8)
optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
assert optimizer.defaults["lr"] == 1e-3
"""


def test_a_wrapper_that_only_looks_like_an_optimizer_has_what_it_wraps(tmp_path: Path) -> None:
    """It never sets what we note when it is set, and is asked for it: as Lightning Fabric's do."""
    done = profile(tmp_path, "--steps", 3, "--keep-running", "train.py", text=WRAPPED)
    assert done.code == 0, done.stderr
    assert [optimizer.name for optimizer in done.rank.optimizers] == ["SGD"]


def test_a_frame_without_a_line_is_at_the_first_of_its_function() -> None:
    def ran() -> tuple[object, int]:
        frame = sys._getframe()
        return frame.f_lineno, line_of(frame)

    first = ran.__code__.co_firstlineno
    assert ran() == (first + 2, first + 2)
    ran.__code__ = ran.__code__.replace(co_linetable=b"")
    assert ran() == (None, first)
