"""torch.unique(dim=0) compares whole rows.

`torch.unique(pairs, dim=0)` sorts rows of a table by all of their columns, one comparison of two rows at a time.

Ignore when
    the numbers are so large that no whole number of 64 bits holds those of a row together.
"""

from diagnose.rulekit.vocabulary import *

COLUMNS = 8  # at most: more hardly fit 64 bits (our choice)
LEFT = Between(0.4, 0.05, 0.02)  # of the time: on a CPU 0.03 to 0.05 of 256 to a million rows (torch 2.13)
ON_GPU = Between(0.6, 0.3, 0.1)  # the same, of which nothing was measured (our choice)

RULE = rewrite(
    "AT13",
    "finding different rows",
    (Op("unique_dim", ("rows columns",)),),
    where=lambda one: one.columns <= COLUMNS and one.calls(0)[0].tensors[0].is_whole,
    says="The different ones of {rows:,} rows of {columns} whole numbers are found {times} times a step",
    left=lambda one: LEFT.of_share(one.own_share) if one.on_cpu else ON_GPU,
    calls_go=True,
    fixes=(
        Fix(
            "Make one whole number of each row, and find the different ones.",
            before="rows = torch.unique(pairs, dim=0)",
            after="keys = torch.unique(pairs[:, 0] * most + pairs[:, 1])\nfirst, second = keys // most, keys % most",
            link="https://docs.pytorch.org/docs/stable/generated/torch.unique.html",
        ),
    ),
    why="how large the numbers are is not recorded",
)

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
]
