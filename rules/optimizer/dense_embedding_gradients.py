"""Embedding gradients are dense.

The backward pass from an embedding writes a gradient as large as its table, zeros but for the rows that were read, and
the optimizer then updates every row.

Why it costs
    What is written and read grows with the table, not with the batch.

How to fix
    Ask for sparse gradients: `torch.nn.Embedding(rows, width, sparse=True)`, with SGD, Adagrad or SparseAdam for that
    table. Or keep tables of rare rows out of the model, as recommendation libraries do.

Ignore when
    rows must also move while they are not read: by momentum, weight decay or Adam's averages, which sparse updates
    leave out. A table that is an output layer as well is not looked at.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html
"""

from diagnose.facts.autograd.table_gradients import TableGradients
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
READ_SHARE = 0.5  # of a table's rows: sparse gradients of more save nothing (our choice)
# Of writing gradients and updating: 0.01 to 0.16 measured on a CPU, for 256 rows of tables of 8,000 to 200,000. What is
# read counts more than once: sparse gradients are sorted and summed before they are added (our choice).
FIXED, EACH = (0.5, 0.1, 0.02), (3.0, 2.0, 1.0)
SPARSE = Fix(
    "Ask for sparse gradients of the table.",
    before="Embedding(rows, width); AdamW(model.parameters())",
    after="Embedding(rows, width, sparse=True)  # its weights to SparseAdam, the others to AdamW",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)


@rule("OP04")
def dense_embedding_gradients(table_gradients: tuple[TableGradients, ...], steps: Steps) -> Verdicts:
    few = [
        table_gradient
        for table_gradient in table_gradients
        if table_gradient.rows <= READ_SHARE * table_gradient.shape[0]
    ]
    large = [one for one in few if _longest(one) >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max(map(_longest, few), default=0)
        yield Clean(f"gradients of tables that are read in few rows take {percent(most / max(steps.mean_ns, 1))}")
    for one in large:
        longest, count = _longest(one), f"{one.shape[0]:,}"
        read = one.rows / max(one.shape[0], 1)
        left = Between(*(min(fixed + each * read, 1.0) for fixed, each in zip(FIXED, EACH, strict=True)))
        yield Finding(
            evidence=(
                Evidence(
                    f"A pass reads {one.rows:,} of {count} rows, and all {count} get a gradient and are updated:"
                    f" {ms(longest)} a step.",
                    longest,
                    "ns",
                ),
            ),
            edits=(
                *(Shorten(ids, left) for work in (one.back, one.updated) for ids in (work.ids, work.work_ids)),
                Shorten(one.listed.work_ids, left.of_share(one.listed_share)),
            ),
            fixes=(SPARSE,),
            confidence=Confidence(Level.HIGH, "the sizes of the table and of what is read are recorded"),
            basis=Basis.RULE_OF_THUMB,
            site=one.site,
        )


def _longest(one: TableGradients) -> int:
    listed_ns = round(one.listed_share * one.listed.device_ns)
    return max(one.back.host_ns + one.updated.host_ns, one.back.device_ns + one.updated.device_ns + listed_ns)


EXAMPLES = [
    Fires(  # of 40 ms half goes at least, most likely 36 ms; the rest gets faster then, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[200000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[200000,32],[200000,32],[]] | aten::add_ 62-79 shapes=[[512,32],[512,32],[]]
        """,
        saving_ms=(20, 58.9),
    ),
    Fires(  # a quarter of the table: less than half of it can go
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[5000,32],[5000],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[20000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[20000,32],[20000,32],[]]
        """,
    ),
    Silent(  # nearly all of the table is read
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_dense_backward 0-30 shapes=[[4096,32],[4096],[],[],[]]
        cpu  aten::fill_ 1-29 shapes=[[5000,32],[]] | "Optimizer.step#SGD.step" 50-80
        cpu  aten::add_ 51-61 shapes=[[5000,32],[5000,32],[]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
