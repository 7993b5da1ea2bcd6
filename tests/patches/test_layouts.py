"""A property of every patch of a call: the file is Python, and without the argument it is the file as it was."""

import ast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.contracts.patches import Patch
from diagnose.contracts.trials import Trial, Verdict
from diagnose.fixes.setting import Safety
from diagnose.patches.files import CannotPatch
from diagnose.patches.making import kept, select
from tests.patches.patching import finding, manifest, patch
from tests.reports.test_trials import WORKERS, report

PARTS = ["data", "data_of('x', 1)", "[a,\n  b]", "lambda x: x", "(yield)", "f'{x}, {y}'"]
NAMED = ["batch_size=8", "shuffle = True", "collate_fn=lambda x: (x,\n    x)", "timeout=\\\n  1", "sampler=[*a]"]
SPACES = ["", " ", "\n", "\n    ", "  # why\n", "  # (,\n\n        # more\n    ", "\t", "\\\n"]


@st.composite
def calls(draw: st.DrawFn) -> str:
    """A call of a DataLoader in some layout."""
    arguments = [
        *draw(st.lists(st.sampled_from(PARTS), max_size=2)),
        *draw(st.permutations(NAMED))[: draw(st.integers(0, 3))],
    ]
    space = st.sampled_from(SPACES)
    text = "".join(f"{draw(space)}{argument}{draw(space)}," for argument in arguments)
    if arguments and draw(st.booleans()):
        text = text[:-1]
    return f"DataLoader({text}{draw(space)})"


@given(calls(), st.sampled_from(["{}", "f(1, {}, 2)", "[{}]", "({}\n)", "x = y = {}  # z"]))
def test_an_argument_is_all_that_is_added(tmp_path_factory: pytest.TempPathFactory, call: str, around: str) -> None:
    text = (
        f"from torch.utils.data import DataLoader\ndef f():\n    if x:\n        {around.format(call)}\n    return 1\n"
    )
    try:
        before = ast.parse(text)
    except SyntaxError:
        return
    folder = tmp_path_factory.mktemp("layout")
    path = folder / "train.py"
    path.write_text(text)
    done: Patch = patch(
        folder, ["patch:DataLoader(num_workers=4)", "patch:DataLoader(pin_memory=True)"], manifest(path)
    )
    ((changed,), ()) = done.files, done.by_hand
    after = ast.parse(changed.after)
    (made,) = (one for one in ast.walk(after) if isinstance(one, ast.Call) and ast.unparse(one.func) == "DataLoader")
    assert [ast.unparse(keyword) for keyword in made.keywords[-2:]] == ["num_workers=4", "pin_memory=True"]
    del made.keywords[-2:]
    assert ast.dump(after) == ast.dump(before)
    assert comments(changed.after.decode()) == comments(text)


def comments(text: str) -> list[str]:
    return [line[line.index("#") :] for line in text.splitlines() if "#" in line]


FUSED = "patch:torch.optim(fused=True)"
FINDINGS = [
    finding(FUSED, 1, safety=Safety.ROUNDING),
    finding("wrap:torch.autocast", 2, safety=Safety.PRECISION),
    finding("wrap:DistributedDataParallel(broadcast_buffers=False)", 3, safety=Safety.NEEDS_JUDGEMENT),
    finding("patch:zero_grad(set_to_none=True)", 4, minor=True),
    finding(None, 5),
]


def test_what_needs_judgement_or_saves_little_has_to_be_asked_for() -> None:
    wanted, others = select(FINDINGS, ())
    assert [one.finding.rank_order for one in wanted] == [1]
    assert [other.why for other in others] == [
        "it needs your judgement, as it means less precise arithmetic (--fix 2 adds it)",
        "it needs your judgement, as it means another training (--fix 3 adds it)",
        "it would save less than 1 % (--fix 4 adds it)",
        "it needs an edit by hand",
    ]


@pytest.mark.parametrize("asked", [("2", "4"), ("rule_2", "rule_4"), ("xx02", "XX04")])
def test_what_is_asked_for_by_number_rule_or_code_is_all_there_is(asked: tuple[str, ...]) -> None:
    wanted, others = select(FINDINGS, asked)
    assert [one.finding.rank_order for one in wanted] == [2, 4]
    assert others == []


def test_a_name_of_no_finding_is_refused() -> None:
    with pytest.raises(CannotPatch, match=r"^--fix 9 names no finding of this run. There are: 1 rule_1, 2 rule_2, 3"):
        select(FINDINGS, ("1", "9"))
    with pytest.raises(CannotPatch, match=r"There are: none\.$"):
        select([], ("1",))


def test_of_several_fixes_the_first_that_needs_no_judgement_is_made() -> None:
    judged, safe = finding("wrap:torch.autocast", safety=Safety.PRECISION), finding(FUSED)
    both = msgspec.structs.replace(judged, fixes=(*judged.fixes, *safe.fixes))
    for asked, expected in (((), FUSED), (("1",), "wrap:torch.autocast")):
        ((only,), others) = select([both], asked)
        assert (only.fix.trial, others) == (expected, [])


@pytest.mark.parametrize(
    ("verdict", "made", "why"),
    [
        ("keep", [1, 4], []),
        ("inconclusive", [1], ["it would save less than 1 % (--fix 4 adds it)"]),
        (
            "slower",
            [],
            ["it was slower when it was tried (--fix 1 adds it)", "it was slower when it was tried (--fix 4 adds it)"],
        ),
    ],
)
def test_what_trials_have_found_counts_more_than_what_was_predicted(
    verdict: Verdict, made: list[int], why: list[str]
) -> None:
    alone = [FINDINGS[0], FINDINGS[3]]
    of = [replace(WORKERS, rule=one.rule, trial=(one.fixes[0].trial or "",), verdict=verdict) for one in alone]
    wanted, others = select(alone, (), report(*of))
    assert [one.finding.rank_order for one in wanted] == made
    assert [other.why for other in others] == why
    assert len(select(alone, ("1", "4"), report(*of))[0]) == 2


def test_what_trials_have_kept_is_made_whatever_judgement_it_needs() -> None:
    def tried(place: int, verdict: Verdict) -> Trial:
        one = FINDINGS[place]
        return replace(WORKERS, rule=one.rule, trial=(one.fixes[0].trial or "",), verdict=verdict)

    found = kept(FINDINGS, report(tried(0, "no_gain"), tried(1, "keep"), tried(3, "keep")))
    assert [one.finding.rank_order for one in found] == [2, 4]
    with pytest.raises(CannotPatch, match=r"^The trials of this run kept no fix\.$"):
        kept(FINDINGS, report(tried(0, "slower")))
    with pytest.raises(CannotPatch, match=r"^This run has no trials\."):
        kept(FINDINGS, None)
