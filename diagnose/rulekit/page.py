"""A rule's page, read from its file without running it: title, text, thresholds, what it needs, drawings."""

import ast
import importlib.util
import os
import re
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

SECTIONS = ("Why it costs", "How to fix", "Ignore when", "Sources")  # The headings of a page, in order.

LONGEST_TITLE = 60
ENTRY_POINT = "diagnose.rules"
"""By which a package offers a folder of rules: its value is the folder as a package, `my_package.rules`."""

EXAMPLE_KINDS = ("Fires", "Silent", "CannotTell")


ENTRY, LEDGER = "wasted", ("wasted_work",)
"""What makes a rule of an entry of the ledger, `RULE = wasted("CODE", ...)`, and the fact that it looks at."""


class Threshold(Struct, frozen=True):
    """A constant that decides what a rule finds; a project may set it by name."""

    name: str
    value: float
    reason: str


class Example(Struct, frozen=True):
    """A drawing in a rule's file."""

    kind: str  # One of EXAMPLE_KINDS.
    drawing: str  # Without its common indentation.


class Page(Struct, frozen=True):
    """What a file of rules says about itself."""

    id: str  # The file's name.
    family: str  # The name of the folder it is in.
    code: str
    title: str
    summary: str
    sections: dict[str, str]  # Text under each heading; a heading that is absent is absent here.
    thresholds: tuple[Threshold, ...]
    needs: tuple[str, ...]  # Facts without which the rule cannot tell.
    wishes: tuple[str, ...]
    examples: tuple[Example, ...]
    of_run: bool = False  # It looks at the log of a whole run.

    @property
    def is_entry(self) -> bool:
        """Whether it is made by `wasted()`: its Fix calls stand for the sections that other pages need."""
        return self.needs == LEDGER


_KEPT = msgspec.json.Decoder(tuple[tuple[int, int, int, str], Page])


def built_in_rules() -> Path:
    """The folder of the built-in rules: inside an installed package, else beside the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_rules"
    return installed if installed.is_dir() else package.parent / "rules"


def installed_rules() -> dict[str, Path]:
    """Folders of rules that installed packages offer by the entry point `diagnose.rules`, by the package that is named.
    Raises ValueError if one names no package."""
    import importlib.metadata  # Not for `diagnose rules --help`.

    found = {}
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINT), key=lambda entry_point: entry_point.value):
        try:
            spec = importlib.util.find_spec(point.value)
        except Exception as error:
            raise ValueError(f"The installed rules {point.value} cannot be imported: {error}.") from error
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"The installed rules {point.value} are no package: name a folder with an __init__.py.")
        found[point.value] = Path(next(iter(spec.submodule_search_locations)))
    return found


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
    """The page of a file. Raises SyntaxError if it is not Python, ValueError if there is no rule in it.
    It is cached beside the file's bytecode until the rule's file or this one changes."""
    file, reader = path.stat(), Path(__file__).stat()
    made_of = (file.st_mtime_ns, file.st_size, reader.st_mtime_ns, path.parent.name)
    kept = Path(importlib.util.cache_from_source(str(path))).with_suffix(".page")
    with suppress(OSError, msgspec.MsgspecError):
        known, page = _KEPT.decode(kept.read_bytes())
        if known == made_of:
            return page
    page = _parsed_page(path)
    if not sys.dont_write_bytecode:
        _keep(kept, msgspec.json.encode((made_of, page)))
    return page


def _keep(file: Path, content: bytes) -> None:
    """Write a file whole; leave it out where that fails, as in a package of another user's or on a full disk."""
    new = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        try:
            file.parent.mkdir(exist_ok=True)
            new.write_bytes(content)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)


def _parsed_page(path: Path) -> Page:
    """The page of a file by its syntax tree, which is not run. Raises as `read` does."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, str(path))
    code, needs, wishes, of_run = _rule(tree, path)
    text = ast.get_docstring(tree) or ""
    title, _, rest = text.partition("\n")
    summary, sections = _sections(rest.strip("\n"))
    return Page(
        id=path.stem,
        family=path.parent.name,
        code=code,
        title=title.rstrip("."),
        summary=summary,
        sections=(_of_fixes(tree) if needs == LEDGER else {}) | sections,
        thresholds=tuple(_thresholds(tree, source.splitlines())),
        needs=needs,
        wishes=wishes,
        examples=tuple(_examples(tree)),
        of_run=of_run,
    )


def problems(page: Page) -> list[str]:
    """What a page lacks to be shown to a user: empty if nothing."""
    found = []
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", page.id):
        found.append("its file name is not a noun phrase in snake_case")
    if not 0 < len(page.title) <= LONGEST_TITLE:
        found.append(f"its title (the docstring's first line) must have 1 to {LONGEST_TITLE} characters")
    if not page.summary:
        found.append("its docstring has no paragraph that says what is wrong")
    found += [
        f'its docstring lacks "{section}"'
        for section in SECTIONS[:3]
        if section not in page.sections and not page.is_entry
    ]
    found += [
        f"{threshold.name} has no comment that gives its reason"
        for threshold in page.thresholds
        if not threshold.reason
    ]
    kinds = [example.kind for example in page.examples]
    found += [f"it has no {kind} example" for kind in ("Fires", "Silent") if kind not in kinds]
    return found


def _rule(tree: ast.Module, path: Path) -> tuple[str, tuple[str, ...], tuple[str, ...], bool]:
    """The code, the facts without which the rule cannot tell, the others that it asks for, and if it is on a run."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            maker = _name(node.value.func) if _name(node.targets[0]) == "RULE" else ""
            if maker == ENTRY:
                return _rule_code(node.value, path), LEDGER, (), False
        for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            maker = _name(mark.func) if isinstance(mark, ast.Call) else ""
            if isinstance(node, ast.FunctionDef) and isinstance(mark, ast.Call) and maker in ("rule", "run_rule"):
                names = tuple(arg.arg for arg in node.args.args)
                needed = len(names) - len(node.args.defaults)
                return _rule_code(mark, path), names[:needed], names[needed:], maker == "run_rule"
    raise ValueError(f'{path} has no function marked @rule("CODE"), and no RULE.')


def _rule_code(call: ast.Call, path: Path) -> str:
    code = call.args[0] if call.args else None
    if isinstance(code, ast.Constant) and isinstance(code.value, str):
        return code.value
    raise ValueError(f"{path} does not write out the rule's code.")


def _of_fixes(tree: ast.Module) -> dict[str, str]:
    """Sections "How to fix" and "Sources" as the `Fix(...)` calls of the file write them."""
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and _name(one.func) == "Fix"]
    fixes = [
        {"do": call.args[0], **{key.arg: key.value for key in call.keywords if key.arg}} for call in calls if call.args
    ]
    said = [{key: ast.literal_eval(one) for key, one in fix.items() if isinstance(one, ast.Constant)} for fix in fixes]
    links = dict.fromkeys(str(fix["link"]) for fix in said if fix.get("link"))
    found = {"How to fix": "\n".join(str(fix["do"]) for fix in said if "do" in fix), "Sources": "\n".join(links)}
    return {head: text for head, text in found.items() if text}


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
    """The file's upper-case constants that are numbers, each with the comment on its line as its reason."""
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
    """The drawings in the file's list EXAMPLES, in order; only those that are written out there."""
    listed = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [_name(target) for target in node.targets] == ["EXAMPLES"]
    ]
    calls = listed[0].elts if listed and isinstance(listed[0], ast.List) else []
    return [
        Example(_name(call.func), _dedented(str(call.args[0].value)))
        for call in calls
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
    ]


def _dedented(text: str) -> str:
    return textwrap.dedent(text.strip("\n").rstrip())


def section(page: Page) -> str:
    """A page as Markdown: what `diagnose rules show` prints, and a section of docs/rules/."""
    lines = [f"## `{page.id}` ({page.code})", "", f"**{page.title}.**", ""]
    if page.summary:
        lines += [page.summary, ""]
    for head in SECTIONS:
        if text := page.sections.get(head):
            lines += [f"*{head}*", "", text, ""]
    if page.thresholds:
        lines += ["| threshold | value | of what, and why |", "|---|--:|---|"]
        lines += [
            f"| `{threshold.name}` | {threshold.value:g} | {threshold.reason} |" for threshold in page.thresholds
        ] + [""]
    of_steps = "steps, ops and kernels with start-end in ms, `@` when launched"
    notation = "steps of a run with times in ms" if page.of_run else of_steps
    wishes = f"; better with {', '.join(f'`{wish}`' for wish in page.wishes)}" if page.wishes else ""
    lines += [f"Looks at {', '.join(f'`{need}`' for need in page.needs)}{wishes}.", ""]
    for kind, words in zip(EXAMPLE_KINDS, ("Fires on", "Is silent on", "Cannot tell on"), strict=True):
        synthetic = next((example.drawing for example in page.examples if example.kind == kind), None)
        if synthetic is not None:
            lines += [f"{words} ({notation})", "", "```text", synthetic, "```", ""]
    return "\n".join(lines)
