"""Subnormal numbers slow the CPU down.

Powers of decays, weights that fade, states that die out: below 1.2e-38 a number of single precision is subnormal. It
changes nothing, but an x86 CPU takes some hundred cycles for it, where it takes a fraction of one for others.

How to fix
    Have the CPU take them for zero.

Ignore when
    results depend on numbers below 1e-38.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "KE10",
    Cause.SUBNORMAL_NUMBERS,
    says="Products take subnormal numbers, up to {detail} of their elements, {times} a step, and are slower than others"
    " of as many multiplications",
    fixes=(Fix.of(fixes.FlushDenormal()),),
    slower=(1.6, 1.0, 0.7),  # Products of other shapes have another pace (our choice).
    confidence=Confidence(Level.MEDIUM, "at the pace of the other products"),
    basis=Basis.RULE_OF_THUMB,
)

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
]
