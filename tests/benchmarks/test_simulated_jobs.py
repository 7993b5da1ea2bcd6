"""Simulated jobs of many ranks, with values derived by hand; and what is published of them."""

import ast
from pathlib import Path

import pytest

from benchmarks import simulated_jobs
from benchmarks.simulated_jobs import schedules, tables
from benchmarks.simulated_jobs.cases import cases
from benchmarks.simulated_jobs.layout import HOST_LATENCY_NS, NETWORK_LATENCY_NS, Layout
from benchmarks.simulated_jobs.machine import GAP_NS, LAUNCH_LATENCY_NS, LAUNCH_NS, Costs, Rank, Sent, World
from benchmarks.simulated_jobs.moments import BEGIN, Moments
from benchmarks.simulated_jobs.recording import Work

STILL = Costs(host_jitter=0.0, device_jitter=0.0)
KERNEL = Work("kernel", "sgemm", 1_000_000)
STREAM = 20


def ranks_of(mesh: dict[str, int], gpus: int = 8) -> tuple[World, list[Rank]]:
    world = World(Layout(mesh, gpus), STILL, range(1, 2))
    return world, [Rank(number, world) for number in range(world.layout.world)]


def test_a_moment_is_the_latest_of_what_it_waits_for() -> None:
    some = Moments()
    first = some.latest(BEGIN.later(30), BEGIN.later(50))
    node = some.open()
    some.wait_for(node, first)
    some.wait_for(node, BEGIN.later(70))
    times = some.times()
    assert times[first.node] + first.after_ns == 50
    assert times[node] == 70


def test_ranks_that_wait_for_each_other_are_no_job() -> None:
    some = Moments()
    a, b = some.open(), some.open()
    some.wait_for(a, BEGIN._replace(node=b))
    some.wait_for(b, BEGIN._replace(node=a))
    with pytest.raises(ValueError, match="wait for each other"):
        some.times()


def test_groups_are_lines_of_the_mesh_and_the_whole_job_is_the_default_one() -> None:
    layout = Layout({"dp": 2, "pp": 2, "tp": 2})
    assert layout.group(5, "tp").ranks == (4, 5)
    assert layout.group(5, "pp").ranks == (5, 7)
    assert layout.group(5, "dp").ranks == (1, 5)
    assert len({group.name for group in layout.groups}) == 1 + 3 * 4
    assert Layout({"dp": 8}).group(3, "dp").use == "default_pg"


def test_links_carry_what_nccl_tests_count() -> None:
    layout = Layout({"dp": 8}, gpus=4, nic_gb_s=10.0, slow={1: 0.5})
    assert layout.collective_ns("allreduce", range(4), 235_000) == HOST_LATENCY_NS + 1_500
    # Four cards of a host, half as fast on the other one.
    assert layout.collective_ns("_allgather_base", range(8), 80_000) == NETWORK_LATENCY_NS + 3_500
    assert layout.transfer_ns(0, 7, 5_000) == NETWORK_LATENCY_NS + 1_000


def test_a_collective_is_over_when_the_last_rank_has_come_and_the_transfer_is_done() -> None:
    world, ranks = ranks_of({"dp": 2})
    ends = []
    for rank in ranks:
        for _ in range(1 + rank.number):
            rank.launch(KERNEL)
        ends.append(rank.collective("allreduce", world.layout.groups[0], 235_000_000, "Float", STREAM))
    times = world.moments.times()
    last = LAUNCH_NS + LAUNCH_LATENCY_NS + 2 * (1_000_000 + GAP_NS)
    for end in ends:
        over = times[end.node] + end.after_ns - HOST_LATENCY_NS - 1_000_000
        assert 0 <= over - last < 3_000  # ranks leave within 3 us


def test_a_send_needs_its_receiver() -> None:
    world, ranks = ranks_of({"pp": 2})
    group = world.layout.groups[0]
    ranks[1].launch(KERNEL)
    sent = ranks[0].batch([Sent(True, 1, group, 4)], STREAM)
    received = ranks[1].batch([Sent(False, 0, group, 4)], STREAM)
    assert sent is not None
    assert received is not None
    times = world.moments.times()
    for end in (sent, received):
        assert times[end.node] + end.after_ns >= 1_000_000 + HOST_LATENCY_NS


@pytest.mark.parametrize("each", [1, 2])
def test_schedules_run_each_pass_once_and_in_order(each: int) -> None:
    orders = [schedules.interleaved(rank, 4, each, 8) for rank in range(4)]
    whole = schedules.with_transfers(orders, 4 * each)
    passes = [one for order in whole for one in order if one.kind in "FB"]
    assert len(passes) == len(set(passes)) == 2 * 8 * 4 * each
    sent = sorted(str(one) for order in whole for one in order if one.kind.startswith("SEND"))
    assert len(sent) == 2 * 8 * (4 * each - 1)


def test_cases_are_many_and_named_once() -> None:
    assert {row.case for row in tables.published()} == {case.name for case in cases()}
    some = cases()
    assert len({one.name for one in some}) == len(some) >= 45
    assert sum(not one.fault for one in some) >= 15
    assert all(bool(one.fault) == bool(one.codes) for one in some)


def test_only_the_judge_knows_diagnose() -> None:
    for path in Path(simulated_jobs.__file__).parent.rglob("*.py"):
        imported = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        asked = {name for name in imported if name.split(".")[0] == "diagnose"}
        assert asked <= ({"diagnose"} if path.name == "judge.py" else set()), path.name
