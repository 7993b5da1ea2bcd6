"""What the documentation shows is what the program does; what it links to exists."""

import configparser
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import texts
from benchmarks.sentences import long_sentences
from diagnose import docs
from diagnose.cli import COMMANDS, group
from diagnose.docs import Text

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs"
README = ROOT / "README.md"
BY_HAND = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(SITE.glob("*.md"))]
PAGES = [*BY_HAND, ROOT / "rules" / "README.md", *sorted(SITE.glob("rules/*.md"))]
MOST_LINES = 170
OTHERS = {"nsys"}  # Programs of others that pages call.

GENERATED = re.compile(r"<!-- (\S+):start -->.*?<!-- \1:end -->", re.DOTALL)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def console() -> Iterator[tuple[Path, str]]:
    for path in BY_HAND:
        for language, block in FENCED.findall(path.read_text(encoding="utf-8")):
            if language == "console":
                yield from ((path, line[2:]) for line in block.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("text", [*docs.texts(), *texts.texts()], ids=lambda one: f"{one.path.name}:{one.block}")
def test_a_generated_text_is_up_to_date(text: Text) -> None:
    assert text.current


def test_the_report_in_the_readme_is_a_real_one(corpus: Path) -> None:
    shown = [text for text in texts.texts(corpus) if text.path == README and text.block == "report"]
    assert [one.current for one in shown] == [True]


def test_the_picture_of_the_page_is_of_the_report_in_the_readme() -> None:
    shown = " ".join(README.read_text(encoding="utf-8").split())
    assert all(line in shown for line in (SITE / "pictures" / "page.txt").read_text(encoding="utf-8").splitlines())


def test_a_block_is_replaced_and_what_stands_around_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- x:start -->\nold\n<!-- x:end -->\nb\n", encoding="utf-8")
    text = Text(path, lambda: "new\n", "x")
    assert not text.current
    assert docs.run([text], check=True) == 1
    assert docs.run([text], check=False) == 0
    assert path.read_text(encoding="utf-8") == "a\n<!-- x:start -->\nnew\n<!-- x:end -->\nb\n"
    assert docs.run([text], check=True) == 0
    with pytest.raises(ValueError, match="no block 'y'"):
        Text(path, str, "y").write()


@pytest.mark.parametrize(("path", "command"), [*console()], ids=lambda one: getattr(one, "name", one))
def test_a_command_exists(path: Path, command: str) -> None:
    program, *words = shlex.split(command.removeprefix("srun "))
    if program == "diagnose":
        parse(words)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "python":
        assert words[0] == "-m"
        assert importlib.util.find_spec(words[1])
    elif program == "pip":
        assert words == ["install", "."]
    else:
        assert program in OTHERS


def parse(words: list[str]) -> None:
    """Have a command's own parser read them. Raises click.UsageError if it knows no such command or option."""
    command: click.Command = group
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    with click.Context(command) as context:
        if command.name in ("profile", "try", "watch"):
            assert not isinstance(command, click.Group)
            command.parse_args(context, words)
        else:
            command.make_parser(context).parse_args(list(words))


def test_an_option_that_is_not_there_is_noticed() -> None:
    for words in (["analyze", "x", "--no-such-option"], ["profile", "--no-such-option", "train.py"]):
        with pytest.raises(click.UsageError):
            parse(words)


def test_a_rule_whose_page_is_shown_has_one() -> None:
    shown = [shlex.split(command)[3] for _, command in console() if command.startswith("diagnose rules show")]
    assert shown
    for name in shown:
        assert CliRunner().invoke(group, ["rules", "show", name]).exit_code == 0, name


def test_output_is_shown_in_generated_blocks_only() -> None:
    for path in BY_HAND:
        for language, block in FENCED.findall(GENERATED.sub("", path.read_text(encoding="utf-8"))):
            if language == "console":
                assert all(line.startswith("$ ") for line in block.splitlines()), (path.name, block)


def test_the_notes_of_a_recording_are_those_of_the_program() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "diagnose").rglob("*.py"))
    said = re.findall(r"^diagnose: (.*)$", (SITE / "getting-started.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(said) == 4
    for line in said:
        for part in re.split(r"\d+", line):
            assert part.strip() in source, line


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in BY_HAND:
        for target in re.findall(r"`make ([a-z]+)", path.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (path.name, target)


def test_modules_that_are_named_exist() -> None:
    for path in BY_HAND:
        for module in re.findall(r"`python -m ([\w.]+)", path.read_text(encoding="utf-8")):
            assert importlib.util.find_spec(module), (path.name, module)


def test_extras_that_are_named_exist() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|", (SITE / "getting-started.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(setup["options.extras_require"])


def test_every_command_s_line_in_the_help_is_its_own_first_line() -> None:
    for name, line in COMMANDS.items():
        command = group.get_command(click.Context(group), name)
        assert (command.help or "").splitlines()[0] == line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        aimed = (path.parent / file).resolve() if file else path
        assert aimed.exists(), target
        assert not anchor or anchor in anchors(aimed), target


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", BY_HAND, ids=lambda path: path.name)
def test_a_page_tells_no_history(path: Path) -> None:
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", FENCED.sub("", GENERATED.sub("", path.read_text(encoding="utf-8"))))


def test_long_sentences_are_found_in_prose_only() -> None:
    long = " ".join(["word"] * 21) + "."
    text = f"# {long}\n\n| {long} |\n\nShort one. {long}\n- {long} And.\n\n```\n{long}\n```\n"
    assert list(long_sentences(text)) == [long, f"- {long}"]


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.md")}


@pytest.mark.slow
def test_the_site_is_built_strictly_and_asks_nothing_of_a_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    asks = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>|url\(['\"]?https?:")
    for path in (tmp_path / "site").rglob("*"):
        if path.suffix in (".html", ".css"):
            assert asks.findall(path.read_text(encoding="utf-8")) == [], path.name
