"""What the queries in docs/queries.md print: each is run as it stands there, on an export of a recording."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import diagnose
from diagnose.docs import Text

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "queries.md"
SAMPLES = {
    "steps": ("ops", ROOT / "sample_traces/recorded/cpu_mlp/trace.json.gz"),
    "ranks": ("collectives", ROOT / "sample_traces/planted/ranks/one_rank_computes_more/medium"),
}
"""Of each query the table that it reads, and a bundled recording."""

PUBLIC = ("kernels", "kineto/tensorboard/resnet50_autograd_0_workers.json.gz")
"""The same of `queue`, in the corpus: no bundled recording has a GPU."""

_CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def texts(corpus: Path | None = None) -> Iterator[Text]:
    """What each query prints; that of a public trace only where there is a corpus."""
    samples = dict(SAMPLES)
    if corpus is not None:
        samples["queue"] = PUBLIC[0], corpus.resolve() / PUBLIC[1]
    for name, (table, recording) in samples.items():
        yield Text(PAGE, partial(shown, name, table, recording), f"query-{name}")


@cache
def shown(name: str, table: str, recording: Path) -> str:
    """The output of a query as a block."""
    with TemporaryDirectory() as folder:
        diagnose.export(recording, parquet=Path(folder) / "tables", tables=[table])
        lines = output(code(name), Path(folder)).splitlines()
        return "\n".join(["```text", *(line.rstrip() for line in lines if line.strip()), "```"])


def code(name: str) -> str:
    """The query before the block of this name. Raises ValueError if there is none."""
    before, found, _ = PAGE.read_text(encoding="utf-8").partition(f"<!-- query-{name}:start -->")
    blocks = _CODE.findall(before)
    if not found or not blocks:
        raise ValueError(f"{PAGE.name} has no query {name!r}.")
    return str(blocks[-1])


def output(query: str, folder: Path) -> str:
    """What a query prints that runs in a folder with `tables`. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "COLUMNS": "100", "POLARS_TABLE_WIDTH": "100"}
    done = subprocess.run(
        [sys.executable, "-c", query], cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    return done.stdout
