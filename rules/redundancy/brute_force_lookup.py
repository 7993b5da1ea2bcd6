"""Ids are looked up by comparing with all entries.

`(ids[:, None] == catalogue).nonzero()` compares each of some ids with each of a catalogue.
"""

from diagnose.rulekit.vocabulary import *

LEAST = 32  # rows and columns of a table that is looked at (our choice)

RULE = rewrite(
    "AT24",
    "looking for numbers by comparing them",
    (Op("eq", ("*x", "*y"), made="ids others"), Op("nonzero|where|any|argmax|argwhere", ("ids others",))),
    where=lambda one: (
        min(one.ids, one.others) >= LEAST
        and (one.ids, one.others) not in (one.shape("x"), one.shape("y"))
        and all(tensor.is_whole for tensor in one.calls(0)[0].tensors)
    ),
    says="Whole numbers are compared in a table of {ids:,} by {others:,}, and looked for in it ({names})",
    left=Between(0.3, 0.1, 0.02),  # our choice
    fixes=(
        Fix(
            "Search in what is sorted, or keep a table from ids to places.",
            before="rows = (ids[:, None] == catalogue).nonzero()[:, 1]",
            after="rows = torch.searchsorted(catalogue, ids)",
            link="https://docs.pytorch.org/docs/stable/generated/torch.searchsorted.html",
        ),
    ),
    why="whether the numbers are sorted is not recorded",
)

EXAMPLES = [
    Fires(  # of 40 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::eq 0-20 shapes=[[64,1],[9000]] "Input type"=["long int","long int"]
        cpu  aten::nonzero 20-40 shapes=[[64,9000]] "Input type"=["bool"] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(28, 59.2),
    ),
    Silent(  # which labels are alike, as a mask for all pairs
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::eq 0-20 shapes=[[64,1],[9000]] "Input type"=["long int","long int"]
        cpu  aten::mul 20-40 shapes=[[64,9000],[64,9000]] "Input type"=["float","bool"] | aten::mm 50-90
        """
    ),
]
