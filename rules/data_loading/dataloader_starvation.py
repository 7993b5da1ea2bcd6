"""The DataLoader is slower than the training.

The training process loads its own batches (num_workers=0), or worker processes have none ready.

Why it costs
    While the training waits for a batch it launches nothing, and the GPU runs out of work.
How to fix
    Use workers: the time to load a batch over the step time, rounded up, at most the cores per GPU. If batches are
    mostly ready and a few are late, raise `prefetch_factor`. Without free cores, make transforms cheaper or run them on
    the GPU. If workers wait for storage, read from a local disk, from memory or in large shards.
Ignore when
    the loop waits on purpose, as for an environment or a rate limit, or other processes cannot use the dataset. Random
    transforms get other seeds in workers.
Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://arxiv.org/abs/2007.06775
"""

from diagnose.facts.data.fetches import Fetches, Input
from diagnose.facts.data.loading import Loading
from diagnose.facts.data.throughput import Bound
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step waiting for batches (our choice)
IDLE_SHARE = 0.5  # of the fetching time with an idle GPU: otherwise the GPU has enough queued meanwhile
ANEW = 0.5  # of the batches are the first of an iterator (our choice)
SAMPLED = 0.5  # of the time until a batch is there, from which on its sampler is what takes it (our choice)
DEAR = 0.05  # of the step, from which on batches that no worker can take over are to get cheaper (our choice)
DEAR_NS = 300_000  # of such a batch: one that a worker has made takes as long to hand over at least
UNKNOWN = 4  # workers are there, where waits have no period that says how many (our choice)
MORE = Between(1.25, 2.0, 2.0)  # times as fast as now, with twice as many workers
IN_PROCESS = "DataLoader loads in the training process (num_workers=0)"
KEEP_UP = "DataLoader workers cannot keep up"
CLOSER = Fix(
    "Copy the data to a local disk or into memory once, or read large shards sequentially.",
    after="# e.g. webdataset, with tar shards of about 100 MB\n"
    'dataset = wds.WebDataset("/local/train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("pil")',
    effort=2,
    link="https://github.com/webdataset/webdataset",
)
ON_GPU = Fix(
    "Decode (torchvision.io.decode_jpeg, NVIDIA DALI) and augment whole batches on the GPU; workers only read.",
    before="transforms.Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(mean, std)])",
    after="augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),\n"
    "    v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])\n"
    'images = augment(images.to("cuda", non_blocking=True))',
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/vision/stable/transforms.html",
)


@rule("DL02")
def dataloader_starvation(
    fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None
) -> Verdicts:
    wait, here, step_ns = input_wait, fetches.in_process, steps.mean_ns
    late_ns = wait.waited_ns if here else fetches.late_ns(wait, steps)
    if verdict := no_wait(fetches, wait, step_ns, late_ns) or (loading and ready(fetches, step_ns, late_ns, loading)):
        yield verdict
    elif wait.exposed_ns is None and (loading is None or loading.model.cores is None):
        raise Missing("how many cores the training leaves for workers", "Record with diagnose profile.")
    elif loading is None:
        yield of_unknown_workers(fetches, wait, late_ns)
    elif loading.workers_help:
        yield more_workers(fetches, wait, late_ns, loading)
    elif loading.function:
        yield NotApplicable("more workers would not help; one function dominates batch loading")
    elif here and (late_ns < DEAR * step_ns or loading.fetch_ns < DEAR_NS):
        yield Clean(f"loading takes {ms(late_ns)}/step, and workers would not hide it")
    else:
        yield cheaper(fetches, wait, late_ns, loading)


def no_wait(fetches: Fetches, wait: Input, step_ns: int, late_ns: int) -> Clean | NotApplicable | None:
    if (here := fetches.in_process) is None:
        return NotApplicable("not recorded: whether workers or the main process load")
    if here and fetches.first_share >= ANEW:
        return NotApplicable("iterators restart for half of the batches or more: workers would, too")
    if late_ns < max(WORTH_SHARE * step_ns, IDLE_SHARE * wait.host_ns if here else 0):
        return Clean(f"the training waits {ms(late_ns)}/step for batches, {percent(late_ns / step_ns)}")
    return None


def ready(fetches: Fetches, step_ns: int, late_ns: int, loading: Loading) -> Clean | NotApplicable | None:
    """Where it is not making batches that takes the time."""
    if fetches.in_process and (loading.sampling_share or 0.0) > SAMPLED:
        return NotApplicable("the sampler takes most of the wait, and workers cannot take it over")
    if loading.loader.empty_share == 0:
        return Clean(f"a batch is ready at each request; its transfer takes {ms(late_ns)}/step")
    if not fetches.in_process and (1 - loading.handing_share) * late_ns < WORTH_SHARE * step_ns:
        return Clean(f"workers finish batches in time; most of the {ms(late_ns)}/step wait is worker-to-main transfer")
    return None


def waiting(fetches: Fetches, wait: Input, late_ns: int, loading: Loading | None = None) -> Evidence:
    who = "training" if wait.exposed_ns is None else "GPU"
    late = f". One batch in {fetches.every} is late: each worker is too slow." if fetches.every else "."
    workers = 0 if loading is None else loading.model.workers
    what = f"for batches from {workers or ''} worker{'s' * (workers != 1)}".replace("  ", " ")
    if fetches.in_process:
        line, share = (loading and loading.function) or (None, 0.0)
        what = "while the main process loads the next batch"
        late = f"; `{line.function or line.calls}` takes {percent(share)} of loading." if line else "."
    return Evidence(f"The {who} waits {ms(late_ns)}/step {what}{late}", late_ns, "ns")


def of_unknown_workers(fetches: Fetches, wait: Input, late_ns: int) -> Finding:
    """What a batch takes is not recorded. They set the pace: twice as many make a batch in half the time."""
    return Finding(
        title=KEEP_UP,
        evidence=(waiting(fetches, wait, late_ns),),
        edits=(Move(fetches.between, MORE, fetches.ready_ns),),
        fixes=(set_workers(2 * (fetches.every or UNKNOWN), fetches.every),),
        phase="loader",
        confidence=Confidence(Level.MEDIUM, "the waits are recorded; the time to load a batch is not"),
    )


def more_workers(fetches: Fetches, wait: Input, late_ns: int, loading: Loading) -> Finding:
    here, count, present = fetches.in_process, loading.workers, loading.model.workers
    ids, speeds = fetches.ids if here else fetches.between, Between(*loading.faster(count))
    line = loading.function[0] if here and loading.function else None
    return Finding(
        title=IN_PROCESS if here else KEEP_UP,
        evidence=(waiting(fetches, wait, late_ns, loading), *loading_evidence(loading), *parts_evidence(loading)),
        edits=(Move(ids, speeds, Between(*loading.ready_ns(count))),),
        fixes=(
            set_workers(count, present),
            *((cheaper_batches(loading),) if loading.model.bound(count) is not Bound.TRAINING else ()),
            *((CLOSER,) if loading.waits and not here else ()),
        ),
        confidence=confidence(wait, loading),
        site=Site(line.file, line.line, line.function) if line and line.file else None,
        phase="loader",
        basis=Basis.REPLAYED if here or loading.explained else Basis.BOUNDED,
    )


def confidence(wait: Input, loading: Loading) -> Confidence:
    if loading.model.workers and not loading.explained:
        return Confidence(Level.HIGH, "the cause is recorded; the amount is uncertain, as the steps vary")
    if not loading.split_known and (wait.exposed_ns is None or loading.model.workers):
        return Confidence(Level.MEDIUM, "loading time is recorded; how much of it needs a core is not")
    if wait.exposed_ns is None:
        return Confidence(Level.MEDIUM, "workers and training compete for cores")
    return Confidence(Level.HIGH, "loading time is recorded, and the GPU leaves cores for workers")


def cheaper(fetches: Fetches, wait: Input, late_ns: int, loading: Loading) -> Finding:
    """More workers gain nothing: what is left is to make a batch cheaper, or to have more of them ready."""
    model, one = loading.model, loading.loader
    here, count = fetches.in_process, model.workers
    share, gone = loading.collating_share, avoidable(loading)
    if here:
        edit: Edit = Shorten(fetches.ids, Between(*(1 - part for part in gone)))
    elif model.bound(count) is Bound.TRAINING:  # By the model no batch is late.
        edit = Move(fetches.between, Between(*(1 / (1 - part) for part in gone)), fetches.ready_ns)
    else:
        speeds = (loading.faster(count, part)[level] for level, part in enumerate(gone))
        edit = Move(fetches.between, Between(*speeds), Between(*loading.ready_ns(count)))
    crowded = model.bound(max(count, 1)) is not Bound.TRAINING
    fixes_of: tuple[Fix, ...] = (cheaper_batches(loading),)
    if not here and not crowded and loading.lie_ready:
        more = fixes.LoaderArgument("prefetch_factor", 4 * model.prefetch)
        fixes_of = (Fix.of(more, "Prefetch more: the workers are fast enough, but some batches are late."),)
    elif crowded and wait.exposed_ns is not None and loading.most_in != "collate":
        fixes_of = (ON_GPU, *fixes_of)
    collation = Evidence(f"`{one.collate}` takes {percent(share)} of loading a batch.", share, "share")
    why = "the training needs the cores" if crowded else "transferring a batch takes as long as loading it"
    return Finding(
        title="Batch loading stalls the training process" if here else KEEP_UP,
        evidence=(
            waiting(fetches, wait, late_ns, loading),
            *loading_evidence(loading),
            *((collation,) if share else ()),
            *((Evidence(f"Workers would hide {percent(loading.hidden_share)} of loading: {why}."),) if here else ()),
        ),
        edits=(edit,),
        fixes=(*fixes_of, *((CLOSER,) if loading.waits and not here else ())),
        confidence=Confidence(Level.MEDIUM, "default_collate copies each item once, without Python")
        if share
        else Confidence(Level.LOW, "how much cheaper batches can get is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=bool(here),
        phase="loader",
    )


EXAMPLES = [
    Fires(  # a batch every 100 ms, of which the GPU computes 40
        """
        5 steps of 100
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(20, 50),  # with twice as many workers a batch comes every 80 ms, or every 50
    ),
    # this process loads
    Fires("4 steps of 100\ncpu  load 0-60\ngpu  sgemm 60.01-100 @60", saving_ms=(59, 59)),
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
        saving_ms=(59.5, 59.5),
    ),
    Silent("5 steps of 100\ncpu  next 0-0.4 | sync 1-99.51\ngpu  sgemm 0.51-99.5 @0.5"),
    # the host loads while the GPU works on what was queued before
    Silent("4 steps of 100\ncpu  load 10-60\ngpu  sgemm 0.01-100 @0"),
]
