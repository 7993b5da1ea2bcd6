"""Python's garbage collector stops the training.

Now and then Python looks through all objects for cycles, on the thread that trains, for 10 to 500 ms.

Why it costs
    The thread launches nothing meanwhile. With many ranks each stops at another moment, and all wait for each.

How to fix
    Switch automatic collection off and collect by hand every some hundred steps, on all ranks at once.

Ignore when
    memory of the host grows without automatic collection: then collect more often.

Sources
    https://docs.python.org/3/library/gc.html
    https://github.com/pytorch/torchtitan/pull/148
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
    GarbageCollections,
    Level,
    Missing,
    Shorten,
    Silent,
    Verdicts,
    ms,
    rule,
)  # fmt: skip

LEFT = Between(0.5, 0.1, 0.02)  # of the time, when collecting every some hundred steps instead (our choice)
NOT_RECORDED = Missing(
    "Python's garbage collections",
    "Record with with_stack=True and experimental_config=_ExperimentalConfig(record_python_gc_info=True).",
)


@rule("PA02")
def garbage_collection(garbage_collections: GarbageCollections) -> Verdicts:
    automatic, explicit = garbage_collections.automatic, garbage_collections.explicit
    if not garbage_collections.automatic_recorded and not automatic.total and not explicit.total:
        raise NOT_RECORDED
    if not automatic.total and not explicit.total:
        yield Clean("no garbage was collected in the used steps")
    if automatic.total:
        yield Finding(
            evidence=(
                Evidence(
                    f"Python collected garbage {automatic.total} times: {ms(automatic.host_ns)} a step, the longest"
                    f" {ms(automatic.longest_ns)}.",
                    automatic.host_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(automatic.ids, LEFT),),
            fixes=(
                Fix(
                    "Collect by hand, seldom, and on all ranks at once.",
                    after="gc.disable()  # once, before the loop\nif step % 500 == 0:\n    gc.collect(1)",
                    link="https://docs.python.org/3/library/gc.html",
                    trial="patch:gc.disable",
                ),
            ),
            confidence=Confidence(Level.HIGH, "the collections are recorded"),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )
    if explicit.total:
        yield Finding(
            title="The script collects garbage in every step",
            evidence=(
                Evidence(
                    f"`gc.collect()` was called {explicit.total} times: {ms(explicit.host_ns)} a step.",
                    explicit.host_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(explicit.ids, LEFT),),
            fixes=(Fix("Call `gc.collect()` every some hundred steps, or not at all.", trial="patch:gc.collect"),),
            confidence=Confidence(Level.HIGH, "the calls are recorded"),
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  gc 0-40 | aten::mm 40-41
        gpu  sgemm 40.02-99 @40.01
        """
    ),
    Silent(  # while the GPU has enough to do
        """
        4 steps of 100
        cpu  aten::mm 0-1 | gc 10-40 | sync 50-99.51
        gpu  sgemm 0.02-99.5 @0.01
        """
    ),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 40-41
        gpu  sgemm 40.02-99 @40.01
        """,
        because="record_python_gc_info",
    ),
]
