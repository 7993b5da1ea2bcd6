"""A new DataLoader iterator is created for every batch.

`next(iter(loader))` in each step starts the epoch anew, and uses one batch of it.

Why it costs
    The order of the whole dataset is drawn for every batch, which takes a second for tens of millions of samples; with
    workers, processes are started and ended each time.

How to fix
    Make an iterator at the start of an epoch, and ask it for every batch; or loop over the loader.

Ignore when
    the dataset is one batch.

Sources
    https://docs.pytorch.org/docs/stable/data.html
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.rulekit.vocabulary import *

OFTEN = 0.5  # of the batches are the first of an iterator (our choice)
WORTH_SHARE = 0.01  # of the step in fetches (our choice)
UNKNOWN = Between(1.0, 0.5, 0.1)  # of a fetch is left, where what making a batch takes is not known (our choice)
KEPT = Fix(
    "Make an iterator once an epoch, and ask it for every batch.",
    before="batch = next(iter(loader))",
    after="batches = iter(loader)  # at the start of an epoch\nbatch = next(batches)",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/data.html",
)


@rule("DL05")
def dataloader_recreated(
    fetches: Fetches, input_wait: Input, steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    loaders = manifest.loaders if manifest else ()
    waited = input_wait.waited_ns
    if fetches.first_share < OFTEN:
        yield Clean(f"{percent(fetches.first_share)} of the batches are the first of an iterator")
    elif manifest and loaders and all(epoch_batches(manifest, loader) == 1 for loader in loaders):
        yield NotApplicable("an epoch is one batch")
    elif waited < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"batches are waited for {percent(waited / max(steps.mean_ns, 1))} of the step")
    else:
        made_ns, first_ns = max((loader.fetch_ns or 0 for loader in loaders), default=0), fetches.first_ns or 0.0
        share = min(made_ns / first_ns, 1.0) if made_ns and first_ns else None
        left = UNKNOWN if share is None else Between((1 + share) / 2, share, share)
        known = f", and to make one takes {ms(made_ns)}" if made_ns else ""
        yield Finding(
            evidence=(
                Evidence(
                    f"{percent(fetches.first_share)} of the batches are the first of an iterator."
                    f" They are waited for {ms(waited)} a step{known}.",
                    waited,
                    "ns",
                ),
            ),
            edits=(Shorten(fetches.ids[fetches.first], left),),
            fixes=(KEPT,),
            confidence=Confidence(
                Level.MEDIUM if share is None else Level.HIGH,
                "how often iterators are made is recorded" + ", and what a batch takes" * (share is not None),
            ),
            basis=Basis.RULE_OF_THUMB if share is None else Basis.REPLAYED,
        )


EXAMPLES = [
    Fires(  # what a batch takes is not known: half of the 40 ms, most likely
        """
        4 steps of 100
        cpu  aten::random_ 0-1 | aten::item 1-2 | load 2-42 | aten::mm 42-43
        gpu  sgemm 42.01-100 @42
        """
    ),
    Silent(  # an iterator for four batches
        """
        4 steps of 100
        cpu  aten::random_ 0-1 in 0 | aten::item 1-2 in 0 | load 2-42 | aten::mm 42-43
        gpu  sgemm 42.01-100 @42
        """
    ),
]
