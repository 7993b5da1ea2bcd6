"""Why findings are less sure than their rules think: the one place where a confidence is lowered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec import Struct

from diagnose.advice.pricing import Priced, Step
from diagnose.contracts.finding import Caution, Finding
from diagnose.replay.saving import DOUBTFUL, Basis, Replay, Saving
from diagnose.trace.model import Ground, IntegrityNote, Severity
from diagnose.trace.units import percent

_SAID = {
    Ground.HOST_TIMES: "CPU timings",
    Ground.DEVICE_TIMES: "kernel timings",
    Ground.DEVICE_IDLE: "GPU idle times",
    Ground.LAUNCHES: "links from calls to kernels",
    Ground.CLOCKS: "CPU-to-GPU clock offsets",
    Ground.RANKS: "clock offsets between ranks",
}


class Doubt(Struct, frozen=True):
    """Why a finding is less sure than its rule thinks."""

    why: str
    decides: bool = False  # It alone makes the confidence low.


class Doubtful(Struct, frozen=True):
    """What is doubtful of a rank: in its measurement, its replay, and its recording."""

    replay: Replay
    cautions: Sequence[Caution]

    def doubts(self, one: Priced, step: Step) -> list[Doubt]:
        """Each makes the finding a level less sure."""
        found = []
        for caution in self.cautions:
            if caution.lowers_all or (caution.lowers_host and one.finding.host_bound):
                noise = one.alone.likely_ns < caution.noise_share * step.ns
                below = f"below the noise ({percent(caution.noise_share)}): measure before you keep it"
                found.append(Doubt(below if noise else caution.what, noise))
        quality = self.replay.quality
        if quality.unexplained_share >= DOUBTFUL:
            found.append(Doubt(f"the simulation cannot explain {quality.unexplained_share:.0%} of the step"))
        elif abs(quality.error_share) >= DOUBTFUL:
            found.append(Doubt(f"the simulated step is off by {quality.error_share:+.0%} before fitting"))
        against = self._against(one.finding)
        if doubted := [ground for ground in Ground if any(ground in grounds for _, grounds in against)]:
            said = " and ".join(_SAID[ground] for ground in doubted)
            lost = any(note.severity is Severity.ERROR for note, _ in against)
            found.append(Doubt(f"{said} are unreliable here, see Notes", lost))
        return found

    def bounded(self, finding: Finding, saving: Saving) -> Saving:
        """The saving, but at most that where so much device work is missing that the device may not have been idle."""
        lost = (Ground.DEVICE_IDLE in said and note.severity is Severity.ERROR for note, said in self._against(finding))
        return dataclasses.replace(saving, low_ns=0, basis=Basis.BOUNDED) if any(lost) else saving

    def _against(self, finding: Finding) -> list[tuple[IntegrityNote, frozenset[Ground]]]:
        own = self.replay.grounds(finding.edits)
        against = ((note, own.intersection(note.doubts)) for note in self.replay.notes)
        return [(note, said) for note, said in against if said]
