"""Whatever the name of a fix, all that reads names of fixes reads it, for every device and program."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from diagnose.advice import fixes_for_devices, fixes_for_programs, fixes_in_force, own_calls
from diagnose.capture.agent.injection import parsed
from diagnose.capture.agent.injection.forms import FORMS, VARIABLES
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level, Safety
from diagnose.facts.run.program import Language, Program, Workload
from diagnose.patches.errors import CannotEdit
from diagnose.patches.forms import edits_of
from diagnose.patches.project import Project
from diagnose.trace.manifest import Arm, Distributed, Host, Loader, Made, Optimizer, RankManifest
from diagnose.trace.model import Context, Device
from diagnose.trials.effects import why_none
from diagnose.trials.selection import select
from tests.patches.patching import finding
from tests.rules import built_in

VALUES = (0, 1, 4, 500, "2x", "4x", "16x", True, False, None, "sdpa", "max-autotune", "bf16_compress_hook")
"""One or more of each kind that an argument takes."""

HERE = Made(file="train.py", line=3, function="main")
GPU = RankManifest(
    rank=0,
    loaders=(
        Loader(dataset="D", asked=9, num_workers=4, pin_memory=True, prefetch_factor=2, batch_size=64, made=HERE),
        Loader(dataset="E", asked=9, num_workers=0, made=HERE),
    ),
    optimizers=(Optimizer(name="AdamW", fused=None, made=HERE),),
    distributed=Distributed(ddp=({"bucket_cap_mb": 25, "static_graph": False},)),
)


def names() -> list[str]:
    found = [f"env:{name}=1" for name in sorted(VARIABLES)] + [f"env:{name}=" for name in sorted(VARIABLES)]
    for (kind, name, argument), (takes, _) in FORMS.items():
        found += [
            f"{kind}:{name}" + f"({argument}{'' if value is None else f'={value}'})" * bool(argument)
            for value in VALUES
            if takes(value)
        ]
    return found


NAMES = names()


def test_every_form_has_a_name_here() -> None:
    read = [one for one in map(parsed, NAMES) if one is not None]
    assert len(read) == len(NAMES)
    assert {(one.kind, one.name, one.argument) for one in read if one.kind != "env"} == set(FORMS)


@pytest.mark.parametrize("name", NAMES)
def test_every_reader_of_names_reads_it(name: str, tmp_path: Path) -> None:
    sure, page = Confidence(Level.HIGH, "drawn"), built_in("tf32_off").page
    fix = Fix("Set it.", after="DataLoader(dataset, num_workers=4)", trial=name, safety=Safety.ROUNDING)
    alone = Finding((Evidence("It is there."),), (), (fix,), sure)
    context = Context(GPU, Host(), 1, {"OMP_NUM_THREADS": "2"})
    kept = fixes_in_force.dropped(context, [(page, alone)])
    kept = own_calls.at_their_place(context, kept)
    for language in Language:
        for workload in Workload:
            fixes_for_programs.fitting(Program(language, workload), kept)
    ranked = finding(name)
    for capability in ((6, 1), (9, 0)):
        device = Device(0, "GPU", 80 << 30, 132, capability, 2048, 32)
        (said,) = fixes_for_devices.followable([device], [ranked])
        assert said.fixes
    tried, others = select([ranked], 10_000_000, (), Safety.PRECISION)
    assert len(tried) + len(others) == 1
    assert isinstance(why_none(name, msgspec.structs.replace(GPU, arm=Arm(injected={name: ("there",)}))), str)
    trial = parsed(name)
    assert trial is not None
    with suppress(CannotEdit):
        edits_of(trial, Project(None, 0, [], tmp_path), None)


@pytest.mark.parametrize("factor", ["2x", "4x"])
def test_so_many_times_as_now_is_never_in_force(factor: str) -> None:
    page = built_in("unused_memory").page
    fix = Fix("Use larger batches.", trial=f"patch:DataLoader(batch_size={factor})")
    found = Finding((Evidence("There is room."),), (), (fix,), Confidence(Level.HIGH, "drawn"))
    assert fixes_in_force.dropped(Context(GPU, Host(), 1), [(page, found)]) == [(page, found)]
