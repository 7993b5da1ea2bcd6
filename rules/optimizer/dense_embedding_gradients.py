"""Embedding gradients are dense.

The backward pass of an embedding writes a gradient as large as its table: zeros, except for the rows that were read.
The optimizer then updates every row.

Why it costs
    The memory traffic grows with the table, not with the batch.
How to fix
    Use sparse gradients: `torch.nn.Embedding(rows, width, sparse=True)`. SGD and Adagrad without momentum and weight
    decay support them, and update the same rows. Replace Adam by SparseAdam for the table.
Ignore when
    unread rows must move too, by momentum, weight decay or Adam's averages: sparse updates skip them. Tables shared
    with an output layer are not examined.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html
"""

from diagnose.facts.autograd.avoidable import TableGradients
from diagnose.facts.optimizer.optimizer import OptimizerSteps
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
READ_SHARE = 0.5  # of a table's rows: sparse gradients of more save nothing (our choice)
# What is left of a table: so many ns for ops on sparse tensors, and times what that share of dense gradients takes.
# Of 7 tables of 8,000 to 500,000 rows, 20 to 20,000 of them read, 270 to 770 us were left, and 2.9 to 5.5 times that
# (torch 2.13 on a CPU, with SGD).
FIXED_NS, EACH = (1_000_000, 300_000, 50_000), (6.0, 3.0, 1.0)
ON_DEVICE = (0.5, 0.1, 0.02)  # of a table's time, in place of FIXED_NS: the device waits for no such ops (our choice)
TAKE_SPARSE = {"SGD", "Adagrad"}  # of torch.optim, without weight decay; rows that are not read do not move in them
DO = "Use sparse gradients for the table"
BEFORE, AFTER = "", "nn.Embedding(..., sparse=True)"
LINK = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html"


@rule("OP04")
def dense_embedding_gradients(
    table_gradients: tuple[TableGradients, ...],
    steps: Steps,
    manifest: RankManifest | None = None,
    optimizer_steps: tuple[OptimizerSteps, ...] | None = None,
) -> Verdicts:
    few = [one for one in table_gradients if one.rows <= READ_SHARE * one.shape[0]]
    large = [one for one in few if _longest(one) >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max(map(_longest, few), default=0)
        yield Clean(f"gradients of sparsely read tables take {percent(most / max(steps.mean_ns, 1))} of the step")
    for one in large:
        longest, count = _longest(one), f"{one.shape[0]:,}"
        read, tables = one.rows / max(one.shape[0], 1), len(one.back.ids) / max(steps.recorded, 1)
        fixed = ON_DEVICE if one.back.device_ns else [each_ns * tables / longest for each_ns in FIXED_NS]
        left = Between(*(min(share + each * read, 1.0) for share, each in zip(fixed, EACH, strict=True)))
        freed = f" Freeing the gradients takes {ms(_freed(one))}." * (_freed(one) > 0)
        fix = _fix(manifest.optimizers if manifest else (), optimizer_steps or ())
        yield Finding(
            evidence=(
                Evidence(
                    f"A pass reads {one.rows:,} of {count} rows, but all get a gradient and an update:"
                    f" {ms(longest)}/step.{freed}",
                    longest,
                    "ns",
                ),
            ),
            edits=(
                *(Shorten(ids, left) for work in (one.back, one.updated) for ids in (work.ids, work.work_ids)),
                Shorten(one.listed.work_ids, left.of_share(one.share)),
                Shorten(one.freed.ids, left.of_share(one.share)),
            ),
            fixes=(fix,),
            confidence=Confidence(Level.HIGH, "the table's size and the rows read are recorded"),
            kind=Kind.OPTION if fix.safety is Safety.NEEDS_JUDGEMENT else Kind.FAULT,
            basis=Basis.RULE_OF_THUMB,
            site=one.site,
        )


def _longest(one: TableGradients) -> int:
    listed_ns = round(one.share * one.listed.device_ns)
    on_host = one.back.host_ns + one.updated.host_ns + _freed(one)
    return max(on_host, one.back.device_ns + one.updated.device_ns + listed_ns)


def _freed(one: TableGradients) -> int:
    return round(one.share * one.freed_ns)


def _fix(known: tuple[Optimizer, ...], recorded: tuple[OptimizerSteps, ...]) -> Fix:
    """What to change for the optimizers that there are: which of several updates the table is not recorded."""
    names = sorted({one.name for one in known} or {one.optimizer for one in recorded})
    moves = [value for one in known for value in (one.momentum, one.weight_decay) if value]
    if not names or not TAKE_SPARSE.issuperset(names):
        others = f", the others to {names[0]}" if len(names) == 1 else ""
        after = f"{AFTER}  # its weights to SparseAdam{others}"
        return Fix(
            f"{DO}, and update the table with SparseAdam.", BEFORE, after, Safety.NEEDS_JUDGEMENT, effort=2, link=LINK
        )
    name = " and ".join(names)
    if moves:
        do = f"{DO}, and {name} without momentum and weight decay."
        return Fix(do, BEFORE, AFTER, Safety.NEEDS_JUDGEMENT, effort=2, link=LINK)
    sure = all(one.weight_decay is not None for one in known) and bool(known)
    do = (
        f"{DO}: {name} supports them as configured."
        if sure
        else f"{DO}, if {name} has no momentum and no weight decay."
    )
    return Fix(do, BEFORE, AFTER, Safety.ROUNDING, link=LINK)  # With weight decay SGD and Adagrad refuse them.


EXAMPLES = [
    Fires(  # of 40 ms 38.7 go at least, most likely 39.5; the rest gets faster then, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[200000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[200000,32],[200000,32],[]] | aten::add_ 62-79 shapes=[[512,32],[512,32],[]]
        """,
        saving_ms=(38.7, 39.9),
    ),
    # a quarter of the table: at best three quarters of the time can go
    Fires("""
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[5000,32],[5000],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[20000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[20000,32],[20000,32],[]]
    """),
    # nearly all of the table is read
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[4096,32],[4096],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[5000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[5000,32],[5000,32],[]]
    """),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
