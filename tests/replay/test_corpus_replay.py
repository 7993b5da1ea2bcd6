"""Replays of real traces: exact without edits, plausible with them, and one fix that was really made."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.steps import steps
from diagnose.replay.critical_path import critical_path
from diagnose.replay.edits import Estimate, Move, Shorten
from diagnose.replay.saving import Replay
from diagnose.source import ranks
from tests.replay.programs import ids
from tests.replay.test_critical_path import check

FILES = (
    "hta/alexnet_a100_sync_events.json.gz",
    "hta/backward_thread.json",
    "hta/cpu_only_rank34_of_300.json.gz",
    "hta/cupti_counters.json.gz",
    "hta/event_sync.json.gz",
    "hta/event_sync_multi_stream.json.gz",
    "hta/gpu_user_annotations.json.gz",
    "hta/mi250_rocm62.json.gz",
    "hta/nccl_a100_rank0_of_2.json.gz",
    "hta/no_distributed_info.json.gz",
    "hta/no_gpu_events.json.gz",
    "hta/no_rank_recorded.json.gz",
    "hta/resnet_v100_5_steps.json.gz",
    "hta/simple_a100_sync_events.json.gz",
    "hta/tiny_rank1.json.gz",
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
