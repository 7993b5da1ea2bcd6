"""Fixes of programs whose time after the fix is known: by arithmetic, by a simulator of its own, and by replay.

Each test states what a step takes before and after; `programs` runs both, and the replay sees only the first.
"""

from collections.abc import Callable

import numpy as np
import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import Measure, steps
from diagnose.replay.edits import Detach, Edit, Estimate, Move, Remove, Replace, Shorten
from diagnose.replay.saving import Basis, Replay, Saving
from tests.replay.programs import (
    Action,
    Backward,
    EventSync,
    Fetch,
    Free,
    Launch,
    Op,
    Outcome,
    Python,
    Record,
    Sync,
    ToDevice,
    ToHost,
    Wait,
    ids,
    outcome,
    python_times,
    run,
    saving,
    step_us,
)

NO_SAVING = Saving(0, 0, 0, Basis.REPLAYED)
CLOSE = 0.01  # Of the step: how far a prediction may be off.

LAUNCH = "cudaLaunchKernel"
SYNC = "cudaStreamSynchronize"
COPY = "cudaMemcpyAsync"
FETCH = "enumerate(DataLoader)*"


def kernels(count: int, us: int, host_us: int = 0) -> list[Action]:
    each: list[Action] = [Python(host_us), Launch("k", us)] if host_us else [Launch("k", us)]
    return each * count


def check(found: Outcome, before_us: float, after_us: float) -> None:
    """The step is what arithmetic says, before and after; the replay saves what the change saved."""
    assert [found.before_us, found.after_us] == pytest.approx([before_us, after_us])
    assert found.saving.basis is Basis.REPLAYED
    assert found.error < CLOSE, f"saves {found.truth_us:.0f} of {found.before_us:.0f} us, predicted {found.saving}"


def half(facts: Facts, *names: str) -> list[Edit]:
    return [Shorten(ids(facts, name), 0.5) for name in names]


# Queue and launches. A queued kernel takes its time and 1 us; a launching call takes the host 5 us.


@pytest.mark.parametrize(
    ("before", "after", "name", "keep", "before_us", "after_us"),
    [
        pytest.param(kernels(800, 100), kernels(800, 50), "k", 0.5, 800 * 101, 800 * 51, id="limited by its queue"),
        # 800 x 5 us of launching hides behind 800 x 101 us of kernels; most calls last 101 us, since the queue is full.
        pytest.param(kernels(800, 100), kernels(800, 100), LAUNCH, 0.5, 80_800, 80_800, id="blocked is no time"),
        # 800 x (3 + 1) us of kernels behind 800 x 5 us of launching.
        pytest.param(kernels(800, 100), kernels(800, 3), "k", 0.03, 80_800, 4_000, id="then limited by launches"),
        pytest.param(kernels(100, 20, 95), kernels(100, 10, 95), "k", 0.5, 10_000, 10_000, id="limited by launches"),
    ],
)
def test_kernels_that_are_shorter_save_what_the_queue_and_the_host_leave(
    before: list[Action], after: list[Action], name: str, keep: float, before_us: float, after_us: float
) -> None:
    check(outcome(before, after, lambda facts: Shorten(ids(facts, name), keep)), before_us, after_us)


def test_kernels_that_were_lost_leave_the_queue_as_deep_and_take_as_long() -> None:
    # Per step 60 x (19 kernels of 10 us, one of 1,000 us); four of 10 us are lost and stay as long.
    lossy = [*kernels(18, 10), Launch("k", 10, recorded=False), *kernels(1, 1_000)]
    done = run([lossy * 4 + [*kernels(19, 10), *kernels(1, 1_000)] * 56] * 7)
    replay = Replay(done.draw.facts())
    found = replay.savings([half(done.draw.facts(), "k")])[0]
    assert step_us(done) == 60 * (19 * 11 + 1_001)
    assert found.likely_ns == pytest.approx(60 * (19 * 5_000 + 500_000) - 4 * 5_000, rel=CLOSE)
    assert replay.doubt == pytest.approx(4 * 11 / (60 * (19 * 11 + 1_001)), rel=0.2)


@pytest.mark.parametrize(
    ("kernel_us", "python_us", "left_us", "after_us"),
    [
        (20, 96, 48, 100 * (48 + 5)),
        (70, 95, 45, 7_100),  # Host 100 x (45 + 5) us is less than device 100 x (70 + 1) us.
    ],
)
def test_half_the_python_of_a_launch_limited_program_saves_its_half_until_the_gpu_bounds_it(
    kernel_us: int, python_us: int, left_us: int, after_us: float
) -> None:
    done, after = (run([kernels(100, kernel_us, us)] * 7) for us in (python_us, left_us))
    facts = done.draw.facts()
    saved = saving(facts, Shorten(python_times(done, facts), left_us / python_us))
    check(Outcome(step_us(done), step_us(after), saved), 100 * (python_us + 5), after_us)


def test_a_graph_launch_is_one_call_with_many_kernels() -> None:
    def graphs(us: int, python_us: int) -> list[Action]:
        return [Python(python_us), Launch("k", us, kernels=50)] * 2

    check(outcome(graphs(100, 100), graphs(50, 100), lambda facts: half(facts, "k")), 2 * 50 * 101, 2 * 50 * 51)
    check(outcome(graphs(10, 4_000), graphs(5, 4_000), lambda facts: half(facts, "k")), 2 * 4_005, 2 * 4_005)


def test_graph_launches_fill_the_queue_as_one_entry_each() -> None:
    def graphs(us: int) -> list[Action]:
        return [Launch("k", us, kernels=10)] * 300

    check(outcome(graphs(10), graphs(5), lambda facts: half(facts, "k"), steps=9), 300 * 110, 300 * 60)


# Syncs.


@pytest.mark.parametrize("sync_events", [False, True])
def test_a_sync_in_mid_step_costs_the_host_work_it_delays(sync_events: bool) -> None:
    # The device needs 5,000 us before the sync; after it the host needs 3,000 us before it launches again.
    def step(*sync: Action) -> list[Action]:
        return [*kernels(50, 100), *sync, Python(3_000), *kernels(50, 100)]

    found = outcome(step(Sync()), step(), lambda facts: Detach(ids(facts, SYNC)), sync_events=sync_events)
    # Behind the sync: 3 back, 3,000 of Python, 8 to the first kernel, which follows no other.
    check(found, 100 * 101 - 1 + 3 + 3_000 + 8, 100 * 101)


@pytest.mark.parametrize("sync_events", [False, True])
def test_a_sync_before_another_one_only_moves_the_wait(sync_events: bool) -> None:
    def step(*sync: Action) -> list[Action]:
        return [*kernels(50, 100), *sync, Python(20), Sync(None), Python(2_000)]

    found = outcome(step(Sync()), step(), lambda facts: Detach(ids(facts, SYNC)), sync_events=sync_events)
    assert found.truth_us < 50
    check(found, found.before_us, found.after_us)


def test_a_sync_in_each_step_of_a_gpu_bound_program_costs_only_the_restart() -> None:
    found = outcome([Sync(), *kernels(100, 100)], kernels(100, 100), lambda facts: Detach(ids(facts, SYNC)))
    # 3 back and 8 to the first kernel instead of a gap of 1.
    check(found, 100 * 101 - 1 + 3 + 8, 100 * 101)


def test_kernels_before_a_sync_are_waited_for() -> None:
    def step(us: int) -> list[Action]:
        return [*kernels(50, us), Sync(), Python(3_000)]

    # 8 to the first kernel, a gap less than kernels, 3 back.
    found = outcome(step(100), step(50), lambda facts: half(facts, "k"))
    check(found, 50 * 101 - 1 + 8 + 3 + 3_000, 50 * 51 - 1 + 8 + 3 + 3_000)


@pytest.mark.parametrize("sync_events", [True, False])
def test_an_event_sync_waits_for_what_came_before_the_event(sync_events: bool) -> None:
    def step(us: int, *sync: Action) -> list[Action]:
        return [Launch("a", us), Record("e", 7), Launch("b", 1_000), *sync, Python(4_000)]

    # From launch to a's start 8, a, 3 back, Python.
    waiting, waits = EventSync("e"), "cudaEventSynchronize"
    found = outcome(step(3_000, waiting), step(1_500, waiting), lambda facts: half(facts, "a"), sync_events=sync_events)
    check(found, 8 + 3_000 + 3 + 4_000, 8 + 1_500 + 3 + 4_000)
    detached = outcome(step(3_000, waiting), step(3_000), lambda facts: Detach(ids(facts, waits)), 7, sync_events)
    check(detached, 7_011, 3 * 5 + 4_000)


# Copies.


def test_a_value_read_back_goes_with_its_op_copy_and_sync() -> None:
    item = Op("aten::item", (Op("aten::_local_scalar_dense", (ToHost(2), Sync())),))
    before = [*kernels(100, 100), item, Python(4_000)]
    after = [*kernels(100, 100), Python(4_000)]
    found = outcome(before, after, lambda facts: Remove(ids(facts, "aten::item")))
    # 8 to the first kernel, then kernels, a gap, the copy, 3 back, the second sync's own 6, and Python.
    check(found, 8 + 100 * 101 + 2 + 3 + 6 + 4_000, 100 * 101)


def test_a_copy_to_pageable_memory_waits_even_without_a_sync() -> None:
    def step(pinned: bool) -> list[Action]:
        return [*kernels(100, 100), ToHost(2, pinned=pinned), Python(4_000)]

    found = outcome(step(False), step(True), lambda facts: Detach(ids(facts, COPY)))
    check(found, 8 + 100 * 101 + 2 + 3 + 4_000, 100 * 101 + 3)


def test_what_a_read_back_takes_is_not_learned_from_copies_the_other_way() -> None:
    # Both are cudaMemcpyAsync; the copy to the device takes the host 500 us, the one back nothing of its own.
    def step(us: int) -> list[Action]:
        return [ToDevice(500), Launch("k", us), ToHost(2)]

    found = outcome(step(400), step(200), lambda facts: half(facts, "k"))
    check(found, 500 + 8 + 1 + 400 + 1 + 2 + 3, 500 + 8 + 1 + 200 + 1 + 2 + 3)


def test_a_copy_from_pageable_memory_takes_the_time_of_the_host() -> None:
    def step(us: int, pinned: bool = False) -> list[Action]:
        return [Python(4_000), ToDevice(us, pinned=pinned), *kernels(10, 60)]

    slow, fast = step(2_000), step(1_000)
    found = outcome(slow, fast, lambda facts: half(facts, COPY, "Memcpy HtoD*"))
    check(found, 4_000 + 2_000 + 50, 4_000 + 1_000 + 50)
    found = outcome(
        slow, step(2_000, pinned=True), lambda facts: [Detach(ids(facts, COPY)), Shorten(ids(facts, COPY), 0.0)]
    )
    check(found, 6_050, 4_055)


def test_a_copy_from_pageable_memory_waits_for_the_work_before_it() -> None:
    # The device is the bottleneck, yet the host cannot run ahead: it waits at each copy.
    def step(kernel_us: int, copy_us: int = 2_000) -> list[Action]:
        return [Python(500), ToDevice(copy_us), *kernels(100, kernel_us)]

    found = outcome(step(60), step(30), lambda facts: half(facts, "k"))
    check(found, found.before_us, found.after_us)
    assert found.truth_us == pytest.approx(3_000)
    found = outcome(step(60), step(60, 1_000), lambda facts: half(facts, COPY, "Memcpy HtoD*"))
    check(found, found.before_us, found.after_us)
    assert found.truth_us == pytest.approx(1_000)


def test_copies_that_always_wait_are_not_taken_for_slow_staging() -> None:
    # 20 kernels of 200 us are always queued when the copy of 50 us is asked for.
    def step(us: int) -> list[Action]:
        return [*kernels(20, us), ToDevice(50), Launch("k", us)]

    found = outcome(step(200), step(100), lambda facts: half(facts, "k"))
    assert found.truth_us == pytest.approx(2_100, abs=20)
    check(found, found.before_us, found.after_us)


def test_copies_from_pinned_memory_moved_beside_the_kernels() -> None:
    moved = [ToDevice(2_000, stream=20, pinned=True), *kernels(100, 60)]
    before = [ToDevice(2_000, pinned=True), *kernels(100, 60)]
    found = outcome(before, moved, lambda facts: Move(ids(facts, "Memcpy HtoD*"), 1))
    check(found, 2_001 + 100 * 61, 100 * 61)


def test_copies_from_pageable_memory_moved_with_their_calls() -> None:
    moved = [Python(300), ToDevice(9_000, stream=20, pinned=True), *kernels(100, 60)]
    before = [Python(300), ToDevice(9_000), *kernels(100, 60)]

    def edits(facts: Facts) -> list[Edit]:
        return [Move(np.concatenate((ids(facts, "Memcpy HtoD*"), ids(facts, COPY))), 1, ready_ns=5_000)]

    # The copies are then the bottleneck: one after the other on their stream.
    found = outcome(before, moved, edits)
    check(found, found.before_us, 9_001)


# Loaders. A fetch of a batch that workers have ready takes 400 us in `programs`, 300 us in `Move`.


def test_a_loader_in_process_hidden_behind_the_rest() -> None:
    rest = [*kernels(100, 100), Sync()]
    found = outcome([Fetch(8_000), *rest], [Python(300), *rest], lambda facts: Move(ids(facts, FETCH), 4))
    alone_us = 8 + 100 * 101 - 1 + 3
    check(found, 8_000 + alone_us, 300 + alone_us)


def test_a_loader_in_process_too_slow_to_be_hidden_by_two_workers() -> None:
    rest = [*kernels(100, 100), Sync()]
    alone_us = 8 + 100 * 101 - 1 + 3
    facts = run([[Fetch(30_000), *rest]] * 7).draw.facts()
    after_us = max(alone_us, 30_000 // 2)
    check(Outcome(30_000 + alone_us, after_us, saving(facts, Move(ids(facts, FETCH), 2))), 30_000 + alone_us, after_us)


def test_fetches_in_process_of_unequal_length_are_each_hidden() -> None:
    rest = kernels(100, 20)
    found = outcome(
        [Fetch(400), Fetch(4_000), Python(9_000), *rest],
        [Python(300), Python(300), Python(9_000), *rest],
        lambda facts: Move(ids(facts, FETCH), 4),
    )
    check(found, 4_400 + 9_000 + 500, 600 + 9_000 + 500)


def starved(kernel_us: int, batch_us: int, workers: int) -> list[Action]:
    return [Fetch(batch_us, workers), *kernels(100, kernel_us), Sync()]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_when_workers_are_too_slow_faster_kernels_save_nothing_and_more_workers_do(workers: int) -> None:
    # All workers are busy all the time: k batches every k x 30,000 us, in bursts.
    before, after = starved(100, 30_000 * workers, workers), starved(50, 30_000 * workers, workers)
    found = outcome(before, after, lambda facts: half(facts, "k"), steps=17)
    check(found, 30_000, 30_000)
    twice = starved(100, 15_000 * workers, workers)
    check(outcome(before, twice, lambda facts: Move(ids(facts, FETCH), 2), steps=17), 30_000, 15_000)


def test_workers_fast_enough_after_the_fix_leave_the_rest_and_before_it_save_nothing() -> None:
    found = outcome(starved(100, 16_000, 1), starved(100, 4_000, 1), lambda facts: Move(ids(facts, FETCH), 4), steps=12)
    check(found, 16_000, 400 + 8 + 100 * 101 - 1 + 3)
    found = outcome(starved(100, 5_000, 1), starved(100, 100, 1), lambda facts: Move(ids(facts, FETCH), 4), steps=12)
    check(found, 10_510, 10_510)


# Streams.


def forked(a_us: int, b_us: int) -> list[Action]:
    """`a`, then `b` on another stream, then `c` on the first: one after the other."""
    there = [Launch("a", a_us, 7), Record("e", 7), Wait("e", 20), Launch("b", b_us, 20)]
    return [Python(200), *there, Record("f", 20), Wait("f", 7), Launch("c", 1_000, 7), Sync(None)]


@pytest.mark.parametrize("sync_events", [True, False])
def test_streams_that_wait_for_events_run_one_after_the_other(sync_events: bool) -> None:
    both_us = 200 + 8 + 3_000 + 1 + 4_000 + 1 + 1_000 + 3
    before = forked(3_000, 4_000)
    found = outcome(before, forked(1_500, 4_000), lambda facts: half(facts, "a"), sync_events=sync_events)
    check(found, both_us, both_us - 1_500)
    found = outcome(before, forked(3_000, 2_000), lambda facts: half(facts, "b"), sync_events=sync_events)
    check(found, both_us, both_us - 2_000)


@pytest.mark.parametrize("sync_events", [True, False])
def test_without_its_event_a_stream_need_not_wait(sync_events: bool) -> None:
    def detached(facts: Facts) -> Edit:
        return Detach(np.concatenate((ids(facts, "b"), ids(facts, "c"))))

    beside = [Python(200), Launch("a", 3_000, 7), Launch("b", 4_000, 20), Launch("c", 1_000, 7), Sync(None)]
    found = outcome(forked(3_000, 4_000), beside, detached, sync_events=sync_events)
    check(found, 8_213, 200 + 5 + 8 + 4_000 + 3)


def test_of_two_streams_side_by_side_only_both_together_save() -> None:
    def beside(a_us: int, b_us: int) -> list[Action]:
        return [Python(100), Launch("a", a_us, 7), Launch("b", b_us, 20), Sync(None)]

    both = 100 + 5 + 8 + 5_000 + 3
    check(outcome(beside(5_000, 5_000), beside(2_500, 5_000), lambda facts: half(facts, "a")), both, both)
    check(outcome(beside(5_000, 5_000), beside(5_000, 2_500), lambda facts: half(facts, "b")), both, both - 5)
    found = outcome(beside(5_000, 5_000), beside(2_500, 2_500), lambda facts: half(facts, "a", "b"))
    check(found, both, both - 2_500)


# Threads.


def trained(forward_us: int, backward_us: int) -> list[Action]:
    forward = [Python(forward_us, "aten::forward"), Launch("k", 20)] * 20
    backward = Op("autograd::engine::evaluate_function: X", (Python(backward_us, "aten::backward"), Launch("k", 20)))
    return [*forward, Backward((backward,) * 20), Python(100, "aten::update"), Launch("k", 20)]


def test_host_time_of_the_autograd_thread_counts_as_the_main_ones() -> None:
    # Handing over takes 20 us each way.
    before_us = 20 * 45 + 20 + 20 * 105 + 20 + 105
    found = outcome(trained(40, 100), trained(40, 50), lambda facts: half(facts, "aten::backward"))
    check(found, before_us, before_us - 1_000)
    found = outcome(trained(40, 100), trained(20, 100), lambda facts: half(facts, "aten::forward"))
    check(found, before_us, before_us - 400)


# Freeing memory.


def freed(*free: Action, count: int = 100, us: int = 30) -> list[Action]:
    return [*kernels(count, us), *free, Python(2_000), *kernels(count, us)]


def test_cuda_free_waits_for_the_device_and_then_takes_its_own_time() -> None:
    def edit(facts: Facts) -> Edit:
        return Remove(ids(facts, "cudaFree"))

    # Kernels, the call's own 1,000, Python, 8 to the next kernel.
    before_us = 100 * 31 - 1 + 1_000 + 2_000 + 8 + 100 * 31
    check(outcome(freed(Free(1_000)), freed(), edit), before_us, 200 * 31)
    found = outcome(freed(Free(1_000)), freed(Free(500)), lambda facts: half(facts, "cudaFree"))
    check(found, before_us, before_us - 500)
    found = outcome(freed(Free(1_000)), freed(Free(1_000), us=15), lambda facts: half(facts, "k"))
    check(found, before_us, before_us - 3_000)


def test_cuda_free_nobody_waits_in_still_takes_its_own_time() -> None:
    before = [*kernels(100, 10), Free(1_000), Python(2_000), *kernels(10, 10)]
    after = [*kernels(100, 10), Python(1_000), Python(2_000), *kernels(10, 10)]
    found = outcome(before, after, lambda facts: Detach(ids(facts, "cudaFree")))
    check(found, found.before_us, 110 * 5 + 3_000)


def test_host_time_before_a_cuda_free_that_found_the_device_idle_is_no_wait() -> None:
    def step(us: int) -> list[Action]:
        return [*kernels(10, 20), Sync(), Python(us, "aten::x"), Free(500)]

    found = outcome(step(2_000), step(1_000), lambda facts: half(facts, "aten::x"))
    check(found, found.before_us, found.before_us - 1_000)


def test_cuda_free_waits_for_the_stream_that_ends_last() -> None:
    def step(us: int) -> list[Action]:
        return [Launch("a", 100, 20), *kernels(20, us), Free(300)]

    found = outcome(step(200), step(100), lambda facts: half(facts, "k"))
    check(found, found.before_us, found.before_us - 2_000)


# Other kernels.


def test_a_chain_of_kernels_replaced_by_one() -> None:
    def replaced(dur_us: int) -> Callable[[Facts], Edit]:
        def edit(facts: Facts) -> Edit:
            chains = [ids(facts, name) for name in ("p1", "p2", "p3")]
            group = np.tile(np.arange(len(chains[0])), 3)
            return Replace(np.concatenate(chains), group, np.full((3, len(chains[0])), dur_us * 1_000))

        return edit

    def chain(us: int) -> list[Action]:
        return [Launch(name, us) for name in ("p1", "p2", "p3")]

    # GPU-bound: kernels and their gaps.
    found = outcome([Launch("mm", 100), *chain(30)] * 20, [Launch("mm", 100), Launch("p1", 40)] * 20, replaced(40))
    check(found, 20 * (101 + 3 * 31), 20 * (101 + 41))
    # Host-bound: two launches of 5 us less for each chain.
    head: list[Action] = [Python(300), Launch("mm", 10)]
    found = outcome([*head, *chain(3)] * 20, [*head, Launch("p1", 4)] * 20, replaced(4))
    check(found, 20 * (300 + 4 * 5), 20 * (300 + 2 * 5))


def test_an_op_removed_takes_its_kernels_and_their_launches_with_it() -> None:
    def step(*op: Action) -> list[Action]:
        return [Python(100), Launch("mm", 50), *op] * 20

    op = Op("aten::x", (Python(20, "aten::y"), Launch("k", 100)))
    found = outcome(step(op), step(), lambda facts: Remove(ids(facts, "aten::x")))
    # GPU-bound with it (51 + 101), host-bound without (100 + 5).
    check(found, 20 * (51 + 101), 20 * 105)


# What steps are measured by.


def test_training_on_the_host_only() -> None:
    facts = run([[Python(1_000, "aten::a"), Python(4_000, "aten::mm"), Python(500)]] * 5).draw.facts()
    assert steps(facts).measure is Measure.HOST
    found = Replay(facts).savings([half(facts, "aten::mm"), [Remove(ids(facts, "aten::mm"))]])
    assert [one.likely_ns for one in found] == [2_000_000, 4_000_000]


def test_a_loader_of_training_on_the_host_only() -> None:
    rest = [Python(4_000, "aten::mm"), Python(500)]
    facts = run([[Fetch(3_000), *rest]] * 5).draw.facts()
    assert saving(facts, Move(ids(facts, FETCH), 4)).likely_ns == 3_000_000 - 300_000
    facts = run([[Fetch(8_000, 1), *rest]] * 9).draw.facts()
    assert steps(facts).mean_ns == 8_000_000
    # The rest takes 4,500 and a ready fetch 300 to 400.
    assert saving(facts, Move(ids(facts, FETCH), 2)).likely_ns == pytest.approx(3_150_000, abs=60_000)
    assert saving(facts, *half(facts, "aten::mm")).likely_ns == 0


def test_a_loader_that_is_a_little_late_in_every_step_is_still_what_limits_it() -> None:
    # A batch takes 6,000, the rest 4,500: each fetch waits 1,500, a quarter of the step.
    def step(us: int) -> list[Action]:
        return [Fetch(6_000, 1), Python(us, "aten::mm"), Python(500)]

    facts = run([step(4_000)] * 9).draw.facts()
    changed = run([step(2_000)] * 9)
    assert (steps(facts).mean_ns, np.diff(changed.batches).tolist()) == (6_000_000, [6_000] * 8)
    assert saving(facts, *half(facts, "aten::mm")).likely_ns < CLOSE * 6_000_000


@pytest.mark.parametrize("marked", [True, False])
def test_one_step_or_none_marked(marked: bool) -> None:
    done = run([[Python(500), *kernels(100, 100), Sync()]], marked=marked)
    facts = done.draw.facts()
    assert steps(facts).measure is (Measure.ONE_STEP if marked else Measure.WINDOW)
    assert steps(facts).mean_ns == ((508 if marked else 0) + 100 * 101 - 1) * 1_000
    assert saving(facts, *half(facts, "k")).likely_ns == 100 * 50_000


def test_host_time_before_the_first_kernel_is_no_part_of_a_window() -> None:
    # 100 launches of 5 us, the last of which runs 2 us; what is before the first of them moves both bounds.
    facts = run([[Sync(), Python(500, "aten::x"), *kernels(100, 2)]], marked=False).draw.facts()
    assert steps(facts).mean_ns == (99 * 5 + 2) * 1_000
    assert saving(facts, *half(facts, "aten::x")).likely_ns == 0


def test_a_recording_that_begins_with_a_long_step_may_grow_which_counts_as_no_saving() -> None:
    # Steps of the host take 5,005; the end of the first, 4,000 behind its launch, comes 2,000 earlier, the others 50.
    long: list[Action] = [Python(5_000), Launch("k", 4_000)]
    short: list[Action] = [Python(5_000), Launch("k", 100)]
    facts = run([long, *[short] * 4]).draw.facts()
    faster = run([[Python(5_000), Launch("k", 2_000)], *[[Python(5_000), Launch("k", 50)]] * 4])
    truth = [step_us(run([long, *[short] * 4])), step_us(faster)]
    assert truth == [5_005 - 3_900 / 4, 5_005 - 1_950 / 4]
    times = Replay(facts).step_times_ns([([], Estimate.LIKELY), (half(facts, "k"), Estimate.LIKELY)])
    assert times.tolist() == [truth[0] * 1_000] * 2
    assert saving(facts, *half(facts, "k")) == NO_SAVING
