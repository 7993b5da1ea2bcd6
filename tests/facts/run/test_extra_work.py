"""What long steps do that others do not."""

from itertools import pairwise

import pytest

from diagnose.facts.run.longer_steps import ExtraWork, long_steps
from diagnose.facts.run.pauses import Filling
from diagnose.trace.frames import Site
from tests.drawing import Drawing

MS = 1_000_000


def steady(count: int, late: dict[int, int], busy_ms: int = 50) -> tuple[Drawing, list[int]]:
    """Steps of 100 ms, some of them longer by so many; in each the device works from 1 ms on. Starts of steps in us."""
    draw, starts = Drawing(), [0]
    for number in range(count):
        at, length = starts[-1], 1000 * (100 + late.get(number, 0))
        draw.step(number, at, at + length).op("aten::mm", at + 100, at + 900)
        draw.launch("k", (at + 500, at + 600), (at + 1000, at + 1000 * (1 + busy_ms)))
        draw.launch("end", (at + length - 100, at + length - 90), (at + length - 80, at + length))
        starts.append(at + length)
    return draw, starts


def only(draw: Drawing) -> ExtraWork:
    found = long_steps(draw.facts())
    assert found.others == ()
    (extra,) = found.extra
    return extra


def test_a_range_that_some_steps_have_is_extra_work() -> None:
    draw, starts = steady(10, {2: 80, 5: 80, 8: 80})
    for number in (2, 5, 8):
        draw.span("user_annotation", "log_images", starts[number] + 60_000, starts[number] + 130_000)
    for number in range(10):
        draw.span("user_annotation", "forward", starts[number] + 50, starts[number] + 950)
    facts = draw.facts()
    found = long_steps(facts)
    (extra,) = found.extra
    assert (found.count, found.median_ns, found.others) == (3, 100 * MS, ())
    assert (extra.filling, extra.name, extra.numbers) == (Filling.ANNOTATION, "log_images", (2, 5, 8))
    assert (extra.ns, extra.period) == (70 * MS, 3)
    assert facts.rank.spans["name"].iloc[extra.ids].tolist() == ["log_images"] * 3
    assert extra.times.size == 0


@pytest.mark.parametrize(
    ("late", "period"), [((2, 5, 8), 3), ((2, 5), None), ((4, 8), 4), ((2, 3, 8), None), ((5,), None)]
)
def test_a_period_holds_over_all_used_steps(late: tuple[int, ...], period: int | None) -> None:
    draw, starts = steady(10, dict.fromkeys(late, 80))
    for number in late:
        draw.span("user_annotation", "log_images", starts[number] + 60_000, starts[number] + 130_000)
    assert only(draw).period == period


def test_what_other_steps_do_too_is_no_extra_work() -> None:
    """The range is in every step, only longer in one, in which the host runs Python from 0.9 ms on."""
    draw, starts = steady(6, {3: 80})
    for number, at in enumerate(starts[:6]):
        draw.span("user_annotation", "forward", at + 50, at + (99_000 if number != 3 else 170_000))
    extra = only(draw)
    assert (extra.filling, extra.name, extra.numbers) == (Filling.ACTIVITY, "", (3,))
    assert extra.ns == 80 * MS
    pause = (starts[3] + 900, starts[3] + 179_900)
    assert (extra.times.starts.tolist(), extra.times.ends.tolist()) == ([pause[0] * 1000], [pause[1] * 1000])


def test_only_the_longest_pauses_are_extra() -> None:
    draw, starts = steady(6, {3: 80})
    draw.op("aten::a", starts[3] + 40_000, starts[3] + 41_000).op("aten::b", starts[3] + 50_000, starts[3] + 51_000)
    extra = only(draw)
    assert extra.ns == 78 * MS  # 80 of Python more, but for 2 of ops
    assert extra.times.starts.tolist() == [(starts[3] + 51_000) * 1000]  # until 179.9 ms: enough


def test_a_line_of_the_script() -> None:
    draw, starts = steady(6, {3: 80})
    draw.frame("/home/me/train.py(1): main", 0, starts[-1])
    draw.frame("/home/me/train.py(70): log_images", starts[3] + 51_000, starts[3] + 179_000)
    extra = only(draw)
    assert (extra.filling, extra.name) == (Filling.LINE, "log_images")
    assert extra.site == Site("/home/me/train.py", 70, "log_images")
    # The device is idle from 51 ms of the step to 179.92.
    idle = [(starts[3] + 51_000) * 1000], [(starts[3] + 179_920) * 1000]
    assert (extra.times.starts.tolist(), extra.times.ends.tolist()) == idle


def test_a_line_of_the_script_on_the_cpu() -> None:
    """Half of it runs in a lambda on that line; other steps touch the line for less than a tenth of that."""
    draw = Drawing().frame("/home/me/train.py(1): main", 0, 680_000)
    for number, (at, end) in enumerate(pairwise(1000 * ms for ms in (0, 100, 200, 300, 480, 580, 680))):
        draw.step(number, at, end).op("aten::mm", at + 100, at + 99_000)
        if number != 3:
            draw.frame("/home/me/train.py(23): save", end - 900, end - 200)
    draw.frame("/home/me/train.py(23): save", 400_000, 479_000)
    draw.frame("/home/me/train.py(23): <lambda>", 410_000, 455_000)
    extra = only(draw)
    assert (extra.site, extra.numbers) == (Site("/home/me/train.py", 23, "save"), (3,))
    assert extra.ns == 78_300_000  # other steps: 0.7 ms
    assert (extra.times.starts.tolist(), extra.times.ends.tolist()) == ([400 * MS], [479 * MS])


def test_what_other_rules_are_about_is_told_by_name() -> None:
    draw, starts = steady(16, {2: 80, 4: 80, 6: 80, 8: 80, 10: 80, 12: 80})
    draw.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", starts[2] + 60_000, starts[2] + 150_000)
    draw.op("_compile.compile_inner (dynamo_timed)", starts[4] + 60_000, starts[4] + 150_000)
    draw.span("user_annotation", "save_checkpoint", starts[6] + 60_000, starts[6] + 150_000)
    draw.launch("more", (starts[8] + 700, starts[8] + 710), (starts[8] + 60_000, starts[8] + 150_000))
    draw.span("overhead", "Buffer Flush", starts[10] + 60_000, starts[10] + 150_000)
    draw.op("aten::sort", starts[12] + 60_000, starts[12] + 95_000)
    draw.op("aten::topk", starts[12] + 96_000, starts[12] + 135_000)
    found = long_steps(draw.facts())
    reasons = ("loader", "compile", "checkpoint", "device", "profiler", "unknown")
    assert (found.extra, found.others) == ((), tuple((one, (2 + 2 * at,)) for at, one in enumerate(reasons)))


def test_a_slow_first_step_that_compiles_is_warm_up() -> None:
    draw, starts = steady(8, {1: 80})
    draw.span("user_annotation", "log_images", starts[1] + 60_000, starts[1] + 130_000)
    draw.op("_compile.compile_inner (dynamo_timed)", starts[1] + 140_000, starts[1] + 141_000)
    assert long_steps(draw.facts()).others == (("warm_up", (1,)),)
