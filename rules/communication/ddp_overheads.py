"""DistributedDataParallel does work that an option avoids.

DDP copies gradients into its buckets and out, broadcasts rank 0's buffers, and may search for unused parameters.

Why it costs
    Each of these visits every parameter or buffer in every step: hundreds of small ops that block the CPU.
How to fix
    Set the option: `gradient_as_bucket_view=True`, `batched_grad_copy=True` (since PyTorch 2.13),
    `broadcast_buffers=False` (since 2.13 `forward_sync_buffers=False`), `find_unused_parameters=False`.
Ignore when
    some parameters get no gradient in some steps. Or ranks have to agree on buffers, such as a queue of negatives.
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
KNOWN = Confidence(Level.HIGH, "DDP's ops are recorded under their own names")
OPTIONS = {
    DdpWork.UNUSED_SEARCH: (
        "DDP searches for unused parameters",
        ("find_unused_parameters", False),
        "Disable the search: with unused parameters, DDP then fails with an error that lists them.",
        Confidence(Level.MEDIUM, "whether a parameter goes unused in some step is not recorded"),
    ),
    DdpWork.COPIES_FROM_BUCKETS: (
        "DDP copies gradients out of its buckets",
        ("gradient_as_bucket_view", True),
        "Make gradients views of the buckets, and do not call detach_() on them.",
        KNOWN,
    ),
    DdpWork.COPIES_INTO_BUCKETS: (
        "DDP copies gradients into its buckets one by one",
        ("batched_grad_copy", True),
        "Copy all gradients of a bucket at once (PyTorch 2.13 and newer).",
        Confidence(Level.MEDIUM, "the cost of one batched copy is not known here"),
    ),
    DdpWork.BUFFER_BROADCASTS: (
        "DDP broadcasts its buffers before each forward pass",
        ("broadcast_buffers", False),
        "Disable buffer broadcasts, if buffers may differ between ranks, as BatchNorm statistics may.",
        Confidence(Level.MEDIUM, "the broadcasts may include waits for other ranks"),
    ),
}
ASKED = Confidence(Level.HIGH, "DDP was made with find_unused_parameters=True and without static_graph")
STATIC = Fix.of(
    fixes.DdpArgument("static_graph", True),
    "Or search only once, if the same parameters are unused in every step.",
    after="DistributedDataParallel(model, find_unused_parameters=True, static_graph=True)",
)


@rule("CO05")
def ddp_overheads(
    ddp_overheads: tuple[DdpOverhead, ...], steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    large = [one for one in ddp_overheads if one.most_ns >= WORTH_SHARE * steps.mean_ns]
    if not ddp_overheads:
        yield NotApplicable("DistributedDataParallel is not used, or does no avoidable work")
    elif not large:
        yield Clean(f"avoidable DDP work takes at most {ms(ddp_overheads[0].most_ns)}/step")
    for one in large:
        title, option, do, confidence = OPTIONS[one.work]
        if already := _is_set(option, manifest):
            yield Clean(f"{title}, but {option[0]}={option[1]} is set already")
            continue
        asked = one.work is DdpWork.UNUSED_SEARCH and {already, _is_set(("static_graph", True), manifest)} == {False}
        batched = one.work is DdpWork.COPIES_INTO_BUCKETS
        waits = f", {ms(one.waits_ns)} of waiting" * bool(one.waits_ns)
        text = f"Per step: {ms(one.host_ns)} of CPU time, {ms(one.device_ns)} of GPU time{waits}."
        away = Remove(one.ids), Shorten(Times(one.track, one.waits), WAITS)
        fix = Fix.of(fixes.DdpArgument(*option), do)
        yield Finding(
            title=title,
            evidence=(Evidence(text, one.most_ns, "ns"),),
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
    # the GPU has enough to do meanwhile
    Silent("""
        4 steps of 50
        cpu  aten::mm 0-0.1 | torch.distributed.ddp.reducer::search_unused_parameters 1-11 | device_sync 12-49.9
        gpu  sgemm 0.1-49.8 @0.05
    """),
    CannotTell("gpu  sgemm 0.1-49.8", because="framework ops"),
]
