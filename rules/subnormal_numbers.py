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

from diagnose.rule import (
    Basis,
    Between,
    CannotTell,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    Safety,
    Shorten,
    Silent,
    Steps,
    SubnormalProducts,
    Verdicts,
    ms,
    percent,
    rule,
)  # fmt: skip

WORTH_SHARE = 0.02  # of the step (our choice)
LEAST = 1  # thousandth of the numbers (our choice)
# A product took 1 + this many times its share of subnormal numbers as long as without: 14 products of matrices in three
# recordings, a half between 230 and 290 (torch 2.13, one core of a Xeon).
TIMES = (170, 260, 360)
FLUSH = Fix(
    "Have the CPU take them for zero.", before="model = Retention()",
    after="torch.set_flush_denormal(True)\nmodel = Retention()", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
)  # fmt: skip


@rule("KE10")
def slow_numbers(subnormal_products: tuple[SubnormalProducts, ...], steps: Steps) -> Verdicts:
    found = [one for one in subnormal_products if one.thousandths >= LEAST]
    total_ns = sum(one.work.longest_ns for one in found)
    if total_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"products with subnormal numbers take {percent(total_ns / max(steps.mean_ns, 1))} of the step")
        return
    most = max(one.thousandths for one in found) / 1000
    yield Finding(
        evidence=(
            Evidence(
                f"{sum(one.times for one in found)} products a step take subnormal numbers, up to {percent(most)} of"
                f" what they take; together {ms(total_ns)} a step.",
                total_ns, "ns",
            ),
        ),
        edits=tuple(Shorten(one.work.ids, _left(one.thousandths / 1000)) for one in found),
        fixes=(FLUSH,),
        confidence=Confidence(Level.MEDIUM, "how much slower such numbers are was measured on one kind of CPU"),
        basis=Basis.RULE_OF_THUMB, site=found[0].site,
    )  # fmt: skip


def _left(share: float) -> Between:
    """Of the time."""
    return Between(*(1 / (1 + times * share) for times in TIMES))


EXAMPLES = [
    Fires(  # of 60 ms 16.7 are left
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm subnormal 10 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
        """,
        saving_ms=(37.8, 67.6),
    ),
    Silent(
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::mul subnormal 10
        cpu  aten::mm 0-60 | aten::mul 70-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
