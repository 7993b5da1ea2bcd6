"""A rule's page, read from its file without running it: title, text, thresholds, what it needs, drawings."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

SECTIONS = ("Why it costs", "How to fix", "Ignore when", "Sources")
"""The headings of a page, in order."""

LONGEST_TITLE = 60
EXAMPLE_KINDS = ("Fires", "Silent", "CannotTell")


@dataclass(frozen=True)
class Threshold:
    """A constant that decides what a rule finds; a project may set it by name."""

    name: str
    value: float
    reason: str


@dataclass(frozen=True)
class Example:
    """A drawing in a rule's file."""

    kind: str
    """One of EXAMPLE_KINDS."""
    drawing: str
    """Without its common indentation."""


@dataclass(frozen=True)
class Page:
    """What a file of rules says about itself."""

    id: str
    """The file's name."""
    family: str
    """The name of the folder it is in."""
    code: str
    title: str
    summary: str
    sections: dict[str, str]
    """Text under each heading; a heading that is absent is absent here."""
    thresholds: tuple[Threshold, ...]
    needs: tuple[str, ...]
    """Facts without which the rule cannot tell."""
    wishes: tuple[str, ...]
    examples: tuple[Example, ...]
    imports: tuple[str, ...]


def built_in_rules() -> Path:
    """The folder of the built-in rules: inside an installed package, else beside the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_rules"
    return installed if installed.is_dir() else package.parent / "rules"


def files(folder: Path) -> list[Path]:
    """The files of a folder's rules, those of folders in it included; not what begins with `_` or `.`."""
    found = (
        path for path in folder.rglob("*.py") if not any(part[0] in "_." for part in path.relative_to(folder).parts)
    )
    return sorted(found, key=lambda path: (path.stem, path))


def pages(folder: Path) -> list[Page]:
    """The pages of a folder's rules, in order of their codes. Raises as `read` does."""
    return sorted(map(read, files(folder)), key=lambda one: (one.code, one.id))


def read(path: Path) -> Page:
    """The page of a file. Raises SyntaxError if it is not Python, ValueError if there is no rule in it."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, str(path))
    function, code = _rule(tree, path)
    text = ast.get_docstring(tree) or ""
    title, _, rest = text.partition("\n")
    summary, sections = _sections(rest.strip("\n"))
    arguments = function.args.args
    optional = len(function.args.defaults)
    names = [one.arg for one in arguments]
    return Page(
        id=path.stem,
        family=path.parent.name,
        code=code,
        title=title.rstrip("."),
        summary=summary,
        sections=sections,
        thresholds=tuple(_thresholds(tree, source.splitlines())),
        needs=tuple(names[: len(names) - optional]),
        wishes=tuple(names[len(names) - optional :]),
        examples=tuple(_examples(tree)),
        imports=tuple(_imports(tree)),
    )


def problems(page: Page) -> list[str]:
    """What a page lacks to be shown to a user: empty if nothing."""
    found = []
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", page.id):
        found.append("its file name is not a noun phrase in snake_case")
    if not 0 < len(page.title) <= LONGEST_TITLE:
        found.append(f"its title (the docstring's first line) must have 1 to {LONGEST_TITLE} characters")
    found += [f'its docstring lacks "{one}"' for one in SECTIONS[:3] if one not in page.sections]
    found += [f"{one.name} has no comment that gives its reason" for one in page.thresholds if not one.reason]
    kinds = [one.kind for one in page.examples]
    found += [f"it has no {kind} example" for kind in ("Fires", "Silent") if kind not in kinds]
    foreign = [
        one for one in page.imports if one not in ("diagnose.rulekit.vocabulary", "__future__", "collections.abc")
    ]
    found += [f"it imports {one}, but a rule imports diagnose.rulekit.vocabulary only" for one in foreign]
    return found


def _rule(tree: ast.Module, path: Path) -> tuple[ast.FunctionDef, str]:
    for node in tree.body:
        for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(node, ast.FunctionDef) and isinstance(mark, ast.Call) and _name(mark.func) == "rule":
                code = mark.args[0] if mark.args else None
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    return node, code.value
    raise ValueError(f'{path} has no function marked @rule("CODE").')


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first heading, and the text under each. A heading stands alone on its line."""
    parts: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        if line.strip() in SECTIONS and line == line.lstrip():
            current = line.strip()
            parts[current] = []
        else:
            parts[current].append(line.strip())
    plain = {head: "\n".join(lines).strip() for head, lines in parts.items()}
    return plain.pop(""), plain


def _thresholds(tree: ast.Module, lines: list[str]) -> list[Threshold]:
    found = []
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and _name(node.targets[0]).isupper()):
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            _, _, reason = lines[(node.end_lineno or node.lineno) - 1].partition("#")
            found.append(Threshold(_name(node.targets[0]), value, reason.strip()))
    return found


def _examples(tree: ast.Module) -> list[Example]:
    listed = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [_name(one) for one in node.targets] == ["EXAMPLES"]
    ]
    calls = listed[0].elts if listed and isinstance(listed[0], ast.List) else []
    return [
        Example(_name(call.func), _dedented(str(call.args[0].value)))
        for call in calls
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
    ]


def _dedented(text: str) -> str:
    return textwrap.dedent(text.strip("\n").rstrip())


def _imports(tree: ast.Module) -> list[str]:
    """Modules that are imported anywhere in a file. Only statements are looked at, of which a file has few."""
    found = []
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or ".")
        for _, inner in ast.iter_fields(node):
            if isinstance(inner, list):
                left += [one for one in inner if isinstance(one, _WITH_STATEMENTS)]
    return found


_WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def section(page: Page) -> str:
    """A page as Markdown: what `diagnose rules show` prints, and a section of docs/rules/."""
    lines = [f"## `{page.id}` ({page.code})", "", f"**{page.title}.**", ""]
    if page.summary:
        lines += [page.summary, ""]
    for head in SECTIONS:
        if text := page.sections.get(head):
            lines += [f"*{head}*", "", text, ""]
    if page.thresholds:
        lines += ["| threshold | value | why |", "|---|--:|---|"]
        lines += [f"| `{one.name}` | {one.value:g} | {one.reason} |" for one in page.thresholds] + [""]
    wishes = f"; better with {', '.join(f'`{one}`' for one in page.wishes)}" if page.wishes else ""
    lines += [f"Looks at {', '.join(f'`{one}`' for one in page.needs)}{wishes}.", ""]
    for kind, words in zip(EXAMPLE_KINDS, ("Fires on", "Is silent on", "Cannot tell on"), strict=True):
        drawn = next((one.drawing for one in page.examples if one.kind == kind), None)
        if drawn is not None:
            lines += [f"{words}", "", "```text", drawn, "```", ""]
    return "\n".join(lines)
