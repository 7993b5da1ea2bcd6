"""What the page carries: nothing is lost in packing, scripts are known by their hashes, prose is text."""

import base64
import gzip
import hashlib

import pytest
from plotly.offline import get_plotlyjs

from diagnose.reports.html import bundle


@pytest.mark.parametrize("content", ["", "a <b> \u202e", b"\x00\xff" * 1000])
def test_what_is_packed_comes_back(content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    assert gzip.decompress(base64.b64decode(bundle.packed(content))) == raw


def test_packing_twice_gives_the_same() -> None:
    assert bundle.packed("x" * 100) == bundle.packed("x" * 100)


def test_plotly_is_carried_whole_and_allowed_by_its_hash() -> None:
    packed, allowed = bundle.plotly_script()
    script = gzip.decompress(base64.b64decode(packed))
    assert script.decode() == get_plotlyjs()
    assert allowed == f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
    assert len(packed) < 2_100_000


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one line\nand another", "one line and another"),
        ("one\n\ntwo\nthree", "one\n\ntwo three"),
        ("a list:\n- one\n- two\n  goes on", "a list:\n- one\n- two   goes on"),
        ("`x < y` & <b>", "<code>x &lt; y</code> &amp; &lt;b&gt;"),
        (
            "see https://pytorch.org/a?b=1, and `y`.",
            'see <a href="https://pytorch.org/a?b=1" target="_blank" rel="noopener noreferrer">https://pytorch.org/a?b=1'
            "</a>, and <code>y</code>.",
        ),
        (
            'javascript:alert(1) "https://x.example/"<',
            'javascript:alert(1) &#34;<a href="https://x.example/" target='
            '"_blank" rel="noopener noreferrer">https://x.example/</a>&#34;&lt;',
        ),
    ],
)
def test_prose_flows_and_is_text(written: str, shown: str) -> None:
    assert bundle.prose(written) == shown
