"""DataParallel drives all GPUs from one process.

`torch.nn.DataParallel` copies the model to every GPU in each step, and gradients back to one.

Why it costs
    Copies between GPUs add to every step, and the threads that launch work share one GIL.

How to fix
    One process for each GPU, `DistributedDataParallel`, and NCCL, which reduces gradients behind the backward pass.

Ignore when
    the program cannot be started as several processes.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from diagnose.facts.communication.ddp import DataParallelUse
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in copies between GPUs (our choice)
LEFT = Between(0.7, 0.3, 0.1)  # of the copies: DDP reduces gradients too, mostly behind backward (our choice)
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


@rule("CO02")
def legacy_data_parallel(data_parallel_use: DataParallelUse, steps: Steps) -> Verdicts:
    used = data_parallel_use
    if used.devices < 2:
        yield NotApplicable("DataParallel drives no GPUs here")
    elif used.ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"DataParallel moves things between GPUs for {ms(used.ns)} a step")
    else:
        yield Finding(
            evidence=(Evidence(f"Copies between {used.devices} GPUs take {ms(used.ns)} a step.", used.ns, "ns"),),
            edits=(Shorten(used.ids, LEFT),),
            fixes=(DDP,),
            confidence=Confidence(Level.LOW, "what DistributedDataParallel leaves exposed is not known"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # of 30 ms in copies 9 to 27 go
        """
        4 steps of 100
        cpu      DataParallel.forward 0-20 | device_sync 21-99.99
        gpu      sgemm 35.01-99.95 @2
        gpu      p2p 5-35 @1
        gpu 1:7  sgemm 5-45 @3
        """,
        saving_ms=(9, 27),
    ),
    Silent(  # one process for each GPU
        """
        4 steps of 100
        cpu      DistributedDataParallel.forward 0-20 | device_sync 21-99.99
        gpu      sgemm 35.01-99.95 @2
        """
    ),
]
