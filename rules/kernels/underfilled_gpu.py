"""Most kernels are too small to fill the GPU.

They have fewer thread blocks than the GPU has multiprocessors, so part of a busy GPU has nothing to do.

Why it costs
    A kernel that fills half of the GPU takes as long as one with twice the work. Each sample takes twice the time.
How to fix
    Use larger batches, fewer gradient accumulation steps, or longer packed sequences.
Ignore when
    the batch size is fixed for training quality, or memory is full.
Sources
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background
"""

from diagnose.facts.device.kernels import GridFilling
from diagnose.facts.host.batch import LargerBatch
from diagnose.facts.run.program import Language, Program
from diagnose.rulekit.vocabulary import *

UNDERFILLED_SHARE = 0.5  # of the compute time in such kernels (our choice: 0.3 also met balanced trainings)
FREE_SHARE = 0.3  # of the memory free: less leaves no room for a larger batch (our choice)
DOUBLE = Fix.of(
    fixes.LoaderArgument("batch_size", fixes.Multiple(2)),
    "Double the batch size, or halve the gradient accumulation steps.",
)
MORE_WORK = Fix("Use larger batches.", safety=Safety.NEEDS_JUDGEMENT)


@rule("KE04")
def underfilled_gpu(
    filling: GridFilling, larger_batch: LargerBatch | None = None, program: Program | None = None
) -> Verdicts:
    free = filling.free_memory_share
    if filling.underfilled_share < UNDERFILLED_SHARE:
        yield Clean(f"kernels too small for the GPU take {percent(filling.underfilled_share)} of the compute time")
    elif larger_batch is not None and larger_batch.times > 1:
        yield NotApplicable("unused_memory (ME07) estimates a larger batch")
    elif free is not None and free < FREE_SHARE:
        yield Clean(f"kernels are small, but only {percent(free)} of the memory is free for a larger batch")
    else:
        room = "GPU memory in use was not recorded" if free is None else f"{percent(free)} of GPU memory is free"
        yield Finding(
            evidence=(
                Evidence(
                    f"Kernels with fewer blocks than the GPU has multiprocessors: {ms(filling.underfilled_ns)}/step,"
                    f" {percent(filling.underfilled_share)} of compute time.",
                    filling.underfilled_ns,
                    "ns",
                ),
                Evidence(f"The saving is per sample: twice the batch takes less than twice as long. {room}."),
            ),
            edits=(Recost(filling.underfilled_ids, Enlarged(2)),),
            fixes=(MORE_WORK if program and (program.infers or program.language is not Language.PYTHON) else DOUBLE,),
            confidence=Confidence(
                Level.LOW if free is None else Level.MEDIUM, "kernels of larger batches were not recorded"
            ),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
            per_sample=True,
        )


EXAMPLES = [
    Fires("4 steps of 10\ncpu  aten::mm 0-0.1 | sync 0.2-9.95\ngpu  bf16_gemm 0.02-9.9 @0.01 blocks=32"),
    Silent("4 steps of 10\ncpu  aten::mm 0-0.1\ngpu  bf16_gemm 0.02-9.9 @0.01 blocks=1024"),
    # unused_memory says it where memory is recorded
    Silent("""
        4 steps of 10
        memory 5 of 10 GB
        cpu  aten::mm 0-0.1 | sync 0.2-9.95
        gpu  bf16_gemm 0.02-9.9 @0.01 blocks=32
    """),
    # too small for the GPU, and the GPU waits for the host anyway
    Silent("""
        4 steps of 10
        cpu  aten::mm 0-0.1 x90 every 0.11
        gpu  bf16_gemm 0.02-0.024 @0.01 x90 every 0.11 blocks=32
    """),
]
