"""Tensors are formatted as text.

`print(loss)`, `f"{scores}"` and `str(tensor)` read and format numbers one by one. An f-string in a log call does so
even if the log level drops the message.

Why it costs
    Each tensor takes dozens to hundreds of small ops, and as many syncs if it is on the GPU.
How to fix
    Print every 100 steps only. Use `loss.item()` for one number, `tolist()` for several. Pass the tensor to the logger:
    `log.debug("%s", scores)` formats it only if the message is written.
Ignore when
    you are debugging.
Sources
    https://docs.python.org/3/howto/logging.html#optimization
"""

from diagnose.facts.host.callees import Texts
from diagnose.facts.run.timed_steps import Slowdown
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on average (our choice)
OFTEN = 0.5  # of the steps (our choice)
ADDED = Between(0.6, 0.4, 0.0)  # of the time recording adds on a CPU, where that is not known: 0.4 to 0.5 was planted
SELDOM = Fix("Print tensors every 100 steps only.", after="if step % 100 == 0: print(loss)")
LAZY = Fix(
    "Pass the tensor to the logger, not a formatted string.",
    after='log.debug("scores %s", scores)',
    link="https://docs.python.org/3/howto/logging.html#optimization",
)


@rule("PA04")
def tensor_printing(texts: Texts, steps: Steps, slowdown: Slowdown | None = None) -> Verdicts:
    share = texts.host_ns / max(steps.mean_ns, 1)
    if share < WORTH_SHARE or texts.steps_seen < OFTEN * steps.count:
        yield Clean(f"formatting tensors as text takes {percent(share)} of the recorded steps")
        return
    many = f"{texts.count} tensor{'s' * (texts.count != 1)}"
    idle = f"; the GPU idles for {ms(texts.idle_ns)} of it" if texts.idle_ns else ""
    inflated = texts.idle_ns is None and not (slowdown is not None and slowdown.by_phase)
    yield Finding(
        evidence=(Evidence(f"Formatting {many} per step takes {ms(texts.host_ns)}{idle}.", texts.host_ns, "ns"),),
        edits=(Shorten(texts.spans.ids, ADDED) if inflated else Remove(texts.spans.ids),),
        fixes=(SELDOM, LAZY),
        confidence=Confidence(Level.HIGH, "the time to format tensors is recorded"),
        basis=Basis.RULE_OF_THUMB if inflated else Basis.REPLAYED,
        site=texts.site,
        host_bound=True,
    )


EXAMPLES = [
    Fires(  # the device waits for 30 of 100 ms
        """
        4 steps of 100
        cpu  aten::mm 0-1 | "Tensor.__repr__ (text)" 40-70 | aten::mm 70-71
        gpu  sgemm 1-40 @0.5 | sgemm 70.5-100 @70.2
        """,
        saving_ms=(30, 30),
    ),
    # for 0.1 ms
    Silent("""
        4 steps of 100
        cpu  aten::mm 0-1 | "Tensor.__repr__ (text)" 40-40.1 | aten::mm 70-71
        gpu  sgemm 1-40 @0.5 | sgemm 70.5-100 @70.2
    """),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-10\ngpu  sgemm 1-40 @0.5", because="tensors"),
]
