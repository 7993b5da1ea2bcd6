"""Work that waits and graphs show to have run, and that was not recorded."""

import pytest

from diagnose.facts.core.breakdown import breakdown
from diagnose.facts.core.device import unrecorded_work
from diagnose.facts.core.work import work_table
from diagnose.trace.kinds import KernelKind
from tests.drawing import Drawing

Times = tuple[float, float]


def found(draw: Drawing) -> list[Times]:
    some = unrecorded_work(draw.facts())
    return [(start / 1e3, end / 1e3) for start, end in zip(some.starts.tolist(), some.ends.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("launch", "run", "graphs", "wait", "unrecorded"),
    [
        ((0, 20), (30, 500), (), (100, 6000), [(500, 6000)]),  # since the recorded kernel was done
        ((0, 5), (10, 20), ((30, 40),), (90, 6000), [(30, 6000)]),  # a graph may have begun with its launch
        ((10, 20), (30, 5000), (), (100, 5900), []),  # a host that is slow to wake
        ((2010, 2020), (10, 500), (), (2100, 3400), []),  # clocks disagree by 2 ms: the kernel starts before its launch
    ],
)
def test_a_wait_that_nothing_recorded_fills(
    launch: Times, run: Times, graphs: tuple[Times, ...], wait: Times, unrecorded: list[Times]
) -> None:
    draw = Drawing().launch("k", launch, run)
    for times in graphs:
        draw.call("cudaGraphLaunch", *times)
    assert found(draw.call("cudaStreamSynchronize", *wait)) == unrecorded


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


def test_what_each_operation_is_who_asked_for_it_and_in_which_steps() -> None:
    facts = synthetic().facts()
    table, names = work_table(facts), facts.rank.spans["name"]
    told = [(str(names[op]), str(names[asked])) for op, asked in zip(table.op, table.asked_by, strict=True) if op >= 0]
    assert told == [("aten::addmm", "aten::linear")] * 2  # the innermost, and the outermost
    assert table.of(KernelKind.GEMM).tolist() == [True, False, True, False, False]
    assert table.of(KernelKind.MEMORY, KernelKind.ELEMENTWISE).tolist() == [False, True, False, True, True]
    # The first step is not used: it ends when its last work does, at 70.
    assert table.in_steps.tolist() == [False, False, True, True, False]
    assert (table.op >= 0).tolist() == [True, False, True, False, False]
    assert table.launch[-1] == -1
    assert table.dur_ns.tolist() == [50_000, 10_000, 50_000, 10_000, 9_000]
