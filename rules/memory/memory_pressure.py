"""GPU memory is nearly full, or grows with every step.

The training may end with "CUDA out of memory": tensors take nearly all of the GPU's memory, or each step leaves more of
them behind.

Why it costs
    No time: it is a risk, without a saving. A run that stops continues from its last checkpoint.
How to fix
    For a leak, store numbers, not tensors with their graph: `loss.item()` or `loss.detach()`. For full memory, use
    activation checkpointing, 16 bits, smaller micro-batches, or shard the model.
Ignore when
    the memory is filled on purpose, and no step needs more than the recorded ones.
Sources
    https://pytorch.org/blog/understanding-gpu-memory-1
    https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from diagnose.facts.device.memory import Memory, MemoryGrowth
from diagnose.rulekit.vocabulary import *

FULL_SHARE = 0.9  # of the device's memory: the context, libraries and fragments take some (as TensorBoard's plugin)
LEAST_GROWTH = 100_000  # bytes a step: a hundred thousand steps of it are 10 GB (our choice)
NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
DETACH = Fix(
    "Store detached losses: a stored loss keeps the autograd graph of its step.",
    after="losses.append(loss.detach())  # losses.append(loss.item()) syncs",
    link="https://docs.pytorch.org/docs/stable/notes/faq.html",
)
SNAPSHOT = Fix(
    "Or find the lines that allocate it in a memory snapshot.",
    after="torch.cuda.memory._record_memory_history()\n# some steps later\n"
    'torch.cuda.memory._dump_snapshot("memory.pickle")  # open it at pytorch.org/memory_viz',
    link="https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
)
AGAIN = Fix(
    "Checkpoint some blocks: the backward pass then recomputes their activations.",
    after="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    link="https://docs.pytorch.org/docs/stable/checkpoint.html",
)
SMALLER = Fix(
    "Or use smaller micro-batches, with gradient accumulation.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
)
SEGMENTS = Fix(
    "Reduce fragmentation with expandable segments.",
    after="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
    link=NOTES,
)


@rule("ME03")
def memory_pressure(
    memory: tuple[Memory, ...], memory_growth: MemoryGrowth | None = None, manifest: RankManifest | None = None
) -> Verdicts:
    retries = manifest.allocator.get("retries", 0) if manifest else 0
    known = [one for one in memory if one.capacity_bytes and one.peak_allocated_bytes is not None]
    full = [one for one in known if _share(one) >= FULL_SHARE or (retries and _held(one) >= FULL_SHARE)]
    grows = memory_growth is not None and memory_growth.step_bytes >= LEAST_GROWTH
    if memory_growth is not None and grows:
        yield _leak(memory_growth, memory)
    if full:
        yield _full(max(full, key=_share), retries)
    elif not known and not grows:
        raise Missing("the GPU's memory size", "Record with a current PyTorch.")
    elif not grows:
        fullest = max(known, key=_share)
        unknown = "; memory growth was not recorded" * (memory_growth is None)
        yield Clean(f"tensors take at most {_of_all(fullest)}{unknown}")


def _share(one: Memory) -> float:
    return (one.peak_allocated_bytes or 0) / (one.capacity_bytes or 1)


def _of_all(one: Memory) -> str:
    return f"{bytes_(one.peak_allocated_bytes or 0)} of {bytes_(one.capacity_bytes or 0)}"


def _held(one: Memory) -> float:
    return 1 - (one.free_share if one.free_share is not None else 1.0)


def _leak(growth: MemoryGrowth, memory: tuple[Memory, ...]) -> Risk:
    ends = growth.ends_bytes
    capacity = next((one.capacity_bytes for one in memory if one.device == growth.device), None)
    peak = next((one.peak_allocated_bytes for one in memory if one.device == growth.device), None)
    more = (
        f" It is full after about {(capacity - peak) // growth.step_bytes:,} more steps." if capacity and peak else ""
    )
    grows = f"Memory of GPU {growth.device} grows by {bytes_(growth.step_bytes)}/step over {len(ends)} steps"
    kept = growth.kept
    by = f" from `{kept.op}`" if kept and kept.op else ""
    return Risk(
        title="GPU memory in use grows with every step",
        evidence=(
            Evidence(f"{grows}, from {bytes_(ends[0])} to {bytes_(ends[-1])}.{more}", growth.step_bytes, "bytes"),
            *([Evidence(f"Tensors of one size{by} keep {bytes_(kept.bytes)}/step.")] if kept else []),
        ),
        fixes=(DETACH, SNAPSHOT),
        confidence=Confidence(Level.MEDIUM, "memory grows evenly in the recorded steps; later steps were not recorded"),
        site=kept.site if kept else None,
    )


def _full(one: Memory, retries: int) -> Risk:
    again = f"The allocator found no free memory, emptied its cache and retried {retries:,} times."
    return Risk(
        title="GPU memory is nearly full" if _share(one) >= FULL_SHARE else "GPU memory runs out at times",
        evidence=(
            Evidence(f"Tensors take up to {_of_all(one)} on GPU {one.device}: {percent(_share(one))}.", _share(one)),
            *([Evidence(again, retries, "retries")] if retries else []),
        ),
        fixes=(AGAIN, SMALLER, SEGMENTS),
        confidence=Confidence(Level.HIGH, "the allocator reports it; larger batches were not recorded"),
    )


EXAMPLES = [
    # 0.5 GB more in each step
    Fires("""
        6 steps of 10
        memory 10 of 20 GB, 0.5 GB more a step
        cpu  aten::mm 0-1 | sync 2-9.9
        gpu  sgemm 1-9.8 @0.5
    """),
    # 80 of 85 GB
    Fires("4 steps of 10\nmemory 80 of 82 GB\ncpu  aten::mm 0-1 | sync 2-9.9\ngpu  sgemm 1-9.8 @0.5"),
    # the cache holds much, tensors take little
    Silent("6 steps of 10\nmemory 10 of 82 GB\ncpu  aten::mm 0-1 | sync 2-9.9\ngpu  sgemm 1-9.8 @0.5"),
    CannotTell("4 steps of 10\ncpu  aten::mm 0-1\ngpu  sgemm 1-9.8 @0.5", because="memory events"),
]
