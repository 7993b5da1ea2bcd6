"""The DataLoader's iterator or workers restart too often.

`next(iter(loader))` in each step restarts the epoch and uses one batch of it. Or every epoch, or every validation,
restarts the worker processes.

Why it costs
    A new iterator shuffles the whole dataset: a second for tens of millions of samples. Starting workers takes seconds
    in which nothing trains, and then the first batch still has to be loaded.
How to fix
    Create the iterator once per epoch, or loop over the loader. Keep workers alive with `persistent_workers=True`, for
    the validation loader as well.
Ignore when
    the dataset is one batch, or epochs are so long that their start does not matter.
Sources
    https://docs.pytorch.org/docs/stable/data.html
"""

from diagnose.facts.data.fetches import Fetches, Input
from diagnose.facts.data.loading import Loading, epoch_batches
from diagnose.facts.run.timed_steps import Epoch
from diagnose.rulekit.vocabulary import *

OFTEN = 0.5  # of the batches are the first of an iterator: one is created for every batch (our choice)
WORTH_SHARE = 0.01  # of the step in fetches; of an epoch, until its first batch is there (our choice)
UNKNOWN = Between(1.0, 0.5, 0.1)  # of a fetch is left, where what making a batch takes is not known (our choice)
LEFT = Between(0.5, 0.1, 0.02)  # of the time of a restart, with workers that are kept (our choice)
KEPT = Fix(
    "Create the iterator once per epoch, and call next() on it for every batch.",
    before="batch = next(iter(loader))",
    after="batches = iter(loader)  # at the start of an epoch\nbatch = next(batches)",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/data.html",
)


@rule("DL05")
def dataloader_recreated(
    fetches: Fetches,
    input_wait: Input,
    steps: Steps,
    manifest: RankManifest | None = None,
    epoch: Epoch | None = None,
    loading: Loading | None = None,
) -> Verdicts:
    made_ns = 0 if loading is None else loading.first_ns
    loaders = manifest.loaders if manifest else ()
    with_workers = [loader for loader in loaders if loader.num_workers]
    epochs = [epoch_batches(manifest, loader) for loader in loaders] if manifest else []
    if fetches.first_share >= OFTEN:
        yield for_every_batch(fetches, input_wait.waited_ns, steps, made_ns, bool(epochs) and set(epochs) == {1})
    elif fetches.in_process is not False:
        yield Clean(f"{percent(fetches.first_share)} of the batches start a new iterator")
    if fetches.in_process is not False:
        return
    if with_workers and all(loader.persistent_workers for loader in with_workers):
        yield NotApplicable("persistent_workers=True keeps the workers between epochs")
    elif fetches.restarts:
        length = epoch_batches(manifest, with_workers[0]) if manifest and len(with_workers) == 1 else None
        yield of_workers(fetches, steps, made_ns, length, epoch)
    elif epoch and with_workers and (lost := lost_ns(epoch, made_ns)) > WORTH_SHARE * epoch.step_ns:
        yield Caution(
            f"DataLoader workers restart every epoch: {ms(epoch.starting_ns)}, {percent(epoch.starting_share)} of it;"
            " not listed as a fix, as no restart was recorded",
            f"Set persistent_workers=True: a step takes {ms(epoch.step_ns)} averaged over an epoch, {ms(lost)} of it"
            " for restarts.",
        )
    else:
        yield Clean("no worker started during the recording")


def for_every_batch(
    fetches: Fetches, waited_ns: int, steps: Steps, made_ns: int, one_batch: bool
) -> Finding | Clean | NotApplicable:
    if one_batch:
        return NotApplicable("an epoch has only one batch")
    if waited_ns < WORTH_SHARE * steps.mean_ns:
        return Clean(f"waiting for batches takes {percent(waited_ns / max(steps.mean_ns, 1))} of the step")
    first_ns = fetches.first_ns or 0.0
    share = min(made_ns / first_ns, 1.0) if made_ns and first_ns else None
    known = f"; loading one takes {ms(made_ns)}" if made_ns else ""
    start, waits = "of the batches start a new iterator", f"the training waits {ms(waited_ns)}/step for batches"
    return Finding(
        title="A new DataLoader iterator is created for every batch",
        evidence=(Evidence(f"{percent(fetches.first_share)} {start}: {waits}{known}.", waited_ns, "ns"),),
        edits=(
            Shorten(fetches.ids[fetches.first], UNKNOWN if share is None else Between((1 + share) / 2, share, share)),
        ),
        fixes=(KEPT,),
        confidence=Confidence(Level.MEDIUM, "new iterators are recorded; the time to load a batch is not")
        if share is None
        else Confidence(Level.HIGH, "new iterators and the time to load a batch are recorded"),
        basis=Basis.RULE_OF_THUMB if share is None else Basis.REPLAYED,
    )


def of_workers(fetches: Fetches, steps: Steps, made_ns: int, length: int | None, epoch: Epoch | None) -> Finding:
    """Where the recording has more restarts than epochs have on average, only the usual share of them counts."""
    usual = 1.0 if length is None else min(len(fetches.ids) / length / fetches.restarts, 1.0)
    times = f"{fetches.restarts} times" if fetches.restarts > 1 else "once"
    of = "" if length is None else f"; an epoch has {length:,}"
    started = f"Workers started {times} in {len(fetches.ids)} batches{of}."
    share: tuple[Evidence, ...] = ()
    if epoch is not None:
        usual = min(steps.count / epoch.steps / fetches.restarts, 1.0)
        waits = f"An epoch waits {ms(epoch.starting_ns)} for its first batch, {percent(epoch.starting_share)} of it"
        share = (Evidence(f"{waits} (without the profiler).", epoch.starting_share, "share"),)
    return Finding(
        title="DataLoader restarts its workers every epoch",
        evidence=(Evidence(started, fetches.restarts, ""), *share),
        edits=(
            Shorten(fetches.restart_ids, LEFT.of_share(usual)),
            Shorten(fetches.ids[fetches.first], left_of_first(fetches, made_ns).of_share(usual)),
        ),
        fixes=(Fix.of(fixes.LoaderArgument("persistent_workers", True)),),
        confidence=Confidence(Level.LOW, "the length of an epoch is not recorded")
        if length is None and epoch is None
        else Confidence(Level.MEDIUM, "worker starts and the length of an epoch are recorded"),
        basis=Basis.RULE_OF_THUMB,
    )


def lost_ns(epoch: Epoch, made_ns: int) -> int:
    """Of a step over a whole epoch: starting but for its first batch, which workers that are kept have to make, too."""
    return max(epoch.starting_ns - made_ns, 0) // epoch.steps


def left_of_first(fetches: Fetches, made_ns: int) -> Between:
    """Of the wait for a first batch: workers that are there still have to make it."""
    if not made_ns or not fetches.first_ns:
        return LEFT
    least_ns = min(made_ns, fetches.ready_ns)
    return Between(*(min(one / fetches.first_ns, 1.0) for one in (2 * made_ns, made_ns, least_ns)))


EXAMPLES = [
    # what a batch takes is not known: half of the 40 ms, most likely
    Fires("""
        4 steps of 100
        cpu  aten::random_ 0-1 | aten::item 1-2 | load 2-42 | aten::mm 42-43
        gpu  sgemm 42.01-100 @42
    """),
    # workers are started once
    Fires("12 steps of 1000\ncpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702\ngpu  sgemm 702.01-999 @702"),
    # the agent marks what starts and ends workers
    Fires("""
        12 steps of 100
        cpu  next 0-1 not in 6 | next 50-60 in 5 | "_MultiProcessingDataLoaderIter._shutdown_workers" 51-59 in 5
        cpu  "_MultiProcessingDataLoaderIter.__init__" 0-40 in 6 | next 41-50 in 6 | aten::mm 60-61
        gpu  sgemm 60.5-99 @60.2
    """),
    Fires(  # an epoch has ten times as many steps as were recorded: a tenth of the start counts
        """
        11 steps of 1000
        epochs of 100 steps of 1000, 0 between, 700 starting
        cpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702
        gpu  sgemm 702.01-999 @702
        """,
        saving_ms=(3.5, 7),
    ),
    # no start is recorded: 680 of each 1600 ms
    Fires("""
        6 steps of 20
        batches made in 80 of 20, by 4 workers
        epochs of 32 steps of 50, 100 between, 680 starting
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-19 @3
    """),
    # an iterator for four batches
    Silent("""
        4 steps of 100
        cpu  aten::random_ 0-1 in 0 | aten::item 1-2 in 0 | load 2-42 | aten::mm 42-43
        gpu  sgemm 42.01-100 @42
    """),
    Silent("12 steps of 1000\ncpu  next 0-1 | aten::mm 2-3\ngpu  sgemm 3.01-999 @3"),
    # workers that start take as long as the first batch
    Silent("""
        6 steps of 20
        batches made in 80 of 20, by 4 workers
        epochs of 32 steps of 50, 100 between, 90 starting
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-19 @3
    """),
]
