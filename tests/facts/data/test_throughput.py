"""The model of loading, against figures derived by hand, and what holds of it whatever the quantities."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.facts.data.throughput import NEAR, WARMTH, Bound, Throughput

# 20 ms of training on one thread, 12 ms of computing and 30 of waiting a batch, 1 ms to take it over and 2 to send it.
ONE = Throughput(20.0, 20.0, 12.0, 30.0, 1.0, 2.0, cores=2, workers=1, sharing=1.0)


@pytest.mark.parametrize(
    ("workers", "step_ns", "bound"),
    [
        (0, 62.0, Bound.TRAINING),  # 20 + 12 + 30
        (1, 44.0, Bound.WORKERS),  # 12 + 30 + 2
        (2, 22.0, Bound.TRAINING),  # 44 / 2, which is within 5 % of 20 + 1; the cores: (12 + 1 + 2 + 20) / 2 = 17.5
        (4, 21.0, Bound.TRAINING),  # 20 + 1
    ],
)
def test_a_step_by_hand(workers: int, step_ns: float, bound: Bound) -> None:
    assert ONE.step_ns(workers) == step_ns
    assert ONE.bound(workers) is bound


def test_the_cores_set_the_pace() -> None:
    """50 ms of computing beside 20 ms: (50 + 1 + 2 + 20) / 2 = 36.5, and 1.3 times as much where cores share."""
    dear = replace(ONE, computing_ns=50.0, waiting_ns=0.0)
    assert (dear.step_ns(1), dear.step_ns(2), dear.step_ns(8)) == (52.0, 36.5, 36.5)
    assert dear.bound(2) is Bound.CORES
    assert replace(dear, sharing=1.3).step_ns(2) == pytest.approx(47.45)
    # A worker that computes for 14 ms of a step on the other core of two slows the training down by 0.3 times that.
    assert replace(ONE, sharing=1.3).step_ns(4) == pytest.approx(21.0 + 0.3 * 14)
    assert replace(ONE, sharing=1.3, cores=15).step_ns(4) == pytest.approx(21.0 + 0.3)
    assert replace(dear, cores=None).step_ns(4) == 21.0  # 52 / 4 is less.


def test_a_training_that_loads_itself_gets_warmer() -> None:
    """Of 62 ms 42 load: its own 20 ms get shorter by 0.2 x 42 / 62."""
    alone = replace(ONE, workers=0, warmth=WARMTH)
    assert alone.warmer == pytest.approx(1 - 0.2 * 42 / 62)
    assert (alone.step_ns(0), alone.step_ns(4)) == (62.0, pytest.approx(20 * alone.warmer + 1))


def test_beginnings_of_epochs_count_where_workers_start_anew() -> None:
    """Two workers of 5 ms each, a first batch of 44 + 1 ms, in ten steps: 5.5 ms a step."""
    short = replace(ONE, epoch_steps=10.0, start_ns=5.0)
    assert short.step_ns(2) == 22.0 + 5.5
    assert (short.beginning_ns(0), replace(short, epoch_steps=inf).beginning_ns(2)) == (0.0, 0.0)


def test_the_advised_number_is_the_smallest_that_is_near_the_best() -> None:
    """22 ms with 2 workers, 21 at best: within 5 %."""
    assert ONE.advised == 2
    assert replace(ONE, workers=2).advised == 2
    assert replace(ONE, workers=4).advised == 4  # What is there is near, too.


def test_items_that_sleep_take_more_workers_than_cores() -> None:
    """34 ms of sleep and a step of 6 ms, as in `loader.md`: six workers, on two cores as on one."""
    remote = Throughput(5.0, 2.0, 0.5, 34.0, 1.0, cores=2, workers=1, sharing=1.0)
    assert [replace(remote, cores=cores).advised for cores in (1, 2, 16)] == [4, 6, 6]  # 34.5 / 6.3; at most 4 a core.
    assert remote.step_ns(6) == 6.0


def test_items_that_compute_leave_a_core_to_the_training() -> None:
    computing = replace(ONE, computing_ns=200.0, waiting_ns=0.0, workers=0)
    assert [replace(computing, cores=cores).advised for cores in (1, 2, 4, 16)] == [0, 1, 3, 10]


def test_workers_that_hand_over_slowly_are_not_advised() -> None:
    """A batch is made in 2 ms and handed over in 10."""
    small = Throughput(20.0, 20.0, 2.0, 0.0, 10.0, cores=4)
    assert small.advised == 0
    assert replace(small, workers=2).advised == 0


def test_cheaper_batches_and_the_cores_that_are_left() -> None:
    half = ONE.cheaper(0.5)
    assert (half.computing_ns, half.waiting_ns, half.sending_ns) == (6.0, 15.0, 2.0)
    assert ONE.table() == {0: 62.0, 1: 44.0, 2: 22.0, 4: 21.0, 8: 21.0}
    # 3 x 42 ms of workers' CPU time in 44 ms; and none of them.
    busy = replace(ONE, computing_ns=40.0, waiting_ns=0.0, cores=4, workers=1)
    assert (busy.cores_left, replace(busy, workers=0).cores_left) == (3, 4)


TIMES = st.floats(0.0, 1e9)
COUNTS = {"cores": st.none() | st.integers(1, 64), "workers": st.integers(0, 32)}
MODELS = st.builds(Throughput, st.floats(1.0, 1e9), *[TIMES] * 5, **COUNTS, sharing=st.floats(1.0, 1.3))


@given(MODELS, st.integers(1, 32))
def test_more_workers_are_never_slower_and_never_faster_than_training_and_cores(model: Throughput, count: int) -> None:
    more, fewer = model.step_ns(count + 1), model.step_ns(count)
    least = max(model.warmer * model.training_ns, model.paces_ns(1)[Bound.CORES])
    assert least <= more <= fewer


@given(MODELS)
def test_the_advised_number_never_loses(model: Throughput) -> None:
    advised = model.advised
    assert model.step_ns(advised) <= model.step_ns(model.workers)
    assert model.step_ns(advised) <= (1 + NEAR) * min(map(model.step_ns, range(1, model.most + 1)))
    assert advised in range(max(model.most, model.workers) + 1)


@given(MODELS, st.floats(0.0, 1.0), st.integers(0, 16))
def test_cheaper_batches_never_make_a_step_longer(model: Throughput, share: float, count: int) -> None:
    model = replace(model, workers=max(model.workers, 1))  # Else less loading leaves the training less warm.
    assert model.cheaper(share).step_ns(count) <= model.step_ns(count) * (1 + 1e-9)
