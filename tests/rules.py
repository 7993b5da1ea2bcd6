"""Small rules for tests, as a user would write them."""

from pathlib import Path

from diagnose.rulekit import engine, page
from diagnose.rulekit.engine import LoadedRule


def built_in(name: str) -> LoadedRule:
    (path,) = (path for path in page.files(page.built_in_rules()) if path.stem == name)
    return engine.load_file(path)


PAGE = '''"""{title}.

What it is.

Why it costs
    It takes time.

How to fix
    Do it less.

Ignore when
    it does not matter.
"""

'''

SLOW = (
    PAGE.format(title="The range `slow` takes long")
    + """from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import host_spans
from diagnose.rulekit.vocabulary import *
from diagnose.trace.enums import SpanKind

LEAST_NS = 1_000  # ns a step: less is nothing


@rule("TT01")
def slow(facts: Facts, steps: Steps) -> Verdicts:
    found = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == "slow")
    host_ns = found.in_steps(facts).times.total // steps.count
    if host_ns < LEAST_NS:
        yield Clean(f"{host_ns} ns")
    else:
        yield Finding(
            evidence=(Evidence("`slow` takes long.", host_ns, "ns"),),
            edits=(Remove(found.ids),),
            fixes=(Fix("Drop it."),),
            confidence=Confidence(Level.HIGH, "it is marked"),
        )


EXAMPLES = [
    Fires("4 steps of 100\\ncpu slow 0-40 | aten::mm 40-41\\ngpu sgemm 40.01-99 @40", saving_ms=(40, 40)),
    Silent("4 steps of 100\\ncpu aten::mm 40-41\\ngpu sgemm 40.01-99 @40"),
]
"""
)


def rule(body: str, title: str = "Something", code: str = "TT02", parameters: str = "steps", more: str = "") -> str:
    """A rule whose function has this body; it has one example of each kind that nothing runs."""
    return (
        PAGE.format(title=title)
        + f"""from diagnose.rulekit.vocabulary import *

{more}
@rule("{code}")
def one({parameters}):
    {body}


EXAMPLES = [Fires("1 steps of 1"), Silent("1 steps of 1")]
"""
    )


def folder(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8")
    return path
