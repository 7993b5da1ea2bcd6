"""What the page carries: scripts and data, packed so that it stays small and mails well."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from functools import lru_cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

_HERE = Path(__file__).parent


def text(name: str) -> str:
    """A file that lies beside this one."""
    return (_HERE / name).read_text(encoding="utf-8")


def template(name: str) -> jinja2.Template:
    """A template that lies beside this file, compiled once in a process."""
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """All that templates are given is escaped: names in a trace are untrusted."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["prose"] = prose
    return environment


_CODE = re.compile(r"`([^`]+)`")
_LINE_BREAK = re.compile(r"\n(?!- )")
_LINK = re.compile(r"https://[^\s<>&\"']+[\w/]")


def prose(written: str) -> Markup:
    """Text of a rule's page as HTML: its lines flow, `code` is code, addresses are links; all else is text."""
    flowing = "\n\n".join(_LINE_BREAK.sub(" ", paragraph) for paragraph in written.split("\n\n"))
    linked = _LINK.sub(r'<a href="\g<0>" target="_blank" rel="noopener noreferrer">\g<0></a>', str(escape(flowing)))
    return Markup(_CODE.sub(r"<code>\1</code>", linked))


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
