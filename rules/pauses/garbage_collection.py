"""Garbage collection pauses the training.

Now and then Python searches all objects for reference cycles, on the training thread, for 10 to 500 ms.

Why it costs
    The thread launches nothing in that time. With many ranks each pauses at another moment, and all wait for each.
How to fix
    Disable automatic collection, and call `gc.collect()` every few hundred steps, on all ranks in the same step. Call
    `gc.freeze()` after setup to exclude objects that live for the whole run.
Ignore when
    CPU memory grows without automatic collection: then collect more often.
Sources
    https://docs.python.org/3/library/gc.html
    https://github.com/pytorch/torchtitan/pull/148
    https://github.com/huggingface/peft/pull/2894
"""

from diagnose.facts.run.pauses import Silences
from diagnose.facts.run.step_table import HOW_COLLECTIONS, GarbageCollections
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.005  # of the step in collections (our choice)
LONGEST_NS = 1_000_000  # shorter ones are of the youngest objects, and no pause (our choice)
OFTEN = 0.5  # collections a step that the script asks for: rarer ones may be the remedy (our choice)
DEAR_SHARE = 0.05  # of the step, from which on they are not, if steps without the profiler show them again (our choice)
LEFT = Between(0.5, 0.1, 0.02)  # of the time, when collecting every some hundred steps instead (our choice)
LEFT_BY_HAND = Between(0.3, 0.002, 0.0)  # of what the script asks for: the fix makes one call of 500

BY_HAND = Fix.of(fixes.CollectByHand())
NOT_IN_STEPS = Fix.of(fixes.SeldomCollect())


@rule("PA02")
def garbage_collection(
    steps: Steps,
    garbage_collections: GarbageCollections | None = None,
    silences: Silences | None = None,
    manifest: RankManifest | None = None,
) -> Verdicts:
    found = garbage_collections
    if found is None or not (found.automatic_recorded or found.explicit.total):
        maybe = f" (perhaps some of {silences.total} long CPU pauses)" if silences and silences.total else ""
        raise Missing(f"garbage collections{maybe}", HOW_COLLECTIONS)
    least_ns, asked = WORTH_SHARE * steps.mean_ns, found.explicit
    both = [one for one in (found.automatic, asked) if one.host_ns >= least_ns and one.longest_ns >= LONGEST_NS]
    expensive = asked.host_ns >= DEAR_SHARE * steps.mean_ns and seen_again(manifest, asked.longest_ns)[0] > 1
    worth = [one for one in both if one is found.automatic or asked.total >= OFTEN * steps.count or expensive]
    if not worth:
        taken = (found.automatic.host_ns + found.explicit.host_ns) / max(steps.mean_ns, 1)
        once = f"; {len(found.once_ids)} long ones did not recur without the profiler" * (len(found.once_ids) > 0)
        yield Clean(f"collections take {percent(taken)} of the steps, or are rare calls of the script{once}")
    for one in worth:
        who = "Python collects garbage" if one is found.automatic else "The script calls `gc.collect()`"
        often = f"{one.total} times in {steps.count} steps: {ms(one.host_ns)}/step, up to {ms(one.longest_ns)} each"
        yield Finding(
            title="" if one is found.automatic else "The script calls gc.collect() in its steps",
            evidence=(Evidence(f"{who} {often}.", one.host_ns, "ns"),),
            edits=(Shorten(one.ids, LEFT if one is found.automatic else LEFT_BY_HAND),),
            fixes=(BY_HAND if one is found.automatic else NOT_IN_STEPS,),
            confidence=Confidence(Level.HIGH, "each collection is recorded"),
            site=one.site,
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


EXAMPLES = [
    # 39.5 of 40 ms keep the GPU waiting
    Fires("4 steps of 100\ncpu  gc 0-40 | aten::mm 40-41\ngpu  sgemm 40.02-99.5 @40.01", saving_ms=(20, 39.2)),
    # while the GPU has enough to do
    Silent("4 steps of 100\ncpu  aten::mm 0-1 | gc 10-40 | sync 50-99.51\ngpu  sgemm 0.02-99.5 @0.01"),
    # by hand and seldom: that is the remedy
    Silent("""
        8 steps of 100
        cpu  aten::mm 0-1 | "<built-in function collect>" 40-99 in 4 | gc 40-98 in 4
        gpu  sgemm 0.02-40 @0.01 in 4 | sgemm 0.02-99 @0.01 not in 4
    """),
    CannotTell("4 steps of 100\ncpu  aten::mm 40-41\ngpu  sgemm 40.02-99 @40.01", because="record_python_gc_info"),
]
