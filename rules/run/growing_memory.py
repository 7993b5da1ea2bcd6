"""Memory keeps growing during the run.

Once caches and pools are full, a process needs no more memory from step to step.

Why it costs
    A process that runs out of memory dies, and the run with it.
How to fix
    Keep no losses with their graph, no outputs and no lists from step to step: `loss.item()`, `.detach()`.
Ignore when
    the growth is meant, as with a cache in memory that will fit.
Sources
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
"""

from diagnose.facts.watched.log import groups
from diagnose.facts.watched.series import GROUPS, LEAST_GROUPS, TOO_FEW, risen
from diagnose.rulekit.vocabulary import *

LEAST_BYTES = 64_000_000  # By so much memory must rise: allocators keep some (our choice).
LEAST_SHARE = 0.05  # The same of what is used (our choice).
SETTLED = 1 / 3  # Share of the run after which memory may grow no more: caches and pools fill until then (our choice).

CHANGE = "Check what the script keeps from step to step: losses with their graph, outputs, lists, caches."
MEMORY = {
    "resident_bytes": "Resident memory",
    "children_resident_bytes": "Resident memory of workers",
    "allocated_bytes": "Allocated GPU memory",
}


@run_rule("RU07")
def growing_memory(log: RunLog) -> Verdicts:
    late = [window for window in log.windows if window.ended_ns > SETTLED * log.length_ns]
    known = {name: [one for one in late if name in one.gauges] for name in MEMORY}
    if all(len(list(groups(some, GROUPS))) < LEAST_GROUPS for some in known.values()):
        short = any(known.values()) or not late
        raise Missing(TOO_FEW.format(LEAST_GROUPS) if short else "this system does not report process memory")
    for name, windows in known.items():
        some = list(groups(windows, GROUPS))
        sizes = [group[-1].gauges[name].last for group in some]
        found, steps = risen(sizes, LEAST_SHARE), sum(window.steps for window in windows)
        if found is None or sizes[-1] - sizes[0] < LEAST_BYTES or not steps:
            continue
        per_step = found.each * (len(some) - 1) / steps
        then = sizes[-1] + per_step * sum(window.steps for window in log.windows)
        rate = 1000 * per_step
        said = f"Over the last two thirds of the run, it rises from {bytes_(sizes[0])} to {bytes_(sizes[-1])}"
        grown = Evidence(f"{said} (+{bytes_(rate)} per 1,000 steps).", rate, "B per 1,000 steps")
        end = f"At this rate, a run twice as long would reach {bytes_(then)}. A process that runs out of memory dies."
        saving = RunSaving(0, 0, 0, RunBasis.NONE)
        yield RunFinding(f"{MEMORY[name]} keeps growing", sentences(grown, end), saving, CHANGE)


EXAMPLES = [
    Fires("1500 steps of 20, memory 1000 to 1300"),
    Silent("1500 steps of 20, memory 1000"),
    CannotTell("1500 steps of 20", because="does not report process memory"),
]
