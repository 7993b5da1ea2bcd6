"""Rows are gathered from a table stored column by column.

`np.stack(columns).T` and the values of a data frame have rows whose numbers are far apart: each is in another line of
the cache, which is read for one number.

Why it costs
    A row of n numbers takes n accesses to memory, of which each moves 64 bytes for 4; on a GPU, 32 bytes.

How to fix
    Bring the table into the order of its rows, once, before training: `table.contiguous()`, or
    `np.stack(columns, axis=1)`.

Ignore when
    whole columns are read more often than rows.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html
"""

from diagnose.rulekit.vocabulary import (
    Basis,
    Between,
    CannotTell,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    Safety,
    ScatteredRows,
    Shorten,
    Silent,
    Steps,
    Verdicts,
    ms,
    percent,
    rule,
)

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.6, 0.2, 0.1)  # of the time: rows of 480 numbers came at 0.36 GB/s, of one piece at 2.8 (a CPU)
CONTIGUOUS = Fix(
    "Bring the table into the order of its rows, once.",
    before="table = torch.from_numpy(np.stack(columns).T)",
    after="table = torch.from_numpy(np.stack(columns).T).contiguous()",
    safety=Safety.SAME_NUMBERS,
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html",
)


@rule("ME02")
def rows_in_pieces(scattered_rows: tuple[ScatteredRows, ...], steps: Steps) -> Verdicts:
    large = [one for one in scattered_rows if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in scattered_rows), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"gathering rows whose numbers lie apart takes {share} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"Rows are gathered from a table of {' x '.join(f'{n:,}' for n in one.shape)}, whose numbers lie"
                    f" {one.apart:,} apart: {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT), Shorten(one.work.work_ids, LEFT)),
            fixes=(CONTIGUOUS,),
            confidence=Confidence(Level.HIGH, "the table's strides are recorded"),
            basis=Basis.RULE_OF_THUMB,
            site=one.site,
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
