"""Lists sentences of over 20 words in pages written by hand: `python -m benchmarks.sentences`. It is advice."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(ROOT.glob("docs/*.md")))
MOST_WORDS = 20
NOT_PROSE = re.compile(r"<!-- (\S+):start -->.*?<!-- \1:end -->|^```.*?^```$", re.DOTALL | re.MULTILINE)
"""Generated blocks and code."""


def long_sentences(text: str) -> Iterator[str]:
    """Those in paragraphs and lists; not in headings, tables and pictures."""
    for part in re.split(r"\n\s*\n|\n(?=[-|#]|\d+\. )", NOT_PROSE.sub("", text)):
        if not part.strip().startswith(("|", "#", "!", "<")):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split()))
            for sentence in re.split(r"(?<=[.!?:;])\**\s+", words):
                if len([word for word in sentence.split() if re.search(r"\w", word)]) > MOST_WORDS:
                    yield sentence


if __name__ == "__main__":
    for path in PAGES:
        for sentence in long_sentences(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}: over {MOST_WORDS} words: {sentence}")
