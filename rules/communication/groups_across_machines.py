"""Tensor, context or expert parallel groups span machines.

These groups exchange activations or tokens in every layer, and compute waits for them. The groups span several
machines, though one machine has enough devices.

Why it costs
    Links within a machine are several times as fast as the network. Gradients can overlap with the backward pass;
    activations cannot, as the next op needs them.
How to fix
    Order the mesh so that such a group stays on one machine: the last dimension of DeviceMesh lies within a machine.
    Run data and pipeline parallelism across machines.
Ignore when
    the group does not fit one machine together with the rest of the model.
Sources
    https://arxiv.org/abs/2104.04473
    https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.DeviceMesh
"""

from diagnose.facts.communication.bandwidth import Crossing
from diagnose.rulekit.vocabulary import *

SURE = Between(0.5, 0.8, 1.0)  # of the difference: links are shared with what runs beside it (our choice)
INSIDE = Fix(
    "Keep each group on one machine, and cross machines with data parallelism.",
    after='init_device_mesh("cuda", (replicas, group), mesh_dim_names=("dp", "tp"))  # the last is within a machine',
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.DeviceMesh",
)


@rule("CO21")
def groups_across_machines(crossings: tuple[Crossing, ...]) -> Verdicts:
    if not crossings:
        yield NotApplicable("no tensor, context or expert parallel group spans machines but would fit one")
    for crossing in crossings:
        keep = Between(*(1.0 - share * (1.0 - crossing.left) for share in (SURE.low, SURE.likely, SURE.high)))
        there = Replace(crossing.others_ids, crossing.others_group, crossing.others_ns)
        yield Finding(
            evidence=(
                Evidence(
                    f"Collectives for {crossing.role.value} take {ms(crossing.ns)}/step,"
                    f" at {crossing.gbps:.2g} GB/s (bus bandwidth).",
                    crossing.gbps,
                    "GB/s",
                ),
                Evidence(
                    f"Groups of {crossing.group_size} ranks span machines of {crossing.machine_ranks} ranks."
                    f" Within a machine, a transfer usually takes {percent(crossing.left)} of the time."
                ),
            ),
            edits=(Shorten(crossing.ids, keep), *([there] if len(crossing.others_ids) else [])),
            fixes=(INSIDE,),
            confidence=Confidence(Level.MEDIUM, "the speed of links within a machine is taken from the GPU model"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # 0.54 GB on the wire take 44.5 ms; links of 450 GB/s need 1.8: 0.5, 0.8 or all of the difference is saved
        """
        4 steps of 100
        device NVIDIA H100 80GB HBM3
        rank 0 of 4
        machine a of 2 devices
        cpu     aten::mm 0-0.1 | c10d::alltoall_base_ 0.2-0.4 x2 every 0.3 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  nccl 10-54.5 @0.3 operation=alltoall in_elements=268435456 dtype=Float group_size=2 group_ranks="[0, 2]"
        gpu 20  nccl 54.5-99 @0.6 operation=alltoall in_elements=268435456 dtype=Float group_size=2 group_ranks="[0, 2]"
        """,
        saving_ms=(42.7, 85.4),
    ),
    # the group is on one machine
    Silent("""
        4 steps of 100
        device NVIDIA H100 80GB HBM3
        rank 0 of 4
        machine a of 2 devices
        cpu     aten::mm 0-0.1 | c10d::alltoall_base_ 0.2-0.4 x2 every 0.3 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  nccl 10-54.5 @0.3 operation=alltoall in_elements=268435456 dtype=Float group_size=2 group_ranks="[0, 1]"
        gpu 20  nccl 54.5-99 @0.6 operation=alltoall in_elements=268435456 dtype=Float group_size=2 group_ranks="[0, 1]"
    """),
    # no machine has room for the group
    Silent("""
        4 steps of 100
        device NVIDIA H100 80GB HBM3
        rank 0 of 4
        machine a of 2 devices
        cpu     aten::mm 0-0.1 | c10d::alltoall_base_ 0.2-0.4 x2 every 0.3 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  nccl 10-54.5 @0.3 operation=alltoall in_elements=268435456 dtype=Float group_size=4
        gpu 20  nccl 54.5-99 @0.6 operation=alltoall in_elements=268435456 dtype=Float group_size=4
    """),
    CannotTell(
        """
        4 steps of 100
        rank 0 of 4
        cpu     aten::mm 0-0.1 | c10d::alltoall_base_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  nccl 10-54.5 @0.3 operation=alltoall in_elements=268435456 dtype=Float group_size=2
        """,
        because="which ranks share a machine",
    ),
]
