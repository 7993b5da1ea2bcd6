"""Evaluation takes much of the run.

It may also wait for its batches, or take longer each time.

Why it costs
    Nothing trains meanwhile.
How to fix
    Evaluate less often, or on a subset of the data. Keep its workers: `persistent_workers=True`.
Ignore when
    decisions such as early stopping need it as often.
Sources
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from diagnose.facts.watched.log import evaluations, steps_of, total
from diagnose.rulekit.vocabulary import *

from ._growth import growing_pauses


@run_rule("RU04")
def evaluation(log: RunLog) -> Verdicts:
    spent, count = evaluations(log)
    if count >= 2:
        half = int(spent / 2)  # If half of them are made: whether that is enough is for the user to say.
        often = f"{times(count, 'evaluation')} of {ms(spent / count)}, one every {steps_of(log) / count:,.0f} steps"
        said = Evidence(f"{often}: {cost(spent, log)}.", spent, "ns", primary=True)
        told = sentences(said, f"Evaluating half as often would save {long_duration(spent / 2)}.")
        title = f"Evaluation takes {share(spent, log.length_ns)} of the run"
        saving = RunSaving(half, half, half, RunBasis.CHOICE)
        yield RunFinding(title, told, saving, "Evaluate less often, or on a subset of the data.")
    waits = total(log.windows, "evaluation_loader")
    waits = min(waits + sum(one.get("evaluation_loader", 0) for one in (log.start, log.last)), spent)
    change = "Use workers that stay (num_workers, persistent_workers=True), or make batches cheaper."
    clause = f"Evaluation waits for data {share(waits, spent)} of its time"
    yield costs(log, waits, clause, "Evaluation waits for data", change, kind="evaluation_data_wait")
    yield from growing_pauses(log, "evaluation", "growing_evaluation", "Evaluation")


EXAMPLES = [
    Fires("1000 steps of 20, every 100 evaluation 2000", saving_ms=(10_000, 10_000)),
    Silent("1000 steps of 20, every 500 evaluation 200"),
]
