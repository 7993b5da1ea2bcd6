"""Every kind of setting has all its parts, and every setting goes through all that reads settings."""

import importlib
import inspect
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diagnose.advice.fixes_of_run import Situation, fitted
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level
from diagnose.facts.run.program import Language, Program, Workload
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.environment import VARIABLES
from diagnose.fixes.frameworks import OWN_WORK
from diagnose.fixes.setting import PARTS, Argument, Code, Loop, NotPossible, Run, Safety, Setting
from diagnose.patches.editor import edits_of
from diagnose.patches.files import CannotEdit
from diagnose.patches.project import Project
from diagnose.trace.manifest import (
    Arm,
    Distributed,
    Host,
    Loader,
    Made,
    Manifest,
    Optimizer,
    RankManifest,
    training_loaders,
)
from diagnose.trace.model import Context, Device
from diagnose.trials.arms import why_none
from diagnose.trials.selection import select
from tests.patches.patching import finding
from tests.rules import built_in

VALUES = (1, 4, 500, fixes.Multiple(2), True, False, None, "sdpa", "max-autotune", "bf16_compress_hook")
"""One or more of each kind that an argument takes."""

HERE = Made(file="train.py", line=3, function="main", call="DataLoader(data, 64)")
GPU = RankManifest(
    rank=0,
    loaders=(
        Loader(dataset="D", asked=9, num_workers=4, pin_memory=True, prefetch_factor=2, batch_size=64, made=HERE),
        Loader(dataset="E", asked=9, num_workers=0, made=HERE),
    ),
    optimizers=(Optimizer(name="AdamW", fused=None, made=HERE),),
    distributed=Distributed(ddp=({"bucket_cap_mb": 25, "static_graph": False},)),
)
RUN = Run(GPU, training_loaders(GPU), {"OMP_NUM_THREADS": "2"})


def settings() -> list[Setting]:
    found: list[Setting] = [
        fixes.Environment(value=((name, value),)) for name in sorted(VARIABLES) for value in ("1", "")
    ]
    for kind in fixes.KINDS:
        if kind is fixes.Environment:
            continue
        for argument, takes in kind.takes.items():
            found += [kind(argument, value) for value in VALUES if takes(value)]
    return found


ALL = settings()


def test_every_kind_is_here() -> None:
    def derived(kind: type[Setting]) -> set[type[Setting]]:
        under = set[type[Setting]]().union(*map(derived, kind.__subclasses__()))
        return under or {kind}

    assert {type(setting) for setting in ALL} == set(fixes.KINDS) == derived(Setting)


@pytest.mark.parametrize("kind", fixes.KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_defines_every_part_or_says_why_not(kind: type[Setting]) -> None:
    for part in PARTS:
        assert getattr(kind, part) is not getattr(Setting, part), f"{kind.__name__} says nothing of `{part}`"


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_a_name_is_read_as_what_it_was_written_from(setting: Setting) -> None:
    assert fixes.parsed(setting.name) == setting


@pytest.mark.parametrize(
    "name",
    [
        *("", "env:", "env:LD_PRELOAD=x.so", "env:OMP_NUM_THREADS=8 PATH=x", "patch:", "wrap:cuda_graph"),
        *("patch:DataLoader(num_workers=many)", "patch:DataLoader(num_workers=-1)", "patch:DataLoader(num_workers)"),
        *("patch:DataLoader(batch_size=32)", "patch:DataLoader(batch_size=1x)", "patch:DataLoader(shuffle=True)"),
        *("wrap:DataLoader(num_workers=4)", "patch:torch.optim(fused=1)", "wrap:torch.compile(mode=)"),
        *("patch:gc.collect(every=0)", "wrap:channels_last(depth=2)", "wrap:channels_last; rm -rf /"),
    ],
)
def test_what_is_no_setting(name: str) -> None:
    assert fixes.parsed(name) is None


def test_a_value_that_a_kind_does_not_take_cannot_be_made() -> None:
    for argument, value in (("num_workers", -1), ("num_workers", "2"), ("batch_size", 2), ("shuffle", True)):
        with pytest.raises(ValueError, match="does not take"):
            fixes.LoaderArgument(argument, value)
    assert fixes.LoaderArgument("batch_size", fixes.Multiple(2)).batch_factor == 2
    assert fixes.LoaderArgument("num_workers", 4).batch_factor == 1


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_a_setting_goes_through_all_that_reads_it(setting: Setting, tmp_path: Path) -> None:
    page, sure = built_in("tf32_off").page, Confidence(Level.HIGH, "synthetic")
    fix = Fix.of(setting)
    assert (fix.setting, bool(fix.do)) == (setting, True)
    alone = Finding((Evidence("It is there."),), (), (fix,), sure)
    context = Context(GPU, Host(), 1, RUN.environment)
    for loop in Loop:
        for language in Language:
            for capability in ((6, 1), (9, 0)):
                device = Device(0, "GPU", 80 << 30, 132, capability, 2048, 32)
                for _, told in fitted(
                    Situation(context, [device], Program(language, Workload.TRAINING, loop)), [(page, alone)]
                ):
                    assert told.fixes
    tried, others = select([finding(setting.name)], 10_000_000, (), Safety.PRECISION)
    assert (len(tried), len(others)) == ((0, 1) if setting.why_not_tried else (1, 0))
    arm = Arm(injected={setting.name: ("there",)})
    assert isinstance(why_none(setting, RankManifest(rank=0, arm=arm)), str)
    for loop in Loop:
        with suppress(CannotEdit):
            edits_of(setting, Project(Manifest(ranks=(RankManifest(rank=0, loop=loop),)), 0, [], tmp_path), None)


def test_parts_that_are_not_possible_say_why() -> None:
    for kind in fixes.KINDS:
        for part in PARTS:
            if why := getattr(getattr(kind, part), "why", ""):
                with pytest.raises(NotPossible, match=re.escape(why)):
                    getattr(kind, part)(None)
    assert fixes.GraphCapture().why_not_tried
    assert not fixes.Compile().why_not_tried


def test_the_agent_loads_them_without_diagnose(tmp_path: Path) -> None:
    """In a process that has the standard library only."""
    agent = Path(__file__).parents[2] / "diagnose/capture/agent"
    text = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "diagnose_agent", {str(agent / "__init__.py")!r}, submodule_search_locations=[{str(agent)!r}]
)
sys.modules["diagnose_agent"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from diagnose_agent import injection
injection.inject(["patch:gc.collect(every=500)", "env:OMP_NUM_THREADS=8"])
print(sorted(injection.found()["injected"]), [name for name in sys.modules if name.partition(".")[0] == "diagnose"])
"""
    run = [sys.executable, "-I", "-S", "-c", text]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "['env:OMP_NUM_THREADS=8', 'patch:gc.collect(every=500)'] []\n"


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_frameworks_set_it_by_an_argument_with_a_value_or_say_where(setting: Setting) -> None:
    for loop in Loop:
        told = setting.framework(loop, RUN)
        assert told is None or (isinstance(told, Argument) and told.name) or isinstance(told, str)
    assert setting.framework(Loop.OWN, RUN) is None


ADVISED = sorted(
    {
        (told.owner, told.name, repr(told.value)): told
        for told in [
            *(setting.framework(loop, RUN) for setting in ALL for loop in Loop),
            *(work.setting for work in OWN_WORK),
        ]
        if isinstance(told, Argument) and "." in told.owner
    }.values(),
    key=str,
)
"""But for DeepSpeed's configuration, which is no Python, and from_pretrained(), which takes what the model does."""

NEEDED: dict[str, dict[str, Any]] = {
    "lightning.Trainer": {"logger": False, "accelerator": "cpu"},
    "lightning.Fabric": {"accelerator": "cpu"},
}


@pytest.mark.slow
@pytest.mark.parametrize("told", ADVISED, ids=lambda told: f"{told.owner}.{told.name}={told.value}")
def test_an_argument_that_is_advised_can_be_given(told: Argument, tmp_path: Path) -> None:
    """Where this machine has the device that it takes; that the class knows it is checked everywhere."""
    module, _, name = told.owner.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    kind = getattr(importlib.import_module(module), name)
    known = inspect.signature(kind).parameters
    assert told.name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
    if isinstance(told.value, Code):
        return
    needed = NEEDED.get(told.owner, {})
    if name == "TrainingArguments":
        needed = {"output_dir": str(tmp_path), "use_cpu": told.name != "tf32"}
    if told.name == "prefetch_factor" or told.name.endswith("prefetch_factor"):
        needed["dataloader_num_workers"] = 2
    if module == "accelerate":  # It lets a process choose once.
        importlib.import_module("accelerate.state").AcceleratorState._reset_state(True)
    refused = ""
    try:
        kind(**{**needed, told.name: told.value})
    except (ValueError, ImportError) as error:
        refused = str(error)
    assert not refused or re.search("GPU|CUDA|Ampere|supported device", refused), refused
