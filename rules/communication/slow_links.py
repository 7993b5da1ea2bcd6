"""Collectives run far below the bandwidth of the links.

Large collectives take many times as long as on other machines with these GPUs, after waits are subtracted.

Why it costs
    NCCL and RCCL fall back silently: from direct links to CPU memory, and from there to sockets. All gradients then
    take the slow path.
How to fix
    Let the library log its path, and measure the machine with nccl-tests or rccl-tests. Common causes: containers with
    little shared memory or no peer access, an IOMMU or ACS, GPUs on different NUMA nodes. Or a variable disables P2P.
Ignore when
    these ranks are on several machines: then the network sets the pace.
Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from diagnose.facts.communication.bandwidth import BusRate
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such collectives (our choice)
TIMES = 4  # as long as expected: compute beside it, and smaller machines, explain less than that (our choice)
LIKELY_ALONE = 0.3  # of it if one rank was recorded: of 8 V100 ranks' collectives 96 % of the time was waiting
ASK = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET torchrun ...  # look for via P2P, SHM or NET"
RECORD = Fix("Record all ranks first with diagnose profile, to separate slow links from late ranks.")
WAY = "the path of the data is not recorded"


@rule("CO08")
def slow_links(bus_rates: tuple[BusRate, ...], steps: Steps) -> Verdicts:
    slow = [one for one in bus_rates if one.transfer_ns >= TIMES * one.expected_ns]
    worth = [one for one in slow if one.ns >= WORTH_SHARE * steps.mean_ns]
    if not bus_rates:
        yield NotApplicable("no large collective runs within one machine")
    elif not worth:
        yield Clean(f"large collectives reach {max(one.gbps for one in bus_rates):.3g} GB/s")
    else:
        first, compared = worth[0], all(one.compared for one in worth)
        others = f" {len(worth) - 1} other kinds of collectives are slow, too." * (len(worth) > 1)
        yield Finding(
            evidence=(
                Evidence(
                    f"`{first.operation}` of {bytes_(first.bytes)} over {first.group_size} ranks takes"
                    f" {ms(first.transfer_ns)} ({first.gbps:.2g} GB/s);"
                    f" {about(first.expected_ns)} is usual on this GPU.{others}",
                    first.gbps,
                    "GB/s",
                ),
                Evidence(
                    "Bandwidth is bus bandwidth, as in nccl-tests. Waits for other ranks are subtracted."
                    if compared
                    else "Bandwidth is bus bandwidth, as in nccl-tests. The time may include waits for late ranks."
                ),
            ),
            edits=tuple(Shorten(one.ids, _left(one, steps)) for one in worth),
            fixes=(() if compared else (RECORD,))
            + (
                Fix(
                    "Find out which path the data takes, and why it is not the GPUs' own links.",
                    after=ASK,
                    effort=2,
                    link="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
                ),
            ),
            confidence=Confidence(Level.LOW, WAY if compared else f"{WAY}, nor whether other ranks are late"),
            basis=Basis.RULE_OF_THUMB,
        )


def _left(one: BusRate, steps: Steps) -> Between:
    whole_ns = max(one.ns * steps.count // one.calls, one.transfer_ns)
    likely, least = ((whole_ns - one.transfer_ns + left * one.expected_ns) / whole_ns for left in (2, 1))
    likely = min(likely, 1.0)
    return Between(1.0, likely if one.compared else 1.0 - LIKELY_ALONE * (1.0 - likely), least)


EXAMPLES = [
    Fires(  # 64 MiB among 8 of an H100, right after another: 39.99 ms, where 0.47 are usual
        """
        4 steps of 90.1
        device NVIDIA H100 80GB HBM3
        rank 0 of 8
        machine a of 8 devices
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 x2 every 0.3 | device_sync 1-90.01
        gpu     sgemm 0.1-10 @0.05
        gpu 20  allreduce 10-50 @0.3 operation=allreduce in_elements=16777216 dtype=Float group_size=8
        gpu 20  allreduce 50.01-90 @0.6 operation=allreduce in_elements=16777216 dtype=Float group_size=8
        """,
        saving_ms=(0, 39.5),
    ),
    # the second, which waits for nobody, is quick
    Silent("""
        4 steps of 100
        device NVIDIA H100 80GB HBM3
        rank 0 of 8
        machine a of 8 devices
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 x2 every 0.3 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  allreduce 10-89 @0.3 operation=allreduce in_elements=16777216 dtype=Float group_size=8
        gpu 20  allreduce 89.01-90 @0.6 operation=allreduce in_elements=16777216 dtype=Float group_size=8
    """),
    CannotTell(
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  allreduce 10-50 @0.3
        """,
        because="sizes of collectives",
    ),
]
