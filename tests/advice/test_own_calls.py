"""Fixes are changes of the script's own calls, where these are known."""

from __future__ import annotations

import ast

import pytest
from msgspec.structs import replace

from diagnose.advice import own_calls
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Distributed, Host, Loader, Made, Optimizer, RankManifest
from diagnose.trace.model import Context
from tests.rules import built_in

MADE = Made(file="/home/me/train.py", line=31, function="main", call="DataLoader(train, 64, shuffle=True)")
WORKERS = Fix(
    "Load in worker processes.",
    before="DataLoader(dataset, batch_size)",
    after="DataLoader(dataset, batch_size, num_workers=4, persistent_workers=True)",
)


def finding(*fixes: Fix, site: Site | None = None) -> Finding:
    return Finding((Evidence("It is."),), (), fixes, Confidence(Level.HIGH, "seen"), site)


def placed(rank: RankManifest, one: Finding, *command: str) -> Finding:
    page = built_in("dataloader_starvation").page
    ((_, found),) = own_calls.at_their_place(Context(rank, Host(), 1, command=command), [(page, one)])
    return found


def test_a_fix_is_a_change_of_the_call_in_the_script() -> None:
    found = placed(RankManifest(rank=0, loaders=(Loader(dataset="Mine", made=MADE),)), finding(WORKERS))
    assert found.site == Site("/home/me/train.py", 31, "main")
    assert found.fixes[0].before == "DataLoader(train, 64, shuffle=True)  # train.py:31"
    assert found.fixes[0].after == "DataLoader(train, 64, shuffle=True, num_workers=4, persistent_workers=True)"


def test_a_line_that_is_known_already_stays() -> None:
    site = Site("loop.py", 3, "train")
    found = placed(RankManifest(rank=0, loaders=(Loader(dataset="Mine", made=MADE),)), finding(WORKERS, site=site))
    assert found.site == site


def test_a_call_within_a_library_gives_a_line_and_no_words() -> None:
    loader = Loader(dataset="Mine", made=replace(MADE, call=""))
    found = placed(RankManifest(rank=0, loaders=(loader,)), finding(WORKERS))
    assert (found.site, found.fixes) == (Site("/home/me/train.py", 31, "main"), (WORKERS,))


@pytest.mark.parametrize("count", [0, 2])
def test_what_is_made_at_no_known_place_or_at_two_is_not_told(count: int) -> None:
    loaders = tuple(Loader(dataset="Mine", made=replace(MADE, line=line)) for line in range(count))
    found = placed(RankManifest(rank=0, loaders=loaders), finding(WORKERS))
    assert (found.site, found.fixes) == (None, (WORKERS,))


def test_optimizers_are_told_apart_by_their_class_and_wrapped_models_count() -> None:
    adam = Made(file="a.py", line=1, function="f", call="optim.Adam(model.parameters(), lr=lr)")
    ddp = Made(file="a.py", line=2, function="f", call="DDP(model, device_ids=[rank])")
    rank = RankManifest(
        rank=0,
        optimizers=(Optimizer(name="Adam", made=adam), Optimizer(name="SGD")),
        distributed=Distributed(ddp_made=(ddp,)),
    )
    fused = Fix("Fuse.", after="torch.optim.Adam(model.parameters(), fused=True)")
    assert placed(rank, finding(fused)).fixes[0].after == "optim.Adam(model.parameters(), lr=lr, fused=True)"
    assert placed(rank, finding(replace(fused, after="torch.optim.SGD(x, fused=True)"))).site is None
    static = Fix("Say so.", after="DistributedDataParallel(model, static_graph=True)")
    assert placed(rank, finding(static)).fixes[0].after == "DDP(model, device_ids=[rank], static_graph=True)"


def test_what_was_so_before_and_what_is_no_known_value_are_no_settings() -> None:
    rank = RankManifest(rank=0, loaders=(Loader(dataset="Mine", made=MADE),))
    fix = Fix("Do.", before="DataLoader(data, prefetch_factor=2)", after="DataLoader(data, prefetch_factor=2)")
    assert placed(rank, finding(fix)).fixes == (fix,)
    fix = Fix("Do.", after="DataLoader(data, batch_size=2 * batch_size)")
    assert placed(rank, finding(fix)).fixes == (fix,)


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("DataLoader(a, num_workers=1)", "DataLoader(a, num_workers=4)"),
        ("DataLoader(a, **options)", "DataLoader(a, **{**options, 'num_workers': 4})"),
        ("DataLoader(a, num_workers=1, **options)", "DataLoader(a, num_workers=4, **options)"),
        ("DataLoader(a, 1, False, None, None, 2)", ""),
        ("DataLoader(*all)", ""),
        ("no call", ""),
    ],
)
def test_settings_in_calls_of_all_forms(call: str, changed: str) -> None:
    assert own_calls.with_settings(call, {"num_workers": ast.Constant(4)}) == changed


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
