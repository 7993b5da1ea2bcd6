"""How trials stand while they run: a line for each switch that has ended."""

from msgspec.structs import replace

from diagnose.cli.try_ import Screening
from diagnose.contracts.finding import Fix
from diagnose.trace.manifest import Screened
from diagnose.trials.selection import Candidate

CANDIDATE = Candidate("unfused_optimizer", 2, Fix("Do."), "patch:torch.optim(fused=True)", None)
PAIRS = ((2e6, 1e6), (2.02e6, 1e6), (1.98e6, 1e6))


def test_a_switch_that_has_ended_is_a_line() -> None:
    said, blocks = list[str](), Screened(name=CANDIDATE.trial, alone=PAIRS, steps=60, is_on=True)
    tell = Screening([CANDIDATE], said.append)
    tell([blocks])
    tell([replace(blocks, ended=True), Screened(name="wrap:torch.autocast", void="it is on", ended=True)])
    tell([replace(blocks, ended=True)])
    assert said == ["unfused_optimizer: 3 pairs of blocks of 60 steps", "wrap:torch.autocast: not measured"]
