"""A file as a syntax tree that keeps every space: what stands where, and the tree with changes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider, QualifiedNameProvider
from libcst.metadata import QualifiedNameSource as NameSource
from msgspec import Struct

from diagnose.patches.files import CannotEdit, SourceText

Function = (cst.FunctionDef, cst.Lambda)
Change = Callable[[Any], Any]  # A node, with what other changes have done inside it -> what stands there instead.

N = TypeVar("N", bound=cst.CSTNode)


DEEPEST = 100  # Levels of a tree; at some 300 libcst raises RecursionError, and far beyond it crashes the process.


class Code:
    """A file that can be read as Python."""

    def __init__(self, source: SourceText) -> None:
        """Raises CannotEdit if it is none."""
        self.source = source
        try:
            if _depth(ast.parse(source.text)) > DEEPEST:
                raise CannotEdit(f"{source.name} is nested too deeply")
            self._tree = MetadataWrapper(cst.parse_module(source.text))
        except (cst.ParserSyntaxError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise CannotEdit(f"{source.name} is not valid Python") from error
        self.module = self._tree.module
        if self.module.code != source.text:
            raise CannotEdit(f"diagnose cannot preserve the formatting of {source.name}")

    @cached_property
    def _positions(self) -> Any:
        return self._tree.resolve(PositionProvider)

    @cached_property
    def _names(self) -> Any:
        return self._tree.resolve(QualifiedNameProvider)

    @cached_property
    def _parents(self) -> Any:
        return self._tree.resolve(ParentNodeProvider)

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """All nodes, in the order of the file, each before those inside it."""
        found, pending = list[cst.CSTNode](), [self.module]
        while pending:
            one: Any = pending.pop()
            found.append(one)
            pending += reversed(one.children)
        return found

    def every(self, kind: type[N]) -> Iterator[N]:
        """Nodes of a kind, in the order of the file."""
        return (node for node in self.nodes if isinstance(node, kind))

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """The first and the last line of a node, from 1."""
        there = self._positions[node]
        return there.start.line, there.end.line

    def place(self, node: cst.CSTNode) -> str:
        """Where a node begins, as in "train.py:41"."""
        return f"{self.source.name}:{self.lines(node)[0]}"

    def text(self, node: cst.CSTNode) -> str:
        """The node's source, in one line: each run of white space is one blank."""
        return " ".join(self.module.code_for_node(node).split())

    def imported(self, node: cst.CSTNode) -> str:
        """The whole name of what was imported, as `torch.optim.AdamW` of `optim.AdamW`; empty of anything else."""
        qualified = self._names.get(node, ())
        qualified = qualified() if callable(qualified) else qualified  # Some are found only when they are asked for.
        names = {one.name for one in qualified if one.source is not NameSource.LOCAL}
        return names.pop() if len(names) == 1 else ""

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What a node stands in, from the inside out."""
        while (node := self._parents.get(node)) is not None:
            yield node

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine:
        """The line of its own that a node is in. Raises CannotEdit if it shares it, or is in the head of a block."""
        for one in (node, *self.around(node)):
            if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1:
                return one
            if isinstance(one, cst.SimpleStatementLine | cst.SimpleStatementSuite | cst.BaseCompoundStatement):
                break
        raise CannotEdit(f"the code at {self.place(node)} is not a statement on its own line")

    def block(self, statement: cst.CSTNode) -> Sequence[cst.CSTNode]:
        """The statements among which one stands."""
        around = next(self.around(statement))
        assert isinstance(around, cst.Module | cst.IndentedBlock)
        return around.body

    def function(self, node: cst.CSTNode) -> str:
        """The name of the innermost function around it; "<module>" outside of all."""
        inner = next((one for one in self.around(node) if isinstance(one, cst.FunctionDef)), None)
        return "<module>" if inner is None else inner.name.value

    def loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """The innermost loop around a node, in its function."""
        for one in self.around(node):
            if isinstance(one, Function):
                return None
            if isinstance(one, cst.For | cst.While):
                return one
        return None

    def changed(self, edits: Iterable[Edit]) -> bytes:
        """The file's bytes after edits of it. Raises CannotEdit if that is no valid Python."""
        by_node = defaultdict[cst.CSTNode, list[Edit]](list)
        for edit in edits:
            by_node[edit.node].append(edit)
        try:
            text = self.module.visit(_Changing(by_node)).code if by_node else self.source.text
            ast.parse(text)
            return self.source.encoded(text)
        except (ValueError, SyntaxError, RecursionError) as error:
            raise CannotEdit(f"the edit would make {self.source.name} invalid") from error


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level, depth = [child for one in level for child in ast.iter_child_nodes(one)], depth + 1
    return depth


class Edit(Struct, frozen=True, eq=False):
    """A change of one node of a file. Edits of two fixes conflict if they have the same `key`."""

    code: Code
    node: cst.CSTNode
    place: str  # Where, and what is there then, as in "train.py:41: DataLoader(num_workers=4)".
    key: tuple[object, ...]  # What it changes, which no other fix may change.
    change: Change = lambda node: node
    before: tuple[str, ...] = ()  # Lines to have before a statement, once each. An empty one is a blank line.
    after: tuple[str, ...] = ()


NOTHING = cst.Pass()  # In place of a statement that goes: libcst drops empty ones with their comments.


def removed(statement: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """The statement as NOTHING, which `_tidied` drops; the comments above it stay."""
    return statement.with_changes(body=[NOTHING])


def inside(head: tuple[cst.WithItem], first: bool) -> Change:
    """A statement becomes the body of a `with`. Neighbours with the same `head` share it; the `first` goes on top."""

    def change(node: cst.SimpleStatementLine) -> cst.With:
        above, body = node.leading_lines if first else (), node.with_changes(leading_lines=()) if first else node
        return cst.With(head, cst.IndentedBlock([body]), leading_lines=above)

    return change


class _Changing(cst.CSTTransformer):
    """Applies the edits of each node, inner nodes first."""

    def __init__(self, edits: dict[cst.CSTNode, list[Edit]]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """The node after its edits, with the lines that go before and after it."""
        edits = self._edits.get(original_node, ())
        for edit in edits:
            updated_node = edit.change(updated_node)
        if isinstance(updated_node, cst.IndentedBlock | cst.Module):
            return _tidied(updated_node)
        before = _statements(dict.fromkeys(line for edit in edits for line in edit.before))
        after = _statements(dict.fromkeys(line for edit in edits for line in edit.after))
        if before:  # Blank lines stay above all of it, comments with the statement that they are about.
            lines = list(updated_node.leading_lines)
            blank = next((at for at, line in enumerate(lines) if line.comment), len(lines))
            before[0] = before[0].with_changes(leading_lines=lines[:blank])
            updated_node = updated_node.with_changes(leading_lines=lines[blank:])
        return cst.FlattenSentinel([*before, updated_node, *after]) if before or after else updated_node


def _statements(lines: Iterable[str]) -> list[Any]:
    """Lines as syntax trees of statements; an empty line goes before the next statement."""
    found, blank = list[Any](), list[cst.EmptyLine]()
    for line in lines:
        if line:
            found.append(cst.parse_statement(line).with_changes(leading_lines=blank))
        blank = [] if line else [cst.EmptyLine(indent=False)]
    return found


def _tidied(block: Any) -> Any:
    """A block without NOTHING, whose comments stay, and with one `with` for neighbours that have the same head."""
    body, lines = list[Any](), list[cst.EmptyLine]()
    for one in block.body:
        if isinstance(one, cst.SimpleStatementLine) and NOTHING is one.body[0]:
            lines += one.leading_lines
            continue
        if lines:
            one, lines = one.with_changes(leading_lines=[*lines, *one.leading_lines]), []
        last = body[-1] if body else None
        if isinstance(one, cst.With) and isinstance(last, cst.With) and one.items is last.items:
            together = last.body.with_changes(body=[*last.body.body, *one.body.body])
            body[-1] = last.with_changes(body=together)
        else:
            body.append(one)
    return block.with_changes(body=body, footer=[*lines, *block.footer]) if len(body) < len(block.body) else block
