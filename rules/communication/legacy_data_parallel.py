"""DataParallel, or gloo, exchanges the gradients of GPUs.

`torch.nn.DataParallel` drives all GPUs from one process. gloo and MPI reduce gradients in the host's memory.

Why it costs
    DataParallel copies the model to every GPU in each step, and gradients back to one. Its threads share one GIL. With
    gloo each gradient goes to the host, over its sockets, and back, and the GPU waits.

How to fix
    One process for each GPU, `DistributedDataParallel`, and NCCL, which reduces over the GPUs' links behind the
    backward pass.

Ignore when
    ranks share a GPU, which NCCL refuses.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
    https://docs.pytorch.org/docs/stable/distributed.html#which-backend-to-use
"""

from diagnose.facts.communication.legacy_parallel import DataParallelUse, HostReductions
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in copies between GPUs, or waiting for reductions (our choice)
LEAST_BYTES = 1 << 20  # a step: less is of metrics, not of gradients
LEFT = Between(
    0.7, 0.3, 0.1
)  # of DataParallel's copies: DDP reduces gradients too, mostly behind backward (our choice)
OPS_LEFT = Between(0.5, 0.2, 0.0)  # of the host time of its ops (our choice)
MORE = (4.0, 2.0, 1.0)  # times what NCCL takes at best: it may have to wait for ranks, too (our choice)
BETWEEN = Between(1.0, 0.7, 0.3)  # left where a network joins ranks: NCCL spares the host's part (our choice)
DDP = Fix(
    "Run one process for each GPU, with DistributedDataParallel and NCCL.",
    before="model = torch.nn.DataParallel(model)",
    after='torch.distributed.init_process_group("nccl")  # started by torchrun --nproc-per-node=gpu\n'
    'local = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local)\n'
    "model = DistributedDataParallel(model.to(local), device_ids=[local])",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",
)
NCCL = Fix(
    "Let NCCL reduce gradients on the GPUs.",
    before='torch.distributed.init_process_group("gloo")',
    after='torch.distributed.init_process_group("cpu:gloo,cuda:nccl")',
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/distributed.html#which-backend-to-use",
)
ONE_MACHINE = Confidence(Level.MEDIUM, "what the links between the GPUs carry is not recorded")
ELSEWHERE = Confidence(Level.LOW, "whether the ranks share a machine, or which network joins them, is not recorded")


@rule("CO02")
def legacy_data_parallel(
    data_parallel_use: DataParallelUse, steps: Steps, host_reductions: HostReductions | None = None
) -> Verdicts:
    replicas, reduced, least = data_parallel_use, host_reductions, WORTH_SHARE * steps.mean_ns
    if replicas.devices > 1 and replicas.ns + replicas.op_ns >= least:
        yield _replicated(replicas)
    elif replicas.devices > 1:
        yield Clean(f"DataParallel moves things between GPUs for {ms(replicas.ns)} a step")
    elif reduced is None or not reduced.calls or (reduced.bytes is not None and reduced.bytes < LEAST_BYTES):
        yield NotApplicable("one process drives one GPU, and gradients are not reduced on the host")
    elif reduced.shared:
        yield NotApplicable("ranks share a GPU, which NCCL refuses")
    elif reduced.bytes is None:
        raise Missing("sizes of collectives on the host", "Record with record_shapes=True.")
    elif reduced.blocked.ns < least:
        yield Clean(f"the training waits {ms(reduced.blocked.ns)} a step for reductions on the host")
    else:
        yield _on_host(reduced)


def _replicated(found: DataParallelUse) -> Finding:
    return Finding(
        title="DataParallel drives all GPUs from one process",
        evidence=(
            Evidence(
                f"DataParallel runs on {found.devices} GPUs: copies between them take {ms(found.ns)} a step, and"
                f" {ms(found.op_ns)} of host time.",
                found.ns,
                "ns",
            ),
        ),
        edits=(Shorten(found.ids, LEFT), Shorten(found.op_ids, OPS_LEFT)),
        fixes=(DDP,),
        confidence=Confidence(Level.LOW, "what DistributedDataParallel leaves exposed is not known"),
        basis=Basis.RULE_OF_THUMB,
    )


def _on_host(found: HostReductions) -> Finding:
    quick = Between(*(min(times * found.nccl_ns / max(found.ns, 1), 1.0) for times in MORE))
    left = quick if found.one_machine else BETWEEN
    told = f"Over the links of {found.ranks} GPUs NCCL would take {ms(found.nccl_ns)}."
    return Finding(
        title=f"{found.backend} reduces the gradients of GPUs in the host's memory",
        evidence=(
            Evidence(
                f"{found.backend} reduces {bytes_(found.bytes or 0)} of gradients a step on the host: {ms(found.ns)},"
                f" for {ms(found.blocked.ns)} of which the training waits.",
                found.blocked.ns,
                "ns",
            ),
            *([Evidence(told, found.nccl_ns, "ns")] if found.one_machine else []),
        ),
        edits=(
            Shorten(Times(found.track, found.blocked.own), left),
            Shorten(Times(found.track, found.blocked.waiting), left),
            Shorten(found.copy_ids, Between(1.0, 0.0, 0.0)),
        ),
        fixes=(NCCL,),
        confidence=ONE_MACHINE if found.one_machine else ELSEWHERE,
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # of 30 ms in copies 9 to 27 go, and half or all of the 3 ms of Broadcast before they are launched
        """
        4 steps of 100
        cpu      DataParallel.forward 0-20 | Broadcast 1-11 | device_sync 21-99.99
        gpu      sgemm 35.01-99.95 @15
        gpu      p2p 5-35 @4
        gpu 1:7  sgemm 40-80 @16
        """,
        saving_ms=(10.5, 30),
    ),
    Fires(  # the host waits 59 ms for 100 MB, which take 0.42 ms by NVLink, at most; four times that stays, or all
        """
        4 steps of 100
        rank 0 of 2
        machine a of 2 devices
        cpu       DistributedDataParallel.forward 0-5 | aten::mm 1-1.1
        cpu       "autograd::engine::evaluate_function: MmBackward0" 10-12
        cpu       c10d::allreduce_ 10.5-11 shapes=[[[25000000]],[]] types=["TensorList",""]
        cpu       sync 72.1-99.99
        cpu gloo  gloo:all_reduce 11-71
        gpu       sgemm 1.1-10.9 @1.05 | adam 72.02-99.95 @72
        """,
        saving_ms=(57.3, 58.6),
    ),
    Silent(  # on the CPU that is the way
        """
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu       DistributedDataParallel.forward 0-5
        cpu       "autograd::engine::evaluate_function: MmBackward0" 10-12
        cpu       c10d::allreduce_ 10.5-11 shapes=[[[25000000]],[]] types=["TensorList",""]
        cpu gloo  gloo:all_reduce 11-71
        """
    ),
    Silent("4 steps of 100\ncpu  aten::mm 0-1\ngpu  sgemm 1-99 @0.5"),
]
