"""What the manifest tells facts: what recording costs, and how many workers would hide loading."""

from math import inf

import pytest
from msgspec.structs import replace

from diagnose.capture.agent import clocks
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.host import NO_CALLS
from diagnose.facts.core.run import busy_share, environment, is_of_no_use, launch_blocking, manifest, trains_on_cpu
from diagnose.facts.core.steps import LONG
from diagnose.facts.data.loading import loading
from diagnose.facts.data.throughput import Throughput
from diagnose.facts.run.timed_steps import Slowdown, Unrecorded, slowdown, unrecorded
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Flags, Host, Loader, Optimizer, RankManifest, Timed
from diagnose.trace.model import Context

MS = 1_000_000

LOADING = """
    5 steps of 100
    cpu  load 0-60 | aten::mm 60-61
    gpu  sgemm 60.01-99.99 @60
"""


UNKNOWN = Host()


def known(
    drawing: str,
    *loaders: Loader,
    host: Host = UNKNOWN,
    ranks: int = 1,
    **more: Timed | Flags | int | tuple[Optimizer, ...],
) -> Facts:
    synthetic = facts_of(drawing).rank
    return Facts(replace(synthetic, context=Context(RankManifest(rank=0, loaders=loaders, **more), host, ranks)))


def wall(*times_ms: float, device: tuple[float, ...] | None = None) -> Timed:
    on_device = None if device is None else tuple(int(one * MS) for one in device)
    return Timed(first_step=0, wall_ns=tuple(int(one * MS) for one in times_ms), device_ns=on_device)


@pytest.mark.parametrize(
    ("devices", "cpu_ms", "busy"), [("cpu", None, 1.0), ("cpu", 3, 0.2), ("cpu", 40, 1.0), ("cuda", 3, 0.0)]
)
def test_how_busy_a_training_on_the_cpu_is(devices: str, cpu_ms: int | None, busy: float) -> None:
    """Steps of 10 and 20 ms; of 40 ms of CPU time a step, several threads take some."""
    cpu_ns = None if cpu_ms is None else cpu_ms * MS
    alone = Timed(first_step=0, wall_ns=(10 * MS, 20 * MS), cpu_ns=cpu_ns)
    optimizer = Optimizer(name="SGD", devices=(devices,))
    facts = known("5 steps of 10\ncpu  aten::mm 1-2", unprofiled=alone, optimizers=(optimizer,))
    assert busy_share(facts) == busy


@pytest.mark.parametrize(
    ("devices", "on_cpu"), [((), True), (("cpu",), True), (("cpu", "meta"), True), (("mps",), False), (("xpu",), False)]
)
def test_a_training_on_a_device_that_nobody_records_is_not_on_the_cpu(devices: tuple[str, ...], on_cpu: bool) -> None:
    optimizers = (Optimizer(name="SGD", devices=("cpu",)), Optimizer(name="Adam", devices=devices))
    assert (
        trains_on_cpu(known("5 steps of 10\ncpu  aten::mm 1-2", unprofiled=wall(10), optimizers=optimizers)) is on_cpu
    )


@pytest.mark.parametrize(("torch", "on_cpu"), [("2.13.0+cpu", True), ("2.13.0+cu130", False), (None, False)])
def test_a_torch_without_cuda_trains_on_the_cpu_also_where_no_step_was_timed(torch: str | None, on_cpu: bool) -> None:
    facts = known("5 steps of 10\ncpu  aten::mm 1-2")
    assert facts.rank.context is not None
    versions = {} if torch is None else {"torch": torch}
    facts = Facts(replace(facts.rank, context=replace(facts.rank.context, versions=versions)))
    assert trains_on_cpu(facts) is is_of_no_use(NO_CALLS, facts) is on_cpu


@pytest.mark.parametrize("get", [manifest, slowdown, unrecorded, environment, launch_blocking])
def test_without_a_manifest_nothing_is_known(get: object) -> None:
    assert callable(get)
    with pytest.raises(Missing, match="Record with diagnose profile"):
        get(facts_of(LOADING))


def test_medians_by_one_clock_preferably_the_device_s() -> None:
    facts = known(LOADING, unprofiled=wall(10, 30, 20), timing=wall(30, 24, 20))
    assert slowdown(facts) == Slowdown(20 * MS, 20 * MS, 1.2)
    alone, recorded = wall(10, device=(40, 41, 42)), wall(20, device=(82,))
    assert slowdown(known(LOADING, unprofiled=alone, timing=recorded)) == Slowdown(41 * MS, 41 * MS, 2.0)
    # Where one of them has no device's clock, the ratio is by the other clock, which both have.
    assert slowdown(known(LOADING, unprofiled=alone, timing=wall(20))) == Slowdown(41 * MS, 41 * MS, 2.0)
    assert slowdown(known(LOADING, unprofiled=alone, timing=wall(15))) == Slowdown(41 * MS, 41 * MS, 1.5)


def test_a_ratio_needs_both() -> None:
    assert slowdown(known(LOADING, unprofiled=wall(10))) == Slowdown(10 * MS, 10 * MS, None)
    with pytest.raises(Missing, match="unprofiled step times"):
        slowdown(known(LOADING, timing=wall(10)))


LONG_ONE = """
    4 steps of 10
    cpu  aten::mm 0-1
    gpu  sgemm 1-8 @0.5 not in 3 | sgemm 1-98 @0.5 in 3
"""


def test_steps_of_a_kind_that_was_not_recorded() -> None:
    """Two of twelve are 25 times as long, ten apart: 100 of 120 ms. The mean is of the others."""
    facts = known(LOADING, unprofiled=wall(2, 50, *[2] * 9, 50))
    assert unrecorded(facts) == Unrecorded(timed=12, long=2, ratio=25.0, share=100 / 120, every=10)
    assert slowdown(facts).unprofiled_ns == 2 * MS
    alone = unrecorded(known(LOADING, unprofiled=wall(2, 50, *[2] * 9)))
    assert (alone.long, alone.every) == (1, None)


def test_long_steps_in_a_row_have_no_period() -> None:
    """All recorded steps are short: to record as many again would not meet one."""
    found = unrecorded(known(LOADING, unprofiled=wall(2, 2, 50, 50, *[2] * 8)))
    assert (found.timed, found.long, found.every) == (12, 2, None)


def test_below_a_tenth_of_the_time_they_count_and_nothing_is_said() -> None:
    facts = known(LOADING, unprofiled=wall(*[2] * 49, 8))
    assert unrecorded(facts).share == 8 / 106
    assert slowdown(facts).unprofiled_ns == 106 * MS // 50


def test_what_comes_now_and_then_counts_if_it_was_recorded() -> None:
    facts = known(LONG_ONE, unprofiled=wall(2, 50, *[2] * 9, 50))
    assert unrecorded(facts) == Unrecorded(timed=12, long=0, ratio=0.0, share=0.0, every=None)
    assert slowdown(facts).unprofiled_ns == 10 * MS


def test_agent_and_analysis_mean_the_same_by_a_long_step() -> None:
    assert clocks.LONG == LONG


def test_long_steps_at_a_period_weigh_what_they_weigh() -> None:
    """The last six: two cycles of 54 ms. All seven would have three long steps."""
    facts = known(LONG_ONE, unprofiled=wall(50, 2, 2, 50, 2, 2, 50), cycle=3)
    assert slowdown(facts).unprofiled_ns == 18 * MS
    assert slowdown(known(LONG_ONE, unprofiled=wall(50, 2, 2, 50), cycle=5)).unprofiled_ns == 26 * MS


def test_a_step_three_times_as_long_is_like_the_others() -> None:
    facts = known(LOADING, unprofiled=wall(2, 6, 2, 2))
    assert (unrecorded(facts).long, slowdown(facts).unprofiled_ns) == (0, 3 * MS)


def test_a_window_is_not_compared_with_steps() -> None:
    with pytest.raises(Missing):
        slowdown(known("cpu aten::mm 0-5\ngpu sgemm 1-4 @0.5", unprofiled=wall(10)))


def loader(fetch_ms: float, **more: int) -> Loader:
    return Loader(dataset="Photos", fetch_ns=int(fetch_ms * MS), **more)


def test_what_the_model_is_given() -> None:
    """The GPU waits 60 of 100 ms; 60 ms a batch, all of it taken for computing: two workers fit the 40 ms left."""
    found = loading(known(LOADING, loader(60)))
    assert found.model == Throughput(40 * MS, 40 * MS, 60 * MS, 0, 1 * MS, start_ns=15 * MS)
    assert (found.mean_ns, found.batches, found.workers, found.most_in) == (100 * MS, 1.0, 2, "")
    # How much of it computes is not known: at one end all of it waits.
    assert [one.waiting_ns for one in found.models] == [0, 0, 60 * MS]


def test_the_step_is_that_without_the_profiler() -> None:
    """50 ms, of which the GPU waits the same share: 20 ms are left, in which 3 workers make batches of 60 ms."""
    found = loading(known(LOADING, loader(60), unprofiled=wall(50)))
    assert (found.model.training_ns, found.workers) == (20 * MS, 3)


def test_cores_are_shared_by_the_ranks_of_the_machine() -> None:
    facts = known(LOADING, loader(300), host=Host(cpus_allowed=16), ranks=4)
    assert (loading(facts).model.cores, loading(facts).workers) == (4, 3)


def test_what_of_a_batch_waits_is_its_wall_less_its_cpu_time() -> None:
    """And less the time for which its thread waited for a core, which is no storage: it is to be computed."""
    for more, waits_ms, computes_ms in (
        ({"fetch_cpu_ns": 30 * MS}, 270, 30),
        ({"fetch_cpu_ns": 30 * MS, "fetch_queued_ns": 200 * MS}, 70, 230),
        ({"fetch_cpu_ns": 30 * MS, "fetch_queued_ns": 200 * MS, "blocked_ns": 50 * MS}, 50, 250),
        ({"fetch_cpu_ns": 600 * MS}, 0, 300),
        ({}, 0, 300),
    ):
        model = loading(known(LOADING, loader(300, **more), host=Host(cpus_allowed=2))).model
        assert (model.waiting_ns, model.computing_ns) == (waits_ms * MS, computes_ms * MS)


def test_the_range_of_the_model() -> None:
    """Cores that share much, and the slowest of ten batches; workers that are there share already."""
    one = loader(300, fetch_cpu_ns=100 * MS, blocked_ns=200 * MS, blocked_most_ns=900 * MS)
    found = loading(known(LOADING, one))
    assert [each.sharing for each in found.models] == [1.3, 1.05, 1.0]
    assert [each.waiting_ns for each in found.models] == [900 * MS, 200 * MS, 200 * MS]
    present = loading(known(LOADING.replace("load", "next"), replace(one, num_workers=2)))
    assert [each.sharing for each in present.models] == [1.05, 1.0, 1.0]


def test_an_epoch_has_as_many_steps_as_its_batches_make() -> None:
    some = {"dataset_length": 105, "batch_size": 10}
    assert loading(known(LOADING, loader(60, **some))).model.epoch_steps == 11
    assert loading(known(LOADING, loader(60, **some, persistent_workers=True))).model.epoch_steps == inf


def test_a_trace_alone_tells_what_a_batch_takes_in_process() -> None:
    found = loading(facts_of(LOADING))
    assert (found.model.computing_ns, found.model.cores, found.split_known) == (60 * MS, None, False)
    with pytest.raises(Missing, match="the time to load a batch"):
        loading(facts_of(LOADING.replace("load", "next")))


def test_the_loader_that_trains_is_the_one_asked_in_timed_steps() -> None:
    """An evaluation before them asks more often, of a loader without workers."""
    evaluation = loader(10, asked=95, asked_timed=0)
    training = loader(300, asked=43, asked_timed=30, num_workers=4)
    in_workers = LOADING.replace("load", "next")
    assert loading(known(in_workers, evaluation, training)).loader == training
    older = loader(10, asked=95), loader(300, asked=43, num_workers=4)  # Which do not say what was asked when.
    assert loading(known(in_workers, *older)).loader.num_workers == 4
    assert loading(known(LOADING, *older)).loader.num_workers == 0


def test_the_loader_that_is_asked_most_counts() -> None:
    some = loader(10, asked=5), loader(300, asked=90), Loader(dataset="Untimed", asked=1000)
    assert loading(known(LOADING, *some)).fetch_ns == 300 * MS
    with pytest.raises(Missing, match="the time to load a batch"):
        loading(known(LOADING, some[2]))


@pytest.mark.parametrize(("items", "collate", "most"), [(80, 10, "items"), (10, 80, "collate"), (50, 50, "items")])
def test_what_takes_most_of_a_batch(items: int, collate: int, most: str) -> None:
    found = loading(known(LOADING, loader(90, items_ns=items, collate_ns=collate)))
    assert found.most_in == most


def with_environment(drawing: str, variables: dict[str, str]) -> Facts:
    known_of = Context(RankManifest(rank=0), UNKNOWN, 1, variables)
    return Facts(replace(facts_of(drawing).rank, context=known_of))


@pytest.mark.parametrize(
    ("variables", "blocks"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, True),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, False),
        ({"CUDA_LAUNCH_BLOCKING": ""}, False),
        ({"RANK": "0"}, False),
    ],
)
def test_whether_launches_are_made_to_wait(variables: dict[str, str], blocks: bool) -> None:
    facts = with_environment(LOADING, variables)
    assert environment(facts) == variables
    assert launch_blocking(facts) is blocks


def test_an_environment_of_which_nothing_was_recorded_or_other_variables_decide() -> None:
    with pytest.raises(Missing, match="the run's environment"):
        environment(with_environment(LOADING, {}))
    with pytest.raises(Missing, match="HIP_LAUNCH_BLOCKING"):  # on ROCm
        launch_blocking(with_environment(f"device MI300X{LOADING}", {"CUDA_LAUNCH_BLOCKING": "0"}))
