"""Ops of the used steps."""

from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.host.python import Op, ops
from diagnose.synthetic.reading import facts_of


def test_the_host_may_be_ahead_of_the_device() -> None:
    """All is launched before the device begins the first step; of four steps three are used."""
    facts = facts_of("4 steps of 100\ncpu  aten::mm 0-10\ngpu  sgemm 450-540 @5")
    assert (steps(facts).measure, steps(facts).count) == (Measure.DEVICE, 3)
    assert ops(facts) == (Op("aten::mm", calls=3, self_ns=10_000_000),)
