"""DistributedDataParallel does work that an option avoids.

It copies gradients into its buckets and out, sends rank 0's buffers to all, and may search for unused parameters.

Why it costs
    Each of these visits every parameter or buffer in every step: hundreds of small ops that hold up the host.

How to fix
    Each has an option: `gradient_as_bucket_view=True`, `batched_grad_copy=True` (from PyTorch 2.13 on),
    `broadcast_buffers=False` (from then on `forward_sync_buffers=False`), `find_unused_parameters=False`.

Ignore when
    some parameters get no gradient in some steps, or ranks have to agree on buffers, as on a queue of negatives.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    https://github.com/pytorch/pytorch/issues/41954
"""

from diagnose.facts.communication.ddp import DdpOverhead, DdpWork
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the GPU, or in waiting (our choice)
WAITS = Between(0.6, 0.3, 0.0)  # of the waiting for rank 0: ranks that differ meet later (our choice)
HOST = Between(0.5, 0.2, 0.1)  # of copying into buckets when batched: two launches a bucket, not one a parameter
DEVICE = Between(1.0, 0.7, 0.4)  # of the same on the GPU: as many bytes, but no kernel of some KB (our choice)
LINK = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
KNOWN = Confidence(Level.HIGH, "DDP's ops are recorded under their own names")
OPTIONS = {
    DdpWork.UNUSED_SEARCH: (
        "DDP searches for unused parameters",
        ("find_unused_parameters", False),
        "Do not search for unused parameters: if there are some, DDP ends with an error that lists them.",
        Confidence(Level.MEDIUM, "whether a parameter goes unused in some step is not recorded"),
    ),
    DdpWork.COPIES_FROM_BUCKETS: (
        "DDP copies gradients out of its buckets",
        ("gradient_as_bucket_view", True),
        "Let gradients be views of the buckets, and do not call detach_() on them.",
        KNOWN,
    ),
    DdpWork.COPIES_INTO_BUCKETS: (
        "DDP copies gradients into its buckets one by one",
        ("batched_grad_copy", True),
        "Copy all gradients of a bucket at once, from PyTorch 2.13 on.",
        Confidence(Level.MEDIUM, "what a copy at once takes is not known here"),
    ),
    DdpWork.BUFFER_BROADCASTS: (
        "DDP sends its buffers before each forward",
        ("broadcast_buffers", False),
        "Disable buffer broadcasts if all buffers may differ between ranks, like running statistics of BatchNorm.",
        Confidence(Level.MEDIUM, "the broadcasts may hold waiting for other ranks"),
    ),
}
ASKED = Confidence(Level.HIGH, "DDP was made with find_unused_parameters=True and without static_graph")
STATIC = Fix.of(
    fixes.DdpArgument("static_graph", True),
    "Or, if the same parameters go unused in every step, say so: then DDP searches once.",
    after="DistributedDataParallel(model, find_unused_parameters=True, static_graph=True)",
)


@rule("CO05")
def ddp_overheads(
    ddp_overheads: tuple[DdpOverhead, ...], steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    large = [ddp_overhead for ddp_overhead in ddp_overheads if ddp_overhead.most_ns >= WORTH_SHARE * steps.mean_ns]
    if not ddp_overheads:
        yield NotApplicable("DistributedDataParallel is not used, or does nothing that an option saves")
    elif not large:
        yield Clean(f"what an option saves takes {ms(ddp_overheads[0].most_ns)} a step at most")
    for one in large:
        title, option, do, confidence = OPTIONS[one.work]
        if already := _is_set(option, manifest):
            yield Clean(f"{title}, but {option[0]}={option[1]} is set already")
            continue
        asked = one.work is DdpWork.UNUSED_SEARCH and {already, _is_set(("static_graph", True), manifest)} == {False}
        batched = one.work is DdpWork.COPIES_INTO_BUCKETS
        parts = (
            f"{ms(one.host_ns)} of host time, {ms(one.device_ns)} of GPU time"
            + f" and {ms(one.waits_ns)} of waiting" * bool(one.waits_ns)
        )
        away = Remove(one.ids), Shorten(Times(one.track, one.waits), WAITS)
        fix = Fix.of(fixes.DdpArgument(*option), do)
        yield Finding(
            title=title,
            evidence=(Evidence(f"It takes {parts} a step.", one.most_ns, "ns"),),
            edits=(Shorten(one.ids, HOST), Shorten(one.work_ids, DEVICE)) if batched else away,
            fixes=(fix, STATIC) if asked else (fix,),
            confidence=ASKED if asked else confidence,
            basis=Basis.RULE_OF_THUMB if batched else Basis.REPLAYED,
            host_bound=True,
        )


def _is_set(option: tuple[str, bool], manifest: RankManifest | None) -> bool | None:  # of every module; None: unknown
    found = {one.get(option[0]) for one in manifest.distributed.ddp} if manifest and manifest.distributed else set()
    return None if not found or None in found else found == {option[1]}


EXAMPLES = [
    Fires(  # 10 ms that the GPU waits for
        """
        4 steps of 50
        cpu  torch.distributed.ddp.reducer::search_unused_parameters 1-11 | aten::mm 11-11.1 | device_sync 12-49.9
        gpu  sgemm 0.1-1 @0.05 | sgemm 11.1-49.8 @11.05
        """,
        saving_ms=(10, 10),
    ),
    Silent(  # the GPU has enough to do meanwhile
        """
        4 steps of 50
        cpu  aten::mm 0-0.1 | torch.distributed.ddp.reducer::search_unused_parameters 1-11 | device_sync 12-49.9
        gpu  sgemm 0.1-49.8 @0.05
        """
    ),
    CannotTell("gpu  sgemm 0.1-49.8", because="framework ops"),
]
