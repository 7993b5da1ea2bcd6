"""What `make gpu` does: rehearsed whole on the CPU, and its folder becomes tables."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("planted cases need tomllib, which came with Python 3.11", allow_module_level=True)

from benchmarks import h100
from benchmarks.verdicts import Figure


def rehearsed(folder: Path, seconds: int) -> tuple[str, dict[str, object]]:
    command = [sys.executable, "-m", "benchmarks.gpu", str(folder), "--device", "cpu", "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1], json.loads((folder / "truth.json").read_text())["gpt2_ns"]


@pytest.mark.slow
def test_a_rehearsal_is_broken_off_and_gone_on_with_until_nothing_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told, before = rehearsed(tmp_path, 60)
    assert "run it again" in told
    told, times_ns = rehearsed(tmp_path, 7200)
    assert (told, len(before) > 0, times_ns.items() >= before.items()) == ("Nothing is missing.", True, True)
    found = h100.judged(tmp_path)
    assert [(rung.recording, rung.fix) for rung in found.rungs] == [("gpt2_0_fp32", fix) for fix, _ in h100.LADDER]
    names = ["gpt2_fp8", "gradients_reduced_one_by_one", "optimizer_one_by_one"]
    assert sorted(pair.case for pair in found.pairs) == names
    assert sorted(one.recording for one in found.recorded) == ["gpt2_0_fp32", *names]
    assert [one.name for one in found.measured if one.ops] == ["optimizer_one_by_one"]
    assert sorted(one.case for one in found.trials if one.tried and one.truth) == names[1:]
    shown = [h100.each(table_of, [found]) for table_of in (h100.ladder, h100.pairs, h100.recorded, h100.tried)]
    assert [text.startswith(f"{found.device}, torch") for text in shown] == [True] * 4
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_new_of_a_machine_takes_the_place_of_what_is_published() -> None:
    row = h100.PairRow("a", "sync", (), 0.0, 1, Figure(2.0, 1.9, 2.1), None)
    old = h100.OnGpu("H100", "2.11", (), (row, replace(row, case="b")), (), watched_us=(1.0, 2.0))
    new = h100.OnGpu("H100", "2.11", (), (replace(row, place=2), replace(row, case="c")), ())
    other = replace(new, device="H200")
    (both, last) = h100.merged([old, other], new)
    assert [(one.case, one.place) for one in both.pairs] == [("a", 2), ("b", 1), ("c", 1)]
    assert (both.watched_us, last) == ((1.0, 2.0), other)
    assert h100.merged([old], other) == (old, other)


def test_what_an_event_costs_is_by_how_much_longer_steps_are(tmp_path: Path) -> None:
    """20 events in 2 steps that are 50 us longer: 5 us each."""
    events = [{"cat": "cpu_op"}] * 20 + [{"cat": "kernel"}]
    (tmp_path / "rank0.trace.json.gz").write_bytes(h100.gzip.compress(json.dumps({"traceEvents": events}).encode()))
    timed = h100.Timed(first_step=0, wall_ns=(1, 1))
    assert h100._each_us(3_000.0, 50.0, tmp_path, "rank0.trace.json.gz", timed, ("cpu_op",)) == (3.0, 5.0)
    assert h100._each_us(3_000.0, 50.0, tmp_path, None, timed, ("cpu_op",)) is None
