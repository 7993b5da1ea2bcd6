"""How trials stand while they run: a line for each pair, and for what came of it."""

from msgspec.structs import replace

from diagnose.cli.trial_lines import Lines
from diagnose.contracts.finding import Fix
from diagnose.trace.measured import Screened
from diagnose.trials.protocol import Standing
from diagnose.trials.selection import Candidate
from tests.reports.test_trials import WORKERS

CANDIDATES = [
    Candidate("dataloader_starvation", 1, Fix("Do."), "patch:DataLoader(num_workers=4)", None),
    Candidate("unfused_optimizer", 2, Fix("Do."), "patch:torch.optim(fused=True)", None),
]
BLOCKS = Screened(
    name="patch:torch.optim(fused=True)", alone=((2e6, 1e6), (2.02e6, 1e6), (1.98e6, 1e6)), steps=60, is_on=True
)


def test_a_pair_of_runs_is_a_line_and_so_is_its_result() -> None:
    said = list[str]()
    watch = Lines(CANDIDATES, said.append)
    watch.begins(Standing((1,), "dataloader_starvation", 1))
    watch.ended(WORKERS)
    result = "dataloader_starvation: 25 % faster (95 % interval 20 to 31 %), keep"
    assert said == ["running dataloader_starvation: pair 1", result]


def test_a_switch_that_has_ended_is_a_line() -> None:
    said = list[str]()
    watch = Lines(CANDIDATES, said.append)
    watch.screens([BLOCKS])
    watch.screens([replace(BLOCKS, ended=True), Screened(name="wrap:torch.autocast", void="it is on", ended=True)])
    watch.screens([replace(BLOCKS, ended=True)])
    assert said == ["unfused_optimizer: 3 pairs of blocks of 60 steps", "wrap:torch.autocast: not measured"]
