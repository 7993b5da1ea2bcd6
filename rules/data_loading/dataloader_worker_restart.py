"""DataLoader restarts its workers every epoch.

At the start of an epoch or a validation, worker processes are started, and the queue of batches is empty.

Why it costs
    Starting takes seconds, in which nothing is trained; then the first batch has to be made.

How to fix
    Keep the workers: `persistent_workers=True`. Keep the validation's loader alive as well.

Ignore when
    an epoch is so long that its start does not count.

Sources
    https://docs.pytorch.org/docs/stable/data.html
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.run.epochs import Epoch
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of an epoch, until its first batch is there (our choice)
LEFT = Between(0.5, 0.1, 0.02)  # of the time of a restart, with workers that are kept (our choice)


@rule("DL03")
def dataloader_worker_restart(
    fetches: Fetches, steps: Steps, manifest: RankManifest | None = None, epoch: Epoch | None = None
) -> Verdicts:
    with_workers = [loader for loader in manifest.loaders if loader.num_workers] if manifest else []
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
    elif with_workers and all(loader.persistent_workers for loader in with_workers):
        yield NotApplicable("persistent_workers=True: workers are kept from epoch to epoch already")
    elif not fetches.restarts and epoch and with_workers and lost_ns(epoch, with_workers) > WORTH_SHARE * epoch.step_ns:
        lost = lost_ns(epoch, with_workers)
        yield Caution(
            f"DataLoader workers start anew in each epoch: {ms(epoch.starting_ns)}, {percent(epoch.starting_share)} of"
            f" it. No start is in the recorded steps, so it has no place among the fixes",
            f"Keep the workers with persistent_workers=True: {ms(lost)} less of the {ms(epoch.step_ns)} that a step"
            " takes over a whole epoch.",
        )
    elif not fetches.restarts:
        yield Clean("no workers are started in this recording")
    else:
        length = epoch_batches(manifest, with_workers[0]) if manifest and len(with_workers) == 1 else None
        usual = 1.0 if length is None else min(len(fetches.ids) / length / fetches.restarts, 1.0)
        often = f"{fetches.restarts} time{'s' * (fetches.restarts > 1)}"
        text = f"Workers were started {often} while {len(fetches.ids)} batches were asked for"
        why, known = "how many steps an epoch has is not known from a few steps", "the length of an epoch is known"
        if length is not None:
            text, why = f"{text}; an epoch has {length:,}", f"starts were recorded, and {known}"
        share: tuple[Evidence, ...] = ()
        if epoch is not None:
            usual, why = min(steps.count / epoch.steps / fetches.restarts, 1.0), f"starts were recorded, and {known}"
            waits = f"Until its first batch is there an epoch waits {ms(epoch.starting_ns)} without the profiler"
            share = (Evidence(f"{waits}, {percent(epoch.starting_share)} of it.", epoch.starting_share, "share"),)
        yield Finding(
            evidence=(Evidence(f"{text}.", fetches.restarts, ""), *share),
            edits=(
                Shorten(fetches.restart_ids, left(LEFT, usual)),
                Shorten(fetches.ids[fetches.first], left(of_first(fetches, with_workers), usual)),
            ),
            fixes=(Fix.of(fixes.LoaderArgument("persistent_workers", True)),),
            confidence=Confidence(Level.LOW if length is None and epoch is None else Level.MEDIUM, why),
            basis=Basis.RULE_OF_THUMB,
        )


def lost_ns(epoch: Epoch, loaders: list[Loader]) -> int:
    """Of a step over a whole epoch: starting but for its first batch, which workers that are kept have to make, too."""
    made_ns = max((loader.fetch_ns or 0 for loader in loaders), default=0)
    return max(epoch.starting_ns - made_ns, 0) // epoch.steps


def of_first(fetches: Fetches, loaders: list[Loader]) -> Between:
    """Of the wait for a first batch, how much is left: workers that are there still have to make it."""
    made_ns = max((loader.fetch_ns or 0 for loader in loaders), default=0)
    if not made_ns or not fetches.first_ns:
        return LEFT
    least_ns = min(made_ns, fetches.ready_ns)
    return Between(*(min(one / fetches.first_ns, 1.0) for one in (2 * made_ns, made_ns, least_ns)))


def left(share: Between, usual: float) -> Between:
    """Where the recording has more restarts than epochs have on average, only the usual share of them counts."""
    return Between(*(1 - (1 - one) * usual for one in (share.low, share.likely, share.high)))


EXAMPLES = [
    Fires(
        """
        12 steps of 1000
        cpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702
        gpu  sgemm 702.01-999 @702
        """
    ),
    Fires(  # the agent marks what starts and ends workers
        """
        12 steps of 100
        cpu  next 0-1 not in 6 | next 50-60 in 5 | "_MultiProcessingDataLoaderIter._shutdown_workers" 51-59 in 5
        cpu  "_MultiProcessingDataLoaderIter.__init__" 0-40 in 6 | next 41-50 in 6 | aten::mm 60-61
        gpu  sgemm 60.5-99 @60.2
        """
    ),
    Fires(  # an epoch has ten times as many steps as were recorded: a tenth of the start counts
        """
        11 steps of 1000
        epochs of 100 steps of 1000, 0 between, 700 starting
        cpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702
        gpu  sgemm 702.01-999 @702
        """,
        saving_ms=(3.5, 7),
    ),
    Fires(  # no start is recorded: 680 of each 1600 ms
        """
        6 steps of 20
        batches made in 80 of 20, by 4 workers
        epochs of 32 steps of 50, 100 between, 680 starting
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-19 @3
        """
    ),
    Silent(
        """
        12 steps of 1000
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-999 @3
        """
    ),
    Silent(  # workers that start take as long as the first batch
        """
        6 steps of 20
        batches made in 80 of 20, by 4 workers
        epochs of 32 steps of 50, 100 between, 90 starting
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-19 @3
        """
    ),
]
