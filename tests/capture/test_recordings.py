"""One recording by torch.profiler, and interrupts at any line of ours."""

import gzip
import json
import signal
from pathlib import Path

import pytest
import torch

from diagnose.capture.agent.plan import WORK
from diagnose.capture.agent.recordings import Recording


@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize("interrupted", ["__enter__", "__exit__"])
def test_what_was_recorded_is_kept_when_marking_a_step_is_interrupted(
    interrupted: str, entered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WORK).mkdir()
    recording = Recording(detailed=False)
    recording.begin(0)
    torch.ones(8).sum()
    recording.mark(1)
    original = getattr(torch.profiler.record_function, interrupted)

    def method(*args: object) -> object:
        if not entered:
            signal.raise_signal(signal.SIGINT)
        done = original(*args)
        signal.raise_signal(signal.SIGINT)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(torch.profiler.record_function, interrupted, method)
        with pytest.raises(KeyboardInterrupt):
            recording.mark(2)
    recording.end(tmp_path / "trace.json.gz", tmp_path / WORK)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("ProfilerStep#0") == 1
    assert "aten::sum" in names
