"""Advice on exposed communication fits what the communication is for."""

import pytest

from diagnose.pipeline import present
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

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
