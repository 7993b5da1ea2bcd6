"""What the page carries: scripts and data, packed so that it stays small and mails well."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import lru_cache
from pathlib import Path

import jinja2
from plotly.offline import get_plotlyjs

_HERE = Path(__file__).parent


def text(name: str) -> str:
    """A file that lies beside this one."""
    return (_HERE / name).read_text(encoding="utf-8")


def template(name: str) -> jinja2.Template:
    """A template that lies beside this file. All it is given is escaped: names in a trace are untrusted."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def packed(content: str | bytes) -> str:
    """Content as gzip in base64, which the page unpacks (DecompressionStream: browsers since 2023)."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(gzip.compress(raw, compresslevel=9, mtime=0)).decode()


@lru_cache(maxsize=1)
def plotly_script() -> tuple[str, str]:
    """plotly.js, packed, and its hash for the content security policy."""
    script = get_plotlyjs()
    return packed(script), script_hash(script)


def script_hash(script: str) -> str:
    """The source expression that allows exactly this script (CSP level 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
