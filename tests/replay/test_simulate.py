"""The pass over a graph: the same times as visiting point after point, whatever the graph looks like."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import diagnose
from benchmarks.simulated_jobs import kineto
from benchmarks.simulated_jobs.judge import step_ms
from benchmarks.simulated_jobs.layout import Layout
from benchmarks.simulated_jobs.machine import Costs
from benchmarks.simulated_jobs.model import Model
from benchmarks.simulated_jobs.training import Training
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.matching import join
from diagnose.facts.core.base import Facts
from diagnose.replay import job as jobs
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten
from diagnose.replay.graph import OFF, EdgeKind, Graph, arranged, edges, joined
from diagnose.replay.shown import Change, ChangeKind, change
from diagnose.replay.simulate import folded, times
from diagnose.source import ranks
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job
from tests.replay.programs import OF_NOTHING, ids, python

SCENARIOS = 3


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to four lanes of points, and edges along lanes and between them."""
    lanes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    count = sum(lanes)
    ends = np.cumsum(lanes)
    lane = np.repeat(np.arange(len(lanes)), lanes)
    observed = np.concatenate([np.sort(draw(_numbers(size, 0, 100_000))) for size in lanes])
    along = np.setdiff1d(np.arange(1, count), ends)
    along = along[draw(_numbers(len(along), 0, 9)) > 0]
    parts = [edges(EdgeKind.STREAM, along - 1, along, draw(_numbers(len(along), 0, 500)))]
    for kind in (EdgeKind.LAUNCH, EdgeKind.HOST, EdgeKind.WAIT, EdgeKind.TRACK):
        size = draw(st.integers(0, count))
        source, target = draw(_numbers(size, 0, count - 1)), draw(_numbers(size, 0, count - 1))
        parts.append(edges(kind, source[source != target], target[source != target], draw(st.integers(0, 9_000))))
    return arranged(observed, lane, joined(parts), np.array([0, count - 1]))


def _numbers(size: int, low: int, high: int) -> st.SearchStrategy[IntArray]:
    some = st.lists(st.integers(low, high), min_size=size, max_size=size)
    return some.map(lambda numbers: np.array(numbers, dtype=np.int64))


def one_by_one(graph: Graph, delay_ns: IntArray, residual_ns: IntArray) -> IntArray:
    """The times of all points under one scenario; OFF where every edge into a point is."""
    found = np.full(len(graph.observed_ns), OFF)
    for point in range(len(found)):
        into = np.flatnonzero(graph.edges.target == point)
        some = [edge for edge in into if delay_ns[edge] != OFF and found[graph.edges.source[edge]] != OFF]
        if some:
            found[point] = max(found[graph.edges.source[edge]] + delay_ns[edge] for edge in some) + residual_ns[point]
        elif not len(into):
            found[point] = graph.observed_ns[point]
    return found


@given(graphs(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_all_points_at_once_are_as_one_by_one(graph: Graph, seed: int, wide: bool) -> None:
    assume(len(graph.edges.source))
    random = np.random.default_rng(seed)
    delay = np.repeat(graph.delay_ns[:, None], SCENARIOS, axis=1)
    delay[:, 1:] = random.integers(0, 5_000, delay[:, 1:].shape)
    may_be_off = np.isin(graph.edges.kind, (EdgeKind.WAIT, EdgeKind.TRACK))
    delay[may_be_off, 2] = np.where(random.random(may_be_off.sum()) < 0.5, OFF, 100)
    residual = random.integers(0, 300, (len(graph.residual_ns), SCENARIOS))
    found = times(graph, folded(graph, wide), delay, residual, np.arange(len(graph.observed_ns)))
    for scenario in range(SCENARIOS):
        expected = one_by_one(graph, delay[:, scenario], residual[:, scenario])
        known = expected != OFF
        assert (found[known, scenario] == expected[known]).all()
        assert (found[~known, scenario] < OFF // 2).all()


def three(*us: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Durations of four groups at each level."""
    return np.array([[1_000 * one] * 4 for one in us], dtype=np.int64)


def test_what_an_edit_changes(trained: Facts) -> None:
    gemm, add = ids(trained, "gemm"), ids(trained, "aten::add")
    for edit, kind, ns, left in (
        (Shorten(gemm, Between(0.9, 0.5, 0.2)), ChangeKind.SHORTEN, 200_000, (0.9, 0.5, 0.2)),
        (Shorten(gemm, 7.0), ChangeKind.SHORTEN, 200_000, (1.0, 1.0, 1.0)),
        (Remove(ids(trained, "aten::mm")), ChangeKind.REMOVE, 400_000, (0.0, 0.0, 0.0)),
        (Detach(ids(trained, "cudaStreamSynchronize")), ChangeKind.DETACH, 300_000, None),
        (Move(add, 4), ChangeKind.MOVE, 300_000, (0.25, 0.25, 0.25)),
        (Move(add, Between(1, 2, 8)), ChangeKind.MOVE, 300_000, (1.0, 0.5, 0.125)),
        (Replace(gemm, np.arange(4), three(190, 100, 50)), ChangeKind.REPLACE, 200_000, (0.95, 0.5, 0.25)),
    ):
        assert change(trained, edit) == Change(kind, 3, ns, left)


def test_times_of_a_thread_count_where_they_lie(trained: Facts) -> None:
    # Of the last step's, at 3,700 us, the device's steps have nothing; the first step's is theirs.
    assert change(trained, Shorten(python(trained), 0.5)) == Change(ChangeKind.SHORTEN, 3, 200_000, (0.5, 0.5, 0.5))


def test_time_in_several_operations_counts_once_and_a_third_of_a_step_is_rounded(trained: Facts) -> None:
    both = np.concatenate([ids(trained, name) for name in ("cudaLaunchKernel", "aten::mm", "aten::mm")])
    found = change(trained, Remove(both))
    assert (found.count, found.ns) == (6, 400_000)
    assert change(trained, Remove(ids(trained, "gemm")[-1:])).ns == 66_667


@pytest.mark.parametrize("edit", OF_NOTHING.values(), ids=OF_NOTHING)
def test_an_edit_of_nothing_changes_nothing(trained: Facts, edit: Edit) -> None:
    found = change(trained, edit)
    assert (found.count, found.ns) == (0, 0)


SMALL = Model(blocks=4, tokens=4_096, vocabulary=1_024)
STAGES = Training(Layout({"pp": 4}), SMALL, "none", 4, "1f1b")
OLDER = {"numbers_kept": False, "coalesces_all": True}
SLOW, TIMES = 2, 1.5
JOBS = {
    "ddp": Training(Layout({"dp": 4}), SMALL),
    "ddp_on_two_hosts": Training(Layout({"dp": 4}, gpus=2), SMALL, clocks_ms={1: 8.0}),
    "fsdp": Training(Layout({"dp": 4}), SMALL, "fsdp"),
    "hybrid": Training(Layout({"dp_replicate": 2, "dp_shard": 2}, gpus=2), SMALL, "fsdp"),
    "split": Training(Layout({"dp": 2, "tp": 2}), replace(SMALL, hidden=4_096, blocks=2)),
    "experts": Training(Layout({"ep": 4}), replace(SMALL, blocks=2), "none", experts=True),
    "gpipe": replace(STAGES, schedule="gpipe"),
    "gpipe_older": replace(STAGES, schedule="gpipe", **OLDER),
    "1f1b": STAGES,
    "1f1b_older": replace(STAGES, **OLDER),
    "interleaved": Training(Layout({"pp": 2}), SMALL, "none", 4, "interleaved", 2),
    "interleaved_older": Training(Layout({"pp": 2}), SMALL, "none", 4, "interleaved", 2, **OLDER),
    "pipelines_side_by_side": replace(STAGES, layout=Layout({"pp": 2, "dp": 2}), parallel="ddp"),
}


def job_of(training: Training, folder: Path) -> Job:
    kineto.write(training, training.run(3, Costs()), folder)
    found = join([collective_sequence(Facts(rank)) for rank in ranks.load([folder]).ranks])
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_without_the_slow_device_a_job_takes_what_it_takes_when_simulated_so(name: str, tmp_path: Path) -> None:
    good = JOBS[name]
    slow = min(SLOW, good.layout.world - 1)
    bad = replace(good, slow_devices={slow: TIMES})
    before, after = (step_ms(one.run(3, Costs())) for one in (bad, good))
    found = job_of(bad, tmp_path)
    joined = jobs.join(found)
    own = list(joined.recorded.own_ns)
    one = found.sequences[slow]
    rest = one.compute_ns.sum() - one.lane.compute_ns.sum()
    own[slow] = own[slow] - (np.append(one.lane.compute_ns, rest) * (1.0 - 1.0 / TIMES)).astype(np.int64)
    changed = msgspec.structs.replace(joined.recorded, own_ns=tuple(own))
    assert joined.step_ns([joined.recorded, changed]) / 1e6 == pytest.approx([before, after], rel=0.02)
    ahead_ms = [0.0, 0.0, 8.0, 8.0] if name == "ddp_on_two_hosts" else [0.0] * good.layout.world
    assert (found.ahead_ns / 1e6).tolist() == pytest.approx(ahead_ms, abs=0.01)
    if "pp" in good.layout.mesh and "dp" not in good.layout.mesh:
        _what_is_sent_meets_what_is_received(found, good)


def _what_is_sent_meets_what_is_received(found: Job, training: Training) -> None:
    pairs = [tuple(join_point.ranks.tolist()) for join_point in found.join_points if join_point.transfer]
    stages = training.layout.world * training.stages_each
    steps = len(found.sequences[0].numbers)
    assert len(pairs) == steps * training.micro * 2 * (stages - 1)
    forward = sum((a + 1) % training.layout.world == b for a, b in pairs)
    assert forward == len(pairs) // 2 or training.layout.world == 2
    assert [pipeline.rank_of for pipeline in found.pipelines] == [
        tuple(range(training.layout.world)) * training.stages_each
    ]


@pytest.mark.slow
def test_without_the_early_reductions_a_job_takes_what_it_takes_when_simulated_so(tmp_path: Path) -> None:
    """Gradients of 4 micro-batches are reduced each time, over a network that compute does not hide."""
    good = Training(Layout({"dp": 4}, gpus=2, nic_gb_s=20.0), SMALL, micro=4)
    bad = replace(good, no_sync=False)
    before, after = (step_ms(one.run(3, Costs())) for one in (bad, good))
    kineto.write(bad, bad.run(3, Costs()), tmp_path)
    diagnosis = diagnose.analyze(tmp_path)
    saving = next(finding.saving for finding in diagnosis.findings if finding.rule == "missing_no_sync")
    assert after < 0.9 * before
    assert saving.likely_ns / 1e6 == pytest.approx(before - after, rel=0.02)
    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis
