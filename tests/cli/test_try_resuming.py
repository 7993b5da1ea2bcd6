"""`diagnose try` on a script that goes on where its last run ended."""

from pathlib import Path

import pytest

from tests.capture.scripts import profile, script
from tests.cli.invoking import run
from tests.exhaustive import some_of

pytestmark = pytest.mark.slow

RESUMING = """
import os
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(30)])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
begin = 0
if os.path.exists("saved/ckpt.pt"):
    saved = torch.load("saved/ckpt.pt")
    net.load_state_dict(saved["net"])
    begin = saved["step"]
os.makedirs("saved", exist_ok=True)
for step in range(begin, int(os.environ["STEPS"])):
    rows = torch.randn(32, 64)
    loss = (net(rows) - rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        torch.save({"net": net.state_dict(), "step": step + 1}, "saved/ckpt.pt")
"""
"""It has made 60 steps or more when it has been recorded, and an arm makes 30 at least."""

SAID = "It reads saved/ckpt.pt, which an earlier run of it wrote. If it resumes from there, no two runs train the same"


@pytest.mark.parametrize("steps", some_of(["80", "100000"], {"80"}))
def test_a_script_that_resumes_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    """Too few steps are left to time, or they are other ones."""
    monkeypatch.setenv("STEPS", steps)
    assert profile(tmp_path, script(tmp_path, RESUMING).name, "--steps", "1", "--warmup", "2").code == 0
    done = run("try", "out", "--fix", "OP01", "--yes", "--pairs", "2", "--budget", "1m", cwd=tmp_path)
    assert SAID in " ".join((done.stdout + done.stderr).split())
