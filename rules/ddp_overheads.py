"""DistributedDataParallel does work that an option saves.

Besides reducing gradients DDP may search for unused parameters, copy reduced gradients out of its buckets, and send
rank 0's buffers to all ranks before each forward.

Why it costs
    Each copies or visits every parameter or buffer in every step: many small ops that nothing else hides.

How to fix
    `find_unused_parameters=False`, `gradient_as_bucket_view=True` and `broadcast_buffers=False`: each for one of these.

Ignore when
    some parameters really get no gradient in some steps, or the ranks have to agree on buffers that each step reads.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    https://github.com/pytorch/pytorch/pull/41954
"""

from diagnose.rule import (
    Clean,
    DdpOverhead,
    DdpWork,
    NotApplicable,
    Safety,
    Steps,
    Verdicts,
    rule,
)  # fmt: skip

WORTH_SHARE = 0.01  # of the step, on the host or the device (catalogue CO05)

DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
# Not copies into the buckets: gradient_as_bucket_view only turns them into additions and fills (seen with torch 2.13).
OPTIONS = {
    DdpWork.UNUSED_SEARCH: (
        "DDP searches for unused parameters in every step",
        "Do not search for unused parameters: if there are any, DDP says so by an error.",
        "find_unused_parameters=False", Safety.SAME_NUMBERS,
    ),
    DdpWork.COPIES_FROM_BUCKETS: (
        "DDP copies reduced gradients out of its buckets",
        "Let gradients be views of the buckets, unless something detaches them in place.",
        "gradient_as_bucket_view=True", Safety.SAME_NUMBERS,
    ),
    DdpWork.BUFFER_BROADCASTS: (
        "DDP sends all buffers to all ranks before each forward",
        "Do not send buffers; then only rank 0's running statistics are those of now: evaluate and save there.",
        "broadcast_buffers=False", Safety.NEEDS_JUDGEMENT,
    ),
}  # fmt: skip


@rule("CO05")
def ddp_overheads_rule(ddp_overheads: tuple[DdpOverhead, ...], steps: Steps) -> Verdicts:
    if not ddp_overheads:
        yield NotApplicable("DistributedDataParallel is not used, or does nothing that an option saves")
    for one in ddp_overheads:
        if one.work not in OPTIONS:
            yield Clean
