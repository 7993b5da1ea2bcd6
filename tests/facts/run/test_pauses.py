"""Garbage collection, silences, checkpoints and steps that take far longer than others."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.run.pauses import checkpoints, silences, step_spikes
from diagnose.facts.run.step_table import Filling, garbage_collections
from diagnose.trace.frames import Site
from tests.drawing import Drawing

LINE = Site("/home/me/train.py", 70, "log_images")


def steady(count: int = 3, ms: int = 100, **late: int) -> Drawing:
    """Steps of 100 ms: the device works in the first half of each. `late`: how many ms longer some of them take."""
    draw, at = Drawing(), 0
    for number in range(count):
        length = 1000 * (ms + late.get(f"step{number}", 0))
        draw.step(number, at, at + length - 1).op("aten::mm", at + 1, at + 5000)
        draw.launch("k", (at + 2, at + 4), (at + 10, at + 50_000))
        draw.op("aten::add_", at + length - 40_000, at + length - 2)
        draw.launch("end", (at + length - 10, at + length - 9), (at + length - 8, at + length - 5))
        at += length
    return draw


def test_automatic_and_explicit_collections() -> None:
    draw = steady()
    for at in (0, 100_000, 200_000):
        draw.frame("Python GC", at + 40_000, at + 44_000)
        draw.frame("<built-in function collect>", at + 52_000, at + 58_000).frame("Python GC", at + 52_100, at + 57_900)
    found = garbage_collections(draw.facts())
    assert (len(found.automatic.ids), found.automatic.total, found.automatic.host_ns) == (3, 2, 4_000_000)
    assert found.automatic.idle_ns == 0  # the device works until 50 ms of each step
    assert (len(found.explicit.ids), found.explicit.total, found.explicit.host_ns) == (3, 2, 6_000_000)
    assert (found.explicit.idle_ns, found.explicit.longest_ns) == (6_000_000, 6_000_000)
    assert found.automatic_recorded


def test_the_compiler_s_own_collections_are_compiling() -> None:
    draw = steady().op("_compile.compile_inner (dynamo_timed)", 152_000, 170_000)
    found = garbage_collections(draw.frame("<built-in function collect>", 160_000, 161_000).facts())
    assert (found.explicit.total, found.automatic.total, found.automatic_recorded) == (0, 0, False)


def test_collections_are_missing_where_nothing_could_show_them() -> None:
    with pytest.raises(Missing, match="record_python_gc_info"):
        garbage_collections(steady().facts())


def test_a_silence_of_the_host_while_the_device_is_idle() -> None:
    # Between the ops and launches of a step its host is silent from 5 to 60 ms, its device idle from 50 ms.
    assert silences(steady().facts()).total == 0
    draw = steady(step1=80)
    found = silences(draw.facts())
    assert (found.times.starts.tolist(), found.times.ends.tolist()) == ([150_000_000], [240_000_000])
    assert (found.total, found.idle_ns) == (1, 45_000_000)


@pytest.mark.parametrize("cat", ["user_annotation", "python_function", "cpu_op"])
def test_any_event_breaks_a_silence_but_one_around_it(cat: str) -> None:
    around = steady(step1=80).span("user_annotation", "## train ##", 100_100, 270_000)
    assert silences(around.facts()).total == 1
    # It leaves 45 ms of silence on both sides: too little.
    assert silences(steady(step1=80).span(cat, "something", 195_000, 195_001).facts()).total == 0


def test_checkpoints() -> None:
    draw = steady(step1=80).frame("torch/serialization.py(944): save", 160_000, 200_000)
    draw.span("user_annotation", "trainer.save_checkpoint", 155_000, 210_000)
    draw.copy("DtoH (Device -> Pageable)", (161_000, 162_000), (161_500, 161_900), 1000)
    draw.copy("DtoH (Device -> Pinned)", (163_000, 163_500), (163_100, 163_400), 500)
    draw.copy("HtoD (Pageable -> Device)", (164_000, 164_500), (164_100, 164_400), 7)
    draw.copy("DtoH (Device -> Pinned)", (215_000, 215_500), (215_100, 215_400), 50)
    draw.span("user_annotation", "save_checkpoint", 20_000, 30_000)
    found = checkpoints(draw.facts())
    assert found.dur_ns.tolist() == [10_000_000, 55_000_000]
    assert (found.step.tolist(), found.in_steps.tolist()) == ([0, 1], [False, True])
    assert (found.numbers, found.longest_ns) == ((1,), 55_000_000)
    assert found.host_ns == 27_500_000
    assert found.idle_ns == (55_000_000 - 1_000_000) // 2  # but for 0.4, 0.3 and 0.3 ms of copying


def test_checkpoints_have_the_line_that_saves() -> None:
    draw = steady(step1=80).frame("/home/me/train.py(7): main", 100_000, 220_000)
    found = checkpoints(draw.frame("torch/serialization.py(944): save", 160_000, 200_000).facts())
    assert found.site == Site("/home/me/train.py", 7, "main")


def test_checkpoints_are_missing_without_stacks_and_absent_with_them() -> None:
    with pytest.raises(Missing, match="save_checkpoint"):
        checkpoints(steady().span("user_annotation", "checkpoint_wrapper.forward", 160_000, 170_000).facts())
    assert len(checkpoints(steady().frame("/home/me/train.py(1): main", 1, 2).facts()).ids) == 0


def test_a_spike_is_filled_by_what_other_steps_do_not_do() -> None:
    draw = steady(7, step2=80, step5=100)
    # Step 2 begins at 200 ms and step 5 at 580 ms: the host is silent from 5 ms on until 40 ms before the end.
    draw.span("user_annotation", "validate", 260_000, 330_000).op("aten::argmax", 270_000, 280_000)
    draw.frame("/home/me/train.py(70): log_images", 210_000, 239_000).op("aten::item", 600_000, 655_000)
    draw.frame("/home/me/train.py(70): log_images", 660_000, 739_000)
    found = step_spikes(draw.facts())
    assert (found.median_ns, found.excess_ns, found.period) == (100_000_000, 30_000_000, 3)
    second, fifth = found.spikes
    assert (second.number, second.ns, second.excess_ns, second.busy_excess_ns) == (2, 180_000_000, 80_000_000, 0)
    told = {filler.filling: (filler.name, filler.site, filler.ns) for filler in second.fillers}
    assert told[Filling.ANNOTATION] == ("validate", None, 70_000_000)
    assert told[Filling.ACTIVITY] == ("python", None, 70_000_000)
    assert Filling.OP not in told  # 10 of 80 ms is less than a fifth
    told = {filler.filling: (filler.name, filler.site, filler.ns) for filler in fifth.fillers}
    assert told[Filling.OP] == ("aten::item", None, 55_000_000)
    assert told[Filling.ACTIVITY] == ("host_compute", None, 55_000_000)


@pytest.mark.parametrize(("late", "period"), [((1, 3, 5), 2), ((1, 3, 6), None), ((2, 6), 4), ((4,), None)])
def test_the_period_of_spikes(late: tuple[int, ...], period: int | None) -> None:
    found = step_spikes(steady(9, **{f"step{number}": 60 for number in late}).facts())
    assert [spike.number for spike in found.spikes] == list(late)
    assert found.period == period


def test_a_spike_is_placed_at_the_line_that_ran_while_the_device_was_idle() -> None:
    draw = steady(5, step2=80).frame("/home/me/train.py(70): log_images", 250_000, 339_000)
    draw.op("aten::sum", 255_000, 256_000)
    (spike,) = step_spikes(draw.facts()).spikes
    (line,) = [filler for filler in spike.fillers if filler.filling is Filling.LINE]
    # From the end of "k" at 250 ms to "end" at 379.992 ms, of a host delay whose middle is in log_images.
    assert (line.site, line.ns) == (LINE, 129_992_000)


def test_an_annotation_of_the_whole_run_fills_no_spike() -> None:
    draw = steady(5, step2=80).span("user_annotation", "train", 1, 579_000).op("aten::sort", 250_000, 330_000)
    (spike,) = step_spikes(draw.facts()).spikes
    assert {filler.filling for filler in spike.fillers} == {Filling.ACTIVITY, Filling.OP}
    facts = draw.facts()
    (op,) = [filler for filler in step_spikes(facts).spikes[0].fillers if filler.filling is Filling.OP]
    assert facts.rank.spans["name"].iloc[op.ids].tolist() == ["aten::sort"]
