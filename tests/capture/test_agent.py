"""Parts of the agent that need no torch: what counts as a step, agreement, places, steadiness, tracebacks."""

import hashlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from diagnose.capture.agent import alone, recordings, start, steps
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.clocks import Clock, Cycle, cycle, steady
from diagnose.capture.agent.foreign import turns
from diagnose.capture.agent.injection import Injection
from diagnose.capture.agent.place import Place, find
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.script_files import when_imported
from diagnose.capture.agent.steps import Steps
from diagnose.capture.agent.threads import wait_for_others
from diagnose.fixes.loaders import OF_ITERABLE, SHARES, LoaderArgument


class Optimizer:
    """Any object that can be told from others."""


def numbers(sequence: str, fixed_from: int = 1_000) -> list[int]:
    """Numbers of the steps that end while optimizers step in an order such as "DDG"."""
    found: list[int] = []
    watch = Steps(found.append)
    optimizers = {letter: Optimizer() for letter in set(sequence)}
    for k, letter in enumerate(sequence):
        watch.fixed = k >= fixed_from
        watch.optimizer_stepped(optimizers[letter])
    assert watch.by == "optimizer"
    return found


@pytest.mark.parametrize(
    ("sequence", "last"),
    [
        ("AAAA", [0, 1, 2, 3]),
        # A round is one step. From the second on it ends with the last of them, whose steps are counted from then on.
        ("DGDGDGDG", [0, 1, 1, 2, 3]),
        ("DDDG" * 4, [1, 2, 3]),  # The rarest makes the step.
        ("".join(map(chr, range(200, 500))) * 5, [2, 3, 4]),
    ],
)
def test_steps_of_optimizers(sequence: str, last: list[int]) -> None:
    assert numbers(sequence)[-len(last) :] == last


def test_what_a_step_is_does_not_change_once_fixed() -> None:
    assert numbers("DDDDGDDDDGDDDDG", fixed_from=3) == list(range(12))


def test_steps_go_on_with_the_next_optimizer_when_one_is_gone() -> None:
    """At once if it was deleted; of one that is still there the second step of another tells."""
    found: list[int] = []
    watch, first = Steps(found.append), Optimizer()
    for _ in range(3):
        watch.optimizer_stepped(first)
    watch.fixed = True
    del first
    second, third = Optimizer(), Optimizer()
    for optimizer in (second, second, second, third, third, third, third):
        watch.optimizer_stepped(optimizer)
    assert found == list(range(9))


def test_an_optimizer_that_joins_later_does_not_take_over() -> None:
    """It steps once between two steps of the first: so only after more than eight in a row that is gone."""
    found: list[int] = []
    watch, first, second = Steps(found.append), Optimizer(), Optimizer()
    watch.optimizer_stepped(first)
    watch.fixed = True
    for optimizer in (second, first, second, first):
        watch.optimizer_stepped(optimizer)
    assert found == [0, 1, 2]
    for _ in range(8):
        watch.optimizer_stepped(second)
    assert found == [0, 1, 2]
    watch.optimizer_stepped(second)
    assert found == [0, 1, 2, 3]


def batches(watch: Steps, count: int) -> None:
    for _ in range(count):
        watch.happened("loader")


def test_without_an_optimizer_batches_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of a short validation."""
    found: list[int] = []
    batches(Steps(found.append), 1_000)
    monkeypatch.setattr(steps, "ENOUGH_S", 0.0)
    watch = Steps(found.append)
    batches(watch, steps.ENOUGH)
    assert found == []
    batches(watch, 3)
    assert (found, watch.by) == ([29, 30, 31], "loader")
    watch.optimizer_stepped(Optimizer())
    batches(watch, 3)
    assert (found, watch.by) == ([29, 30, 31, 0], "optimizer")


@pytest.mark.parametrize(
    ("wall_ns", "expected"),
    [
        ([100] * 9, False),
        ([100] * 10, True),
        ([900] + [100] * 10, True),
        ([100] * 5 + [109] * 5, True),
        ([100] * 5 + [111] * 5, False),
        ([100, 100, 100, 900, 900, 100, 100, 100, 900, 900], True),
    ],
)
def test_steady(wall_ns: list[int], expected: bool) -> None:
    """Medians of the last five and the five before differ by a tenth at most."""
    clock = Clock.__new__(Clock)
    clock._ns = [sum(wall_ns[:k]) for k in range(len(wall_ns) + 1)]
    assert clock.wall_ns() == wall_ns
    assert clock.wall_ns(last=2) == wall_ns[-2:]
    assert steady(clock) is expected


def test_posts_are_counted_and_one_process_claims_a_name(tmp_path: Path) -> None:
    first, second = Board(tmp_path), Board(tmp_path)
    first.post("done.1")
    first.post("done.2")
    assert second.posted("done.") == 2
    assert (first.claim("rank0"), second.claim("rank0"), second.claim("rank1")) == (True, False, True)


def test_the_plan_is_read_as_written(tmp_path: Path) -> None:
    plan = Plan(warmup=3, steps=7, memory=True, keep_running=True, most_bytes=5, window_after_s=1.5)
    part = Part(tmp_path, "run-1")
    plan.write(part)
    assert Plan.read(Part.at(part.work)) == plan


STEP = {"SLURM_STEP_NUM_TASKS": "11", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place(0, 1, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, Place(3, 4, 4)),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, Place(9, 16, 8, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Place(1, 2, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Place(0, 1, 1)),  # a batch script, not srun
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2"}, Place(1, 2, 2)),
        ({**STEP, "SLURM_PROCID": "5", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, Place(5, 11, 4, 4, 1)),
        ({**STEP, "SLURM_PROCID": "8", "SLURM_NODEID": "2", "SLURM_LOCALID": "0"}, Place(8, 11, 3, 8, 2)),
        ({"RANK": "2"}, Place(0, 1, 1)),
        ({"RANK": "x", "WORLD_SIZE": ""}, Place(0, 1, 1)),
    ],
)
def test_places(environment: dict[str, str], place: Place) -> None:
    assert find(environment) == place


def test_a_module_is_acted_on_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(alone, "failures", [])
    seen: list[int] = []
    when_imported("some_module", lambda module: seen.append(module.value))
    when_imported("some_module", lambda module: 1 / 0)
    assert seen == []
    import some_module  # type: ignore[import-not-found]

    assert seen == [1]
    assert alone.failures == ["some_module: ZeroDivisionError: division by zero"]
    when_imported("some_module", lambda module: seen.append(2))
    assert seen == [1, 2]
    assert some_module.__spec__.loader.__class__.__name__ == "SourceFileLoader"
    del sys.modules["some_module"]


def test_frames_of_the_agent_are_taken_out_of_errors() -> None:
    """Two frames: this test's and the function's; the agent's in between goes."""

    def fail(*_: object) -> None:
        raise ValueError("boom")

    try:
        Steps(fail).optimizer_stepped(Optimizer())
    except ValueError as error:
        caught = error
    assert len(traceback.extract_tb(caught.__traceback__)) == 3
    start._strip_own_frames(caught)
    left = [frame.name for frame in traceback.extract_tb(caught.__traceback__)]
    assert left == ["test_frames_of_the_agent_are_taken_out_of_errors", "fail"]


SHORT, LONG = 10, 160  # Where every sixteenth step is as long as these sixteen: half of the time and a bit more.


def timed(*long: int, of: int = 30, ns: int = LONG) -> list[int]:
    return [ns if k in long else SHORT for k in range(of)]


def test_long_steps_at_a_period_make_a_cycle() -> None:
    found = cycle(100, timed(5, 21))
    assert found == Cycle(every=16, number=121, ratio=16.0)
    assert (found.whole(5), found.whole(16), found.whole(17)) == (16, 16, 32)
    assert [found.wait(number) for number in (120, 121, 135, 136)] == [0, 15, 1, 0]


@pytest.mark.parametrize(
    ("times", "every"),
    [
        (timed(), 1),
        (timed(5), 1),
        (timed(5, 14, 24), 10),
        (timed(5, 14, 25), 1),
        (timed(0, 10, 20, ns=40), 10),
        (timed(0, 10, 20, ns=30), 1),
    ],
)
def test_other_long_steps_make_none(times: list[int], every: int) -> None:
    found = cycle(0, times)
    assert found.every == every
    if every == 1:
        assert (found.whole(5), found.wait(3)) == (5, 0)


def test_sleeping_takes_no_cpu_time_and_computing_does() -> None:
    """Of 2 steps each sleeps for 50 ms; in the second 30 ms of CPU time are used besides."""
    begun_ns = time.process_time_ns()
    clock = Clock(0)
    time.sleep(0.05)
    clock.tick()
    slept_ns = time.process_time_ns() - begun_ns
    time.sleep(0.05)
    while time.process_time_ns() < begun_ns + slept_ns + 30_000_000:
        pass
    clock.tick()
    timed: dict[str, Any] = clock.timed()
    asleep_ns, computing_ns = timed["cpu_times_ns"]
    assert asleep_ns <= slept_ns
    assert 30_000_000 <= computing_ns <= time.process_time_ns() - begun_ns - asleep_ns
    assert timed["cpu_ns"] == (asleep_ns + computing_ns) // 2


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_an_iterable_dataset_gets_no_workers_which_would_each_give_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)  # Put back after the test.
    setting = LoaderArgument("num_workers", 2)
    injection = Injection(setting)
    setting.inject(injection)
    lines = DataLoader(Lines())
    assert (lines.num_workers, type(lines.sampler).__name__) == (0, OF_ITERABLE)
    assert injection.found() == ([], SHARES)
    assert DataLoader([1, 2]).num_workers == 2  # type: ignore[arg-type]


ROUNDS = 300_000  # Of a hash that keeps a core busy for a tenth of a second, without Python's lock.


def test_what_another_thread_computes_is_waited_for() -> None:
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: done.append(hashlib.pbkdf2_hmac("sha256", b"a", b"b", ROUNDS)))
    thread.start()
    wait_for_others(most_s=60)
    assert len(done) == 1
    thread.join()


def test_a_thread_that_never_rests_is_not_waited_for_forever() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1000)

    thread = threading.Thread(target=compute)
    thread.start()
    wait_for_others(most_s=0.05)
    assert thread.is_alive()
    over.set()
    thread.join()


torch = pytest.importorskip("torch")


def test_measuring_what_an_event_costs_leaves_the_training_as_it_was() -> None:
    numbers, nodes = torch.get_rng_state(), torch._C._autograd._get_sequence_nr()
    found = recordings.event_cost()
    assert (found["op_ns"] or 1.0) > 0.0
    assert found["call_ns"] is None or torch.cuda.is_initialized()
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch._C._autograd._get_sequence_nr() == nodes
    assert not torch.autograd._profiler_enabled()
    assert turns.take()
    turns.leave()


def test_it_is_not_measured_while_the_script_records_itself() -> None:
    profile = object()
    turns.give(profile)
    try:
        assert recordings.event_cost() is None
    finally:
        turns.given_back(profile)
