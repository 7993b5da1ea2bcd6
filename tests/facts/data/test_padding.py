"""How much of the work is done on padding."""

import msgspec
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.data.padding import Padding, padding
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Loader

HEAD = "4 steps of 100\n2 threads, 4 cores\n"
BATCHES = "batches 16x80, 40 needed, 30 filled\n"


LOOKUP = "aten::embedding [[500,32],[16,80],[],[],[]]"


def of(*shapes: str, head: str = HEAD + BATCHES) -> Padding | None:
    """Of a batch and ops that follow, of 10 ms each; a shape may have the op's name before it."""
    items = list[str]()
    for at, one in enumerate((LOOKUP, *shapes)):
        name, _, given = one.rpartition(" ")
        items.append(f"{name or 'aten::linear'} {10 * at}-{10 * at + 10} shapes={given}")
    return padding(facts_of(f"{head}cpu  {' | '.join(items)}"))


def powers(*shapes: str, head: str = HEAD + BATCHES) -> tuple[int, int]:
    """Ops after the lookup that grow with the length, and with its square."""
    found = of(*shapes, head=head)
    return found.linear.host_ns // 10_000_000 - 1, found.attention.host_ns // 10_000_000


def test_shares_of_places() -> None:
    found = of("[[16,80,32],[64,32],[64]]")
    assert (found.rows, found.lengths, found.needed, found.filled) == (16, (80, 80), 0.5, 0.75)
    assert found.saved_ns(found.needed) == 10_000_000


def test_rows_of_which_a_batch_is_made_are_none() -> None:
    """One has 16 places of 90 features: that is no batch of 16 rows of 90 places."""
    layer = "cpu  aten::linear 10-20 shapes=[[16,80,32],[64,32],[64]]"
    made = "load 0-10 | aten::cat 1-9 shapes=[[16,90],[80,90]]"
    for more in ("", f" | {made}"):
        found = padding(facts_of(f"{HEAD}{BATCHES}{layer}{more}"))
        assert (found.linear.host_ns, found.attention.host_ns) == (10_000_000, 0)


def test_attention_saves_by_the_square() -> None:
    found = of("aten::scaled_dot_product_attention [[16,4,80,8],[16,4,80,8],[16,4,80,8]]")
    assert found.saved_ns(found.needed) == 5_000_000 + 7_500_000


@pytest.mark.parametrize(
    "shape",
    [
        "[[16,80]]",
        "[[80,16]]",
        "[[1280]]",
        "[[16,80,32],[64,32],[64]]",
        "aten::gru [[80,16,32],[1,16,32]]",
        "[[1280,32],[64,32]]",
        "[[1264,500],[1264]]",  # all places but one of each row
        "[[16,79,32]]",
        "aten::transpose [[64,80,8]]",  # 4 heads of each row
        "aten::add [[16,4,80,8],[1,4,80,8]]",
        "aten::conv1d [[16,32,80],[32,32,3]]",
        "aten::bmm [[16,80,32],[16,32,64]]",
    ],
)
def test_what_grows_with_the_length(shape: str) -> None:
    assert powers(shape) == (1, 0)


@pytest.mark.parametrize(
    "shape",
    [
        "aten::softmax [[16,4,80,80]]",
        "aten::softmax [[64,80,80]]",
        "aten::bmm [[64,80,8],[64,8,80]]",
        "aten::matmul [[16,4,80,8],[16,4,8,80]]",
        "aten::bmm [[64,80,80],[64,80,8]]",
        "aten::_scaled_dot_product_flash_attention_for_cpu [[16,4,80,8],[16,4,80,8],[16,4,80,8]]",
    ],
)
def test_what_grows_with_its_square(shape: str) -> None:
    assert powers(shape) == (0, 1)


@pytest.mark.parametrize("shape", ["[[16,32],[64,32]]", "[[80,32]]", "[[500,80]]", "[[3,64,64]]", "[[80]]", "[]"])
def test_what_does_not(shape: str) -> None:
    assert powers(shape) == (0, 0)


def test_each_batch_has_its_own_length() -> None:
    """Told by the lookup, or by the first op after a fetch: 48 is the length of the second batch only."""
    facts = facts_of(
        HEAD
        + BATCHES
        + """cpu  load 0-1 | aten::embedding 1-11 shapes=[[500,32],[16,60]] | aten::linear 11-21 shapes=[[16,60,48]]
        cpu  aten::linear 21-31 shapes=[[16,48]] | load 50-51 | aten::linear 51-61 shapes=[[16,48,32]]
        cpu  aten::linear 61-71 shapes=[[768,32]] | aten::linear 71-81 shapes=[[960,32]]"""
    )
    found = padding(Facts(with_lengths(facts, 40, 80)))  # type: ignore[arg-type]
    assert (found.linear.host_ns, found.lengths) == (40_000_000, (40, 80))


def with_lengths(facts: Facts, shortest: int, longest: int) -> object:
    context = facts.rank.context
    (loader,) = context.rank.loaders
    assert loader.sequences is not None
    sequences = msgspec.structs.replace(loader.sequences, shortest=shortest, longest=longest)
    loader = msgspec.structs.replace(loader, sequences=sequences)
    known = msgspec.structs.replace(context.rank, loaders=(Loader(dataset="Validation", looks=1), loader))
    return replace(facts.rank, context=replace(context, rank=known))


def test_batches_of_something_else() -> None:
    assert of("[[16,80,32]]", head=HEAD + "batches made in 0.2 of 12\n") is None


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("cpu  aten::linear 0-10 shapes=[[4,32],[8,32]]", "the ops that batches go through"),
        ("cpu  aten::linear 0-10", "shapes"),
    ],
)
def test_what_has_to_be_recorded(text: str, missing: str) -> None:
    with pytest.raises(Missing, match=missing):
        padding(facts_of(f"{HEAD}{BATCHES}{text}"))
