"""Ops that compute on the CPU while the device waits."""

from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.host import host_compute_ops, host_time
from diagnose.facts.core.idle import idle
from diagnose.facts.host.host_compute import host_compute
from diagnose.synthetic.reading import facts_of

MADE = """
4 steps of 60
cpu  aten::randn 0-50 | aten::normal_ 1-49 | aten::to 50.1-50.3 | aten::mm 56-56.1 | aten::view 57-57.19
gpu  h2d 50.2-55.2 @50.15 pageable 33MB | sgemm 56.06-59.9 @56.05
"""


def test_an_op_that_starts_nothing_and_takes_longer_than_dispatch_computes() -> None:
    facts = facts_of(MADE)
    (found,) = host_compute(facts)
    assert (found.op, found.calls, len(found.ids), len(found.move_ids)) == ("aten::randn", 3, 4, 4)
    assert (found.ns, found.idle_ns) == (50_000_000, 50_000_000)
    assert host_time(facts).parts[TimeCause.HOST_COMPUTE] == 50_000_000
    assert idle(facts)[0].cause is TimeCause.HOST_COMPUTE


def test_an_op_that_starts_device_work_dispatches_however_long_it_takes() -> None:
    facts = facts_of("4 steps of 60\ncpu  aten::index 0-50 | aten::nonzero 1-49\ngpu  pointwise 48-59.9 @47")
    assert host_compute(facts) == ()
    assert host_time(facts).parts[TimeCause.HOST_COMPUTE] == 0


def test_beside_work_that_is_started_only_the_part_without_it_computes() -> None:
    facts = facts_of("4 steps of 60\ncpu  aten::f 0-50 | aten::sort 1-40 | aten::mm 41-42\ngpu  sgemm 42-59.9 @41.5")
    (found,) = host_compute(facts)
    assert (found.op, found.ns) == ("aten::sort", 39_000_000)


def test_a_batch_that_is_loaded_in_the_process_is_loading() -> None:
    facts = facts_of("4 steps of 60\ncpu  load 0-50 | aten::stack 1-40 | aten::mm 51-52\ngpu  sgemm 52-59.9 @51.5")
    assert host_compute(facts) == ()


def test_where_the_cpu_trains_all_ops_compute() -> None:
    facts = facts_of("4 steps of 60\n1 threads, 2 cores\ncpu  aten::mm 0-50")
    assert not len(host_compute_ops(facts))
    assert host_time(facts).parts[TimeCause.OPS] == 50_000_000


def test_what_follows_a_wait_for_the_device_is_the_wait_s() -> None:
    facts = facts_of(
        """
        4 steps of 60
        cpu  aten::item 0-20.1 | sync 1-20.02 | aten::sort 21-40 | aten::mm 41-41.1
        gpu  d2h 20-20.01 @0.5 8B | sgemm 41.06-79.9 @41.05
        """
    )
    (found,) = host_compute(facts)
    assert (found.ns, found.idle_ns) == (19_000_000, 0)
