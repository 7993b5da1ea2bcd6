"""What an expert would say of each real trace after an hour with it, and that the ranked result says the same.

For each trace: why, what must come first (None: nothing worth 5 % of the step), and what else may claim 5 % or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, OutcomeKind

WRONG_SHARE = 0.05
"""From this share of the step on, a finding that an expert would not share is an error."""


@dataclass(frozen=True)
class Verdict:
    """An expert's view of a trace."""

    why: str
    first: str | None = None
    also: tuple[str, ...] = ()
    least_share: float = WRONG_SHARE
    """What the first finding must be worth."""
    unsure: bool = False
    """Whether no finding may have more than low confidence."""


VERDICTS = {
    "hta/resnet_v100_5_steps.json.gz": Verdict(
        "The GPU is busy 98.8 % of the time, 62 % of it in fp32 convolutions on a GPU with Tensor Cores.",
        "no_mixed_precision",
        least_share=0.2,
    ),
    "hta/nccl_a100_rank0_of_2.json.gz": Verdict(
        "Idle 76 % of the time while the host dispatches 1,258 launches a step; DDP's buffers alone take it 35 ms.",
        "launch_bound",
        ("ddp_overheads",),
        least_share=0.3,
    ),
    "tensorboard/resnet50_autograd_0_workers.json.gz": Verdict(
        "Batches are made in process, 41 of 158 ms idle for them; then the host zeroes gradients one by one.",
        "dataloader_starvation",
        ("zero_grad_memset", "unfused_optimizer"),
        least_share=0.2,
    ),
    "tensorboard/resnet50_autograd_4_workers.json.gz": Verdict(
        "The loader is no problem any more; the host is what is left: 644 launches for gradients and parameters. 59 %"
        " of the time goes into fp32 kernels of a GPU with Tensor Cores.",
        "zero_grad_memset",
        ("unfused_optimizer", "no_mixed_precision"),
    ),
    "tracelens/mi300_resnet18.json.gz": Verdict(
        "93 % of the step passes in hipMalloc and hipFree: the caching allocator is off.",
        "allocator_churn",
        least_share=0.8,
    ),
    "tracelens/mi300_resnet_act_checkpoint.json.gz": Verdict(
        "Mostly waiting in collectives, by one rank of eight: the second all-reduce takes 9 ms for 17.6 MB among 8 GPUs"
        " whose links do fifty times as much, but whether the others came late for it is in their recordings.",
        "exposed_communication",
        ("layout_conversions", "slow_links"),
        least_share=0.02,
    ),
    "param/resnet.json.gz": Verdict(
        "Four workers deliver a batch every 340 ms, the GPU needs half of that.",
        "dataloader_starvation",
        least_share=0.2,
    ),
    "param/linear.json.gz": Verdict(
        "9 of 25 ms busy: kernels of a benchmark that are shorter than their dispatch.",
        "launch_bound",
        ("zero_grad_memset",),
        least_share=0.2,
    ),
    "param/dlrm_8_ranks": Verdict(
        "One step, small kernels: dispatch is what the recording shows; waits for other ranks are no certain gain. The"
        " rank that the others wait for, by all collectives the seventh, copies what it reads in ten small pieces.",
        "launch_bound",
        ("host_work", "python_overhead", "tiny_copies"),
    ),
    "tracelens/b200_eager.json.gz": Verdict(
        "86 % idle in eager mode, recorded with stacks, without steps: launch-bound, by how much is unsure.",
        "launch_bound",
        ("host_work", "python_overhead"),
        least_share=0.2,
        unsure=True,
    ),
    "tracelens/h100_qwen05b.json.gz": Verdict(
        "63 % of the compute in memory-bound kernels between matrix products, a fifth of it copies and casts: fuse"
        " them. One step only.",
        "unfused_pointwise",
        ("copy_and_cast_churn",),
        unsure=True,
    ),
    "tracelens/mi300_qwen05b.json.gz": Verdict("The same model on another GPU.", "unfused_pointwise", unsure=True),
    "tracelens/h100_bert_small.json.gz": Verdict(
        "60 kernels in one 4 ms call under stacks: 2.4 ms idle for Python, 1.5 for dispatch, by how much is unsure."
        " They take 122 MB of 85 GB: all of that would be shared by a larger batch, which changes the training.",
        "python_overhead",
        ("host_work", "launch_bound", "unused_memory"),
    ),
    "hta/gpu_user_annotations.json.gz": Verdict(
        "A toy of 1.5 ms a step: the host is slower than the GPU in all it does, mostly in ops. No compiler knows it.",
        "unexplained_time",
        ("host_work", "python_overhead", "tiny_copies", "launch_bound", "zero_grad_memset"),
    ),
    "hta/cpu_only_rank34_of_300.json.gz": Verdict(
        "One of 300 ranks: it is in an all-reduce for four fifths of a step, and no other rank was recorded.",
        "unexplained_time",
    ),
    "hta/alexnet_a100_sync_events.json.gz": Verdict("13 s of start-up with 79 kernels: no loop to improve."),
    "hta/simple_a100_sync_events.json.gz": Verdict("16 s of start-up with 79 kernels: no loop to improve."),
    "hta/cupti_counters.json.gz": Verdict("Counters replace kernels: nothing on the device can be judged."),
    "hta/event_sync.json.gz": Verdict("Four kernels in 3 ms."),
    "hta/event_sync_multi_stream.json.gz": Verdict("Six operations in 20 ms."),
    "hta/mi250_rocm62.json.gz": Verdict("16 operations, one step."),
    "hta/triton.json.gz": Verdict("One kernel in one step."),
    "hta/tiny_rank1.json.gz": Verdict("A fragment: the replay cannot explain it."),
    "hta/no_gpu_events.json.gz": Verdict("No device events."),
    "hta/no_distributed_info.json.gz": Verdict("No device events."),
    "hta/no_rank_recorded.json.gz": Verdict("No device events."),
    "hta/backward_thread.json": Verdict("Seven events."),
    "tracelens/mi210_gpu_only.json.gz": Verdict("6 ms of kernels without ops: what asked for them is unknown."),
    "tracelens/sglang_decode_graphs.json.gz": Verdict("Inference from CUDA graphs, 464 ms of it before the first one."),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_ranked_result_is_what_an_expert_would_say(analyzed: Callable[[str], Diagnosis], name: str) -> None:
    verdict, found = VERDICTS[name], analyzed(f"kineto/{name}")
    assert found.conclusive
    assert [outcome.rule for outcome in found.outcomes if outcome.outcome is OutcomeKind.CRASHED] == []
    large = [finding for finding in found.findings if finding.share_of_step >= WRONG_SHARE]
    assert {one.rule for one in large} <= {verdict.first, *verdict.also}, verdict.why
    if verdict.first is not None:
        assert found.findings[0].rule == verdict.first, verdict.why
        assert found.findings[0].share_of_step >= verdict.least_share
    if verdict.unsure:
        assert {finding.confidence.level for finding in found.findings} <= {Level.LOW}


def test_every_real_trace_has_a_verdict(corpus: Path) -> None:
    files = {str(path.relative_to(corpus / "kineto")) for path in (corpus / "kineto").glob("*/*.json*")}
    assert files | {"param/dlrm_8_ranks"} == set(VERDICTS)


def test_what_the_loader_hid_is_what_is_found_once_it_is_fixed(analyzed: Callable[[str], Diagnosis]) -> None:
    """The same training before and after: what was found is found no more, and the second's saving lies in what the
    first says that it will be.
    """
    before, after = (analyzed(f"kineto/tensorboard/resnet50_autograd_{k}_workers.json.gz").findings for k in (0, 4))
    assert "dataloader_starvation" in {one.rule for one in before}
    assert "dataloader_starvation" not in {one.rule for one in after}
    (hidden,) = [one.hidden for one in before if one.rule == "no_mixed_precision" and one.hidden]
    (found,) = [one for one in after if one.rule == "no_mixed_precision" and not one.minor]
    assert hidden[0] <= found.saving.likely_ns <= hidden[2]
