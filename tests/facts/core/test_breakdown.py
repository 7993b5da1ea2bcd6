"""The parts of a step add up, count no time twice, and agree with counting microsecond by microsecond."""

from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.breakdown import breakdown, round_half_up, shared_out
from tests.drawing import Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"


def two_steps() -> Drawing:
    """A step that ends on the device at 0, and one from 0 to 100 us, to be filled."""
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 60)
    return draw.launch("last", (50, 51), (99, 100))


def test_each_moment_counts_once_and_compute_before_communication_before_copies() -> None:
    draw = two_steps()
    draw.launch("gemm", (1, 2), (10, 30))
    draw.launch(NCCL, (3, 4), (20, 50), stream=20)
    draw.launch(COPY, (5, 6), (40, 60), stream=30, cat="gpu_memcpy")
    draw.launch("Memset (Device)", (7, 8), (70, 71), stream=7, cat="gpu_memset")
    found = breakdown(draw.facts())
    assert found.step_ns == 100_000
    assert found.compute_ns == 21_000  # 10-30 and 99-100
    assert found.exposed_communication_ns == 20_000  # 30-50
    assert found.exposed_copy_ns == 11_000  # 50-60 and 70-71
    assert found.idle_ns == 48_000
    assert found.busy_ns == 52_000


def test_annotations_on_the_device_and_work_on_two_streams_or_devices_are_not_counted_twice() -> None:
    draw = two_steps()
    draw.launch("a", (1, 2), (10, 30), stream=7)
    draw.launch("b", (1, 2), (10, 30), stream=8)
    draw.launch("c", (1, 2), (20, 40), stream=7, device=1)
    draw.work("ProfilerStep#1", (0, 100), cat="gpu_user_annotation")
    assert breakdown(draw.facts()).busy_ns == 31_000


work = st.lists(
    st.tuples(st.sampled_from(["gemm", NCCL, COPY]), st.integers(0, 99), st.integers(1, 40), st.integers(1, 3)),
    max_size=12,
)


@given(work)
def test_the_parts_agree_with_counting_every_microsecond(pieces: list[tuple[str, int, int, int]]) -> None:
    draw = two_steps()
    moments: list[set[str]] = [set() for _ in range(100)]
    moments[99].add("last")
    for name, start, length, stream in pieces:
        end = min(start + length, 100)
        draw.launch(name, (-5, -4), (start, end), stream=stream, cat="gpu_memcpy" if name == COPY else "kernel")
        for at in range(start, end):
            moments[at].add(name)
    compute = sum(bool(names & {"gemm", "last"}) for names in moments)
    communication = sum(NCCL in names and not names & {"gemm", "last"} for names in moments)
    copies = sum(names == {COPY} for names in moments)
    found = breakdown(draw.facts())
    assert found.step_ns == 100_000
    assert (found.compute_ns, found.exposed_communication_ns) == (1000 * compute, 1000 * communication)
    assert found.exposed_copy_ns == 1000 * copies
    assert found.idle_ns == 1000 * sum(not names for names in moments)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=6), st.integers(1, 50))
def test_shared_out_parts_add_up_and_are_within_one_of_their_quotient(totals: list[int], count: int) -> None:
    parts = shared_out(totals, count)
    assert sum(parts) == round_half_up(sum(totals), count)
    assert all(abs(part * count - total) <= count for part, total in zip(parts, totals, strict=True))
