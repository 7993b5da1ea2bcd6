"""cudaMalloc and cudaFree run in every step.

PyTorch caches freed memory: after warm-up, no step calls cudaMalloc or cudaFree. Where one does, the cache is emptied,
too small, or disabled.

Why it costs
    cudaFree waits until the GPU has finished all queued work. Each cudaMalloc after it takes up to some ms.
How to fix
    Do not call `torch.cuda.empty_cache()` in the loop. If sizes vary, set
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. If caching is off, unset `PYTORCH_NO_CUDA_MEMORY_CACHING`.
Ignore when
    the memory is freed on purpose, for another process or model on the same GPU.
Sources
    https://github.com/huggingface/peft/issues/2894
"""

from diagnose.facts.device.memory import AllocatorCause, Churn
from diagnose.rulekit.vocabulary import *

OFTEN = 0.5  # of the later half of the steps: rarer calls are growth, or an occasional clean-up (our choice)
LEAST_STEPS = 2  # in a single step, calls of the first step and calls of every step look the same
LINK = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
CAUSES = {
    Churn.EMPTY_CACHE: (
        "The script empties the cache, and allocates again.",
        Confidence(Level.HIGH, "many blocks are freed in a row, outside any op"),
    ),
    Churn.RETRY: (
        "GPU memory is full and no cached block fits, so PyTorch empties the cache.",
        Confidence(Level.MEDIUM, "whether memory is fragmented or used up is not recorded"),
    ),
    Churn.UNCACHED: (
        "The caching allocator is disabled: tensors are freed one by one.",
        Confidence(Level.HIGH, "a caching allocator does not free one by one"),
    ),
    Churn.OTHER: (
        "No cached block fits the request, or a library bypasses the cache.",
        Confidence(Level.LOW, "why no cached block fits is not recorded"),
    ),
}


@rule("ME01")
def allocator_churn(allocator_causes: tuple[AllocatorCause, ...], steps: Steps) -> Verdicts:
    frequent = [one for one in allocator_causes if one.later_share >= OFTEN]
    told = [one for one in frequent if steps.count >= LEAST_STEPS or one.churn is Churn.UNCACHED]
    if frequent and not told:
        raise Missing("more than one steady step", "Record at least three steps, and call prof.step() after each.")
    if not frequent:
        yield Clean(f"{sum(cause.calls for cause in allocator_causes):.3g} calls of the driver's allocator per step")
    for one in told:
        why, confidence = CAUSES[one.churn]
        idle = "" if one.idle_ns is None else f" During the calls the GPU idles for {ms(one.idle_ns)}/step."
        calls = f"{one.calls:.3g} calls of {' and '.join(one.names)} per step"
        yield Finding(
            evidence=(
                Evidence(f"{calls} take {ms(one.host_ns)}.", one.host_ns, "ns"),
                Evidence(why + idle, one.idle_ns, "ns"),
            ),
            edits=(Remove(one.ids),),
            fixes=(_fix(one),),
            confidence=confidence,
            host_bound=True,
            site=None if one.churn is Churn.UNCACHED else one.site,
        )


def _fix(one: AllocatorCause) -> Fix:
    if one.churn is Churn.EMPTY_CACHE:
        return Fix.of(fixes.NoEmptyCache())
    if one.churn is Churn.UNCACHED:
        name = f"PYTORCH_NO_{'HIP' if one.hip else 'CUDA'}_MEMORY_CACHING"
        cached = fixes.Environment(value=((name, ""),))
        return Fix.of(cached, "Enable the caching allocator.", f"{name}=1", f"unset {name}")
    if one.maps_memory:  # they grow already
        return Fix("Use few tensor sizes, and leave memory free.", safety=Safety.ROUNDING, effort=2, link=LINK)
    name, value = f"PYTORCH_{'HIP' if one.hip else 'CUDA'}_ALLOC_CONF", "expandable_segments:True"
    growing = fixes.Environment(value=((name, value),))
    return Fix.of(growing, "Let the allocator's segments grow.", after=f"export {name}={value}")


EXAMPLES = [
    Fires(  # the cache given back: the GPU is idle for 10 ms until memory has been got anew
        """
        4 steps of 100
        cpu  aten::mm 1-1.1 | free 2-51 | free 51-52 x4 | malloc 55-61 | aten::add 61-61.1 | device_sync 62-99.9
        gpu  sgemm 1.1-51 @1.05 | pointwise 61.1-99.8 @61.05
        """,
        saving_ms=(10, 10),
    ),
    # one validation gives its memory back
    Silent("6 steps of 100\ncpu  aten::mm 1-1.1 | free 60-65 x5 in 3 | device_sync 95-99\ngpu  sgemm 1.1-50 @1.05"),
    # memory is asked for while the GPU has enough to do
    Silent("""
        4 steps of 100
        cpu  aten::mm 1-1.1 | aten::empty 2-3 | malloc 2.1-2.9 | device_sync 4-99.9
        gpu  sgemm 1.1-99.8 @1.05
    """),
    CannotTell(
        """
        cpu  aten::mm 1-1.1 | aten::empty 2-30 | malloc 2.1-29 | aten::mm 31-31.1
        gpu  sgemm 1.1-2 @1.05 | sgemm 31.1-40 @31.05
        """,
        because="more than one steady step",
    ),
]
