"""Generated texts, written or checked: `python -m diagnose.docs [--check]`.

A generated text is a function that gives what stands in a file, or in a block of it between two HTML comments. Here
are those that the package alone can tell; `benchmarks.texts` lists the others and writes them in the same way.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnose import facts
from diagnose.contracts.baseline import Baseline
from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.ledger import LedgerReport
from diagnose.contracts.trials import Report
from diagnose.contracts.watched_run import WatchedRun
from diagnose.facts.core.base import FACTS
from diagnose.facts.watched.log import RUN_FACTS
from diagnose.rulekit import page
from diagnose.rulekit.page import Page
from diagnose.trace import schema

RULES_FOLDER = page.built_in_rules()
SCHEMAS: dict[str, type[Struct]] = {
    "diagnosis": Diagnosis,
    "trials": Report,
    "ledger": LedgerReport,
    "comparison": Comparison,
    "baseline": Baseline,
    "watched_run": WatchedRun,
}
SITE = Path(__file__).parent.parent / "docs"  # The pages of the documentation: there are none in an installed package.

FAMILIES = {  # A folder of rules -> its page's title.
    "data_loading": "Data loading",
    "copies": "Copies between host and device",
    "synchronisation": "Synchronisation",
    "launch": "Launches and Python",
    "kernels": "Kernels and precision",
    "fusion": "Fusion and layout",
    "redundancy": "Redundant work",
    "memory": "Memory",
    "optimizer": "Optimizer",
    "communication": "Communication",
    "ranks": "Differences between ranks",
    "pauses": "Pauses",
    "unexplained": "What no other finding explains",
    "recording": "Quality of the recording",
    "run": "Whole runs",
}


class Text(Struct, frozen=True):
    """A generated text and where it stands."""

    path: Path
    make: Callable[[], str]
    block: str = ""  # Its name in the comments `<!-- NAME:start -->` and `<!-- NAME:end -->`; empty: the whole file.

    @property
    def current(self) -> bool:
        """Whether the file says it already."""
        return self.path.exists() and self.path.read_text(encoding="utf-8") == self._file()

    def write(self) -> None:
        """Put it into its file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self._file(), encoding="utf-8")

    def _file(self) -> str:
        """The file with the text in it. Raises ValueError if the file has no such block."""
        if not self.block:
            return self.make()
        start, end = f"<!-- {self.block}:start -->\n", f"<!-- {self.block}:end -->"
        before, found, rest = self.path.read_text(encoding="utf-8").partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{self.path.name} has no block {self.block!r}.")
        return f"{before}{start}{self.make().strip()}\n{end}{after}"


def texts() -> list[Text]:
    """The texts that are generated from the package alone."""
    pages = page.pages(RULES_FOLDER)
    found = [
        *(Text(schema_file(name), partial(json_schema, kind)) for name, kind in SCHEMAS.items()),
        Text(SITE / "rules" / "index.md", partial(rules_index, pages)),
        Text(SITE / "writing-rules.md", partial(facts_table, FACTS), "facts"),
        Text(SITE / "writing-rules.md", partial(facts_table, RUN_FACTS), "run-facts"),
        Text(SITE / "queries.md", columns_of_traces, "columns"),
    ]
    for name, title in FAMILIES.items():
        some = [one for one in pages if one.family == name]
        found.append(Text(SITE / "rules" / f"{name}.md", partial(family_page, title, some)))
    return found


def schema_file(name: str) -> Path:
    """Where the JSON Schema of one of SCHEMAS stands."""
    return Path(__file__).with_name(f"{name}.schema.json")


def json_schema(kind: type[Struct]) -> str:
    """The JSON Schema of a struct."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(kind)), indent=2).decode() + "\n"


def rules_index(pages: Sequence[Page]) -> str:
    """All rules with links to their pages."""
    on_runs = sum(one.of_run for one in pages)
    lines = [
        "# Rules",
        "",
        f"`diagnose analyze` checks {len(pages)} rules, {on_runs} of them on logs of whole runs."
        " Each is one file below `rules/`, in its family's folder.",
        "[Writing rules](../writing-rules.md) says how to add your own.",
        "",
        "| code | rule | problem |",
        "|---|---|---|",
    ]
    for one in pages:
        anchor = f"{one.id}-{one.code.lower()}"
        lines.append(f"| {one.code} | [`{one.id}`]({one.family}.md#{anchor}) | {one.title} |")
    return "\n".join([*lines, ""])


def family_page(title: str, pages: Sequence[Page]) -> str:
    """The pages of a family's rules, one below the other."""
    text = "\n".join([f"# {title}", "", *map(page.section, pages)]).rstrip() + "\n"
    return re.sub(r"^(https://\S+)$", r"- <\1>", text, flags=re.MULTILINE)


def facts_table(known: Mapping[str, Callable[..., object]]) -> str:
    """A row for each fact of ours: its type, the module to import that from, and its docstring's first line."""
    facts.import_all()
    rows = ["| fact | type | what it is |", "|---|---|---|"]
    for name, get in sorted((name, get) for name, get in known.items() if get.__module__.startswith("diagnose.")):
        first = (inspect.getdoc(get) or "").partition("\n")[0]
        kind = re.sub(r"<class '|'>|\bdiagnose\.(?:\w+\.)+", "", str(inspect.signature(get).return_annotation))
        rows.append(f"| `{name}` | `{kind.replace('|', 'or')}` in `{get.__module__}` | {first} |")
    return "\n".join(rows)


def columns_of_traces() -> str:
    """The columns of a trace's tables, as an export has them."""
    rows = ["| table | column | type | unit | meaning |", "|---|---|---|---|---|"]
    for table in schema.TABLES:
        for name, one in table.columns.items():
            if table is not schema.LINES and name != "stack":
                kind = "text" if one.dtype in (*schema.ENUMS, "names", "str") else one.dtype
                rows.append(f"| {table.name} | `{name}` | {kind} | {one.unit} | {one.meaning} |")
    return "\n".join(rows)


def run(texts: Sequence[Text], check: bool) -> int:
    """Write the texts; or only say which differ, and return 1 if any does."""
    stale = [text for text in texts if not text.current]
    for text in stale:
        if not check:
            text.write()
        place = f"{text.path.name}, {text.block}" if text.block else text.path.name
        print(f"{'out of date' if check else 'written'}: {place}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run(texts(), "--check" in sys.argv[1:]))
