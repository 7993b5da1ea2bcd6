"""The DataLoader is slower than the training.

The training waits for its next batch: its own process makes it (num_workers=0), or worker processes have none ready.

Why it costs
    While the training waits for a batch it launches nothing, and the GPU runs out of work.

How to fix
    Load in worker processes: as many as the time to make a batch over that of a step, rounded up, and at most the cores
    for each GPU. If batches lie ready most times and some are late, set a larger `prefetch_factor`. Without more cores,
    make transforms cheaper, or do them on the GPU. Where workers wait for storage, read from a local disk, from memory,
    or in large shards.

Ignore when
    the loop waits on purpose, as for an environment or a rate limit, or other processes cannot use the data set.

Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://arxiv.org/abs/2007.06775
"""

from diagnose.facts.data.fetches import Fetches, Input, WaitPattern
from diagnose.facts.data.loading import HANDED_OVER_NS, Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step waiting for batches (our choice)
IDLE_SHARE = 0.5  # of the fetching time with an idle GPU: otherwise the GPU has enough queued meanwhile
ANEW = 0.5  # of the batches are the first of an iterator (our choice)
SAMPLED = 0.5  # of the time until a batch is there, from which on its sampler is what takes it (our choice)
SHARED = 0.5  # of what more workers should give: the least, as they share memory, storage and cores (our choice)
WAITS = 0.5  # of the time to make a batch, from which on more workers need no cores (our choice)
DEAR = 0.05  # of the step, from which on batches that no worker can take over are to get cheaper (our choice)
DEAR_NS = 300_000  # of such a batch: one that a worker has made takes as long to hand over at least
WORKERS = Between(1, 4, 8)  # how much faster workers make batches, together: cores permitting
FASTER = Between(1.25, 2.0, 1e6)  # with a quarter more workers, twice as many, or enough of them
CHEAPER = Between(1.0, 2.0, 10.0)  # where no more find cores: with cheaper batches (our choice)
LEFT_OF_ITEMS = Between(1.0, 0.5, 0.1)  # of their time: how much cheaper they can be is not known (our choice)
# Of collation by the script, which default_collate does as one copy for each item (our choice).
LEFT_OF_COLLATION = Between(0.5, 0.1, 0.02)
COMPETING = Confidence(Level.MEDIUM, "workers compete for the cores that train")
NAMED = Confidence(Level.HIGH, "the recorder names the loader that makes batches in process")
IN_PROCESS = "DataLoader loads in the training process (num_workers=0)"
LATE = {
    None: "",
    WaitPattern.PERIODIC: " Every {} batches one is late: each worker is too slow.",
    WaitPattern.HEAVY_TAIL: " Few batches are very late: storage or another pause, rather than too few workers.",
    WaitPattern.UNIFORM: " All batches are late alike.",
}
CLOSER = Fix(
    "Read from nearer storage: copy the data to a local disk or into memory once, or read large shards in order.",
    after="# for instance webdataset: samples in tar files of some 100 MB\n"
    'dataset = wds.WebDataset("/local/train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("pil")',
    effort=2,
    link="https://github.com/webdataset/webdataset",
)
ON_GPU = Fix(
    "Decode and augment on the GPU: workers only read, and the GPU transforms a whole batch at once.",
    before="transforms.Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(mean, std)])",
    after='# in the loop; for JPEG files torchvision.io.decode_jpeg(data, device="cuda"), or NVIDIA DALI\n'
    "augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),\n"
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
    if fetches.in_process is None:
        yield NotApplicable("it is not known who loads")
    elif fetches.in_process:
        yield from in_process(fetches, input_wait, steps.mean_ns, loading)
    else:
        yield from by_workers(fetches, input_wait, steps, loading)


def in_process(fetches: Fetches, wait: Input, step_ns: int, loading: Loading | None) -> Verdicts:
    waited = wait.waited_ns
    quick = loading is not None and loading.fetch_ns <= loading.handed_over_ns
    if loading is not None and (loading.sampling_share or 0.0) > SAMPLED:
        yield NotApplicable("the sampler takes most of that time, and no worker does its work")
    elif fetches.first_share >= ANEW:
        yield NotApplicable("iterators are made again and again: workers would be, too")
    elif waited < max(WORTH_SHARE * step_ns, IDLE_SHARE * wait.host_ns):
        yield Clean(f"the GPU waits {ms(waited)} a step for batches, {percent(waited / step_ns)}")
    elif not quick and find_cores(wait, loading):
        yield without_workers(fetches, wait, loading)
    else:
        assert loading is not None
        yield in_vain(fetches, waited, step_ns, loading, quick)


def in_vain(
    fetches: Fetches, waited: int, step_ns: int, loading: Loading, quick: bool
) -> Finding | Clean | NotApplicable:
    """Where workers hand over no faster than batches are made, or find no cores."""
    if not quick and loading.waiting_share * waited >= WORTH_SHARE * step_ns:
        return batches_that_wait(fetches, waited, loading)
    if waited >= DEAR * step_ns and loading.fetch_ns >= DEAR_NS:
        return expensive_batches(fetches, waited, loading, quick)
    if quick:
        return Clean(f"a batch takes {ms(waited)} a step to make; handing it over takes a worker as long")
    return NotApplicable("the training computes on the cores that workers would need")


def without_workers(fetches: Fetches, wait: Input, loading: Loading | None) -> Finding:
    waited, count = wait.waited_ns, 4 if loading is None else loading.best
    speed = WORKERS if loading is None else Between(max(SHARED * count, 1), count, count)
    who = "The training" if wait.exposed_ns is None else "The GPU"
    return Finding(
        title=IN_PROCESS,
        evidence=(
            Evidence(f"{who} waits {ms(waited)} a step while its own process makes the next batch.", waited, "ns"),
            *loading_evidence(loading),
        ),
        edits=(Move(fetches.ids, speed, HANDED_OVER_NS if loading is None else loading.handed_over_ns),),
        fixes=(*(() if loading is None or loading.hideable else (cheaper_batches(loading),)), in_workers(count)),
        confidence=COMPETING if wait.exposed_ns is None else NAMED,
    )


def by_workers(fetches: Fetches, wait: Input, steps: Steps, loading: Loading | None) -> Verdicts:
    late_ns, worth_ns = fetches.late_ns(wait, steps), WORTH_SHARE * steps.mean_ns
    making_ns = late_ns if loading is None else (1 - loading.handing_share) * late_ns
    if late_ns < worth_ns:
        yield Clean(f"the training waits {ms(late_ns)} a step for batches, {percent(late_ns / steps.mean_ns)}")
    elif loading is not None and loading.loader.empty_share == 0:
        yield Clean(f"a batch is ready at each request: taking it over takes {ms(late_ns)} a step")
    elif making_ns < worth_ns:
        yield Clean(f"workers make batches before they are asked for: of {ms(late_ns)} a step most is handing over")
    elif not find_cores(wait, loading) and loading and loading.lacks_workers and loading.waiting_share < WAITS:
        yield NotApplicable("the training computes on the cores that workers would need")
    elif loading is not None and loading.best <= loading.loader.num_workers and loading.line:
        yield NotApplicable("no more workers find cores, and what takes a batch's time is known")
    else:
        who, waited = "training" if wait.exposed_ns is None else "GPU", round(making_ns)
        what = f"The {who} waits {ms(waited)} a step for batches from worker processes."
        ready_ns = 0 if loading is None else loading.loader.handed_ns or 0
        yield Finding(
            title="DataLoader workers cannot keep up",
            evidence=(
                Evidence(f"{what}{LATE[fetches.pattern].format(fetches.every)}", waited, "ns"),
                *loading_evidence(loading),
                *(() if loading is None else what_takes_it(loading)),
            ),
            edits=(Move(fetches.between, faster(loading), max(fetches.ready_ns, ready_ns)),),
            fixes=(more_workers(8),) if loading is None else more_batches(loading, wait.exposed_ns is not None),
            confidence=Confidence(Level.MEDIUM, "the waits are recorded; how the workers scale is not"),
        )


def find_cores(wait: Input, loading: Loading | None) -> bool:
    """Whether more workers find cores. A training on a GPU leaves some; one on the CPU may not."""
    if wait.exposed_ns is not None:
        return True
    free = None if loading is None else loading.beside_training
    if free is None:
        raise Missing("how many cores a training on the CPU leaves for workers", "Record with diagnose profile.")
    return free


def batches_that_wait(fetches: Fetches, waited_ns: int, loading: Loading) -> Finding:
    """They wait for storage or a network, while the training computes on all cores.

    What waits is hidden whatever the cores do. What computes comes out of the training's time, or half of it where two
    threads share a core well (our choice); handing a batch over takes some time at least.
    """
    waiting_ns, computing = round(loading.waiting_share * loading.fetch_ns), 1 - loading.waiting_share
    least = min(loading.handed_over_ns / loading.fetch_ns, 1.0)
    left = Between(*(max(share, least) for share in (computing, computing, computing / 2)))
    what = f"The training waits {ms(waited_ns)} a step while its own process makes the next batch."
    why = f"Of the {ms(loading.fetch_ns)} to make a batch, {ms(waiting_ns)} wait for storage or a network."
    return Finding(
        title=IN_PROCESS,
        evidence=(Evidence(what, waited_ns, "ns"), Evidence(why, waiting_ns, "ns")),
        edits=(Shorten(fetches.ids, left),),
        fixes=(in_workers(loading.best),),
        confidence=Confidence(Level.MEDIUM, "wall and CPU time of making batches were measured without the profiler"),
    )


def expensive_batches(fetches: Fetches, waited_ns: int, loading: Loading, quick: bool) -> Finding:
    """The training makes them itself, and workers would not make them cheaper."""
    by_hand = loading.most_in == "collate" and loading.loader.collate != "default_collate"
    share = min((loading.loader.collate_ns or 0) / max(loading.fetch_ns, 1), 1.0) if by_hand else 0.0
    left = (LEFT_OF_ITEMS.at(level) * (1 - share) + LEFT_OF_COLLATION.at(level) * share for level in Estimate)
    what = f"Nothing is computed for {ms(waited_ns)} a step while the training process makes the next batch."
    collation = Evidence(f"`{loading.loader.collate}` takes {percent(share)} of that.", share, "share")
    return Finding(
        title="Making batches takes time from computing",
        evidence=(
            Evidence(what, waited_ns, "ns"),
            *((collation,) if share else ()),
            Evidence(
                "Workers would not help: handing one over takes as long as making it."
                if quick
                else "Workers would not help: the training computes on the cores that they would need."
            ),
        ),
        edits=(Shorten(fetches.ids, Between(*left)),),
        fixes=(cheaper_batches(loading),),
        confidence=Confidence(Level.MEDIUM, "torch's own collation copies each item once, without Python")
        if share
        else Confidence(Level.LOW, "how much cheaper batches can be is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


def faster(loading: Loading | None) -> Between:
    """How much so: as more workers there are, or cores for them."""
    if loading is None:
        return FASTER
    present = max(loading.loader.num_workers, 1)
    times, most = loading.best / present, 1e6
    if not loading.hideable:
        times = most = min(times, (loading.cpus or 1) * loading.fetch_ns / (present * loading.cpu_ns))
    if times > 1:
        return Between(1 + SHARED * (times - 1), times, most)
    return FASTER if loading.hideable else CHEAPER


def what_takes_it(loading: Loading) -> tuple[Evidence, ...]:
    """That making a batch waits, or that it computes and there are no cores for that; nothing of what is not known."""
    if loading.waits_for_storage:
        waiting_ns = round(loading.waiting_share * loading.fetch_ns)
        what = f"For {ms(waiting_ns)} of making it a worker waits for storage or a network."
        return (Evidence(what, waiting_ns, "ns"),)
    if loading.computes and not loading.hideable:
        part = {"items": ", mostly to read, decode and transform items", "collate": ", mostly in collation", "": ""}
        what = f"That takes {ms(loading.cpu_ns)} of CPU time{part[loading.most_in]}."
        return (Evidence(what, loading.cpu_ns, "ns"),)
    return ()


def more_batches(loading: Loading, on_gpu: bool) -> tuple[Fix, ...]:
    """What to do where workers do not keep up; `on_gpu`: the training computes on one, which can do what items do."""
    present, ready = loading.loader.num_workers, loading.hideable and loading.lie_ready
    enough = loading.best <= present
    deeper = Fix.of(
        fixes.LoaderArgument("prefetch_factor", 4 * (loading.loader.prefetch_factor or 2)),
        "Keep more batches ready: the workers are fast enough, but some batches are late.",
    )
    compute = not loading.hideable and loading.computes and loading.most_in != "collate"
    helps = (
        (not enough, more_workers(loading.best, present)),
        (enough and ready, deeper),
        (on_gpu and compute, ON_GPU),
        (not loading.hideable or (enough and not ready), cheaper_batches(loading)),
        (loading.waits_for_storage, CLOSER),
    )
    return tuple(fix for does, fix in helps if does)


def in_workers(count: int) -> Fix:
    """Load in so many worker processes, where there are none."""
    do = "Load in worker processes. Random transforms draw other numbers there."
    return Fix.of(fixes.LoaderArgument("num_workers", count), do)


def more_workers(count: int, present: int = 0) -> Fix:
    do = "Raise the number of workers, up to the cores there are for this process."
    now = f"DataLoader(dataset, batch_size, num_workers={present})" if present else None
    return Fix.of(fixes.LoaderArgument("num_workers", count), do, now)


def cheaper_batches(loading: Loading) -> Fix:
    """What to do about loading that no number of workers hides."""
    longest = {
        "items": "Make the data set's items cheaper, or store them as they are used: they take most of a batch's time.",
        "collate": "Make collation cheaper: it takes most of a batch's time.",
        "": "Make batches cheaper: read, decode and copy less for each.",
    }
    return Fix(longest[loading.most_in], effort=2)


EXAMPLES = [
    Fires(  # a batch every 100 ms, of which the GPU computes 40
        """
        5 steps of 100
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(20, 59.5),  # with a quarter more workers, and with enough: a batch every 80 ms, and one always there
    ),
    Fires(  # this process loads
        """
        4 steps of 100
        cpu  load 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(40, 60),
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
    Silent(  # the host loads while the GPU works on what was queued before
        """
        4 steps of 100
        cpu  load 10-60
        gpu  sgemm 0.01-100 @0
        """
    ),
]
