"""The page of a rule that ran, for tools that show one beside a finding."""

from __future__ import annotations

from diagnose.contracts.finding import RulePage
from diagnose.rulekit import page
from diagnose.rulekit.page import SECTIONS

OTHERS = "rules"
"""The family of rules that are not built in."""


def families() -> dict[str, str]:
    """The family of each built-in rule, by the rule's id: data_loading, copies, ..."""
    return {path.stem: path.parent.name for path in page.files(page.built_in_rules())}


def markdown(about: RulePage) -> str:
    """All that it says about itself."""
    parts = [f"**{about.title}** (`{about.rule}`, {about.code})", about.summary]
    parts += [f"*{head}*\n\n{about.sections[head]}" for head in SECTIONS if about.sections.get(head)]
    if about.thresholds:
        rows = [f"| `{threshold.name}` | {threshold.value:g} | {threshold.reason} |" for threshold in about.thresholds]
        parts.append("\n".join(["| threshold | value | of what, and why |", "|---|--:|---|", *rows]))
    return "\n\n".join(filter(None, parts))


def plain(about: RulePage) -> str:
    """The same without Markdown."""
    parts = [about.summary]
    parts += [f"{head}\n{about.sections[head]}" for head in SECTIONS if about.sections.get(head)]
    parts += [f"{threshold.name} = {threshold.value:g}: {threshold.reason}" for threshold in about.thresholds]
    return "\n\n".join(filter(None, parts)) or about.title


def link(about: RulePage) -> str | None:
    """Where to read on: the first address among its sources."""
    words = about.sections.get("Sources", "").split()
    return next((word for word in words if word.startswith("https://")), None)
