"""What `diagnose watch` shows of real trainings while they run, and that it leaves them alone."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import STEP, environment, plain, script, started
from tests.cli.terminals import on_a_terminal
from tests.live.drawn import points

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")

UNTIL_TOLD = (
    STEP
    + """
print("begins", flush=True)
until = time.monotonic() + 600
while not os.path.exists("over") and time.monotonic() < until:
    step()
    time.sleep(0.01)
print("ends")
sys.exit(3)
"""
)


def words(*more: object) -> list[str]:
    return [sys.executable, "-m", "diagnose", "watch", "-o", "out", *map(str, more)]


@contextmanager
def watching(folder: Path, *more: object) -> Iterator[subprocess.Popen[str]]:
    """A training that goes on until there is a file `over`, watched."""
    script(folder, UNTIL_TOLD)
    process = started(folder, *words(*more, "train.py"))
    try:
        yield process
    finally:
        (folder / "over").touch()
        process.communicate(timeout=600)


def line_with(pattern: str, process: subprocess.Popen[str]) -> re.Match[str]:
    """The next one on standard error that has it."""
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"it has ended without {pattern}")


def samples(url: str) -> dict[str, float]:
    """Of one rank, by name and labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        " ".join([sample.name, *(value for key, value in sample.labels.items() if key != "rank")]): sample.value
        for family in families
        for sample in family.samples
    }


def scraped(url: str, least_steps: float) -> dict[str, float]:
    until = time.monotonic() + 600
    while (found := samples(url)).get("diagnose_watch_steps_total", 0) < least_steps:
        assert time.monotonic() < until
        time.sleep(0.2)
    return found


@needs_tensorboard
def test_a_training_is_scraped_and_written_for_tensorboard_while_it_runs(tmp_path: Path) -> None:
    with watching(tmp_path, "--metrics", "0", "--tensorboard", "boards") as process:
        url = line_with(r"serving metrics at (http://127\.0\.0\.1:\d+/metrics)", process)[1]
        first = scraped(url, 2)
        second = scraped(url, first["diagnose_watch_steps_total"] + 1)
        assert process.poll() is None
        assert second["diagnose_watch_step_seconds_count"] == second["diagnose_watch_steps_total"] - 1
        assert second["diagnose_watch_memory_bytes resident"] > 50e6
        assert 0.01 <= second["diagnose_watch_step_quantile_seconds 0.5 now"] < 1
        counters = [name for name in first if "_total" in name]
        assert "diagnose_watch_part_seconds_total training" in counters
        assert all(second[name] >= first[name] for name in counters)
        (tmp_path / "over").touch()
        printed, said = process.communicate(timeout=600)
    assert process.returncode == 3, said
    assert re.match(r"begins\nends\n[^:]+: .*training steps [\d.]+ %", printed)
    with pytest.raises(urllib.error.URLError):
        samples(url)
    found, log = points(tmp_path / "boards" / "out" / "rank0"), read(tmp_path / "out" / "rank0.watch")
    assert [step for _, step, _ in found] == [one.first_step + one.steps - 1 for one in log.windows if one.steps]
    assert found[-1][1] == rank_run(log).steps - 1
    means = [one.of("step").sum_ns / one.of("step").count / 1e9 for one in log.windows if one.steps]
    assert [told["step_seconds/mean"] for _, _, told in found] == pytest.approx(means)


@pytest.mark.exhaustive
def test_in_a_pipe_a_line_is_told_and_the_script_prints_what_it_prints(tmp_path: Path) -> None:
    with watching(tmp_path, "-q", "--no-analyze", "--live") as process:
        line_with(r"^diagnose: \d+ steps? in [\d.]+ s.*; resident memory \d+ MB$", process)
        (tmp_path / "over").touch()
        printed, said = process.communicate(timeout=600)
    assert (process.returncode, printed, said) == (3, "begins\nends\n", "")
    alone = plain(tmp_path, "train.py")
    assert (alone.returncode, alone.stdout) == (3, printed)


@pytest.mark.exhaustive
@needs_tensorboard
def test_an_interrupt_ends_with_a_report_as_ever(tmp_path: Path) -> None:
    with watching(tmp_path, "--live", "--metrics", "0", "--tensorboard", "boards") as process:
        line_with(r"^diagnose: \d+ steps? in", process)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "), interrupted" in printed


@needs_tensorboard
def test_what_fails_meanwhile_is_told_once_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "boards" / "out").mkdir(parents=True)
    (tmp_path / "boards" / "out" / "rank0").write_text("no folder")
    with watching(tmp_path, "-q", "--no-analyze", "--tensorboard", "boards") as process:
        line_with("^diagnose: writing for TensorBoard stops: File exists. The training continues.$", process)
        assert process.poll() is None
        (tmp_path / "over").touch()
        printed, said = process.communicate(timeout=600)
    assert (process.returncode, printed, said) == (3, "begins\nends\n", "")


def test_on_a_terminal_there_is_a_panel_until_the_report(tmp_path: Path) -> None:
    shown = "    if os.path.exists('shown'):\n        break\n"
    script(tmp_path, STEP + f"for _ in range(30_000):\n    step()\n    time.sleep(0.02)\n{shown}print('ends')\n")

    def told(content: bytes) -> None:
        if "╭".encode() in content:
            (tmp_path / "shown").touch()

    code, text = on_a_terminal(words("--live", "train.py"), tmp_path, told=told)
    assert code == 0, text
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    panel, ends, report = map(text.index, ("╭─ diagnose watch", "ends\r\n", " steps (counted by optimizer steps), "))
    assert panel < ends < report
    assert "\x1b[r" in text[ends:report]
    assert "╭" not in text[report:]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--metrics", "{taken}"], "Error: Cannot serve metrics at {taken}: the port is taken. Choose another port"),
        (["--metrics", "here:there"], "Error: here:there is not [HOST:]PORT. Write 9400, :9400 or 0.0.0.0:9400."),
        pytest.param(
            ["--tensorboard", "train.py/boards"],
            "Error: Cannot write to train.py/boards: Not a directory. Name another",
            marks=needs_tensorboard,
        ),
    ],
)
def test_what_cannot_be_shown_is_told_before_the_script_starts(tmp_path: Path, more: list[str], error: str) -> None:
    script(tmp_path, "open('started', 'w')\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        asked = words(*(one.format(taken=taken) for one in more), "train.py")
        done = subprocess.run(asked, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(error.format(taken=taken))
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
