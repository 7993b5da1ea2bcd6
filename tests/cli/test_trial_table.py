"""How trials stand while they run."""

import io

from msgspec.structs import replace
from rich.console import Console

from diagnose.cli.trial_table import Table, watched
from diagnose.contracts.finding import Fix
from diagnose.contracts.trials import Range
from diagnose.trace.manifest import Screened
from diagnose.trials.protocol import AS_IT_IS, Standing
from diagnose.trials.selection import Candidate
from tests.reports.test_trials import FUSED, WORKERS

CANDIDATES = [
    Candidate("dataloader_starvation", 1, Fix("Do."), "patch:DataLoader(num_workers=4)", Range(1.3, 1.4, 1.5)),
    Candidate("unfused_optimizer", 2, Fix("Do."), "patch:torch.optim(fused=True)", None),
]


def drawn(table: Table) -> list[list[str]]:
    """Its rows but for the caption, as words."""
    out = io.StringIO()
    Console(file=out, width=120).print(table.drawn())
    return [line.split() for line in out.getvalue().splitlines()[1:-1]]


def test_the_script_as_it_is_comes_first() -> None:
    table = Table(CANDIDATES, 600)
    table.begins(Standing((), AS_IT_IS, 2, False, None))
    assert drawn(table) == [
        ["the", "script", "as", "it", "is", "run", "2", "of", "2"],
        ["1", "dataloader_starvation", "1.40x", "waiting"],
        ["2", "unfused_optimizer", "waiting"],
    ]


def test_what_has_ended_stays_beside_what_runs() -> None:
    table = Table(CANDIDATES, 600)
    table.ended(WORKERS)
    table.begins(Standing((2,), "unfused_optimizer", 3, True, Range(1.01, 1.1, 1.2)))
    assert drawn(table) == [
        ["1", "dataloader_starvation", "1.40x", "1.25x,", "1.20", "to", "1.31", "keep"],
        ["2", "unfused_optimizer", "1.10x,", "1.01", "to", "1.20", "pair", "3,", "with", "the", "fix"],
    ]


def test_several_together_come_last() -> None:
    table = Table(CANDIDATES, 600)
    table.ended(WORKERS)
    table.ended(FUSED)
    table.begins(Standing((1, 2), "dataloader_starvation + unfused_optimizer", 1, False, None))
    last = ["1", "+", "2", "dataloader_starvation", "+", "unfused_optimizer", "pair", "1,", "without", "the", "fix"]
    assert drawn(table)[2] == last


def test_elsewhere_it_is_a_line_for_each_pair() -> None:
    said = list[str]()
    with watched(CANDIDATES, 600, True, said.append) as watch:
        for with_fix in (False, True):
            watch.begins(Standing((1,), "dataloader_starvation", 1, with_fix, None))
        watch.ended(WORKERS)
    assert said == ["running dataloader_starvation: pair 1", "dataloader_starvation: 1.25x, 1.20 to 1.31, keep"]


BLOCKS = Screened(
    name="patch:torch.optim(fused=True)", alone=((2e6, 1e6), (2.02e6, 1e6), (1.98e6, 1e6)), steps=60, is_on=True
)


def test_blocks_are_counted_with_the_interval_so_far() -> None:
    """Logarithms of 2, 2.02 and 1.98 have a deviation of 0.01; of three pairs t is 9.925."""
    table = Table(CANDIDATES, 600)
    table.screens([BLOCKS])
    row = ["2", "unfused_optimizer", "2.00x,", "1.89", "to", "2.12", "3", "pairs", "of", "blocks", "of", "60", "steps"]
    assert drawn(table)[1] == row


def test_elsewhere_it_is_a_line_for_each_switch_that_has_ended() -> None:
    said = list[str]()
    with watched(CANDIDATES, 600, True, said.append) as watch:
        watch.screens([BLOCKS])
        watch.screens([replace(BLOCKS, ended=True), Screened(name="wrap:torch.autocast", void="it is on", ended=True)])
        watch.screens([replace(BLOCKS, ended=True)])
    assert said == [
        "unfused_optimizer: 2.00x, 1.89 to 2.12, 3 pairs of blocks of 60 steps",
        "wrap:torch.autocast: not measured",
    ]
