"""Handing a batch over from a DataLoader worker takes long.

A worker has made the batch before the training asks for it, and still the training waits: the batch is pickled in the
worker and put together again in the training process.

Why it costs
    Each tensor goes into shared memory of its own, and its descriptor is sent over a connection of its own. All other
    objects are pickled one by one. The training process does its part before it can go on, however many workers
    there are.

How to fix
    Hand over few large tensors, not arrays of NumPy: stack small ones, or concatenate them with their lengths, in
    `collate_fn`, and split them where they are used. Leave out what the training does not read. Where a batch is made
    faster than it is handed over, make it in the training process: `num_workers=0`.

Ignore when
    the GPU has enough queued to work on meanwhile.

Sources
    https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    https://github.com/pytorch/pytorch/issues/123439
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, waiting for batches that are made (our choice)
FEW = 8  # tensors that a batch may have after all (our choice)
MANY_OBJECTS, LARGE_BYTES = 1_000, 1_000_000  # a batch that has less of both is as small as batches are (our choice)
READY_NS = 500_000  # what a batch with few tensors takes: 0.3 to 1 ms measured
LESS = Between(1.0, 0.5, 0.1)  # is left of handing over what has few tensors: how much can go is not known (our choice)
AS_MUCH = 0.5  # of the time to hand a batch over, in which it has to be made for no worker to be worth it (our choice)
# Arrays of 8, 35 and 100 MB took 134, 706 and 4,298 ms to hand over, as tensors 84, 189 and 505 ms (two busy cores).
AS_TENSORS = Between(0.63, 0.27, 0.12)
SURE = Confidence(Level.MEDIUM, "when batches were made, asked for and in hand was measured")
UNSURE = Confidence(Level.LOW, "handing over was measured; how much of it can go is not known")
STACK = Fix(
    "Stack small tensors in collate_fn, so that a batch has a few large ones.",
    before="return images, [item.boxes for item in items]  # hundreds of tensors",
    after="return images, torch.cat([item.boxes for item in items]), torch.tensor([len(item.boxes) for item in items])",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn",
)
TENSORS = Fix(
    "Make tensors of the arrays in the worker: they go by shared memory, while arrays are copied through a pipe.",
    before="return np.stack(images), np.array(labels)",
    after="return torch.from_numpy(np.stack(images)), torch.tensor(labels)",
    link="https://docs.pytorch.org/docs/stable/multiprocessing.html",
)
FEWER = Fix(
    "Hand over less: leave out what the training does not read, and store it in smaller types.",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn",
)


@rule("DL10")
def dataloader_handover(fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None) -> Verdicts:
    waited_ns = input_wait.waited_ns - fetches.waiting_at_turns_ns // steps.count
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
        return
    if loading is None or loading.loader.handing_share is None or not loading.loader.handed_ns:
        raise Missing("when workers had made their batches", "Record with diagnose profile.")
    handed_ns, lost_ns = loading.loader.handed_ns, round(loading.handing_share * waited_ns)
    fixes, left = what_helps(loading, handed_ns)
    if not fixes or (1 - left.likely) * lost_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"handing a batch over takes {ms(handed_ns)}, and the training waits {ms(lost_ns)} a step for it")
        return
    made = loading.loader.made
    yield Finding(
        evidence=(
            Evidence(f"The training waits {ms(lost_ns)} a step for batches that workers have made.", lost_ns, "ns"),
            Evidence(
                f"Making a batch takes {ms(loading.fetch_ns)}, and handing it over {ms(handed_ns)}.", handed_ns, "ns"
            ),
            *consists_of(loading.loader),
        ),
        # Workers set the pace in the replay, so that a whole period gets shorter by what is gained.
        edits=(Shorten(fetches.ids[~(fetches.first | fetches.last)], left.of_share(lost_ns / steps.mean_ns)),),
        fixes=fixes,
        confidence=UNSURE if left is LESS else SURE,
        site=None if made is None else Site(made.file, made.line, made.function),
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
        likely = loading.fetch_ns / handed_ns
        return (FEWER, *alone), Between((1 + likely) / 2, likely, likely)
    small = one.objects is not None and one.objects < MANY_OBJECTS and (one.batch_bytes or 0) < LARGE_BYTES
    return () if small else (FEWER,), LESS


def without_workers(loading: Loading, handed_ns: int) -> tuple[Fix, ...]:
    """In this process, where a batch is made in less time than it is handed over."""
    if loading.fetch_ns > AS_MUCH * handed_ns:
        return ()
    do = f"Or load without workers: making a batch takes {ms(loading.fetch_ns)}, handing it over {ms(handed_ns)}."
    return (Fix(do, after="DataLoader(dataset, batch_size, num_workers=0)  # without what is for workers only"),)


def consists_of(loader: Loader) -> tuple[Evidence, ...]:
    """What a batch has in it, where that was counted."""
    if loader.tensors is None or loader.objects is None:
        return ()
    count = f"{loader.tensors:,} tensor{'s' * (loader.tensors != 1)} among {loader.objects:,} objects"
    held = f": {bytes_(loader.batch_bytes)} with its arrays" if loader.batch_bytes else ""
    text = f"A batch has {count}{held}."
    return (Evidence(text, loader.tensors, "tensors"),)


EXAMPLES = [
    Fires(  # 60 ms for 64 tensors, of which 8 may stay: 52.5 of 60 ms
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
    Silent(  # making batches is what they wait for
        """
        5 steps of 100
        batches made in 200 of 60, by 2 workers, late
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """
    ),
    CannotTell("5 steps of 100\ncpu  next 0-60\ngpu  sgemm 60.01-100 @60", because="diagnose profile"),
]
