"""Fixes are told as the run can follow them: as changes of its own calls, in its framework's words, in its language."""

import pytest
from msgspec.structs import replace

from diagnose.advice.fixes_of_run import Situation, fitted, with_settings
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level
from diagnose.facts.run.program import Language, Program, Workload
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.setting import Loop, Safety
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Distributed, Host, Loader, Made, Optimizer, RankManifest
from diagnose.trace.model import Context
from tests.rules import built_in

MADE = Made(file="/home/me/train.py", line=31, function="main", call="DataLoader(train, 64, shuffle=True)")
MINE = RankManifest(rank=0, loaders=(Loader(dataset="Mine", made=MADE),))
WORKERS = Fix.of(fixes.LoaderArgument("num_workers", 4))
PAGE = built_in("dataloader_starvation").page


def finding(*some: Fix, site: Site | None = None) -> Finding:
    return Finding((Evidence("It is."),), (), some, Confidence(Level.HIGH, "seen"), site)


def told(
    rank: RankManifest,
    one: Finding,
    *command: str,
    loop: Loop = Loop.OWN,
    language: Language = Language.PYTHON,
    environment: dict[str, str] | None = None,
) -> Finding | None:
    """The finding as this run is told it; None if it is not told at all."""
    context = Context(rank, Host(), 1, environment or {}, command=command)
    left = fitted(Situation(context, (), Program(language, Workload.TRAINING, loop)), [(PAGE, one)])
    return left[0][1] if left else None


def placed(rank: RankManifest, one: Finding, *command: str, loop: Loop = Loop.OWN) -> Finding:
    found = told(rank, one, *command, loop=loop)
    assert found is not None
    return found


@pytest.mark.parametrize("loop", [Loop.OWN, Loop.LIGHTNING])
def test_a_fix_is_a_change_of_the_call_in_the_script(loop: Loop) -> None:
    found = placed(MINE, finding(WORKERS), loop=loop)
    assert found.site == Site("/home/me/train.py", 31, "main")
    assert found.fixes[0].before == "DataLoader(train, 64, shuffle=True)  # train.py:31"
    assert found.fixes[0].after == "DataLoader(train, 64, shuffle=True, num_workers=4)"
    site = Site("loop.py", 3, "train")  # A line that is known already stays.
    assert placed(MINE, finding(WORKERS, site=site)).site == site


@pytest.mark.parametrize(
    ("before", "says"), [(None, ""), ((2, 1), ""), ((1, 10), " First update PyTorch to 2.0 or newer.")]
)
def test_what_an_older_pytorch_has_not_got_is_said(before: tuple[int, int] | None, says: str) -> None:
    fix = Fix.of(fixes.Compile())
    here = Situation(None, (), Program(Language.PYTHON, Workload.TRAINING, Loop.OWN), before)
    assert [one.do for one in fitted(here, [(PAGE, finding(fix))])[0][1].fixes] == [f"Compile the model.{says}"]


def test_workers_for_an_iterable_dataset_need_judgement() -> None:
    loader = Loader(dataset="Mine", sampler="_InfiniteConstantSampler", made=MADE)
    (fix,) = placed(RankManifest(rank=0, loaders=(loader,)), finding(WORKERS)).fixes
    assert fix.do.endswith(" First split the iterable dataset among workers with get_worker_info().")
    assert fix.safety is Safety.NEEDS_JUDGEMENT


@pytest.mark.parametrize(
    ("made", "site"),
    [
        ([replace(MADE, call="")], MADE.site),  # Within a library: it gives a line and no words.
        ([], None),
        ([replace(MADE, line=line) for line in range(2)], None),
    ],
)
def test_what_is_made_at_no_known_place_or_at_two_is_not_told(made: list[Made], site: Site | None) -> None:
    loaders = tuple(Loader(dataset="Mine", made=one) for one in made)
    found = placed(RankManifest(rank=0, loaders=loaders), finding(WORKERS))
    assert (found.site, found.fixes) == (site, (WORKERS,))


def test_optimizers_are_those_without_it_and_wrapped_models_count() -> None:
    adam = Made(file="a.py", line=1, function="f", call="optim.Adam(model.parameters(), lr=lr)")
    ddp = Made(file="a.py", line=2, function="f", call="DDP(model, device_ids=[rank])")
    rank = RankManifest(
        rank=0,
        optimizers=(Optimizer(name="Adam", made=adam), Optimizer(name="SGD", fused=True)),
        distributed=Distributed(ddp_made=(ddp,)),
    )
    fused, static = Fix.of(fixes.OptimizerArgument("fused", True)), Fix.of(fixes.DdpArgument("static_graph", True))
    assert placed(rank, finding(fused)).fixes[0].after == "optim.Adam(model.parameters(), lr=lr, fused=True)"
    assert placed(rank, finding(static)).fixes[0].after == "DDP(model, device_ids=[rank], static_graph=True)"
    both = replace(rank, optimizers=(Optimizer(name="Adam", made=adam), Optimizer(name="SGD")))
    assert placed(both, finding(fused)).fixes == (fused,)


def test_a_multiple_of_what_is_there_is_written_into_no_call() -> None:
    larger = Fix.of(fixes.LoaderArgument("batch_size", fixes.Multiple(4)))
    assert placed(MINE, finding(larger)).fixes == (larger,)


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("DataLoader(a, num_workers=1)", "DataLoader(a, num_workers=4)"),
        ("DataLoader(a, **options)", "DataLoader(a, **{**options, 'num_workers': 4})"),
        ("DataLoader(a, num_workers=1, **options)", "DataLoader(a, num_workers=4, **options)"),
        ("DataLoader(a, 1, False, None, None, 2)", ""),
        ("DataLoader(*all)", ""),
        ("DataLoader(a, **b, **c)", ""),
        ("no call", ""),
    ],
)
def test_settings_in_calls_of_all_forms(call: str, changed: str) -> None:
    assert with_settings(call, {"num_workers": 4}) == changed


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ((), "python train.py"),
        (("/opt/env/bin/python3", "main.py", "--epochs", "2"), "python3 main.py --epochs 2"),
        (("torchrun", "--nproc_per_node", "2", "a b.py"), "torchrun --nproc_per_node 2 'a b.py'"),
        (("python", "x" * 300), "python train.py"),
        (("python", "run.py", "--text", "a b", "y" * 190), "python run.py --text 'a b' ..."),
        (("x" * 300,), "python train.py"),
        (("train",), "train"),
    ],
)
def test_a_fix_of_the_command_is_the_user_s_own_command(command: tuple[str, ...], typed: str) -> None:
    fix = Fix("Keep memory.", before="python train.py", after="MALLOC_TRIM_THRESHOLD_=1 python train.py")
    found = placed(RankManifest(rank=0), finding(fix), *command).fixes[0]
    assert (found.before, found.after) == (typed, f"MALLOC_TRIM_THRESHOLD_=1 {typed}")


OF_DEEPSPEED = "# in DeepSpeed's configuration"


@pytest.mark.parametrize(
    ("loop", "fix", "code"),
    [
        (Loop.TRANSFORMERS, WORKERS, "dataloader_num_workers=4,  # of TrainingArguments(...)"),
        (Loop.TRANSFORMERS, Fix.of(fixes.Tf32()), "tf32=True,  # of TrainingArguments(...)"),
        (Loop.LIGHTNING, Fix.of(fixes.Autocast()), 'precision="bf16-mixed",  # of Trainer(...)'),
        (Loop.FABRIC, Fix.of(fixes.Autocast()), 'precision="bf16-mixed",  # of Fabric(...)'),
        (Loop.ACCELERATE, Fix.of(fixes.Autocast()), 'mixed_precision="bf16",  # of Accelerator(...)'),
        (Loop.DEEPSPEED, Fix.of(fixes.NoSync()), f'"gradient_accumulation_steps": parts,  {OF_DEEPSPEED}'),
        (Loop.DEEPSPEED, Fix.of(fixes.Autocast()), f'"bf16": {{"enabled": true}},  {OF_DEEPSPEED}'),
        (Loop.LIGHTNING, Fix.of(fixes.Compile()), "# before trainer.fit(model)\nmodel = torch.compile(model)"),
        (Loop.FABRIC, Fix.of(fixes.Compile()), "model = torch.compile(model)"),
    ],
)
def test_fixes_are_in_the_words_of_what_owns_the_loop(loop: Loop, fix: Fix, code: str) -> None:
    assert placed(RankManifest(rank=0), finding(fix), loop=loop).fixes[0].after == code


@pytest.mark.parametrize("language", [Language.CPP, Language.CUDA])
def test_python_is_labelled_elsewhere_and_cannot_be_tried(language: Language) -> None:
    found = told(RankManifest(rank=0), finding(Fix.of(fixes.Compile())), language=language)
    assert (found.fixes[0].after, found.fixes[0].trial) == ("# in Python:\nmodel = torch.compile(model)", None)
    for fix in (Fix("Set it.", after="export NCCL_DEBUG=INFO"), Fix("Find out.")):
        assert told(RankManifest(rank=0), finding(fix), language=language) == finding(fix)


ASKED = Loader(dataset="D", asked=9, asked_timed=9, num_workers=4, prefetch_factor=4)
SET = RankManifest(
    rank=0,
    loaders=(replace(ASKED, pin_memory=True, persistent_workers=True), Loader(dataset="Validation", asked=90)),
    optimizers=(Optimizer(name="AdamW", fused=True),),
    distributed=Distributed(ddp=({"bucket_cap_mb": 25},)),
)


@pytest.mark.parametrize(
    ("name", "in_force"),
    [
        ("patch:DataLoader(num_workers=1)", True),
        ("patch:DataLoader(num_workers=4)", True),
        ("patch:DataLoader(num_workers=5)", False),
        ("patch:DataLoader(prefetch_factor=4)", True),
        ("patch:DataLoader(prefetch_factor=8)", False),
        ("patch:DataLoader(pin_memory=True)", True),
        ("patch:DataLoader(persistent_workers=True)", True),
        ("patch:DataLoader(batch_size=2x)", False),
        ("patch:torch.optim(fused=True)", True),
        ("patch:torch.optim(foreach=True)", False),
        ("wrap:DistributedDataParallel(bucket_cap_mb=25)", True),
        ("wrap:DistributedDataParallel(bucket_cap_mb=50)", False),
        ("env:OMP_NUM_THREADS=2", True),
        ("env:OMP_NUM_THREADS=1", False),
        ("wrap:torch.compile", False),
        (None, False),
    ],
)
def test_what_is_set_already_is_not_advised(name: str | None, in_force: bool) -> None:
    other = Fix("Do something else.")
    alone = finding(Fix("Set it.", trial=name))
    both = replace(alone, fixes=(*alone.fixes, other))
    left = [told(SET, one, environment={"OMP_NUM_THREADS": "2"}) for one in (alone, both)]
    assert [found and found.fixes for found in left] == ([None, (other,)] if in_force else [alone.fixes, both.fixes])
