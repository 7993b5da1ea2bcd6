"""Step-time spikes.

Work that is not done in every step, such as logging, metrics or images, makes some steps long.

Why it costs
    The extra time of a long step, spread over its period, adds to every step.
How to fix
    Do the work less often, on another thread, or on the GPU; on one rank only.
Ignore when
    the work is the point, as in validation, or occurred once: that may be the machine.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://github.com/wandb/wandb/issues/950
"""

from diagnose.facts.run.longer_steps import LongSteps
from diagnose.rulekit.vocabulary import *

LEFT = Between(0.6, 0.2, 0.0)  # of such work: of logging a fifth stays (our choice)
INTENDED = ("valid", "eval")  # in a name: the work is the point, and how often it is needed is not ours to say


@rule("PA03")
def periodic_spikes(long_steps: LongSteps, steps: Steps) -> Verdicts:
    found = [one for one in long_steps.extra if not any(word in one.name.lower() for word in INTENDED)]
    if not found:
        known = (*long_steps.others, *((one.name, one.numbers) for one in long_steps.extra))
        causes = ", ".join(f"{why.replace('_', ' ')} in {len(numbers)}" for why, numbers in known)
        yield Clean(
            f"{long_steps.count} of {steps.count} steps take over 1.5 times the median{causes and f': {causes}'}"
        )
    for one in found:
        seen = f"{'once in' if len(one.numbers) == 1 else f'in {len(one.numbers)} of'} {steps.count} steps"
        often = f"every {one.period} steps" if one.period else seen
        adds = f"{f'`{one.name}`' if one.name else 'Python between ops'} adds {ms(one.ns)}"
        text = f"{adds} to a step of {ms(long_steps.median_ns)} (median), {often}."
        yield Finding(
            evidence=(Evidence(text, one.ns, "ns"),),
            edits=(Shorten(one.ids if len(one.ids) else Times(one.track, one.times), LEFT),),
            fixes=(
                Fix(f"Run `{one.name}` less often, or on another thread.", effort=2)
                if one.name
                else Fix(
                    "Record with stacks, to see which lines run.", after="torch.profiler.profile(with_stack=True)"
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "the spikes recur at equal intervals")
            if one.period and one.name
            else Confidence(
                Level.LOW, f"{'what runs then' if one.period else 'how often the spikes recur'} is not recorded"
            ),
            site=one.site,
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


EXAMPLES = [
    Fires(  # 89 ms of logging, twice in eight steps, of which four to ten tenths can go
        """
        9 steps of 100
        cpu  aten::mm 0-1 not in 4,8 | log_metrics 1-90 in 4,8 | aten::mm 90-91 in 4,8
        gpu  sgemm 0.6-30 @0.5 not in 4,8 | sgemm 90.6-97 @90.5 in 4,8
        """,
        saving_ms=(8.9, 22.25),
    ),
    # every step does it, and it is hidden behind the GPU's work
    Silent("8 steps of 100\ncpu  aten::mm 0-1 | log_metrics 30-90\ngpu  sgemm 0.02-95 @0.01"),
    CannotTell(
        """
        3 steps of 100
        cpu  aten::mm 0-1 | log_metrics 10-90 in 2
        gpu  sgemm 0.02-95 @0.01
        """,
        because="active",
    ),
]
