"""The replay of whole jobs against a simulator that shares no code with it: one slow device in NCCL traces."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

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
from diagnose.source import ranks
from diagnose.trace.job import Job

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
    """As diagnose reads its traces."""
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
    changed = replace(joined.recorded, own_ns=tuple(own))
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
