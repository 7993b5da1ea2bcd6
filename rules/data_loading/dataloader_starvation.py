"""DataLoader workers cannot keep up.

Worker processes load the batches, and still none is ready when the training asks for it.

Why it costs
    While the training waits for a batch it launches nothing, and the GPU runs out of work.

How to fix
    Use more workers: the time to load one batch over the step time, rounded up, and at most the cores for each GPU.
    If batches lie ready most times and some are late, set a larger `prefetch_factor`. Without more cores, make
    transforms cheaper, or do them on the GPU. Where workers wait for storage, read from a local disk, from memory, or
    in large shards.

Ignore when
    the loop waits on purpose, as for an environment or a rate limit.

Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://arxiv.org/abs/2007.06775
"""

from diagnose.facts.data.fetches import Fetches, WaitPattern
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step waiting for batches (our choice)
FASTER = Between(1.25, 2.0, 1e6)  # with a quarter more workers, twice as many, or enough of them
CHEAPER = Between(1.0, 2.0, 10.0)  # where no more find cores: with cheaper batches (our choice)
WAITS = 0.5  # of the time to make a batch, from which on more workers need no cores (our choice)
SHARED = 0.5  # we assume at least half of the ideal speed-up, as workers share memory, storage and cores (our choice)


@rule("DL02")
def dataloader_starvation(
    fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None
) -> Verdicts:
    waited = input_wait.waited_ns
    waited -= fetches.waiting_at_turns_ns // steps.count  # Of new workers, which is dataloader_worker_restart's.
    handing = 0.0 if loading is None else loading.handing_share  # That is dataloader_handover's.
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
    elif waited < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"the training waits {ms(waited)} a step for batches, {percent(waited / steps.mean_ns)}")
    elif loading is not None and loading.loader.empty_share == 0:
        yield Clean(f"a batch is ready at each request: taking it over takes {ms(waited)} a step")
    elif (1 - handing) * waited < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"workers make batches before they are asked for: of {ms(waited)} a step most is handing them over")
    elif not cores_for_workers(input_wait, loading) and more_compute(loading):
        yield NotApplicable("the training computes on the cores that workers would need")
    elif loading is not None and loading.best <= loading.loader.num_workers and items_line(loading):
        yield NotApplicable("no more workers find cores, and what takes a batch's time is known")
    else:
        waited = round((1 - handing) * waited)
        why = {
            WaitPattern.PERIODIC: f"Every {fetches.every} batches one is late: each worker is too slow.",
            WaitPattern.HEAVY_TAIL: "Few batches are very late: storage or another pause, rather than too few workers.",
            WaitPattern.UNIFORM: "All batches are late alike.",
        }
        who = "training" if input_wait.exposed_ns is None else "GPU"
        how = why[fetches.pattern] if fetches.pattern else ""
        what = f"The {who} waits {ms(waited)} a step for batches from worker processes. {how}"
        yield Finding(
            evidence=(Evidence(what.strip(), waited, "ns"), *loading_evidence(loading), *what_takes_it(loading)),
            edits=(Move(fetches.ids[~(fetches.first | fetches.last)], faster(loading), ready_ns(fetches, loading)),),
            fixes=tuple(more_batches(loading, on_gpu=input_wait.exposed_ns is not None)),
            confidence=Confidence(Level.MEDIUM, "the waits are recorded; how the workers scale is not"),
        )


def more_compute(loading: Loading | None) -> bool:
    """Whether it takes more workers, which compute."""
    return loading is None or (loading.workers > loading.loader.num_workers and loading.waiting_share < WAITS)


def faster(loading: Loading | None) -> Between:
    """How much so: as more workers there are, or cores for them."""
    if loading is None:
        return FASTER
    present = max(loading.loader.num_workers, 1)
    times = loading.best / present
    if loading.hideable:
        return Between(1 + SHARED * (times - 1), times, 1e6) if times > 1 else FASTER
    bound = (loading.cpus or 1) * loading.fetch_ns / (present * loading.cpu_ns)
    times = min(times, bound)
    return Between(1 + SHARED * (times - 1), times, times) if times > 1 else CHEAPER


def ready_ns(fetches: Fetches, loading: Loading | None) -> int:
    """What a batch that a worker has made still takes."""
    return max(fetches.ready_ns, (loading.loader.handed_ns or 0) if loading else 0)


EXAMPLES = [
    Fires(  # a batch every 100 ms, of which the GPU computes 40
        """
        5 steps of 100
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(20, 59.5),  # with a quarter more workers, and with enough: a batch every 80 ms, and one always there
    ),
    Fires(  # decoding keeps both cores busy: batches have to get cheaper
        """
        5 steps of 100
        1 threads, 2 cores
        batches made in 200 of 60, computing 190, by 2 workers
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(0, 59.5),
    ),
    Fires(  # two workers wait for storage, and 14 cores have nothing to do: five would keep up
        """
        5 steps of 100
        1 threads, 16 cores
        batches made in 200 of 60, computing 20, by 2 workers
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(42.9, 59.5),  # with 1.75 times as many a batch every 57 ms
    ),
    Silent(
        """
        5 steps of 100
        cpu  next 0-0.4 | sync 1-99.51
        gpu  sgemm 0.51-99.5 @0.5
        """
    ),
    Silent("5 steps of 100\ncpu  load 0-60\ngpu  sgemm 60.01-100 @60"),  # this process loads
]
