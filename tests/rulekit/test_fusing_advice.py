"""What is left of the host's launches once code is compiled, or CUDA graphs replay it."""

import msgspec
import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.finding import OutcomeKind, RankedFinding
from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import pointwise_chains
from diagnose.facts.host.starvation import Starvation, starvation
from diagnose.fixes.setting import Safety
from diagnose.pipeline import present
from diagnose.replay.edits import Between, Shorten
from diagnose.rulekit.shared_advice import launched
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.manifest import FailedGuard, Optimizer
from tests.rules import built_in

QUICK = "gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"
# Of eight launches a step five are a chain between products: as one kernel they take four launches less.
EAGER = """
4 steps of 2
cpu  aten::mm 0-0.02 | aten::mm 0.05-0.07
cpu  aten::add 0.1-0.12 x5 every 0.05 shapes=[[1024],[1024]] | aten::mm 0.4-0.42
gpu  sgemm 0.03-0.04 @0.01 | sgemm 0.08-0.09 @0.06
gpu  pointwise 0.12-0.13 @0.11 x5 every 0.05 | sgemm 0.43-0.44 @0.41
"""


def kept(found: Starvation, chains: PointwiseChains | None, replayed: bool = False) -> tuple[float, float, float]:
    (edit,) = launched(found, chains, steps(facts_of(EAGER)), replayed)
    assert isinstance(edit, Shorten)
    assert isinstance(edit.keep, Between)
    return edit.keep.low, edit.keep.likely, edit.keep.high


def test_what_is_compiled_launches_each_chain_once() -> None:
    facts = facts_of(EAGER)
    varied, chains = replace(starvation(facts), repeats=False), pointwise_chains(facts)
    assert kept(varied, chains) == pytest.approx((0.7, 0.5, 0.3))
    assert kept(varied, None) == (0.9, 0.8, 0.7)
    assert kept(replace(varied, launches=4), chains)[1:] == (0, 0)  # No more launches go than there are.


def test_graphs_replay_steps_that_launch_the_same_kernels() -> None:
    facts = facts_of(EAGER)
    found, chains = starvation(facts), pointwise_chains(facts)
    assert found.repeats
    assert kept(found, chains, replayed=True) == (0.5, 0.2, 0)
    assert kept(replace(found, reads=2), chains, replayed=True) == (0.9, 0.4, 0)
    assert kept(replace(found, repeats=None), chains, replayed=True) == (0.9, 0.4, 0)


def test_a_kernel_with_another_grid_is_no_repetition() -> None:
    rank = facts_of(EAGER).rank
    kernels = rank.kernels.copy()
    kernels.iloc[-1, kernels.columns.get_loc("grid_x")] += 1
    assert starvation(Facts(replace(rank, kernels=kernels))).repeats is False


def test_one_step_does_not_tell_whether_steps_repeat() -> None:
    assert starvation(facts_of(EAGER.replace("4 steps", "1 steps"))).repeats is None


@pytest.mark.parametrize(
    ("steps_drawn", "region", "setting"),
    [
        ("4 steps", "", "wrap:torch.compile(mode=reduce-overhead)"),
        ("1 steps", "", "wrap:torch.compile(mode=reduce-overhead)"),
        ("4 steps", ' | "Torch-Compiled Region: 0/0" 1.95-1.96', "patch:torch.compile(mode=reduce-overhead)"),
    ],
)
def test_graphs_are_advised_where_they_may_replay_the_step(steps_drawn: str, region: str, setting: str) -> None:
    drawn = f"{steps_drawn} of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02{region}\n{QUICK}"
    (found,) = present(facts_of(drawn), [built_in("launch_bound")]).findings
    assert found.fixes[0].trial == setting
    assert ("Each step launches the same kernels." in [one.text for one in found.evidence]) is ("4" in steps_drawn)


def test_a_model_that_is_read_from_is_compiled_alone() -> None:
    reads = "aten::mm 0-0.4 x30 every 1 | aten::item 0.5-0.8 x30 every 1 | sync 0.6-0.7 x30 every 1"
    kernels = "gpu  sgemm 0.06-0.2 @0.05 x30 every 1 | d2h 0.6-0.61 @0.55 8B x30 every 1"
    (found,) = present(facts_of(f"4 steps of 31\ncpu  {reads}\n{kernels}"), [built_in("launch_bound")]).findings
    assert found.fixes[0].trial == "wrap:torch.compile"


BACK = '"autograd::engine::evaluate_function: MmBackward0" 0.15-0.45'


@pytest.mark.parametrize(
    ("host", "kernel", "advice"),
    [
        (f"DistributedDataParallel.forward 0-0.12 | {BACK} | c10d::allreduce_ 0.2-0.4", "allreduce", "bucket_cap_mb"),
        (f"aten::mm 0-0.1 | {BACK} | c10d::allreduce_ 0.2-0.4", "allreduce", "DistributedDataParallel(model)"),
        ('"FSDP::all_gather (h.1)" 0.15-0.45', "_allgather_base", "set_modules_to_forward_prefetch"),
        ('"FSDP::post_backward_reduce (h.1)" 0.15-0.45', "_reduce_scatter_base", "set_modules_to_forward_prefetch"),
        ("c10d::alltoall_base_ 0.2-0.4", "all_to_allv", "all_to_all_single(out, rows, async_op=True)"),
        ("_c10d_functional::all_reduce 0.2-0.4", "allreduce", "_micro_pipeline_tp"),
        ("c10d::_allgather_base_ 0.2-0.4", "_allgather_base", "async_op=True"),  # of an inference, say
    ],
)
def test_advice_fits_the_role(host: str, kernel: str, advice: str) -> None:
    facts = facts_of(f"""
        4 steps of 100
        cpu     {host} | device_sync 1-99.9
        gpu     sgemm 0.3-60 @0.11
        gpu 20  nccl 60-99.8 @0.3 operation={kernel} in_elements=25000000 dtype=Float
    """)
    (found,) = present(facts, [built_in("exposed_communication")]).findings
    changes = "\n".join(str(fix.after) for fix in found.fixes)
    assert advice in changes
    assert ("bucket_cap_mb" in changes) == (advice == "bucket_cap_mb")


TABLE = """
4 steps of 100
2 threads, 4 cores
cpu  aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]] | zero_grad 90-96
cpu  torch::autograd::AccumulateGrad 40-41 shapes=[[200000,32]]
cpu  aten::fill_ 1-29 shapes=[[200000,32],[]] | "Optimizer.step#SGD.step" 50-80
cpu  aten::add_ 51-61 shapes=[[200000,32],[200000,32],[]]
"""


def finding(rule: str, drawing: str, **known: object) -> RankedFinding:
    """What the rule finds first, given more of a manifest."""
    rank = facts_of(drawing).rank
    more = msgspec.structs.replace(rank.context.rank, **known)
    facts = Facts(replace(rank, context=replace(rank.context, rank=more)))
    return pipeline.present(facts, [built_in(rule)]).findings[0]


def optimizers(*names: str, momentum: float = 0.0, weight_decay: float | None = 0.0) -> tuple[Optimizer, ...]:
    return tuple(Optimizer(name=name, momentum=momentum, weight_decay=weight_decay) for name in names)


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_plain_optimizers_take_sparse_gradients_as_they_are(name: str) -> None:
    (fix,) = finding("dense_embedding_gradients", TABLE, optimizers=optimizers(name)).fixes
    assert fix.do == f"Use sparse gradients for the table: {name} supports them as configured."
    assert fix.after == "nn.Embedding(..., sparse=True)"
    assert fix.safety is Safety.ROUNDING


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (optimizers("SGD", momentum=0.9), "and SGD without momentum and weight decay"),
        (optimizers("SGD", weight_decay=0.01), "and SGD without momentum and weight decay"),
        (optimizers("AdamW"), "update the table with SparseAdam"),
        (optimizers("Adam", "SGD"), "update the table with SparseAdam"),
        ((), "update the table with SparseAdam"),
    ],
)
def test_others_move_rows_that_are_not_read(known: tuple[Optimizer, ...], says: str) -> None:
    drawn = TABLE if known else TABLE.replace("Optimizer.step#SGD.step", "update")
    (fix,) = finding("dense_embedding_gradients", drawn, optimizers=known).fixes
    assert says in fix.do
    assert fix.safety is Safety.NEEDS_JUDGEMENT


@pytest.mark.parametrize("known", [optimizers("SGD", weight_decay=None), ()])  # Its name is in the trace.
def test_what_is_not_known_of_an_optimizer_is_a_condition(known: tuple[Optimizer, ...]) -> None:
    (fix,) = finding("dense_embedding_gradients", TABLE, optimizers=known).fixes
    assert "if SGD has no momentum and no weight decay" in fix.do
    assert fix.safety is Safety.ROUNDING


def test_giving_the_memory_of_a_dense_gradient_back_is_part_of_the_price() -> None:
    """46 ms: 30 to make the gradient, 10 to update, 6 in zero_grad, which runs no op. All of it is the table's."""
    found = finding("dense_embedding_gradients", TABLE, optimizers=optimizers("SGD"))
    assert found.evidence[0].value == 46_000_000
    with_op = TABLE.replace("zero_grad 90-96", "zero_grad 90-96 | aten::zero_ 91-95")
    assert finding("dense_embedding_gradients", with_op, optimizers=optimizers("SGD")).evidence[0].value == 40_000_000


EAGER_OF_WHAT_IS_THERE = """
4 steps of 100
1 threads, 2 cores
cpu  "TorchDynamo Cache Lookup" 0-0.1 | aten::mul 1-31 shapes=[[1024,1024],[1024,1024]]
cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
"""
COUNTER = FailedGuard(
    source="self.seen", said="self.seen == 7", is_size=False, forms=7, file="net.py", line=9, function="forward"
)
SIZE = FailedGuard(
    source="x", said="tensor 'x' size mismatch", is_size=True, forms=1, file="net.py", line=3, function="forward"
)


def test_a_python_number_is_kept_out_of_what_is_compiled_at_its_line() -> None:
    found = finding("compile_fallback", EAGER_OF_WHAT_IS_THERE, failed_guards=(SIZE, COUNTER))
    assert [fix.do for fix in found.fixes] == ["Move `self.seen` out of the compiled function, or make it a tensor."]
    assert found.site == Site("net.py", 9, "forward")
    assert found.evidence[1].text == "7 compiled versions failed the guard `self.seen == 7`."


def test_dynamic_sizes_are_for_sizes() -> None:
    found = finding("compile_fallback", EAGER_OF_WHAT_IS_THERE, failed_guards=(SIZE,))
    assert found.fixes[0].trial == "patch:torch.compile(dynamic=True)"
    assert found.site == Site("net.py", 3, "forward")


def test_where_no_guard_is_known_it_is_asked_for_first() -> None:
    first, *_ = finding("compile_fallback", EAGER_OF_WHAT_IS_THERE).fixes
    assert first.trial is None
    assert first.after == "TORCH_LOGS=recompiles python train.py"


@pytest.mark.parametrize(
    ("kind", "flags", "says"),
    [
        ("BFloat16", ", flags avx2 avx512_fp16", "bf16 matmuls and convolutions take 80.0 ms/step on a CPU"),
        ("Half", ", flags avx2 avx512_bf16", "fp16 matmuls and convolutions take 80.0 ms/step on a CPU"),
        ("BFloat16", ", flags avx2 amx_bf16", "the training computes on the CPU"),
        ("BFloat16", "", "the training computes on the CPU"),  # its flags are not known
    ],
)
def test_sixteen_bits_that_a_processor_has_no_units_for_are_told(kind: str, flags: str, says: str) -> None:
    op = f'aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::{kind}","c10::{kind}"]'
    facts = facts_of(f"4 steps of 100\n1 threads, 2 cores{flags}\ncpu  {op}")
    (ended,) = pipeline.present(facts, [built_in("no_mixed_precision")]).outcomes
    assert ended.outcome is OutcomeKind.NOT_APPLICABLE
    assert ended.why.startswith(says)
