"""The sampler keeps the step waiting.

Before a batch is made, a sampler says which items are in it. It may sort or weigh all items for that, each time anew.

Why it costs
    It runs in the training process, whether there are workers or not: so they cannot hide it.

How to fix
    Decide on the order of an epoch once, where its iterator begins, and hand out pieces of it. Sort and weigh with
    torch or numpy, on whole tensors.

Ignore when
    what comes next depends on what the training found out in the last step.

Sources
    https://docs.pytorch.org/docs/stable/data.html#data-loading-order-and-sampler
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in which the sampler keeps it waiting (our choice)
ANEW = 0.5  # of the batches are the first of an iterator (our choice)
LEFT = Between(1.0, 0.1, 0.0)  # of its time: what it does is not recorded (our choice)
ONCE = Fix(
    "Decide on the order of an epoch once.",
    before="for begin in range(0, count, size): yield self.order()[begin : begin + size]",
    after="order = self.order()\nfor begin in range(0, count, size): yield order[begin : begin + size]",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#data-loading-order-and-sampler",
)


@rule("DL09")
def slow_sampler(fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None) -> Verdicts:
    if fetches.first_share >= ANEW:
        yield NotApplicable("iterators are made again and again, each with an order of its own")
        return
    if loading is None or loading.sampling_share is None:
        raise Missing("what a sampler takes", "Record with diagnose profile, num_workers=0 and pin_memory=False.")
    share, waited_ns = loading.sampling_share, input_wait.waited_ns
    lost_ns = round(share * waited_ns)
    if lost_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"the sampler takes {ms(lost_ns)} a step, {percent(lost_ns / max(steps.mean_ns, 1))}")
        return
    sampler, begins = loading.loader.sampler or "The sampler", loading.loader.sampler_at
    yield Finding(
        evidence=(
            Evidence(
                f"{sampler} takes {percent(share)} of the {ms(waited_ns)} a step until a batch is there:"
                f" {ms(lost_ns)}. Making it takes {ms(loading.fetch_ns)}.",
                lost_ns,
                "ns",
            ),
        ),
        edits=(Shorten(fetches.ids, LEFT.of_share(share)),),
        fixes=(ONCE,),
        confidence=Confidence(Level.MEDIUM, "both were timed; whether its order can be known before is not"),
        site=None if begins is None else Site(begins.file, begins.line, begins.function),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


EXAMPLES = [
    Fires(  # 40 of 80 ms, of which likely a tenth is left
        """
        4 steps of 100
        batches made in 5 of 10
        cpu  load 0-80 | aten::mm 80-81
        gpu  sgemm 80.01-99.99 @80
        """,
        saving_ms=(0, 40),
    ),
    Silent(  # making it takes all of the time
        """
        4 steps of 100
        batches made in 9.9 of 10
        cpu  load 0-80 | aten::mm 80-81
        gpu  sgemm 80.01-99.99 @80
        """
    ),
    CannotTell(
        "4 steps of 100\ncpu  load 0-80 | aten::mm 80-81\ngpu  sgemm 80.01-99.99 @80", because="diagnose profile"
    ),
]
