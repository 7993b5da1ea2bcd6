"""Replays of real traces: exact without edits, plausible with them, and one fix that was really made."""

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from diagnose.advice.assembly import summarised
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.matching import join as joined_job
from diagnose.facts.communication.peers import compare
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.steps import steps
from diagnose.replay.critical_path import critical_path
from diagnose.replay.edits import Estimate, Even, Move, Shorten
from diagnose.replay.job import join
from diagnose.replay.job_path import JobPathKind
from diagnose.replay.job_saving import JobReplay
from diagnose.replay.saving import Replay
from diagnose.source import ranks
from diagnose.trace.job import Job
from diagnose.trace.model import Peers
from tests.replay.programs import ids
from tests.replay.test_critical_path import check

FILES = (
    *("hta/alexnet_a100_sync_events.json.gz", "hta/backward_thread.json", "hta/cpu_only_rank34_of_300.json.gz"),
    *("hta/cupti_counters.json.gz", "hta/event_sync.json.gz", "hta/event_sync_multi_stream.json.gz"),
    *("hta/gpu_user_annotations.json.gz", "hta/mi250_rocm62.json.gz", "hta/nccl_a100_rank0_of_2.json.gz"),
    *("hta/no_distributed_info.json.gz", "hta/no_gpu_events.json.gz", "hta/no_rank_recorded.json.gz"),
    *("hta/resnet_v100_5_steps.json.gz", "hta/simple_a100_sync_events.json.gz", "hta/tiny_rank1.json.gz"),
    "hta/triton.json.gz",
    *(f"param/dlrm_8_ranks/worker{rank}.pt.trace.json.gz" for rank in range(8)),
    "param/linear.json.gz",
    "param/resnet.json.gz",
    "tensorboard/resnet50_autograd_0_workers.json.gz",
    "tensorboard/resnet50_autograd_4_workers.json.gz",
    "tracelens/b200_eager.json.gz",
    "tracelens/h100_bert_small.json.gz",
    "tracelens/h100_qwen05b.json.gz",
    "tracelens/mi210_gpu_only.json.gz",
    "tracelens/mi300_qwen05b.json.gz",
    "tracelens/mi300_resnet18.json.gz",
    "tracelens/mi300_resnet_act_checkpoint.json.gz",
    "tracelens/sglang_decode_graphs.json.gz",
)


@lru_cache(maxsize=2)
def read(path: Path) -> Facts:
    return Facts(ranks.read(path))


def opened(corpus: Path, name: str) -> Facts:
    return read(corpus / "kineto" / name)


def test_all_traces_are_listed(corpus: Path) -> None:
    found = sorted(path for path in (corpus / "kineto").rglob("*.json*"))
    assert found == sorted(corpus / "kineto" / name for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_trace_replays_exactly_bears_faster_kernels_and_has_a_whole_path(corpus: Path, name: str) -> None:
    facts = opened(corpus, name)
    replay, step_ns = Replay(facts), steps(facts).mean_ns
    faster = [Shorten(device_work(facts).ids, 0.5)]
    everything = np.arange(len(facts.rank.spans), dtype=np.int64)
    times = replay.step_times_ns(
        [([], Estimate.LIKELY), (faster, Estimate.LIKELY), ([Shorten(everything, 1.0)], Estimate.LIKELY)]
    )
    assert times[0] == times[2] == step_ns == replay.quality.step_time_ns
    assert 0 <= times[1] <= step_ns
    assert np.isfinite([replay.quality.error_share, replay.quality.unexplained_share]).all()
    assert 0 <= replay.quality.unexplained_share <= 1
    found = replay.savings([faster])[0]
    assert 0 <= found.low_ns <= found.likely_ns <= found.high_ns <= step_ns
    if optional(critical_path, facts) is not None:
        check(facts)


def test_a_queue_limited_resnet_takes_half_as_long_with_kernels_twice_as_fast(corpus: Path) -> None:
    # Kernels run in 472 of 480 ms, and the deepest queue is 1023: without the limit the answer would be 0.83.
    facts = opened(corpus, "hta/resnet_v100_5_steps.json.gz")
    faster = [Shorten(device_work(facts).ids, 0.5)]
    before, after = Replay(facts).step_times_ns([([], Estimate.LIKELY), (faster, Estimate.LIKELY)])
    assert 0.48 < after / before < 0.55


def test_the_loader_hidden_takes_as_long_as_with_four_workers(corpus: Path) -> None:
    # The same training recorded with 0 and with 4 loader workers: the fix was made, and measured.
    facts = opened(corpus, "tensorboard/resnet50_autograd_0_workers.json.gz")
    fixed = steps(opened(corpus, "tensorboard/resnet50_autograd_4_workers.json.gz")).mean_ns
    moved = [Move(ids(facts, "enumerate(DataLoader)*"), 4)]
    predicted = Replay(facts).step_times_ns([(moved, Estimate.LIKELY)])[0]
    assert steps(facts).mean_ns > 1.1 * fixed
    assert predicted == pytest.approx(fixed, rel=0.02)


def test_a_loader_with_workers_that_is_not_waited_for_has_nothing_to_give(corpus: Path) -> None:
    facts = opened(corpus, "tensorboard/resnet50_autograd_4_workers.json.gz")
    found = Replay(facts).savings([[Move(ids(facts, "enumerate(DataLoader)*"), 4)]])[0]
    assert found.likely_ns < 0.01 * steps(facts).mean_ns


def test_one_fetch_that_was_a_little_late_does_not_hold_up_a_loader_that_keeps_up(corpus: Path) -> None:
    # Fetches take 1.4 to 2.5 of 117 ms. Kernels run in 104 ms, and the host needs about 110: faster ones save a little.
    facts = opened(corpus, "tensorboard/resnet50_autograd_4_workers.json.gz")
    replay = Replay(facts)
    before, after = replay.step_times_ns(
        [([], Estimate.LIKELY), ([Shorten(device_work(facts).ids, 0.5)], Estimate.LIKELY)]
    )
    assert abs(replay.quality.error_share) < 0.02
    assert 0.92 < after / before < 0.96


Shares = npt.NDArray[np.float64]
WHOLE = {
    "ddp_slow": 1,
    "ddp_buckets": 1,
    "fsdp1_base": 1,
    "fsdp2_base": 1,
    "moe_skewed": 1,
    "tp_sp": 1,
    "hsdp_base": 4,
    "fsdp_tp_base": 4,
    "pp_dp_slow": 2,
    "pp_gpipe_m4": 0,
    "pp_1f1b_m8": 0,
    "pp_interleaved_m8": 0,
    "pp_zbv_m8": 0,
}
"""Jobs of which all collectives and transfers meet, and how many process groups have collectives."""


def facts_of_job(folder: Path) -> list[Facts]:
    files = sorted(folder.glob("rank*.json.gz"))
    return [Facts(replace(ranks.read(file), index=rank)) for rank, file in enumerate(files)]


@cache
def job_of(folder: Path) -> Job:
    found = joined_job([collective_sequence(fact) for fact in facts_of_job(folder)])
    assert found is not None
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_all_that_ranks_do_together_is_found_and_replays_exactly(corpus: Path, name: str) -> None:
    found = job_of(corpus / "distributed" / name)
    assert sum(len(join_point.ranks) for join_point in found.join_points) == sum(
        len(sequence.calls.ids) for sequence in found.sequences
    )
    assert len(found.groups) == WHOLE[name]
    for group in found.groups:  # As torch.distributed had noted them.
        assert all(group in found.sequences[rank].known_groups for rank in group.ranks)
    joined = join(found)
    assert joined.step_ns([joined.recorded])[0] == pytest.approx(found.step_ns, rel=0.001)


@pytest.mark.parametrize("name", ["ddp_slow", "ddp_buckets", "moe_skewed", "pp_dp_slow", "pp_gpipe_m4", "pp_1f1b_m8"])
def test_clocks_of_ranks_of_one_machine_are_found_to_be_one(corpus: Path, name: str) -> None:
    assert np.abs(job_of(corpus / "distributed" / name).ahead_ns).max() < 2_000_000


def test_stages_are_in_the_order_of_ranks(corpus: Path) -> None:
    def stages(name: str) -> list[tuple[int, ...]]:
        return [pipeline.rank_of for pipeline in job_of(corpus / "distributed" / name).pipelines]

    assert stages("pp_1f1b_m4") == stages("pp_gpipe_m4") == [(0, 1, 2, 3)]
    assert stages("pp_interleaved_m8") == [(0, 1, 2, 3, 0, 1, 2, 3)]
    assert stages("pp_zbv_m8") == [(0, 1, 2, 3, 3, 2, 1, 0)]
    assert stages("pp_dp_even") == [(0, 2), (1, 3)]
    assert stages("ddp_slow") == stages("cp_ring") == []


def even(compute: Shares) -> Shares:
    return compute.mean(axis=0) / compute


def slow(rank: int, times: float) -> Callable[[Shares], Shares]:
    def keep(compute: Shares) -> Shares:
        found = np.ones(compute.shape)
        found[rank] = 1 / times
        return found

    return keep


FIXES: dict[str, tuple[str, Callable[[Shares], Shares]]] = {
    "ddp_slow": ("ddp_even", slow(1, 2)),
    "ddp_jitter": ("ddp_jitter_even", even),
    "pp_uneven": ("pp_1f1b_m8", even),
    "pp_dp_slow": ("pp_dp_even", slow(3, 1.5)),
}
"""What was planted in one recording, and the recording without it. Others (tp, moe) differ by 15 % and more between two
recordings of one job."""


@pytest.mark.parametrize("name", FIXES)
def test_the_job_without_what_was_planted_takes_as_long_as_the_job_recorded_without_it(corpus: Path, name: str) -> None:
    twin, keep = FIXES[name]
    facts = facts_of_job(corpus / "distributed" / name)
    others = compare({fact.rank.index: collective_sequence(fact) for fact in facts})
    assert others is not None
    peers: Peers = others.peers(others.awaited or 0)
    own = Facts(replace(facts[peers.rank].rank, peers=peers))
    replay = JobReplay(own, peers.job)
    (saving,) = replay.savings([[Even(keep(peers.compute_ns.astype(np.float64)))]])
    predicted = peers.job.step_ns - saving.likely_ns
    # Recordings of one job differ by some per cent on the machine that made them: two cores for four ranks.
    assert predicted == pytest.approx(job_of(corpus / "distributed" / twin).step_ns, rel=0.1)


@pytest.mark.parametrize("name", WHOLE)
def test_the_critical_path_of_a_recorded_job_adds_up_and_ranks_spend_their_steps(corpus: Path, name: str) -> None:
    found = job_of(corpus / "distributed" / name)
    brief = summarised(found, join(found))
    assert sum(one.ns for one in brief.critical_path) == brief.step_ns == found.step_ns
    for recorded, one in zip(found.sequences, brief.ranks, strict=True):
        parts = (one.compute_ns, one.host_ns, one.wait_ns or 0, one.transfer_ns or 0, one.unmatched_ns)
        assert min(parts) >= 0
        whole_ns = int(recorded.bounds_ns[-1] - recorded.bounds_ns[0])
        assert sum(parts) == pytest.approx(whole_ns / len(recorded.numbers), abs=1)


SLOW = {"ddp_slow": 1, "pp_uneven": 3, "moe_skewed": 0, "tp_slow": 3, "pp_dp_slow": 3}
"""The rank that was given more to compute: of pp_uneven the last of 2, 2, 1 and 3 layers."""


@pytest.mark.parametrize("name", SLOW)
def test_the_job_waits_for_the_rank_that_was_given_more(corpus: Path, name: str) -> None:
    found = job_of(corpus / "distributed" / name)
    brief = summarised(found, join(found))
    assert (brief.critical_path[0].what, brief.critical_path[0].rank) == (JobPathKind.COMPUTE, SLOW[name])
