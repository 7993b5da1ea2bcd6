"""What steps wait for: exact paths of synthetic traces, and what holds for the path of every program."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import PATH_CAUSES, TimeCause
from diagnose.facts.core.steps import steps
from diagnose.replay.critical_path import critical_path, path_parts
from tests.drawing import Drawing
from tests.replay.programs import Action, Fetch, Launch, Python, run
from tests.replay.test_laws import PROGRAMS, recorded

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

Piece = tuple[str, float]  # kind, and us


def pieces(facts: Facts, step: int = 0) -> list[Piece]:
    """The path of one used step in order, what follows of one kind together."""
    path, bounds = critical_path(facts), steps(facts).bounds_ns
    mine = (path.start_ns >= bounds[step]) & (path.start_ns < bounds[step + 1])
    found = zip(path.kind[mine].tolist(), (path.end_ns - path.start_ns)[mine].tolist(), strict=True)
    together = groupby(found, key=lambda one: one[0])
    return [(PATH_CAUSES[kind].value, sum(ns for _, ns in some) / 1000) for kind, some in together]


def test_launch_bound() -> None:
    draw = Drawing()
    for number in range(3):
        at = 1_000 * number
        draw.step(number, at, at + 1_000).op("aten::mm", at, at + 400)
        draw.launch("gemm", (at + 300, at + 310), (at + 320, at + 420))
    facts = draw.facts()
    # The host goes on while the kernel of a step runs: only the end of the last step waits for its kernel.
    assert pieces(facts, 0) == [("python", 580), ("ops", 300), ("launch", 10), ("ops", 90), ("python", 20)]
    assert pieces(facts, 1) == [("python", 580), ("ops", 300), ("launch", 20), ("compute", 100)]


def test_gpu_bound() -> None:
    draw = Drawing()
    for number in range(4):
        draw.step(number, 20 * number, 20 * number + 20)
        for kernel in (2 * number, 2 * number + 1):
            begin = 100 + 402 * kernel
            draw.launch("gemm", (10 * kernel, 10 * kernel + 5), (begin, begin + 400))
    assert pieces(draw.facts(), 1) == [("between_kernels", 2), ("compute", 400)] * 2


def synchronised(**loader: str) -> Drawing:
    """The host waits for the kernel, then does something for 370 us."""
    draw = Drawing()
    for number in range(3):
        at = 1_000 * number
        draw.step(number, at, at + 1_000).launch("gemm", (at, at + 10), (at + 20, at + 620))
        draw.call("cudaStreamSynchronize", at + 10, at + 630)
        if loader:
            draw.span("user_annotation", LOADER, at + 630, at + 1_000)
    return draw


def test_after_a_synchronisation_the_gpu_waits_for_the_host() -> None:
    assert pieces(synchronised().facts()) == [("sync", 10), ("python", 370), ("launch", 20), ("compute", 600)]


def test_loading_in_the_training_process() -> None:
    found = pieces(synchronised(loader="").facts())
    assert found == [("sync", 10), ("loader", 370), ("launch", 20), ("compute", 600)]


def test_workers_that_cannot_keep_up_are_waited_for_all_the_time() -> None:
    # One worker makes a batch in 20,000 us; a step is that long. After the fetch: 300 us of Python, 8 us to launch.
    program: list[Action] = [Fetch(20_000, workers=1), Python(300), Launch("k", 50)]
    facts = run([program] * 8).draw.facts()
    found = dict(pieces(facts, steps(facts).count - 1))
    assert found == {"python": 300, "launch": 8, "compute": 50, "loader": 20_000 - 358}


def exposed(frames: bool = False) -> Drawing:
    """The all-reduce waits for the kernels `a`, and `b` for it; the host waits for `b`, and again for `c`."""
    draw = Drawing()
    for number in range(3):
        at = 1_000 * number
        draw.step(number, at, at + 1_000)
        for kernel in range(4):
            begin = at + 20 + 50 * kernel
            draw.launch("a", (at + 3 * kernel, at + 3 * kernel + 2), (begin, begin + 48))
        draw.launch(NCCL, (at + 20, at + 22), (at + 220, at + 620), stream=20)
        draw.launch("b", (at + 30, at + 32), (at + 622, at + 722))
        draw.call("cudaStreamSynchronize", at + 40, at + 730)
        draw.launch("c", (at + 740, at + 742), (at + 760, at + 770))
        draw.call("cudaStreamSynchronize", at + 742, at + 780)
        if frames:
            draw.frame("train.py(10): forward", at, at + 30).frame("train.py(20): backward", at + 30, at + 100)
            draw.frame("data.py(5): prepare", at + 100, at + 1_000)
    return draw


def test_exposed_collective() -> None:
    kernels = [("compute", 48), ("between_kernels", 2)] * 3
    waiting = ("device_wait", 2)
    rest = [("compute", 48), waiting, ("communication", 400), waiting, ("compute", 100)]
    after = [("sync", 8), ("python", 10), ("launch", 20), ("compute", 10)]
    assert pieces(exposed().facts()) == [("sync", 10), ("python", 220), ("launch", 20), *kernels, *rest, *after]


def test_lines_are_those_that_ran_or_that_launched_the_work() -> None:
    facts = exposed(frames=True).facts()
    by_line: dict[tuple[str, str], int] = {}
    for path_part in path_parts(facts):
        assert path_part.site is not None
        key = path_part.kind.value, f"{path_part.site.file}:{path_part.site.line}"
        by_line[key] = by_line.get(key, 0) + path_part.ns
    assert by_line == {
        ("communication", "train.py:10"): 400_000,
        ("python", "data.py:5"): 230_000,
        ("sync", "data.py:5"): 18_000,
        ("compute", "train.py:10"): 192_000,
        ("compute", "train.py:20"): 100_000,
        ("launch", "train.py:10"): 20_000,
        ("launch", "data.py:5"): 20_000,
        ("compute", "data.py:5"): 10_000,
        ("between_kernels", "train.py:10"): 6_000,
        ("device_wait", "train.py:10"): 2_000,
        ("device_wait", "train.py:20"): 2_000,
    }


def test_parts_are_the_largest_first_with_their_place_in_the_step_and_what_takes_most_of_them() -> None:
    parts = path_parts(exposed().facts())
    assert [(part.kind, part.ns, part.stretches, part.mostly) for part in parts[:3]] == [
        (TimeCause.COMMUNICATION, 400_000, 2, NCCL),
        (TimeCause.COMPUTE, 302_000, 12, "a"),
        (TimeCause.PYTHON, 230_000, 4, ""),
    ]
    assert parts[0].share == 0.4
    assert parts[0].moment == pytest.approx(0.65)  # From 450 to 850 us after `c` of the step before.


def test_what_nothing_recorded_explains_is_unexplained() -> None:
    draw = Drawing()
    for number in range(3):
        at = 1_000 * number
        late = 300 * (number == 2)
        draw.step(number, at, at + 1_000).launch("k", (at, at + 10), (at + 20 + late, at + 120 + late))
    assert pieces(draw.facts(), 1) == [("python", 880), ("launch", 20), ("unexplained", 300), ("compute", 100)]


def test_without_a_host_there_is_no_path() -> None:
    facts = Drawing().work("a", (0, 10)).work("b", (20, 30)).facts()
    with pytest.raises(Missing, match="host activity"):
        critical_path(facts)


def check(facts: Facts) -> None:
    """The path has no gap and no overlap, and the parts add up to the step."""
    path, used = critical_path(facts), steps(facts)
    assert path.start_ns[0] == used.start_ns
    assert path.end_ns[-1] == used.end_ns
    assert np.array_equal(path.start_ns[1:], path.end_ns[:-1])
    assert (path.end_ns > path.start_ns).all()
    assert np.isin(used.bounds_ns[:-1], path.start_ns).all()
    parts = path_parts(facts)
    assert sum(part.ns for part in parts) == used.mean_ns
    assert all(part.ns > 0 and 0 <= part.moment <= 1 for part in parts)


@given(PROGRAMS)
@settings(max_examples=40, deadline=None)
def test_the_path_of_every_program_is_as_long_as_its_steps(program: list[Action]) -> None:
    check(recorded(program))
