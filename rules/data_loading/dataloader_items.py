"""One line takes most of making a batch in a worker.

The training waits for its workers, and samples in them show where they are: at one line of the dataset.

Why it costs
    It runs once for each item. What it reads or computes may be the same each time, or more than the item needs.

How to fix
    Read a file once, when the dataset is made, and keep what it holds; or map it (`np.load(path, mmap_mode="r")`), so
    that an item reads its part only. Store items as the training uses them. Keep in a cache what repeats.

Ignore when
    what it does depends on the item, and has to be done anew each time.

Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://numpy.org/doc/stable/reference/generated/numpy.load.html
    https://github.com/torchmd/torchmd-net/pull/235
"""

from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, waiting for batches to be made (our choice)
LEFT = Between(1.0, 0.5, 0.0)  # of what the line takes: half of it likely goes, at best all (our choice)
LEFT_OF_READING = Between(0.5, 0.1, 0.02)  # what is read once, or mapped, is read no more for each item (our choice)
READS = ("load", "open", "read", "imread", "File", "parse")  # how names of readers begin
CHEAPER = Fix(
    "Do this once, before training, and store items as the training uses them; keep what repeats.",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html",
)


@rule("DL11")
def dataloader_items(fetches: Fetches, input_wait: Input, steps: Steps, loading: Loading | None = None) -> Verdicts:
    waited_ns = input_wait.waited_ns - fetches.waiting_at_turns_ns // steps.count
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
        return
    if loading is None or not loading.loader.lines:
        raise Missing("where workers spend their time", "Record with diagnose profile.")
    waited_ns = round((1 - loading.handing_share) * waited_ns)
    if waited_ns < WORTH_SHARE * steps.mean_ns or loading.loader.empty_share == 0:
        yield Clean(f"the training waits {ms(waited_ns)} a step for batches to be made")
        return
    if (found := items_line(loading)) is None:
        yield Clean("no line takes most of making a batch")
        return
    line, share = found
    reads = line.calls.rpartition(".")[2].startswith(READS)
    what = f"`{line.calls}`" if line.calls else f"One line of `{line.function}`"
    where = f", which `{line.function}` calls," if line.calls and line.function else ""
    spent_ns, left = round(share * loading.fetch_ns), LEFT_OF_READING if reads else LEFT
    yield Finding(
        title=f"{what} takes most of making a batch in a worker",
        evidence=(
            Evidence(f"{what}{where} takes {percent(share)} of making a batch: {ms(spent_ns)}.", share, "share"),
            Evidence(f"The training waits {ms(waited_ns)} a step for batches from workers.", waited_ns, "ns"),
            *loading_evidence(loading),
        ),
        edits=(Move(fetches.ids[~(fetches.first | fetches.last)], faster(left, share), fetches.ready_ns),),
        fixes=(read_once(line.calls) if reads else CHEAPER,),
        confidence=Confidence(Level.MEDIUM, f"{loading.loader.sampled} batches were sampled in workers")
        if reads
        else Confidence(Level.LOW, "where workers are was sampled; how much cheaper it can be is not known"),
        site=Site(line.file, line.line, line.function) if line.file else None,
        basis=Basis.RULE_OF_THUMB,
    )


def read_once(reader: str) -> Fix:
    mapped = reader == "numpy.load"
    how = ', mmap_mode="r")  # or whole, if it fits' if mapped else ")"
    return Fix(
        "Read it once and keep it, map the file, or store it in a cheaper format.",
        before=f"def __getitem__(self, i):\n    return {reader}(path)[i]",
        after=f"def __init__(self, path):\n    self.items = {reader}(path{how}\n"
        "def __getitem__(self, i):\n    return self.items[i]",
        effort=2,
        link="https://numpy.org/doc/stable/reference/generated/numpy.load.html" if mapped else "",
    )


def faster(left: Between, share: float) -> Between:
    """How much faster batches are made, if so much is left of that share of their time."""
    return Between(*(1 / max(one, 0.01) for one in vars(left.of_share(share)).values()))


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
    Silent(  # time is spread over many lines
        """
        5 steps of 100
        batches made in 200 of 60, by 2 workers, late, numpy.load 20%
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """
    ),
    CannotTell("5 steps of 100\ncpu  next 0-60\ngpu  sgemm 60.01-100 @60", because="diagnose profile"),
]
