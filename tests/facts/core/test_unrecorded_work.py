"""Work that waits and graphs show to have run, and that was not recorded."""

from diagnose.facts.core.breakdown import breakdown
from diagnose.facts.core.device import unrecorded_work
from diagnose.facts.core.work import work_table
from diagnose.trace.kinds import KernelKind
from tests.drawing import Drawing


def found(draw: Drawing) -> list[tuple[float, float]]:
    some = unrecorded_work(draw.facts())
    return [(start / 1e3, end / 1e3) for start, end in zip(some.starts.tolist(), some.ends.tolist(), strict=True)]


def test_a_wait_that_nothing_recorded_fills() -> None:
    """From 500 on, when the recorded kernel is done."""
    draw = Drawing().launch("k", (0, 20), (30, 500)).call("cudaStreamSynchronize", 100, 6000)
    assert found(draw) == [(500, 6000)]


def test_a_graph_without_kernels_may_have_begun_with_its_launch() -> None:
    draw = (
        Drawing().launch("k", (0, 5), (10, 20)).call("cudaGraphLaunch", 30, 40).call("cudaStreamSynchronize", 90, 6000)
    )
    assert found(draw) == [(30, 6000)]


def test_a_host_that_is_slow_to_wake_has_waited_for_what_was_recorded() -> None:
    draw = Drawing().launch("k", (10, 20), (30, 5000)).call("cudaStreamSynchronize", 100, 5900)
    assert found(draw) == []


def test_clocks_that_disagree_are_allowed_for() -> None:
    """By 2 ms: the kernel starts before its launch by as much."""
    draw = Drawing().launch("k", (2010, 2020), (10, 500)).call("cudaStreamSynchronize", 2100, 3400)
    assert found(draw) == []


def queue(after: tuple[float, float], *lost: float, stream: int = 7) -> Drawing:
    """A kernel from 10 to 100, launched at 0; launches of 5 at these times without a kernel; one from 400 to 500."""
    draw = Drawing().launch("before", (0, 5), (10, 100))
    for at in lost:
        draw.call("cudaLaunchKernel", at, at + 5)
    return draw.launch("after", after, (400, 500), stream=stream)


def test_queued_work_waits_for_what_was_launched_before_it_and_not_recorded() -> None:
    assert found(queue((30, 35), 10)) == [(100, 400)]
    assert found(queue((30, 35))) == []
    assert found(queue((250, 255), 150, 200)) == [(150, 400)]  # Nothing lost ran before 150.
    assert found(queue((385, 390), 10)) == []  # It waited for the host.
    assert found(queue((30, 35), 40)) == []  # Launched behind the next work.
    assert found(queue((30, 35), 10, stream=8)) == []  # On which of two streams is not known.


def test_a_kernel_without_a_duration_ran_until_the_next_unless_that_may_wait_for_another_stream() -> None:
    draw = Drawing().launch("a", (0, 5), (10, 100)).launch("b", (6, 11), (101, 101)).launch("c", (12, 17), (400, 500))
    assert found(draw) == [(100, 400)]
    assert found(draw.launch("d", (18, 23), (450, 500), stream=8)) == []


def test_it_is_neither_busy_nor_idle() -> None:
    draw = Drawing()
    for step in range(3):
        at = step * 10_000
        draw.step(step, at, at + 10_000).launch("k", (at, at + 5), (at + 10, at + 1000))
        draw.call("cudaStreamSynchronize", at + 100, at + 8000)
    time = breakdown(draw.facts())
    assert (time.compute_ns, time.work_not_recorded_ns, time.idle_ns) == (990_000, 7_000_000, 2_010_000)


def synthetic() -> Drawing:
    draw = Drawing()
    for number in range(2):
        at = 100 * number
        draw.step(number, at, at + 100)
        draw.op("aten::linear", at + 1, at + 30).op("aten::addmm", at + 2, at + 20)
        draw.launch("ampere_sgemm_32x32_sliced1x4_tn", (at + 3, at + 5), (at + 10, at + 60))
        draw.copy("HtoD (Pageable -> Device)", (at + 40, at + 45), (at + 60, at + 70), 4096)
    return draw.work("void at::native::vectorized_elementwise_kernel<4>", (190, 199))


def test_the_asking_op_is_the_outermost_and_the_op_the_innermost() -> None:
    facts = synthetic().facts()
    table, names = work_table(facts), facts.rank.spans["name"]
    told = [(str(names[op]), str(names[asked])) for op, asked in zip(table.op, table.asked_by, strict=True) if op >= 0]
    assert told == [("aten::addmm", "aten::linear")] * 2


def test_kinds_and_the_used_steps() -> None:
    table = work_table(synthetic().facts())
    assert table.of(KernelKind.GEMM).tolist() == [True, False, True, False, False]
    assert table.of(KernelKind.MEMORY, KernelKind.ELEMENTWISE).tolist() == [False, True, False, True, True]
    # The first step is not used: it ends when its last work does, at 70.
    assert table.in_steps.tolist() == [False, False, True, True, False]
    assert (table.op >= 0).tolist() == [True, False, True, False, False]
    assert table.launch[-1] == -1
    assert table.dur_ns.tolist() == [50_000, 10_000, 50_000, 10_000, 9_000]
