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
from diagnose.rulekit.vocabulary import *

LEFT = Between(0.5, 0.1, 0.02)  # of the time of a restart, with workers that are kept (our choice)


@rule("DL03")
def dataloader_worker_restart(fetches: Fetches, manifest: RankManifest | None = None) -> Verdicts:
    with_workers = [loader for loader in manifest.loaders if loader.num_workers] if manifest else []
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
    elif not fetches.restarts:
        yield Clean("no workers are started in this recording")
    elif with_workers and all(loader.persistent_workers for loader in with_workers):
        yield NotApplicable("persistent_workers=True: workers are kept from epoch to epoch already")
    else:
        length = epoch_batches(manifest, with_workers[0]) if manifest and len(with_workers) == 1 else None
        usual = 1.0 if length is None else min(len(fetches.ids) / length / fetches.restarts, 1.0)
        often = f"{fetches.restarts} time{'s' * (fetches.restarts > 1)}"
        text = f"Workers were started {often} while {len(fetches.ids)} batches were asked for"
        why = "how many steps an epoch has is not known from a few steps"
        if length is not None:
            text, why = f"{text}; an epoch has {length:,}", "starts were recorded, and the length of an epoch is known"
        yield Finding(
            evidence=(Evidence(f"{text}.", fetches.restarts, ""),),
            edits=(
                Shorten(fetches.restart_ids, left(LEFT, usual)),
                Shorten(fetches.ids[fetches.first], left(of_first(fetches, with_workers), usual)),
            ),
            fixes=(Fix.of(fixes.LoaderArgument("persistent_workers", True)),),
            confidence=Confidence(Level.LOW if length is None else Level.MEDIUM, why),
            basis=Basis.RULE_OF_THUMB,
        )


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
    Silent(
        """
        12 steps of 1000
        cpu  next 0-1 | aten::mm 2-3
        gpu  sgemm 3.01-999 @3
        """
    ),
]
