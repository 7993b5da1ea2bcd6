"""Activation checkpointing repeats much of the forward pass.

Checkpointed layers keep no activations: the backward pass recomputes them. That is right where memory is full.
Elsewhere it only costs time.

Why it costs
    Checkpointing every layer adds a forward pass, about a third of the compute of forward and backward.
How to fix
    Checkpoint only as many layers as memory requires. Or keep the outputs of expensive ops (matmuls, attention) and
    recompute the cheap ones, by selective checkpointing.
Ignore when
    memory is full, or needed for a larger batch that saves more.
Sources
    https://docs.pytorch.org/docs/stable/checkpoint.html
    https://arxiv.org/abs/2205.05198
"""

from diagnose.facts.autograd.backward import Recompute
from diagnose.facts.device.memory import Memory
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in what is computed again (our choice)
USED_AT_MOST = 0.9  # of the device's memory: the rest is for the context, for libraries and fragments (our choice)
FACTOR = 2.0  # by which what activations take may be wrong: some inputs are not kept, other tensors are (our choice)
UNKNOWN = Between(1.0, 0.5, 0.0)  # of the time, where memory was not recorded
LINK = "https://docs.pytorch.org/docs/stable/checkpoint.html"
FEWER = Fix.of(fixes.NoCheckpointing())


@rule("ME04")
def activation_checkpointing(
    steps: Steps, recompute: Recompute | None, memory: tuple[Memory, ...] | None = None
) -> Verdicts:
    if recompute is None:
        yield NotApplicable("no backward pass recomputes activations")
        return
    again_ns = max(recompute.host_ns, recompute.work.device_ns)
    if again_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"recomputing activations takes {percent(again_ns / steps.mean_ns)} of the step")
        return
    fullest = min((one for one in memory or () if one.free_share is not None), key=_free, default=None)
    needs = recompute.bytes
    left, told = UNKNOWN, "Free GPU memory was not recorded."
    all_fits = True
    if fullest is not None and needs:
        used, whole = fullest.peak_reserved_bytes or 0, fullest.capacity_bytes or 0
        fits = max(USED_AT_MOST * whole - used, 0.0) / needs
        all_fits = fits >= 1
        left = Between(*(1 - min(fits * by, 1.0) for by in (1 / FACTOR, 1.0, FACTOR)))
        told = f"{bytes_(used)} of {bytes_(whole)} is in use: {percent(min(fits, 1.0))} of the activations fit."
        if not fits:
            yield Clean(f"checkpointing costs {ms(again_ns)}/step, but memory is full ({bytes_(used)} in use)")
            return
    keeps = f"Keeping the activations takes about {bytes_(needs)}. " if needs else ""
    yield Finding(
        evidence=(
            Evidence(
                f"The backward pass recomputes {recompute.pieces:.3g} checkpointed pieces: {ms(again_ns)}/step.",
                again_ns,
                "ns",
            ),
            Evidence(f"{keeps}{told}", needs, "bytes"),
        ),
        edits=(
            *(Shorten(ids, left) for ids in (recompute.work.ids, recompute.work.work_ids)),
            *(Shorten(Times(*some), left) for some in recompute.between),
        ),
        fixes=(
            FEWER if all_fits else Fix(FEWER.do, FEWER.before, FEWER.after, link=LINK),  # A trial is of all layers.
            Fix(
                "Or keep the outputs of matmuls and attention, and recompute the rest.",
                after="context_fn = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])\n"
                "x = checkpoint(layer, x, use_reentrant=False, context_fn=context_fn)",
                effort=2,
                link=LINK,
            ),
        ),
        confidence=Confidence(Level.MEDIUM, "the size of activations is estimated from shapes")
        if fullest is not None and needs
        else Confidence(Level.LOW, "free GPU memory was not recorded"),
        kind=Kind.OPTION,
        basis=Basis.RULE_OF_THUMB,
    )


def _free(one: Memory) -> float:
    return one.free_share or 0.0


EXAMPLES = [
    Fires(  # 12 of 40 ms are computed again, and what takes 0.4 GB fits many times
        """
        3 steps of 40
        memory 15 of 20 GB
        cpu  aten::linear 1-1.3 x3 every 0.4 sequence=5 shapes=[[16384,4096]] types=["c10::BFloat16"]
        cpu  sync 9-39.9
        cpu autograd  "autograd::engine::evaluate_function: AddmmBackward0" 5-8 sequence=5 "Fwd thread id"=1
        cpu autograd  aten::linear 6-6.3 x3 every 0.4 sequence=9 shapes=[[16384,4096]] types=["c10::BFloat16"]
        gpu  bf16_gemm 2-6 @1.1 | bf16_gemm 6-10 @1.5 | bf16_gemm 10-14 @1.9
        gpu  bf16_gemm 14-18 @6.1 from autograd | bf16_gemm 18-22 @6.5 from autograd
        gpu  bf16_gemm 22-26 @6.9 from autograd | pointwise 26-39.8 @7.5 from autograd
        """,
        saving_ms=(12, 12),
    ),
    Fires(  # half of it fits: a quarter to all of it, as what it takes is told to a factor of two
        """
        3 steps of 40
        memory 70 of 76.315 GB
        cpu  aten::linear 1-1.3 x3 every 0.4 sequence=5 shapes=[[16384,4096]] types=["c10::BFloat16"]
        cpu  sync 9-39.9
        cpu autograd  "autograd::engine::evaluate_function: AddmmBackward0" 5-8 sequence=5 "Fwd thread id"=1
        cpu autograd  aten::linear 6-6.3 x3 every 0.4 sequence=9 shapes=[[16384,4096]] types=["c10::BFloat16"]
        gpu  bf16_gemm 2-6 @1.1 | bf16_gemm 6-10 @1.5 | bf16_gemm 10-14 @1.9
        gpu  bf16_gemm 14-18 @6.1 from autograd | bf16_gemm 18-22 @6.5 from autograd
        gpu  bf16_gemm 22-26 @6.9 from autograd | pointwise 26-39.8 @7.5 from autograd
        """,
        saving_ms=(3, 12),
    ),
    # without memory anything may be
    Fires("""
        3 steps of 40
        cpu  aten::linear 1-1.3 x3 every 0.4 sequence=5 shapes=[[16384,4096]] types=["c10::BFloat16"]
        cpu  sync 9-39.9
        cpu autograd  "autograd::engine::evaluate_function: AddmmBackward0" 5-8 sequence=5 "Fwd thread id"=1
        cpu autograd  aten::linear 6-6.3 x3 every 0.4 sequence=9 shapes=[[16384,4096]] types=["c10::BFloat16"]
        gpu  bf16_gemm 2-6 @1.1 | bf16_gemm 6-10 @1.5 | bf16_gemm 10-14 @1.9
        gpu  bf16_gemm 14-18 @6.1 from autograd | bf16_gemm 18-22 @6.5 from autograd
        gpu  bf16_gemm 22-26 @6.9 from autograd | pointwise 26-39.8 @7.5 from autograd
    """),
    # memory is full
    Silent("""
        3 steps of 40
        memory 75 of 80 GB
        cpu  aten::linear 1-1.3 x3 every 0.4 sequence=5 shapes=[[16384,4096]] types=["c10::BFloat16"]
        cpu  sync 9-39.9
        cpu autograd  "autograd::engine::evaluate_function: AddmmBackward0" 5-8 sequence=5 "Fwd thread id"=1
        cpu autograd  aten::linear 6-6.3 x3 every 0.4 sequence=9 shapes=[[16384,4096]] types=["c10::BFloat16"]
        gpu  bf16_gemm 2-6 @1.1 | bf16_gemm 6-10 @1.5 | bf16_gemm 10-14 @1.9
        gpu  bf16_gemm 14-18 @6.1 from autograd | bf16_gemm 18-22 @6.5 from autograd
        gpu  bf16_gemm 22-26 @6.9 from autograd | pointwise 26-39.8 @7.5 from autograd
    """),
    # the backward pass runs formulas only
    Silent("""
        3 steps of 40
        memory 15 of 20 GB
        cpu  aten::linear 1-1.3 x3 every 0.4 sequence=5 shapes=[[16384,4096]] types=["c10::BFloat16"]
        cpu  sync 9-39.9
        cpu autograd  "autograd::engine::evaluate_function: AddmmBackward0" 5-8 sequence=5 "Fwd thread id"=1
        cpu autograd  aten::mm 6-6.3 x3 every 0.4 shapes=[[16384,4096]]
        gpu  bf16_gemm 2-6 @1.1 | bf16_gemm 6-10 @1.5 | bf16_gemm 10-14 @1.9
        gpu  bf16_gemm 14-18 @6.1 from autograd | bf16_gemm 18-22 @6.5 from autograd
        gpu  bf16_gemm 22-26 @6.9 from autograd | pointwise 26-39.8 @7.5 from autograd
    """),
]
