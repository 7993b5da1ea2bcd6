"""Numbers are looked for by comparing them with all others.

`(ids[:, None] == catalogue).nonzero()` compares each of some ids with each of a catalogue.

Why it costs
    A table of all by all is written and read, to find one place for each id.

How to fix
    `torch.searchsorted(catalogue, ids)` in a list that is sorted; `torch.isin(ids, catalogue)`; or a table from id to
    place, made once: `place = torch.full((largest + 1,), -1); place[catalogue] = torch.arange(len(catalogue))`.

Ignore when
    the list is short.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.searchsorted.html
    https://docs.pytorch.org/docs/stable/generated/torch.isin.html
"""

from diagnose.facts.shapes.pairs import Pairs
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.3, 0.1, 0.02)  # of the time (our choice)
SEARCH = Fix(
    "Search in what is sorted, or keep a table from ids to places.",
    before="rows = (ids[:, None] == catalogue).nonzero()[:, 1]", after="rows = torch.searchsorted(catalogue, ids)",
    safety=Safety.SAME_NUMBERS, link="https://docs.pytorch.org/docs/stable/generated/torch.searchsorted.html",
)  # fmt: skip


@rule("AT24")
def compared_with_all(equal_pairs: tuple[Pairs, ...], steps: Steps) -> Verdicts:
    large = [one for one in equal_pairs if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in equal_pairs), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"looking for numbers by comparing them takes {share} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"Whole numbers are compared in a table of {one.rows:,} by {one.columns:,}, and looked for in it"
                    f" ({', '.join(one.ops)}): {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, LEFT),),
            fixes=(SEARCH,),
            confidence=Confidence(Level.MEDIUM, "whether the numbers are sorted is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
