"""torch.compile recompiles, or breaks graphs.

A new shape, type or Python value recompiles a function; code that cannot be compiled splits it into pieces.

Why it costs
    Compiling takes seconds to minutes in which nothing trains; after eight recompilations a function runs uncompiled.
    Between pieces ops run one by one, and each piece first checks its guards.
How to fix
    Set TORCH_LOGS=recompiles,graph_breaks to see the reasons. Mark changing sizes as dynamic, or pad to a few; move
    prints, `.item()` and Python side effects out of compiled functions.
Ignore when
    a new shape is rare, seen for the first time.
Sources
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
"""

from diagnose.facts.host.compiling import Compiling
from diagnose.rulekit.vocabulary import *

FIRST_STEPS = 5  # of the run may compile: their shapes are new, or become dynamic (our choice)
BREAKS = 3  # a call: fewer are usual in models that were not written for a compiler (our choice)
CHECKS_SHARE = 0.01  # of the step spent on finding compiled code that fits (our choice)
COMPILING = Between(0.5, 0.05, 0.0)  # that is left: a new shape now and then is legitimate
PIECES = Between(0.8, 0.4, 0.1)  # that is left between pieces, and of checks: as when compiling removes ops (LB01)
LINK = "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"


@rule("LB03")
def recompilation(compiling: Compiling, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    if not compiling.used:
        yield NotApplicable("torch.compile is not in use")
        return
    checks, late = compiling.lookup_ns / max(steps.mean_ns, 1), compiling.compilations.since(FIRST_STEPS)
    broken = compiling.breaks_per_call >= BREAKS
    if late.total:
        ns, seen, guard = late.total_ns / steps.count, len(late.numbers), why_not(manifest)
        yield Finding(
            title="torch.compile recompiles during training",
            evidence=(
                Evidence(f"{late.total} times in {seen} of {steps.count} steps: {ms(ns)}/step on average.", ns, "ns"),
                *guard_evidence(guard),
            ),
            edits=(Shorten(late.ids, COMPILING),),
            fixes=guard_fixes(guard),
            confidence=Confidence(Level.HIGH, "recompilations are recorded after the run's first steps")
            if seen > 1
            else Confidence(Level.LOW, "in one step only: it may be a rare shape"),
            site=guard_site(guard),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )
    if broken or checks >= CHECKS_SHARE:
        pieces = compiling.fused_pieces  # reading and writing memory is all they do: once would do
        fused = Between(0.5 + 0.5 / pieces, 1.0 / pieces, 1.0 / pieces)
        runs = f"{compiling.between:,} ops per step run uncompiled, for {ms(compiling.between_ns)}"
        text = f"{compiling.breaks_per_call:.3g} graph breaks per compiled call: {runs}."
        do = "Move graph breaks out of compiled functions" if broken else "Compile fewer and larger functions"
        yield Finding(
            title="Graph breaks split compiled code" if broken else "Guards of compiled code take long to check",
            evidence=(
                Evidence(text, compiling.between_ns, "ns"),
                *([Evidence(f"{pieces} pieces hold only pointwise code and could be one.")] * (pieces > 1)),
                Evidence(f"{compiling.lookups:,} guard checks take {ms(compiling.lookup_ns)}/step."),
            ),
            edits=(
                Shorten(compiling.between_ids, PIECES),
                Shorten(compiling.lookup_ids, PIECES),
                *((Shorten(compiling.fused_ids, fused), Shorten(compiling.fused_work_ids, fused)) if broken else ()),
            ),
            fixes=(
                Fix(f"{do} (TORCH_LOGS=graph_breaks,guards lists them).", safety=Safety.ROUNDING, effort=2, link=LINK),
            ),
            confidence=Confidence(Level.MEDIUM, "how much of this can go is not recorded"),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )
    elif not late.total:
        yield Clean(f"no compilation after the first {FIRST_STEPS} steps; guard checks take {percent(checks)}")


EXAMPLES = [
    Fires(  # 60 ms, twice in eight steps
        """
        9 steps of 100
        cpu  compile 0-60 in 6,8 | "Torch-Compiled Region: 0/2" 60-62
        gpu  triton_poi_fused_add_0 61.02-99.9 @61
        """,
        saving_ms=(7.5, 15),
    ),
    Fires(  # three pieces after the first; 60 ms of ops between them
        """
        4 steps of 100
        cpu  "Torch-Compiled Region: 0/0" 0-99 | CompiledFunction 1-2 | aten::nonzero 10-70 | sync 80-98
        cpu  "Torch-Compiled Region: 1/0" 71-72 x3 every 2
        gpu  triton_poi_fused_add_0 1.52-10 @1.5 | pointwise 69.51-97 @69.5
        """,
        saving_ms=(12, 54),
    ),
    # the first steps compile
    Silent("""
        5 steps of 100
        cpu  compile 0-60 in 0,1 | "Torch-Compiled Region: 0/0" 60-62
        gpu  triton_poi_fused_add_0 61.02-99 @61
    """),
]
