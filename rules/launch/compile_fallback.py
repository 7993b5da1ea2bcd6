"""torch.compile fell back to eager.

torch.compile keeps up to eight compiled versions of a function. A call that fits none of them, and cannot be compiled
anew, runs in eager mode.

Why it costs
    The ops run one by one, each reads and writes memory, and every call first checks all versions in vain.
How to fix
    `diagnose profile` names the guard that fails, as TORCH_LOGS=recompiles does. If it is on a size, compile for any
    size (`dynamic=True`), or pad to a few sizes. If it is on a Python value, keep that out of the compiled function.
Ignore when
    sizes vary less in the whole training than in the recorded steps.
Sources
    https://docs.pytorch.org/docs/stable/torch.compiler_recompilation.html
"""

from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.host.compiling import Compiling
from diagnose.rulekit.vocabulary import *


@rule("LB07")
def compile_fallback(
    compiling: Compiling, pointwise_chains: PointwiseChains | None = None, manifest: RankManifest | None = None
) -> Verdicts:
    if not compiling.used:
        yield NotApplicable("torch.compile is not in use")
    elif not gave_up(compiling):
        yield Clean("calls find compiled code, or compile it")
    else:
        found, guard = known(pointwise_chains), why_not(manifest)
        text = f"{compiling.missed:,} calls per step found no compiled code that fits, and compiled none."
        yield Finding(
            evidence=(Evidence(text, compiling.missed, "calls"), *guard_evidence(guard), chains_taken(found)),
            edits=fusing(found),
            fixes=guard_fixes(guard),
            confidence=Confidence(Level.MEDIUM, "how much compiling saves is not recorded"),
            site=guard_site(guard),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    CannotTell(
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  "TorchDynamo Cache Lookup" 0-0.1 | aten::mul 1-31 | aten::add 31-61 | aten::tanh 61-81
        """,
        because="shapes",
    ),
    Fires(  # three ops of 30 ms on 4 MiB, which would move half of the bytes
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  "TorchDynamo Cache Lookup" 0-0.1 | aten::mul 1-31 shapes=[[1024,1024],[1024,1024]]
        cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
        """,
        saving_ms=(10, 40),  # at most with the rest getting faster by 0.9 x 24 %
    ),
    # compiled code was found
    Silent("""
        4 steps of 100
        1 threads, 2 cores
        cpu  "TorchDynamo Cache Lookup" 0-0.1 | "Torch-Compiled Region: 0/0" 0.2-0.9
        cpu  aten::mul 1-31 shapes=[[1024,1024],[1024,1024]]
        cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
    """),
]
