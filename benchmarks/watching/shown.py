"""The report of a watched run that the documentation shows: of `training.py 12`, on two cores."""

import re
from pathlib import Path

from msgspec.structs import replace
from prometheus_client import generate_latest

from diagnose.cli.live import drawn
from diagnose.live import now
from diagnose.live.metrics import Metrics
from diagnose.live.now import RankNow, rank_now
from diagnose.reports import terminal
from diagnose.source.run_log import logs_in, read
from diagnose.watched.assembly import watched_run

SHOWN = Path(__file__).with_name("shown")

AFTER_S = 50  # From the start of the run to the moment of which the live figures are.


def report() -> str:
    """In a block of Markdown."""
    text = terminal.watched(watched_run([read(path) for path in logs_in(SHOWN)]))
    return f"```console\n$ diagnose watch train.py 12\n{text.rstrip()}\n```"


def panel() -> str:
    """What `--live` shows of it after so many seconds, on a terminal of 80 columns."""
    lines = drawn([_then()], 80)
    return "```text\n{}\n```".format("\n".join(re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines))


def line() -> str:
    """The same in a pipe."""
    return f"```text\ndiagnose: {now.line([_then()])}\n```"


def scraped() -> str:
    """Some of what is served then."""
    lines = generate_latest(Metrics([_then()])).decode().splitlines()
    kept = [one for one in lines if re.match(r"\S+watch_(steps|part_seconds|step_quantile|finding)\S*\{", one)]
    return "```text\n{}\n```".format("\n".join(kept))


def _then() -> RankNow:
    (log,) = map(read, logs_in(SHOWN))
    windows = tuple(window for window in log.windows if window.ended_ns <= AFTER_S * 1e9)
    return rank_now(replace(log, windows=windows, length_ns=windows[-1].ended_ns, ended=None, last={}, files=()))
