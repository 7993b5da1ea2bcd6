"""Running an arm of a trial on a script."""

import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.trials.arms import Arm, Size, run_arm
from tests.capture.scripts import script

SIZE = Size(warmup=3, timed=8, timed_s=0.0, expected_s=40.0)


def arm(folder: Path, text: str, *fixes: str, size: Size = SIZE, words: Sequence[str] = ()) -> Arm:
    path = script(folder, text)
    return run_arm([sys.executable, *words, str(path)], folder / f"arm{len(list(folder.iterdir()))}", size, fixes)


def printed(folder: Path) -> str:
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text().splitlines()[-1]
