"""Starvation by a slow host: in ops, and in Python between them."""

from pathlib import Path

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.idle import idle
from diagnose.facts.core.spans import host_spans, in_used_steps, launched_in
from diagnose.facts.core.steps import steps
from diagnose.facts.host.python import PythonPause, python_pauses
from diagnose.facts.host.starvation import starvation
from diagnose.source import ranks
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from tests.drawing import Drawing

SOME_TRACES = (
    "hta/nccl_a100_rank0_of_2.json.gz",
    "tensorboard/resnet50_autograd_0_workers.json.gz",
    "tracelens/b200_eager.json.gz",
    "tracelens/sglang_decode_graphs.json.gz",
    "param/dlrm_8_ranks/worker1.pt.trace.json.gz",
)


def starved() -> Drawing:
    """Step 1 lasts from 50 to 350 us on the device, and is idle from 150 to 250 us only."""
    draw = Drawing().step(0, 0, 40).launch("first", (5, 6), (30, 50)).step(1, 40, 450)
    return draw.launch("before", (45, 48), (50, 150)).launch("after", (240, 245), (250, 350)).op("aten::z", 400, 410)


def named(facts: Facts, ids: object) -> list[str]:
    return facts.rank.spans["name"].iloc[ids].astype(str).tolist()


def pieces(pause: PythonPause) -> list[tuple[list[int], list[int]]]:
    return [(times.starts.tolist(), times.ends.tolist()) for _, times in pause.times]


def test_dispatching_ops_starve_the_device() -> None:
    facts = (
        starved().op("aten::a", 1, 7).op("aten::a", 140, 180).op("aten::b", 181, 249).op("aten::c", 182, 190).facts()
    )
    found = starvation(facts)
    assert (found.idle_ns, found.share) == (100_000, pytest.approx(1 / 3))
    assert (found.gaps.starts.tolist(), found.gaps.ends.tolist()) == ([150_000], [250_000])
    # aten::c is inside aten::b; aten::z and the first aten::a ran when nothing was starved.
    ((_, times),) = found.times
    assert (times.starts.tolist(), times.ends.tolist()) == ([140_000, 181_000], [180_000, 249_000])
    assert (found.launches, found.kernel_median_ns) == (2, 100_000)
    assert found.empty_queue_share == 0.5  # "before" was launched while "first" ran
    assert found.graph_share == 0.0


def test_a_slow_launching_call_starves_too_and_python_does_not() -> None:
    draw = Drawing().step(0, 0, 40).launch("first", (5, 6), (30, 50)).step(1, 40, 450).op("aten::z", 1, 4)
    slow = draw.launch("before", (45, 48), (50, 150)).launch("after", (140, 248), (250, 350))
    assert starvation(slow.facts()).idle_ns == 100_000
    assert starvation(starved().facts()).idle_ns == 0


def test_a_cuda_graph_is_one_launch_of_many_kernels() -> None:
    draw = starved().launch("k1", (340, 345), (350, 352), api="cudaGraphLaunch")
    correlation = draw.events[-1]["args"]["correlation"]
    draw.work("k2", (352, 354), correlation=correlation).work("k3", (351, 353), stream=8, **{"graph id": 7})
    found = starvation(draw.facts())
    assert found.launches == 3
    assert found.graph_share == 0.6
    assert found.empty_queue_share == pytest.approx(1 / 3)  # the graph was launched while "after" ran


def test_without_ops_python_and_dispatch_look_the_same() -> None:
    draw = Drawing().launch("a", (0, 2), (5, 10)).launch("b", (50, 52), (55, 60))
    for fact in (starvation, python_pauses):
        with pytest.raises(Missing, match="framework ops"):
            fact(draw.facts())


def test_a_pause_of_the_host_is_told_from_what_the_device_waits() -> None:
    (found,) = python_pauses(starved().facts())
    assert (found.site, found.idle_ns, found.share, found.gaps) == (None, 100_000, pytest.approx(1 / 3), 1)
    assert (found.steps_seen, found.optimizer_share) == (1, 0.0)
    assert pieces(found) == [([48_000], [240_000])]


def test_pauses_are_grouped_by_line_and_cover_the_steps_that_are_not_used() -> None:
    draw = Drawing().step(0, 0, 300).launch("a", (5, 6), (10, 20)).op("aten::fill_", 7, 8)
    draw.launch("b", (90, 91), (100, 110))  # after a pause in `prepare`, as in step 1
    draw.op("aten::slow", 120, 198).launch("c", (199, 200), (210, 220))  # starved by an op more than by `prepare`
    draw.step(1, 300, 700).launch("d", (305, 306), (310, 320)).launch("e", (390, 391), (400, 410))
    draw.launch("f", (490, 491), (500, 510))
    for start, end in ((8, 89), (92, 119), (310, 389)):
        draw.frame("/home/me/train.py(31): prepare", start, end)
    draw.frame("/home/me/train.py(60): log", 400, 489)
    found = {pause.site: pause for pause in python_pauses(draw.facts())}
    prepare, log = Site("/home/me/train.py", 31, "prepare"), Site("/home/me/train.py", 60, "log")
    assert {found[prepare].idle_ns, found[log].idle_ns} == {80_000, 90_000}
    assert pieces(found[prepare]) == [([8_000, 306_000], [90_000, 390_000])]
    assert pieces(found[log]) == [([391_000], [490_000])]


@pytest.mark.parametrize("call", ["Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"])
def test_pauses_are_counted_by_step_and_told_from_those_of_the_optimizer(call: str) -> None:
    draw = Drawing()
    for at in (0, 100, 200, 300):
        draw.step(at // 100, at, at + 100).launch("k", (at + 2, at + 4), (at + 10, at + 60))
        draw.launch("add", (at + 70.5, at + 71), (at + 72, at + 73))
        draw.span("user_annotation", call, at + 65, at + 85)
    draw.op("aten::slow", 172, 201.9).op("aten::slow", 206, 270)
    (found,) = python_pauses(draw.facts())
    # Idle from 60 to 72 us of each 100, mostly in the optimizer's step, and from 73 to 110, of which that is open for
    # 12: in step 2 for the ops.
    assert (found.gaps, found.steps_seen, found.idle_ns) == (2, 2, round(2 * 37_000 / 3))
    assert found.optimizer_share == pytest.approx(24 / 74)
    causes = {one.cause: one.gaps for one in idle(draw.facts())}
    assert causes[TimeCause.OPTIMIZER] == 3


def test_launching_is_neither_the_optimizer_s_nor_what_the_cpu_computes_nor_reads() -> None:
    facts = facts_of("""
        4 steps of 10
        cpu  aten::randn 0-2 | aten::add 2.9-3 | aten::mm 3.02-3.12 | optimizer 5-7 | aten::add_ 6-6.1
        cpu  aten::item 4-4.2 | sync 4.1-4.15
        gpu  pointwise 2.96-2.97 @2.95 | sgemm 3.1-3.2 @3.09 | d2h 4.1-4.11 @4.05 8B | pointwise 6.06-10 @6.05
    """)
    found = starvation(facts)
    ((_, times),) = found.times
    assert set((times.ends - times.starts).tolist()) == {100_000}  # aten::add and aten::mm of each step
    assert times.size == 6
    assert found.reads == 0  # one a step


def test_reads_that_come_again_and_again_break_what_could_be_compiled() -> None:
    reads = "cpu  aten::mm 0-0.1 x9 every 1 | aten::item 0.5-0.8 x9 every 1 | sync 0.6-0.7 x9 every 1"
    kernels = "gpu  sgemm 0.06-0.2 @0.05 x9 every 1 | d2h 0.6-0.61 @0.55 8B x9 every 1"
    assert starvation(facts_of(f"4 steps of 10\n{reads}\n{kernels}")).reads == 9


@pytest.mark.parametrize(
    ("step", "pause", "counts"),
    [(4, 0.45, True), (4, 0.35, False), (2, 0.25, False), (2, 0.35, True), (40, 0.9, False), (40, 1.1, True)],
)
def test_where_the_cpu_trains_a_pause_is_work_by_its_length_or_share(step: int, pause: float, counts: bool) -> None:
    """1 ms, or a tenth of the step if that is 0.3 ms at least."""
    ops = f"cpu  aten::mm 0-{step / 2} | aten::mm {step / 2 + pause}-{step}"
    found = python_pauses(facts_of(f"4 steps of {step}\n1 threads, 2 cores\n{ops}"))
    assert [round(one.idle_ns, -3) for one in found] == [round(pause * 1_000_000)] * counts


def test_where_the_cpu_trains_a_pause_across_the_end_of_a_step_is_of_the_step_that_has_more_of_it() -> None:
    """A line that runs right after the optimizer, whose last op ends 0.5 ms before the step does: 4 ms in each step."""
    ops = 'cpu  aten::mm 3.5-9.5 | "train.py(24): log" 0-3.5 | "train.py(24): log" 9.5-10'
    (found,) = python_pauses(facts_of(f"6 steps of 10\n1 threads, 2 cores\n{ops}"))
    assert (found.gaps, found.steps_seen, round(found.idle_ns, -3)) == (5, 5, 4_000_000)


@pytest.mark.parametrize(
    ("pauses", "each", "counts"), [(10, 0.13, True), (3, 0.5, False), (6, 0.13, False), (14, 0.09, False)]
)
def test_where_the_cpu_trains_many_short_pauses_of_a_line_are_work_together(
    pauses: int, each: float, counts: bool
) -> None:
    """At least four of 0.1 ms before the same op, together a tenth of the step of 10 ms."""
    every = round(each + 0.01, 2)
    last = round(1 + pauses * every, 2)
    ops = f"aten::mm 0-1 | aten::lift_fresh {1 + each:.2f}-{1 + every:.2f} x{pauses} every {every} | aten::mm {last}-10"
    rows = f'cpu  {ops} | "train.py(24): tokenise" 1-{last}'
    found = python_pauses(facts_of(f"4 steps of 10\n1 threads, 2 cores\n{rows}"))
    assert [(one.gaps, round(one.idle_ns, -3)) for one in found] == [(3 * pauses, round(pauses * each * 1e6))] * counts


def test_pauses_of_a_line_before_different_ops_are_no_loop() -> None:
    """Eight of 0.22 ms before two ops, as the calls of two modules; four before one op are no tenth of the step."""
    ops = "aten::mm 0-1 | aten::mul 1.22-1.23 x4 every 0.46 | aten::tanh 1.45-1.46 x4 every 0.46 | aten::mm 2.84-10"
    assert python_pauses(facts_of(f'4 steps of 10\n1 threads, 2 cores\ncpu  {ops} | "train.py(24): main" 1-2.84')) == ()


def test_a_pause_belongs_to_the_thread_that_launches_next() -> None:
    draw = Drawing().step(0, 0, 40).launch("first", (5, 6), (30, 50)).step(1, 40, 450).op("aten::z", 1, 4)
    draw.launch("before", (45, 48), (50, 150)).launch("after", (240, 245), (250, 350), tid=777)
    facts = draw.facts()
    (found,) = python_pauses(facts)
    assert [facts.rank.tracks["thread"][track] for track, _ in found.times] == ["777"]


def test_pauses_of_two_threads_at_one_place_are_one() -> None:
    draw = Drawing().step(0, 0, 40).launch("first", (5, 6), (30, 50)).step(1, 40, 450).op("aten::z", 1, 4)
    draw.launch("before", (45, 48), (50, 150)).launch("after", (240, 245), (250, 350), tid=777)
    draw.launch("last", (380, 385), (390, 400))
    (found,) = python_pauses(draw.facts())
    assert (found.gaps, found.idle_ns) == (2, 140_000)
    assert sorted(pieces(found)) == [([48_000], [240_000]), ([245_000], [380_000])]


def test_host_spans_belong_to_the_step_whose_mark_they_start_in() -> None:
    """The host is a step ahead: what it does for step 2 happens while the device is busy with step 1."""
    draw = Drawing()
    for number in range(3):
        draw.step(number, 10 * number, 10 * number + 9).op("aten::mm", 10 * number + 1, 10 * number + 5)
        draw.launch("k", (10 * number + 2, 10 * number + 3), (50 + 100 * number, 150 + 100 * number))
    facts = draw.facts()
    ops = host_spans(facts, SpanKind.OP)
    assert steps(facts).numbers == (1, 2)
    assert in_used_steps(facts, ops.ids).tolist() == [False, True, True]
    assert launched_in(facts, ops).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", SOME_TRACES)
def test_starved_and_paused_time_are_parts_of_the_idle_time(corpus: Path, name: str) -> None:
    facts = Facts(ranks.read(corpus / "kineto" / name))
    shares = idle(facts)

    def total(*causes: TimeCause) -> int:
        return sum(share.ns for share in shares if share.cause in causes)

    pauses = python_pauses(facts)
    assert abs(starvation(facts).idle_ns - total(TimeCause.OPS, TimeCause.LAUNCH)) <= len(shares)
    assert abs(sum(pause.idle_ns for pause in pauses) - total(TimeCause.PYTHON)) <= len(shares) + len(pauses)
    assert sum(pause.gaps for pause in pauses) == sum(share.gaps for share in shares if share.cause is TimeCause.PYTHON)
