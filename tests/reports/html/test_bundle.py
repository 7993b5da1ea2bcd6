"""What the page carries: nothing is lost in packing, scripts are known by their hashes, prose is text."""

import base64
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from plotly.offline import get_plotlyjs

from diagnose.contracts.watched_run import RunPartKind, WatchedRun
from diagnose.facts.core.base import Missing
from diagnose.reports.html import style, whole_run_page
from diagnose.reports.html import whole_run_page as figures
from diagnose.watched.assembly import watched_run
from tests.watched.logs import MS, S, column, interval, log, recorded, windows, with_columns, with_gauges


@pytest.mark.parametrize("content", ["", "a <b> \u202e", b"\x00\xff" * 1000])
def test_what_is_packed_comes_back(content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    assert gzip.decompress(base64.b64decode(style.packed(content))) == raw


def test_packing_twice_gives_the_same() -> None:
    assert style.packed("x" * 100) == style.packed("x" * 100)


def test_plotly_is_carried_whole_and_allowed_by_its_hash() -> None:
    packed, allowed = style.plotly_script()
    script = gzip.decompress(base64.b64decode(packed))
    assert script.decode() == get_plotlyjs()
    assert allowed == f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
    assert len(packed) < 2_100_000


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one line\nand another", "one line and another"),
        ("one\n\ntwo\nthree", "one\n\ntwo three"),
        ("a list:\n- one\n- two\n  goes on", "a list:\n- one\n- two   goes on"),
        ("`x < y` & <b>", "<code>x &lt; y</code> &amp; &lt;b&gt;"),
        (
            "see https://pytorch.org/a?b=1, and `y`.",
            'see <a href="https://pytorch.org/a?b=1" target="_blank" rel="noopener noreferrer">https://pytorch.org/a?b=1'
            "</a>, and <code>y</code>.",
        ),
        (
            'javascript:alert(1) "https://x.example/"<',
            'javascript:alert(1) &#34;<a href="https://x.example/" target='
            '"_blank" rel="noopener noreferrer">https://x.example/</a>&#34;&lt;',
        ),
    ],
)
def test_prose_flows_and_is_text(written: str, shown: str) -> None:
    assert style.prose(written) == shown


HOSTILE = "<script>alert(1)</script>"


def run(ranks: int = 1) -> WatchedRun:
    """Of ten windows of a second, half of which waits; each rank has longer steps than the one before."""
    logs = []
    for rank in range(ranks):
        some = windows([(100 + 10 * rank) * MS] * 10)
        some = tuple(with_columns(one, loader=column(10, 500 * MS)) for one in some)
        some = with_gauges(
            some, resident_bytes=[1e9 + 1e8 * k for k in range(10)], temperature_c=[60.0 + k for k in range(10)]
        )
        logs.append(log(some, rank=rank, world_size=ranks))
    return watched_run(logs)


def test_time_over_the_run_is_shares_of_each_stretch() -> None:
    made = figures.parts(run())
    bars = {bar.name: bar for bar in made.data}
    assert set(bars) == {"training steps", "waiting for data", "start-up and compilation"}
    # The start takes the first second; then each window is a stretch.
    assert bars["start-up and compilation"].y == (100, *[0] * 10)
    assert bars["waiting for data"].y == (0, *[50] * 10)
    assert bars["training steps"].x == tuple(0.5 + k for k in range(11))
    assert bars["training steps"].width == (1,) * 11
    assert figures.parts_sentence(run()).endswith("in 10 stretches: most of it, 45.5 %, is training steps.")


def test_each_part_has_a_colour_and_a_word() -> None:
    assert set(figures.COLOURS) == set(figures.KINDS) == set(RunPartKind)


def test_steps_of_all_ranks_are_side_by_side(tmp_path: Path) -> None:
    made = figures.step_times(run(3))
    assert [(one.name, one.y[0]) for one in made.data] == [("rank 0", 100), ("rank 1", 110), ("rank 2", 120)]
    assert [one.name for one in figures.step_times(run()).data] == ["usual step"]
    # Of many the first, the fastest and the slowest.
    assert [one.name for one in figures.step_times(run(20)).data] == [f"rank {k}" for k in (0, 1, 2, 3, 16, 17, 18, 19)]
    sketched = watched_run([recorded(tmp_path, [interval(20 * MS)] * 200)])
    usual, p99 = figures.step_times(sketched).data
    assert p99.name == "99th percentile"
    assert p99.y[0] == pytest.approx(20, rel=0.022)
    assert usual.y[0] == 20


def test_memory_and_device_over_the_run() -> None:
    (memory,) = figures.memory(run()).data
    assert (memory.name, memory.y[0], memory.y[-1]) == ("resident memory", 1.0, 1.9)
    assert figures.memory_sentence(run()) == "Resident memory: 1.00 GB at first, 1.90 GB at last."
    assert figures.device_sentence(run()).endswith("temperature, °C 60.0 to 69.0.")
    alone = watched_run([log(windows([100 * MS] * 3))])
    with pytest.raises(Missing, match="memory"):
        figures.memory(alone)


def test_a_run_of_one_step_has_a_page_without_figures() -> None:
    short = watched_run([replace(log(windows([MS])), windows=(), length_ns=S)])
    page = whole_run_page.render(short)
    assert page.count("<strong>Not drawn:</strong> steps after the first. Let the run continue for longer.") == 4


def test_the_page_says_all_that_the_terminal_does_and_asks_for_nothing() -> None:
    page = whole_run_page.render(run())
    assert "Steps wait 50.0 ms on average for their batch: 5.00 s (45.5 % of the run)." in page
    assert "saves 2.5 s (0 to 4.5 s), 23 %" in page
    assert page.count('class="figure"') == 4
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "default-src &#39;none&#39;" in page


def test_names_in_a_log_are_text() -> None:
    hostile = with_gauges(windows([100 * MS] * 3), **{HOSTILE: [1.0, 2.0, 3.0]})
    page = whole_run_page.render(watched_run([log(hostile, files=(HOSTILE,), ended=HOSTILE, steps_by=HOSTILE)]))
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
