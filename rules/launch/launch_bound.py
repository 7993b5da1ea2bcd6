"""Launch-bound: the GPU waits for kernel launches.

Dispatch and launch take 5 to 20 us of CPU time per op. If kernels are shorter, the GPU runs dry although the CPU never
waits. Optimizer launches, CPU compute and syncs have findings of their own.

Why it costs
    The GPU idles between kernels while the CPU prepares the next op. A faster GPU would not help.
How to fix
    If each step launches the same kernels without syncs, CUDA graphs replay them with one launch. Otherwise launch
    fewer and longer kernels: `torch.compile` fuses pointwise ops, a larger batch lengthens each kernel.
Ignore when
    a recording without stacks and shapes, which slow the CPU, does not show it.
Sources
    https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs
    https://docs.pytorch.org/docs/stable/torch.compiler.html
"""

from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.host.compiling import Compiling
from diagnose.facts.host.starvation import Starvation
from diagnose.facts.host.waits import BlockingLaunches
from diagnose.rulekit.vocabulary import *

STARVED_SHARE = 0.01  # of the step idle while the host dispatches (our choice)
LAUNCHES = 50  # a step: fewer ops are no reason to compile anything (our choice)
IDLE_NS = 1_000_000  # idle per launch: dispatch takes the host up to 0.2 ms; longer is start-up, not a slow loop
GRAPHED_SHARE = 0.50  # of the kernels launched by CUDA graphs: then launching is not what the host does
READS = frozenset({"SY01", "SY02"})  # rules on what stands in the way of compiling

SYNCS = "Host syncs per step: {n}. A CUDA graph allows none."
BROKEN = "Reads of GPU values per step: {n}. Fix these first: they break compiled graphs and CUDA graphs."

COMPILE = Fix.of(fixes.Compile(), "Compile the model: it then launches fewer and longer kernels.")
REPLAYED = {
    False: Fix.of(
        fixes.Compile("mode", "reduce-overhead"), "Compile the model with CUDA graphs (needs static shapes)."
    ),
    True: Fix.of(
        fixes.CompileArgument("mode", "reduce-overhead"), "Add CUDA graphs to the compiled code (needs static shapes)."
    ),
}
CAPTURE = Fix.of(fixes.GraphCapture(), "Or capture it as a CUDA graph (needs static shapes and no host syncs).")


@rule("LB01")
def launch_bound(
    starvation: Starvation,
    steps: Steps,
    pointwise_chains: PointwiseChains | None = None,
    blocking_launches: BlockingLaunches | None = None,
    compiling: Compiling | None = None,
) -> Verdicts:
    compiled = compiling is not None and compiling.used
    replayed = compiled or (starvation.repeats is not False and not starvation.reads)
    if starvation.graph_share > GRAPHED_SHARE:
        yield NotApplicable("CUDA graphs launch most kernels")
    elif blocking_launches is not None and blocking_launches.block:
        yield NotApplicable("launches wait for their kernels (SY04)")
    elif starvation.launches < LAUNCHES:
        yield Clean(f"only {starvation.launches} launches per step")
    elif starvation.idle_ns > IDLE_NS * starvation.launches:
        yield Clean("the GPU waits for a few very slow ops, as at start-up, not for many launches")
    elif starvation.share < STARVED_SHARE:
        yield Clean(f"the GPU waits {percent(starvation.share)} of the step for launches")
    else:
        yield Finding(
            evidence=(
                Evidence(
                    f"The GPU idles {ms(starvation.idle_ns)}/step while the CPU dispatches ops.",
                    starvation.idle_ns,
                    "ns",
                ),
                Evidence(
                    f"{percent(starvation.empty_queue_share)} of {starvation.launches:,} launches/step hit an empty"
                    f" queue; median kernel {ms(starvation.kernel_median_ns)}.",
                    starvation.launches,
                    "launches",
                ),
                *([Evidence("Each step launches the same kernels.")] * bool(starvation.repeats)),
                *(Evidence(BROKEN.format(n=f"{n:,}"), n) for n in [starvation.reads] if n),
                *(Evidence(SYNCS.format(n=f"{n:,}"), n) for n in [starvation.syncs] if n and not starvation.reads),
            ),
            edits=launched(starvation, pointwise_chains, steps, replayed),
            fixes=(REPLAYED[compiled] if replayed else COMPILE, CAPTURE),
            confidence=Confidence(Level.MEDIUM, "how much of the dispatch goes depends on the model"),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
            after=READS if starvation.reads else frozenset(),
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 2
        cpu  aten::add 0.1-0.118 x90 every 0.02
        gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02
        """,
        saving_ms=(0.81, 1.62),  # 1.62 ms in ops, of which CUDA graphs leave half at most
    ),
    # kernels as long as the host's ops: the queue never runs dry
    Silent("4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02\ngpu  pointwise 0.111-0.131 @0.104 x90 every 0.02"),
    # each launch waits for its kernel
    Silent("""
        4 steps of 10
        cpu  aten::add 0.1-0.2 x90 every 0.11
        gpu  pointwise 0.115-0.175 @0.11-0.175 x90 every 0.11
    """),
]
