"""The loader starts its workers again.

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

from diagnose.rule import (
    Basis,
    Between,
    Clean,
    Confidence,
    Evidence,
    Fetches,
    Finding,
    Fires,
    Fix,
    Level,
    NotApplicable,
    RankManifest,
    Safety,
    Shorten,
    Silent,
    Verdicts,
    rule,
)  # fmt: skip

LEFT = Between(0.5, 0.1, 0.02)  # of the time of a restart: the first batch still has to be made (our choice)


@rule("DL03")
def loader_restart(fetches: Fetches, manifest: RankManifest | None = None) -> Verdicts:
    with_workers = [one for one in manifest.loaders if one.num_workers] if manifest else []
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
    elif not len(fetches.restart_ids):
        yield Clean("no workers are started in this recording")
    elif with_workers and all(one.persistent_workers for one in with_workers):
        yield NotApplicable("persistent_workers=True: workers are kept from epoch to epoch already")
    else:
        yield Finding(
            evidence=(Evidence(f"Workers were started {len(fetches.restart_ids)} times in this recording.", unit=""),),
            edits=(Shorten(fetches.restart_ids, LEFT),),
            fixes=(
                Fix(
                    "Keep the workers from epoch to epoch.",
                    before="DataLoader(dataset, batch_size, num_workers=4)",
                    after="DataLoader(dataset, batch_size, num_workers=4, persistent_workers=True)",
                    safety=Safety.SAME_NUMBERS,
                    link="https://docs.pytorch.org/docs/stable/data.html",
                    trial="patch:DataLoader(persistent_workers=True)",
                ),
            ),
            confidence=Confidence(Level.LOW, "how many steps an epoch has is not known from a few steps"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(
        """
        12 steps of 1000
        cpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702
        gpu  sgemm 702.01-999 @702
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
