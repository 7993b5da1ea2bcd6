"""Rows are gathered from a column-major table.

`np.stack(columns).T` and the values of a data frame have rows whose numbers are far apart: each is in another line of
the cache, which is read for one number.

Ignore when
    whole columns are read more often than rows.
"""

from diagnose.rulekit.vocabulary import *

APART = 16  # numbers of 4 bytes that are so far apart share no line of a cache (64 bytes)


def _in_pieces(one: Match) -> bool:
    inner = one.shape("table")[1:]
    if not inner:
        return False
    if one.strides is None:
        raise Missing("strides", "Record with record_shapes=True, with PyTorch of 2024 or later.")
    within = [stride for stride, size in zip(one.strides[1:], inner, strict=False) if size > 1]
    return min(within, default=0) >= APART


RULE = rewrite(
    "ME02",
    "gathering rows whose numbers lie apart",
    (Op("index|index_select|embedding", ("*table",)),),
    where=_in_pieces,
    says=lambda one: (
        f"Rows are gathered from a table of {one.sizes('table')}, whose numbers lie"
        f" {min((one.first.strides or (0, 0))[1:]):,} apart"
    ),
    left=Between(0.6, 0.2, 0.1),  # rows of 480 numbers came at 0.36 GB/s, of one piece at 2.8 (a CPU)
    back=1,
    calls_go=True,
    fixes=(
        Fix(
            "Bring the table into the order of its rows, once.",
            before="table = torch.from_numpy(np.stack(columns).T)",
            after="table = torch.from_numpy(np.stack(columns).T).contiguous()",
            link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html",
        ),
    ),
    why="the table's strides are recorded",
    level=Level.HIGH,
)

EXAMPLES = [
    Fires(  # of 40 ms a fifth is left; the rest gets faster, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::index 0-40 shapes=[[1000,480],[]] strides=[[1,1000],[]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(16, 54.4),
    ),
    Silent(  # rows of one piece
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::index 0-40 shapes=[[1000,480],[]] strides=[[480,1],[]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
    CannotTell(
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::index 0-40 shapes=[[1000,480],[]]
        """,
        because="strides",
    ),
]
