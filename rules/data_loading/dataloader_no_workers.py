"""DataLoader loads in the training process (num_workers=0).

With num_workers=0 the thread that feeds the GPU also reads, decodes and collates every batch, launching nothing then.

Why it costs
    Making a batch and computing on the one before it could run side by side; in one process they take turns.

How to fix
    Give the DataLoader worker processes, kept alive between epochs: as many as hide loading (the time to make a batch
    over that of a step), if there are cores for them. Else make batches cheaper.

Ignore when
    the batches lie in memory already and take no time, or the data set cannot be used from other processes.

Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in fetches (our choice)
IDLE_SHARE = 0.5  # of the fetching time with an idle GPU: otherwise the GPU has enough queued meanwhile
WORKERS = Between(1, 4, 8)  # how much faster workers make batches, together: cores permitting
ANEW = 0.5  # of the batches are the first of an iterator (our choice)
SHARED = 0.5  # of what more workers should give: the least, as they share memory, storage and cores (our choice)
COMPETING = Confidence(Level.MEDIUM, "workers compete for the cores that train")
NAMED = Confidence(Level.HIGH, "the recorder names the loader that makes batches in process")


@rule("DL01")
def dataloader_no_workers(
    fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None
) -> Verdicts:
    waited, quick = input_wait.waited_ns, loading is not None and loading.fetch_ns <= handed_over_ns(loading)
    worth_ns = WORTH_SHARE * steps.mean_ns
    if fetches.in_process is not True:
        yield NotApplicable("it has workers" if fetches.in_process is False else "it is not known who loads")
    elif mostly_sampling(loading):
        yield NotApplicable("the sampler takes most of that time, and no worker does its work")
    elif fetches.first_share >= ANEW:
        yield NotApplicable("iterators are made again and again: workers would be, too")
    elif waited < max(worth_ns, IDLE_SHARE * input_wait.host_ns):
        yield Clean(f"the GPU waits {ms(waited)} a step for batches, {percent(waited / steps.mean_ns)}")
    elif quick or (
        not (free := cores_for_workers(input_wait, loading))
        and (loading.waiting_share if loading else 0.0) * waited < worth_ns
    ):
        if expensive(loading, waited, steps.mean_ns):
            yield expensive_batches(fetches, waited, loading)
        elif quick:
            yield Clean(f"a batch takes {ms(waited)} a step to make; handing it over takes a worker as long")
        else:
            yield NotApplicable("the training computes on the cores that workers would need")
    elif not free and loading is not None:
        yield batches_that_wait(fetches, waited, loading)
    else:
        count = 4 if loading is None else loading.best
        speed = WORKERS if loading is None else Between(max(SHARED * count, 1), count, count)
        who = "The training" if input_wait.exposed_ns is None else "The GPU"
        yield Finding(
            evidence=(
                Evidence(f"{who} waits {ms(waited)} a step while its own process makes the next batch.", waited, "ns"),
                *loading_evidence(loading),
            ),
            edits=(Move(fetches.ids, speed, HANDED_OVER_NS if loading is None else handed_over_ns(loading)),),
            fixes=(*(() if loading is None or loading.hideable else (cheaper_batches(loading),)), in_workers(count)),
            confidence=COMPETING if input_wait.exposed_ns is None else NAMED,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  load 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(40, 60),
    ),
    Silent(  # the host loads while the GPU works on what was queued before
        """
        4 steps of 100
        cpu  load 10-60
        gpu  sgemm 0.01-100 @0
        """
    ),
    Silent(  # workers load
        """
        4 steps of 100
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """
    ),
]
