"""Communication is not overlapped with compute.

While a collective runs without concurrent compute, the GPU waits for the network, or for another rank.

Why it costs
    Overlapped communication is almost free. Exposed communication adds to every step.
How to fix
    Start collectives earlier, concurrently with compute that does not need them. How depends on their use: DDP's
    buckets, FSDP's gathers, shards of embeddings or experts, activations of a split model.
Ignore when
    this rank waits for a slower one: fix that rank first. Recordings of all ranks show it.
Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from diagnose.facts.communication.messages import LooseGradients
from diagnose.facts.communication.overlap import ExposedRole, Exposure
from diagnose.facts.communication.roles import Role
from diagnose.rulekit.vocabulary import *

EXPOSED_SHARE = 0.01  # of the step (our choice)
ONE_BY_ONE = 20  # gradients a step, from which on small_collectives speaks of them (its CALLS)
LIKELY_SHARE = 0.5  # we assume that half of the communication that could overlap does (our choice)

LINK = "https://docs.pytorch.org/docs/stable/"
BUCKETS = Fix.of(
    fixes.DdpArgument("bucket_cap_mb", 10), "Start reductions earlier in the backward pass, with smaller buckets."
)
WRAP = Fix(
    "Wrap the model in DistributedDataParallel, to reduce buckets during the backward pass.",
    after="model = DistributedDataParallel(model)",
    safety=Safety.ROUNDING,
    effort=2,
    link=f"{LINK}generated/torch.nn.parallel.DistributedDataParallel.html",
)
PREFETCH = Fix(
    "Prefetch the next block's parameters during compute (FSDP1: forward_prefetch=True).",
    before="fully_shard(model)",
    after="for block in blocks: fully_shard(block)\nfully_shard(model)\n"
    "for block, following in zip(blocks, blocks[1:]): block.set_modules_to_forward_prefetch([following])",
    effort=2,
    link=f"{LINK}distributed.fsdp.fully_shard.html",
)
KEEP = Fix.of(
    fixes.FsdpArgument(), "If memory allows, keep parameters until the backward pass, or shard within a machine (HSDP)."
)
EXCHANGE = Fix(
    "Start the exchange early, and overlap it with dense layers or shared experts.",
    after="work = dist.all_to_all_single(out, rows, async_op=True)\ny = dense(x)\nwork.wait()",
    effort=2,
    link=f"{LINK}distributed.html#torch.distributed.all_to_all_single",
)
SMALLER = Fix(
    "Exchange less: balance tables or experts, keep groups inside a machine, send 16 bits.",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=3,
)
PIPELINED = Fix(
    "Overlap split matmuls with the collective (async tensor parallelism). Keep the group inside a machine.",
    after="torch._inductor.config._micro_pipeline_tp = True  # with torch.compile, and symmetric memory for the group",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
)
EARLY = Fix(
    "Start the collective early, and wait for its result where it is used.",
    before="dist.all_reduce(x)",
    after="work = dist.all_reduce(x, async_op=True)\nwork.wait()  # just before x is used",
    effort=2,
    link=f"{LINK}distributed.html#asynchronous-collective-operations",
)
LESS = Fix(
    "Communicate less often: use a larger batch per rank, or accumulate gradients under no_sync().",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link=f"{LINK}notes/ddp.html",
)
LARGER = Fix("Compute more per byte: use a larger batch per rank.", safety=Safety.NEEDS_JUDGEMENT, effort=2)
FIXES = {
    Role.BUCKET: (BUCKETS, LESS),
    Role.GRADIENT: (WRAP, LESS),
    Role.SHARD_GATHER: (PREFETCH, KEEP, LARGER),
    Role.SHARD_REDUCE: (PREFETCH, LARGER),
    Role.EXCHANGE: (EXCHANGE, SMALLER),
    Role.ACTIVATION: (PIPELINED,),
    Role.PARAMETERS: (EARLY,),
    Role.OTHER: (EARLY,),
}
"""Of what no rule of its own speaks about: pipelines, barriers, results, buffers and norms have causes of their own."""

SHARDED = (Role.SHARD_GATHER, Role.SHARD_REDUCE)
"""Of these other rules know causes: too small units, late gathers, needless ones."""

TITLES = {
    Role.BUCKET: "DDP's gradient reduction is not overlapped with compute",
    Role.GRADIENT: "Gradients are reduced without overlap with the backward pass",
    Role.SHARD_GATHER: "FSDP's parameter gathers are not overlapped with compute",
    Role.SHARD_REDUCE: "FSDP's gradient reduction is not overlapped with compute",
    Role.EXCHANGE: "All-to-all communication is not overlapped with compute",
    Role.ACTIVATION: "Tensor-parallel communication is not overlapped with compute",
}
ALONE = Confidence(Level.LOW, "one rank cannot separate transfer from waiting: record all ranks")
COMPARED = Confidence(Level.MEDIUM, "how early the collectives could start is not recorded")


@rule("CO01")
def exposed_communication(exposure: Exposure, loose_gradients: LooseGradients) -> Verdicts:
    waited = exposure.waiting_ns
    of_it = "waits for other ranks included"
    if waited is not None:
        of_it = f"without {ms(waited)} of waiting for other ranks" if waited else "no waits for other ranks"
    spoken_of = {Role.GRADIENT} if loose_gradients.calls >= ONE_BY_ONE else set()
    told = [one for one in exposure.roles if one.role in FIXES.keys() - spoken_of and one.share >= EXPOSED_SHARE]
    if not exposure.ns:
        yield NotApplicable("no communication runs on the GPU")
    elif not told:
        yield Clean(f"compute could hide little of the exposed communication ({percent(exposure.share)} of the step)")
    elif not exposure.hideable_share:
        share = percent(exposure.share)
        yield Clean(f"{share} of the step is exposed communication, but compute hides all that it can")
    else:
        yield from (_found(exposure, one, of_it) for one in told)


def _found(exposure: Exposure, one: ExposedRole, of_it: str) -> Finding:
    hideable, carried = exposure.hideable_share, "" if exposure.bytes is None else f" of {bytes_(exposure.bytes)}"
    alone, fixes = exposure.waiting_ns is None, FIXES[one.role]
    bound = exposure.compute_ns <= exposure.ns and len(fixes) > 1
    part = "" if one.ns >= exposure.ns else f" Exposed {one.role.value}: {ms(one.exposed_ns)}."
    return Finding(
        title=TITLES.get(one.role, ""),
        evidence=(
            Evidence(
                f"Communication{carried} takes {ms(exposure.ns)}/step, {ms(exposure.exposed_ns)} exposed,"
                f" {of_it}.{part}",
                one.exposed_ns,
                "ns",
            ),
            Evidence(
                f"{ms(exposure.compute_ns)} of compute could hide at most {about(exposure.hideable_ns)} more"
                + (" of transfer, but no waits for a slower rank." if alone else "."),
                exposure.hideable_ns,
                "ns",
            ),
        ),
        edits=(Shorten(one.ids, Between(1, 1 - LIKELY_SHARE * hideable, 1 - hideable)),),
        fixes=fixes[::-1] if bound else fixes,
        confidence=ALONE if alone else COMPARED,
        basis=Basis.RULE_OF_THUMB,
        unless_above=one.role in SHARDED,
    )


EXAMPLES = [
    Fires(  # 60 ms could hide 54: all of the 40, if the other ranks are not the reason
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | wait 0.5-0.51 stream=7 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allreduce 60-99.8 @0.3
        """,
        saving_ms=(0, 39.8),
    ),
    Fires(  # parameters that FSDP gathers
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | "FSDP::all_gather (layers.1)" 0.15-0.45 | c10d::_allgather_base_ 0.2-0.4
        cpu     device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allgather 60-99.8 @0.3 operation=_allgather_base
        """,
        saving_ms=(0, 39.8),
    ),
    # what pipeline stages hand on is waited for, however early it is sent
    Silent("""
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::recv_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  nccl 60-99.8 @0.3 operation=recv
    """),
    # the same, hidden
    Silent("""
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-99.8 @0.05
        gpu 20  allreduce 50-90 @0.3
    """),
    # the host is late for other reasons: the GPU would be idle in place of communicating
    Silent("""
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | "train.py(9): log" 1-99 | aten::mm 99-99.1
        gpu     sgemm 0.1-30 @0.05 | sgemm 99.1-99.9 @99.05
        gpu 20  allreduce 30-50 @0.3
    """),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-0.1 | c10d::allreduce_ 0.2-80", because="device work"),
]
