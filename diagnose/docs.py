"""Generated texts, written or checked: `python -m diagnose.docs [--check]`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import msgspec

from diagnose import page
from diagnose.diagnosis import Diagnosis
from diagnose.page import Page
from diagnose.rule import FACTS

RULES_FOLDER = page.built_in_rules()
_GUIDE = RULES_FOLDER / "_guide.md"
SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


def texts() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {
        SCHEMA_FILE: json_schema(),
        RULES_FOLDER / "README.md": rules_readme(page.pages(RULES_FOLDER)),
    }


def json_schema() -> str:
    """The JSON Schema of a Diagnosis."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Diagnosis)), indent=2).decode() + "\n"


def rules_readme(pages: list[Page]) -> str:
    """The index of the rules, how to write one, the facts to ask for, and every rule's page."""
    lines = ["# Rules", "", f"What `diagnose analyze` looks for: {len(pages)} rules, a file each.", ""]
    lines += ["| code | rule | it says | from the facts (if recorded) |", "|---|---|---|---|"]
    lines += [f"| {one.code} | [`{one.id}`](#{_anchor(one)}) | {one.title} | {_needs(one)} |" for one in pages]
    lines += ["", _GUIDE.read_text(encoding="utf-8").strip(), "", "### Facts", ""]
    lines += ["| fact | type | what it is |", "|---|---|---|", *_facts(), ""]
    return "\n".join([*lines, *map(page.section, pages)]).rstrip() + "\n"


def _anchor(one: Page) -> str:
    return f"{one.id}-{one.code.lower()}"


def _needs(one: Page) -> str:
    return ", ".join([*(f"`{need}`" for need in one.needs), *(f"(`{wish}`)" for wish in one.wishes)])


def _facts() -> list[str]:
    """A table row for each fact: its type, with the file that describes its fields, and the docstring's first line."""
    rows = []
    for name, get in sorted(FACTS.items()):
        first = (inspect.getdoc(get) or "").partition("\n")[0]
        kind = str(inspect.signature(get).return_annotation).replace("|", "or")
        rows.append(f"| `{name}` | [`{kind}`](../{get.__module__.replace('.', '/')}.py) | {first} |")
    return rows


def main(check: bool) -> int:
    """Write the texts; or only say which differ, and return 1 if any does."""
    stale = [path for path, text in texts().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(texts()[path], encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
