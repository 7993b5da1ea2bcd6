"""Products with subnormal numbers take many times as long.

Powers of decays, weights that fade, states that die out: below 1.2e-38 a number of single precision is subnormal. What
is so near to zero changes nothing, but a CPU computes with it in many small steps.

Why it costs
    An x86 CPU takes some hundred cycles for such a number, where it takes a fraction of one for others.

How to fix
    Call `torch.set_flush_denormal(True)` before the training begins: such numbers are zero then.

Ignore when
    results depend on numbers below 1e-38.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html
"""

from diagnose.facts.values.subnormal_numbers import SubnormalProducts
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step (our choice)
PACE = (1.6, 1.0, 0.7)  # products of other shapes have another pace (our choice)
FLUSH = Fix(
    "Have the CPU take them for zero.", before="model = Retention()",
    after="torch.set_flush_denormal(True)\nmodel = Retention()", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
)  # fmt: skip


@rule("KE10")
def slow_numbers(subnormal_products: SubnormalProducts | None, steps: Steps) -> Verdicts:
    found = subnormal_products
    saved_ns = 0.0 if found is None else found.work.longest_ns * (1 - found.usual)
    if found is None or saved_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(
            f"subnormal numbers make products longer by {percent(saved_ns / max(steps.mean_ns, 1))} of the step"
        )
        return
    yield Finding(
        evidence=(
            Evidence(
                f"{found.times} products a step take subnormal numbers, up to {percent(found.thousandths / 1000)} of"
                f" what they take, and {ms(found.work.longest_ns)}: {1 / found.usual:.1f} times as long as others of as"
                " many multiplications.",
                found.work.longest_ns, "ns",
            ),
        ),
        edits=(Shorten(found.work.ids, Between(*(min(found.usual * times, 1.0) for times in PACE))),),
        fixes=(FLUSH,),
        confidence=Confidence(Level.MEDIUM, "at the pace of the other products"),
        basis=Basis.RULE_OF_THUMB, site=found.site,
    )  # fmt: skip


EXAMPLES = [
    Fires(  # of 50 ms 10 would be left at the pace of the other product
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm subnormal 10 | aten::mm
        cpu  aten::mm 0-50 shapes=[[100,100],[100,100]] | aten::mm 60-70 shapes=[[100,100],[100,100]]
        """,
        saving_ms=(34, 61),
    ),
    Silent(  # it is as quick as others
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm subnormal 10 | aten::mm
        cpu  aten::mm 0-50 shapes=[[100,100],[100,100]] | aten::mm 50-90 shapes=[[100,100],[100,100]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
