"""torch.compile would fuse pointwise kernels.

Kernels that only add, scale, normalise, cast or activate are limited by memory bandwidth. In a chain, each kernel reads
back what the previous one has just written.

Why it costs
    A chain of four such kernels moves the data four times, where one fused kernel moves it once.
How to fix
    `torch.compile` fuses such chains. PyTorch also has fused norms, activations and losses.
Ignore when
    most of this time is due to fp32: 16 bits halve it (no_mixed_precision, KE02).
Sources
    https://docs.pytorch.org/docs/stable/torch.compiler.html
    https://github.com/linkedin/Liger-Kernel
"""

from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.host.compiling import Compiling
from diagnose.rulekit.vocabulary import *

CHAINS_SHARE = 0.01  # of the step in chains of at least three: only these can be fused with certainty (our choice)
WHOLE = Fix.of(fixes.Compile(), "Compile the model to fuse the kernels.")
REST = Fix(
    "Compile the rest of the model as well: these ops run outside compiled code.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/torch.compiler.html",
)
PART = Fix(
    "Compile only the function with the chain, and time it.",
    after="@torch.compile\ndef chain(x): ...",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/torch.compiler.html",
)


@rule("AT03")
def unfused_pointwise(pointwise_chains: PointwiseChains, steps: Steps, compiling: Compiling | None = None) -> Verdicts:
    found = pointwise_chains
    work, share = "ops" if found.on_cpu else "kernels", percent(found.memory_bound_share)
    if compiling is not None and gave_up(compiling):
        yield NotApplicable("torch.compile fell back to eager: see compile_fallback (LB07)")
    elif found.chains_ns < CHAINS_SHARE * steps.mean_ns:
        chains = f"chains of pointwise {work} take {percent(found.chains_ns / steps.mean_ns)} of the step"
        yield Clean(f"{chains}, memory-bound {work} {share} of the compute time")
    else:
        yield Finding(
            evidence=(chains_taken(found), Evidence(f"Memory-bound {work} take {share} of the compute time.")),
            edits=fusing(found),
            fixes=(*torchs_own(found), PART)
            if found.on_cpu
            else (REST if compiling is not None and compiling.used else WHOLE, *torchs_own(found)),
            confidence=Confidence(
                Level.LOW if found.on_cpu else Level.MEDIUM,
                "chains are inferred from adjacent ops of equal size"
                + "; compiled for a CPU, whole models took up to 3.6 times as long" * found.on_cpu,
            ),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires("""
        4 steps of 40
        cpu  aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5 | sync 1-39.01
        gpu  pointwise 1-5 @0.05 | pointwise 5.01-9 @0.25 | pointwise 9.01-13 @0.45 | bf16_gemm 13.1-39 @0.6
    """),
    Fires(  # on the CPU
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  aten::mul 1-31 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
        cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::mm 81-99 shapes=[[1024,1024],[1024,1024]]
        """,
        saving_ms=(10, 40),  # at most with the rest getting faster by 0.9 x 24 %
    ),
    # one kernel, as a compiler writes it
    Silent("""
        4 steps of 40
        cpu  "Torch-Compiled Region: 0/0" 0-0.5 | sync 1-39.01
        gpu  triton_poi_fused_add_gelu_mul_0 1-5 @0.05 | bf16_gemm 5.1-39 @0.3
    """),
    # between matrix products there is nothing to fuse with
    Silent("""
        4 steps of 40
        cpu  aten::mm 0-0.1 | aten::add 0.2-0.3 | aten::mm 0.4-0.5 | sync 1-39.01
        gpu  bf16_gemm 1-15 @0.05 | pointwise 15.1-18 @0.25 | bf16_gemm 18.1-39 @0.45
    """),
]
