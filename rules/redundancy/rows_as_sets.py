"""Different rows are found by comparing whole rows.

`torch.unique(pairs, dim=0)` sorts rows of a table by all of their columns, one comparison of two rows at a time.

Why it costs
    Rows are compared column by column, and on a CPU each comparison is an op of its own: there single numbers took 0.03
    to 0.05 of the time of rows of two (256 to a million rows, torch 2.13).

How to fix
    Make one whole number of each row first: `pairs[:, 0] * most + pairs[:, 1]`, with `most` larger than all of the last
    column. `torch.unique` of these is what is wanted; `//` and `%` give the columns back.

Ignore when
    columns are not whole numbers, or too many or too large for one of 64 bits.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.unique.html
"""

from diagnose.facts.shapes.row_ops import RowOps
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
COLUMNS = 8  # at most: more hardly fit 64 bits (our choice)
LEFT = Between(0.4, 0.05, 0.02)  # of the time: on a CPU 0.03 to 0.05 of 256 to a million rows (torch 2.13)
ON_GPU = Between(0.6, 0.3, 0.1)  # the same, of which nothing was measured (our choice)
WHOLE = ("long int", "int", "short int", "signed char", "unsigned char", "bool")
KEYS = Fix(
    "Make one whole number of each row, and find the different ones.", before="rows = torch.unique(pairs, dim=0)",
    after="keys = torch.unique(pairs[:, 0] * most + pairs[:, 1])\nfirst, second = keys // most, keys % most",
    safety=Safety.SAME_NUMBERS, link="https://docs.pytorch.org/docs/stable/generated/torch.unique.html",
)  # fmt: skip


@rule("AT13")
def rows_compared(unique_rows: tuple[RowOps, ...], steps: Steps) -> Verdicts:
    packable = [
        one
        for one in unique_rows
        if len(one.tensor.shape) == 2 and one.tensor.shape[1] <= COLUMNS and one.tensor.dtype in WHOLE
    ]
    large = [one for one in packable if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.longest_ns for one in packable), default=0)
        yield Clean(f"finding different rows takes {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        (rows, columns), left = one.tensor.shape, ON_GPU if one.work.device_ns else LEFT
        yield Finding(
            evidence=(
                Evidence(
                    f"The different ones of {rows:,} rows of {columns} whole numbers are found {one.calls} times a"
                    f" step: {ms(one.longest_ns)}.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, left.of_share(one.own_share)), Shorten(one.work.work_ids, left)),
            fixes=(KEYS,),
            confidence=Confidence(Level.MEDIUM, "how large the numbers are is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # of 20 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::unique_dim 0-20 shapes=[[4096,2],[],[]] types=["long int","Scalar","Scalar"]
        """
    ),
    Silent(  # columns that are no whole numbers
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::unique_dim 0-20 shapes=[[4096,2],[],[]] types=["float","Scalar","Scalar"]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
