"""One part of data loading dominates the wait for batches.

A function of the dataset or of `collate_fn`, the transfer from worker to main process, or the sampler takes most of
the time.

Why it costs
    The function runs once per item, often with the same result. Each tensor of a batch needs its own descriptor, and
    other objects are pickled one by one. The sampler runs in the main process, so no worker can hide it.
How to fix
    Read files once, when the dataset is created, or map them (`np.load(path, mmap_mode="r")`). Cache what repeats.
    Return a few large tensors from `collate_fn`, not NumPy arrays or many small tensors. Use `num_workers=0` where the
    transfer takes longer than loading. Compute the order of an epoch once, with whole-tensor ops.
Ignore when
    the function depends on the item, or the sampler on the results of the last step.
Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    https://docs.pytorch.org/docs/stable/data.html#data-loading-order-and-sampler
    https://numpy.org/doc/stable/reference/generated/numpy.load.html
    https://github.com/pytorch/pytorch/issues/123439
    https://github.com/torchmd/torchmd-net/pull/235
"""

from diagnose.facts.data.fetches import Fetches, Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step waiting for it (our choice)
ANEW = 0.5  # of the batches are the first of an iterator (our choice)
FEW = 8  # tensors that a batch may have after all (our choice)
MANY_OBJECTS, LARGE_BYTES = 1_000, 1_000_000  # a batch that has less of both is as small as batches are (our choice)
READY_NS = 500_000  # what a batch with few tensors takes: 0.3 to 1 ms measured
LEFT = (1.0, 0.5, 0.0)  # of what a function takes: half of it likely goes, at best all (our choice)
LEFT_OF_READING = (0.5, 0.1, 0.02)  # what is read once, or mapped, is read no more for each item (our choice)
LEFT_OF_COLLATION = (0.5, 0.1, 0.02)  # of the script's, which default_collate does as one copy an item (our choice)
LEFT_OF_HANDING = Between(1.0, 0.5, 0.1)  # of what has few tensors: how much can go is not known (our choice)
LEFT_OF_SAMPLING = Between(1.0, 0.1, 0.0)  # of the sampler: what it does is not recorded (our choice)
# Arrays of 8, 35 and 100 MB took 134, 706 and 4,298 ms to hand over, as tensors 84, 189 and 505 ms (two busy cores).
AS_TENSORS = Between(0.63, 0.27, 0.12)
READS = ("load", "open", "read", "imread", "File", "parse")  # how names of readers begin
CHEAPER = Fix(
    "Do this once, before training, and store the preprocessed items; cache what repeats.",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html",
)
STACKED = Fix(
    "Stack tensors in `collate_fn` instead of converting them to lists and back.",
    after="torch.stack([item[name] for item in items])",
    link="https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn",
)
STACK = Fix(
    "Concatenate small tensors in `collate_fn`, so that a batch has a few large ones.",
    before="return images, [item.boxes for item in items]  # hundreds of tensors",
    after="return images, torch.cat([item.boxes for item in items]), torch.tensor([len(item.boxes) for item in items])",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn",
)
TENSORS = Fix(
    "Return tensors from the worker, not NumPy arrays: tensors use shared memory, arrays a pipe.",
    before="return np.stack(images), np.array(labels)",
    after="return torch.from_numpy(np.stack(images)), torch.tensor(labels)",
    link="https://docs.pytorch.org/docs/stable/multiprocessing.html",
)
FEWER = Fix(
    "Return less from `collate_fn`: drop unused fields, and use smaller dtypes.",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn",
)
ONCE = Fix(
    "Compute the order of an epoch once.",
    before="for begin in range(0, count, size): yield self.order()[begin : begin + size]",
    after="order = self.order()\nfor begin in range(0, count, size): yield order[begin : begin + size]",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#data-loading-order-and-sampler",
)


@rule("DL11")
def dataloader_items(fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None) -> Verdicts:
    if fetches.in_process is not False:
        yield sampler(fetches, input_wait, steps, loading)
        if fetches.in_process and loading is not None and loading.loader.lines:
            yield items(fetches, steps, loading, round((1 - (loading.sampling_share or 0.0)) * input_wait.waited_ns))
        return
    one = None if loading is None else loading.loader
    if loading is None or one is None or not (one.lines or (one.handing_share is not None and one.handed_ns)):
        raise Missing(
            "when each worker finished its batch, and where it spent its time", "Record with diagnose profile."
        )
    late_ns = fetches.late_ns(input_wait, steps)
    if loading.sampling_share is not None:
        yield sampler(fetches, input_wait, steps, loading)
        late_ns = round(late_ns * (1 - loading.sampling_share))
    if one.handing_share is not None and one.handed_ns:
        yield handover(fetches, steps, loading, one.handed_ns, round(loading.handing_share * late_ns))
    if one.lines:
        yield items(fetches, steps, loading, round((1 - loading.handing_share) * late_ns))


def sampler(fetches: Fetches, wait: Input, steps: Steps, loading: Loading | None) -> Finding | Clean | NotApplicable:
    if fetches.first_share >= ANEW:
        return NotApplicable("iterators restart for half of the batches or more, each with an order of its own")
    if loading is None or loading.sampling_share is None:
        raise Missing("the sampler's time", "Record with this version of diagnose profile.")
    share, waited_ns = loading.sampling_share, wait.waited_ns
    lost_ns = round(share * waited_ns)
    if lost_ns < WORTH_SHARE * steps.mean_ns:
        return Clean(f"the sampler takes {ms(lost_ns)}/step, {percent(lost_ns / max(steps.mean_ns, 1))}")
    own, begins = loading.loader.sampler, loading.loader.sampler_at
    name = f"`{own}`" if own else "The sampler"
    takes = f"{name} takes {ms(lost_ns)}/step, {percent(share)} of the {ms(waited_ns)} wait for batches"
    return Finding(
        title="The sampler delays batches",
        evidence=(Evidence(f"{takes}; loading a batch takes {ms(loading.fetch_ns)}.", lost_ns, "ns"),),
        edits=(
            Shorten(fetches.between, LEFT_OF_SAMPLING.of_share(lost_ns / steps.mean_ns))  # a whole period gets shorter
            if fetches.in_process is False
            else Shorten(fetches.ids, LEFT_OF_SAMPLING.of_share(share)),
        ),
        fixes=(ONCE,),
        confidence=Confidence(Level.MEDIUM, "whether the order can be computed in advance is not recorded"),
        site=None if begins is None else begins.site,
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


def items(fetches: Fetches, steps: Steps, loading: Loading, waited_ns: int) -> Finding | Clean | NotApplicable:
    here = bool(fetches.in_process)
    if waited_ns < WORTH_SHARE * steps.mean_ns or loading.loader.empty_share == 0:
        return Clean(f"the training waits {ms(waited_ns)}/step for batches to be loaded")
    if loading.function is None:
        return Clean("no single function dominates batch loading")
    line, share = loading.function
    reads = line.calls.rpartition(".")[2].startswith(READS)
    if here and loading.waits and not reads:
        return NotApplicable("making a batch mostly waits: workers hide that (DL02)")
    by_hand = here and loading.collating_share >= share
    share, left = (line.share, LEFT_OF_READING) if reads else (share, LEFT)
    share, left = (loading.collating_share, LEFT_OF_COLLATION) if by_hand else (share, left)
    name = line.calls if reads or not line.function else line.function
    if here:
        edit: Edit = Shorten(fetches.ids, Between(*left).of_share(share * (1 - (loading.sampling_share or 0.0))))
    else:
        speeds = (loading.faster(loading.model.workers, share * (1 - one))[level] for level, one in enumerate(left))
        edit = Move(fetches.between, Between(*speeds), fetches.ready_ns)
    where = "in the training process" if here else "in workers"
    return Finding(
        title=f"`{name}` dominates batch loading {where}",
        evidence=(
            Evidence(f"{function_said(loading)}.", share, "share"),
            Evidence(f"The training waits {ms(waited_ns)}/step for batches.", waited_ns, "ns"),
            *loading_evidence(loading),
            *parts_evidence(loading)[:-1],
        ),
        edits=(edit,),
        fixes=(read_once(line.calls) if reads else STACKED if by_hand else CHEAPER,),
        confidence=Confidence(Level.MEDIUM, f"{loading.loader.sampled} batches were sampled")
        if reads or by_hand
        else Confidence(Level.LOW, "how much cheaper the function can get is not recorded"),
        site=Site(line.file, line.line, line.function) if line.file else None,
        basis=Basis.RULE_OF_THUMB,
        host_bound=here,
    )


def read_once(reader: str) -> Fix:
    mapped = reader == "numpy.load"
    how = ', mmap_mode="r")  # or whole, if it fits' if mapped else ")"
    return Fix(
        "Read the file once and keep it, map it, or store a cheaper format.",
        before=f"def __getitem__(self, i):\n    return {reader}(path)[i]",
        after=f"def __init__(self, path):\n    self.items = {reader}(path{how}\n"
        "def __getitem__(self, i): return self.items[i]",
        effort=2,
        link="https://numpy.org/doc/stable/reference/generated/numpy.load.html" if mapped else "",
    )


def handover(fetches: Fetches, steps: Steps, loading: Loading, handed_ns: int, lost_ns: int) -> Finding | Clean:
    made = loading.loader.made
    fixes, left = what_helps(loading, handed_ns)
    if not fixes or (1 - left.likely) * lost_ns < WORTH_SHARE * steps.mean_ns:
        return Clean(f"worker-to-main transfer takes {ms(handed_ns)} per batch; the training waits {ms(lost_ns)}/step")
    return Finding(
        title="Slow worker-to-main transfer of batches",
        evidence=(
            Evidence(f"The training waits {ms(lost_ns)}/step for batches that workers have finished.", lost_ns, "ns"),
            Evidence(f"Loading a batch takes {ms(loading.fetch_ns)}, its transfer {ms(handed_ns)}.", handed_ns, "ns"),
            *consists_of(loading.loader),
        ),
        # Workers set the pace in the replay, so that a whole period gets shorter by what is gained.
        edits=(Shorten(fetches.between, left.of_share(lost_ns / steps.mean_ns)),),
        fixes=fixes,
        confidence=Confidence(Level.LOW, "how much of the transfer can go is not recorded")
        if left is LEFT_OF_HANDING
        else Confidence(Level.MEDIUM, "request, completion and arrival of batches were timed"),
        site=None if made is None else made.site,
        basis=Basis.RULE_OF_THUMB,
    )


def what_helps(loading: Loading, handed_ns: int) -> tuple[tuple[Fix, ...], Between]:
    """What to do, and the share of handing over that is left with the best of it; nothing for small batches."""
    one, least, alone = loading.loader, min(READY_NS / handed_ns, 1.0), without_workers(loading, handed_ns)
    if (one.tensors or 0) > FEW:
        likely = max(FEW / (one.tensors or 1), least)
        return (STACK, *alone), Between((1 + likely) / 2, likely, least)
    if one.tensors == 0 and (one.batch_bytes or 0) >= LARGE_BYTES:
        return (TENSORS, *alone), AS_TENSORS
    if alone:
        likely = min(loading.fetch_ns / handed_ns, 1.0)
        return (FEWER, *alone), Between((1 + likely) / 2, likely, likely)
    small = one.objects is not None and one.objects < MANY_OBJECTS and (one.batch_bytes or 0) < LARGE_BYTES
    return () if small else (FEWER,), LEFT_OF_HANDING


def without_workers(loading: Loading, handed_ns: int) -> tuple[Fix, ...]:
    """In this process, where a step is shorter so by the model."""
    model = loading.model
    if model.step_ns(0) >= model.step_ns(model.workers):
        return ()
    do = f"Or load without workers: loading takes {ms(loading.fetch_ns)} per batch, the transfer {ms(handed_ns)}."
    return (Fix(do, after="DataLoader(dataset, batch_size, num_workers=0)  # and no prefetch_factor"),)


def consists_of(loader: Loader) -> tuple[Evidence, ...]:
    """What a batch has in it, where that was counted."""
    if loader.tensors is None or loader.objects is None:
        return ()
    count = f"{loader.tensors:,} tensor{'s' * (loader.tensors != 1)} among {loader.objects:,} objects"
    held = f", {bytes_(loader.batch_bytes)} with its arrays" if loader.batch_bytes else ""
    return (Evidence(f"A batch holds {count}{held}.", loader.tensors, "tensors"),)


EXAMPLES = [
    Fires(  # a batch every 100 ms: with 55 and 19 % of its time left every 55 ms, or as fast as the GPU computes
        """
        5 steps of 100
        batches made in 200 of 60, by 2 workers, late, numpy.load 90%
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(44.5, 59.5),
    ),
    Fires(  # 60 ms to hand over 64 tensors, of which 8 may stay: 52.5 of 60 ms
        """
        5 steps of 100
        batches made in 3 of 60, handed over in 60, 64 tensors, by 2 workers
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(26.25, 59.5),
    ),
    Fires(  # 60 ms for arrays of 35 MB, of which 38 to 7 are left as tensors
        """
        5 steps of 100
        batches made in 3 of 60, handed over in 60, 0 tensors of 35 MB, by 2 workers
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(22.2, 52.8),
    ),
    Fires(  # 40 of 80 ms of a sampler, of which likely a tenth is left
        """
        4 steps of 100
        batches made in 5 of 10
        cpu  load 0-80 | aten::mm 80-81
        gpu  sgemm 80.01-99.99 @80
        """,
        saving_ms=(0, 40),
    ),
    Fires(  # 45 of 60 ms of a sampler, which no worker can hide: likely 40.5 go
        """
        5 steps of 100
        batches made in 3 of 60, sampler 45, handed over in 1, 1 tensors of 1 MB, by 2 workers
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """,
        saving_ms=(0, 45),
    ),
    # making batches takes all of the time, spread over many lines
    Silent("""
        5 steps of 100
        batches made in 200 of 60, by 2 workers, late, numpy.load 20%
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
    """),
    # making it takes all of the time
    Silent("4 steps of 100\nbatches made in 9.9 of 10\ncpu  load 0-80 | aten::mm 80-81\ngpu  sgemm 80.01-99.99 @80"),
    CannotTell("5 steps of 100\ncpu  next 0-60\ngpu  sgemm 60.01-100 @60", because="diagnose profile"),
    CannotTell(
        "4 steps of 100\ncpu  load 0-80 | aten::mm 80-81\ngpu  sgemm 80.01-99.99 @80", because="diagnose profile"
    ),
]
