"""Results are gathered from all ranks in every step.

Between an optimizer step and the next forward pass, every rank sends results to all others, for counts or logs.

Why it costs
    Every rank waits until all have sent, and receives the data of every rank. Objects are also pickled, and their sizes
    sent first.
How to fix
    Let every rank count its own results, and all-reduce the counts. Or gather every 100 steps.
Ignore when
    the next step trains on what is gathered.
Sources
    https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather
"""

from diagnose.facts.communication.messages import DeviceGathers, HostGathers
from diagnose.rulekit.vocabulary import *

BLOCKED_SHARE = 0.01  # of the step (our choice)
OWN = Between(0.5, 0.1, 0.02)  # of the rest: a sum of counts still takes a collective (our choice)
WAITS = Between(0.9, 0.5, 0.1)  # of the waiting for other ranks: who is always late is waited for later (our choice)
COUNT = Fix(
    "Let every rank count its own results, and all-reduce the counts.",
    after="hits = count(output, own_labels); dist.all_reduce(hits)  # every 100 steps",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce",
)


@rule("CO16")
def gathered_results(host_gathers: HostGathers, device_gathers: DeviceGathers, steps: Steps) -> Verdicts:
    host, blocked, device = host_gathers, host_gathers.blocked, device_gathers
    least_ns = BLOCKED_SHARE * steps.mean_ns
    if not host.calls and not device.calls:
        yield NotApplicable("nothing is gathered between an optimizer step and the next forward pass")
    elif max(blocked.ns, device.exposed_ns) < least_ns:
        yield Clean(f"gathering results takes {ms(max(blocked.ns, device.exposed_ns))}/step")
    if device.exposed_ns >= least_ns:
        text = (
            f"Collectives ({device.calls} per step) gather {_size(device)} from all ranks:"
            f" {ms(device.exposed_ns)} exposed, waits included."
        )
        yield _found(device, Evidence(text, device.exposed_ns, "ns"), Shorten(device.ids, OWN))
    if blocked.ns >= least_ns:
        text = f"Collectives ({host.calls} per step) send {_size(host)} to all ranks: {ms(blocked.ns)}, waits included."
        yield _found(
            host,
            Evidence(text, blocked.ns, "ns"),
            Shorten(blocked.ids, OWN),
            Shorten(Times(blocked.track, blocked.own), OWN),
            Shorten(Times(blocked.track, blocked.waiting), WAITS),
        )


def _size(some: HostGathers | DeviceGathers) -> str:
    return "results" if some.bytes is None else f"{bytes_(some.bytes)} of results"


def _found(some: HostGathers | DeviceGathers, evidence: Evidence, *edits: Edit) -> Finding:
    return Finding(
        evidence=(evidence,),
        edits=edits,
        fixes=(COUNT,),
        confidence=Confidence(Level.MEDIUM, "no gradient goes through the results; their use is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        site=some.site,
    )


EXAMPLES = [
    Fires(  # 30 ms of NCCL between the optimizer and the next forward pass
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::linear 1-2 sequence=5 | optimizer 5-6 | c10d::_allgather_base_ 7-8 | device_sync 10-99.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 3-4 sequence=5 "Fwd thread id"=1
        gpu     sgemm 1.5-60 @1.4 | adam 60-65 @5.5
        gpu 20  allgather 65-95 @7.5 operation=_allgather_base in_elements=9000000 dtype=Float
        """,
        saving_ms=(15, 29.4),
    ),
    Fires("""
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu  c10d::allgather_ 1-2 shapes=[[],[[512,1000]],[],[],[]] | DistributedDataParallel.forward 40-60
        cpu  "Optimizer.step#SGD.step" 90-99
        cpu threads  gloo:all_gather 2-32 shapes=[[512,1000]]
    """),
    # within the forward pass: for a loss over the examples of all ranks
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu  DistributedDataParallel.forward 1-20 | "Optimizer.step#SGD.step" 90-99
        cpu  c10d::allgather_ 21-22 shapes=[[],[[512,1000]],[],[],[]]
        cpu threads  gloo:all_gather 22-52 shapes=[[512,1000]]
    """),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-10", because="device work"),
]
