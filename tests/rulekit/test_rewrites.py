"""The entries of the catalogue of rewrites: what each finds and what it leaves alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from diagnose.contracts.finding import Finding
from diagnose.facts.core.base import Facts, Missing
from diagnose.replay.edits import Between
from diagnose.rulekit.rewrites import Rewrite
from diagnose.rulekit.rewritten import Found
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

CPU = "1 steps of 100\n2 threads, 4 cores\n"
MS = 1_000_000


def entry(name: str) -> Rewrite:
    found = built_in(name).check.run.__self__  # type: ignore[attr-defined]
    assert isinstance(found, Rewrite)
    return found


def step(*items: str) -> Facts:
    """One step of 100 ms on a CPU."""
    return facts_of(CPU + "\n".join(f"cpu  {item}" for item in items))


def found(name: str, *items: str) -> list[Found]:
    return entry(name).found(step(*items))


def node(name: str, when: str, number: int) -> str:
    return f'"autograd::engine::evaluate_function: {name}Backward0" {when} sequence={number} "Fwd thread id"=1'


def left(name: str, one: Found) -> Between:
    keep = entry(name).left
    value = keep(one) if callable(keep) else keep
    assert isinstance(value, Between)
    return value


SUB = "aten::sub 0-10 shapes=[[256,1,64],[1,128,64],[]]"
MUL = "aten::mul 0-10 shapes=[[256,1,64],[128,64]]"
SQUARE = "aten::square 10-20 shapes=[[256,128,64]]"
SUM = "aten::sum 20-30 shapes=[[256,128,64],[],[],[]]"
NORM = "aten::norm 10-20 shapes=[[256,128,64],[],[]]"
ONE_HOT = "aten::one_hot 0-10 shapes=[[256],[]]"
CAST = "aten::to 10-20 shapes=[[256,8000],[],[]]"
LOOKUP = "aten::matmul 20-40 shapes=[[256,8000],[8000,128]]"
SORT = "aten::argsort 0-40 shapes=[[32,800],[],[]]"
CUT = "aten::slice 40-41 shapes=[[32,800],[],[],[],[]]"
BEST = "aten::eq 42-43 shapes=[[32,5],[32,1]]"
PAIRS = 'aten::unique_dim {} shapes=[[4096,2],[],[]] types=["long int","Scalar","Scalar"]'
RENORM = "aten::embedding_renorm_ 0-20 shapes=[[9000,64],[512],[],[]]"
DIAGONAL = "aten::diag_embed 0-1 shapes=[[128,16],[],[],[]] sequence=3"
FACTORED = "aten::linalg_cholesky 21-41 shapes=[[128,16,16],[]]"
GRAM = "aten::matmul 0-10 shapes=[[4,256,64],[4,64,256]]"
RIDGE = "aten::add 10-20 shapes=[[4,256,256],[256,256]]"
SOLVE = "aten::linalg_solve 20-50 shapes=[[4,256,256],[4,256,5]]"
OUTER = "aten::mul 0-10 shapes=[[50,1,2],[1,50,2]] sequence=1"
TAKEN = "aten::diagonal 20-21 shapes=[[50,50]]"
COMPARED = 'aten::eq 0-10 shapes=[[40,1],[900]] "Input type"=["long int","long int"]'
NONZERO = "aten::nonzero 10-14 shapes=[[40,900]]"
MASK = "aten::one_hot 2-6 shapes=[[40],[]]"
MARGIN = "aten::acos 8-12 shapes=[[40,900]] sequence=1"
WHERE = "aten::where 12-14 shapes=[[40,900],[40,900],[40,900]]"
THIN = "aten::matmul 0-10 shapes=[[768,8],[8,512]] sequence=3"
MERGED = "aten::add 10-15 shapes=[[768,512],[768,512],[]] sequence=4"
LAYER = "aten::linear 15-30 shapes=[[64,512],[768,512],[]] sequence=5"
LAYERS_BACK = (node("Mm", "40-70", 5), node("Mm", "70-80", 3))
WHOLE = "shapes=[[32,10,64],[],[]]"


def cuts(count: int, begin: int = 1, number: int = 1, shapes: str = WHOLE) -> str:
    return f"aten::select {begin}-{begin}.5 x{count} every 1 {shapes} sequence={number}"


def cuts_back(count: int, begin: int = 50) -> str:
    """Nodes of 2 ms."""
    return node("Select", f"{begin}-{begin + 2} x{count} every 3", 1)


def gather(shape: str, strides: str, op: str = "aten::index") -> str:
    known = f" strides=[{strides},[]]" if strides else ""
    return f"{op} 0-40 shapes=[{shape},[]]{known}"


class Case(NamedTuple):
    rule: str
    items: tuple[str, ...]
    sizes: dict[str, object]
    """Some of those that are bound."""
    host_ms: float
    """That the ops take, with their backward pass."""


FOUND = [
    Case("broadcast_pairwise", (SUB, SQUARE, SUM), {"r": (256, 128), "d": 64}, 30),
    Case("broadcast_pairwise", (MUL, SUM), {"r": (256, 128), "d": 64}, 20),
    Case("broadcast_pairwise", (SUB, NORM), {}, 20),
    Case("broadcast_pairwise", (SUB, NORM.replace("norm", "linalg_vector_norm")), {}, 20),
    Case(
        "broadcast_pairwise",
        (
            *(f"{item} sequence={7 + k}" for k, item in enumerate((SUB, SQUARE, SUM))),
            *(node("Sum", "40-45", 9), node("Pow", "45-55", 8), node("Sub", "55-70", 7), node("Mm", "70-80", 6)),
        ),
        {},
        60,
    ),
    Case("one_hot_matmul", (ONE_HOT, CAST, LOOKUP), {"words": (256,), "classes": 8000}, 40),
    Case("one_hot_matmul", (ONE_HOT, LOOKUP.replace("20-40", "10-40")), {"classes": 8000}, 40),
    Case("full_sort_for_topk", (SORT, CUT, BEST), {"n": 800, "k": 5}, 40),
    Case("full_sort_for_topk", (SORT, CUT, CUT.replace("40-41", "41-42"), BEST), {"k": 5}, 40),
    Case("full_sort_for_topk", (SORT, CUT, "aten::unsqueeze 41-42 shapes=[[32],[]]", BEST), {"k": 5}, 40),
    Case("unique_on_rows", (PAIRS.format("0-20 x2 every 30"),), {"rows": 4096, "columns": 2}, 40),
    Case(
        "embedding_max_norm",
        ("aten::embedding_renorm_ 0-20 shapes=[[9000,64],[512],[],[]]",),
        {"rows": 9000},
        20,
    ),
    Case(
        "diagonal_matrices",
        (
            *(DIAGONAL, "aten::linalg_cholesky 1-21 shapes=[[128,16,16],[]] sequence=4"),
            *("aten::matmul 21-25 shapes=[[128,16,16],[128,16,1]]", "aten::mm 30-40 shapes=[[16,16],[16,16]]"),
            node("LinalgCholeskyEx", "50-60", 4),
        ),
        {"many": (128,), "n": 16},
        35,
    ),
    Case(
        "low_rank_solve",
        (GRAM, RIDGE, SOLVE, "aten::sum 50-60 shapes=[[4,256,256]]"),
        {"size": 256, "rank": 64},
        50,
    ),
    Case(
        "low_rank_solve",
        ("aten::mm 0-10 shapes=[[256,64],[64,256]]", "aten::inverse 20-50 shapes=[[256,256]]"),
        {"many": ()},
        40,
    ),
    Case(
        "low_rank_solve",
        ("aten::addmm 0-10 shapes=[[256,256],[256,64],[64,256]]", "aten::linalg_cholesky 20-50 shapes=[[256,256]]"),
        {},
        40,
    ),
    Case(
        "low_rank_solve",
        ("aten::matmul 0-10 shapes=[[2,3,256,64],[2,3,64,256]]", "aten::linalg_eigh 20-50 shapes=[[2,3,256,256]]"),
        {"many": (2, 3)},
        40,
    ),
    Case(
        "fft_prime_length",  # Of 2047 numbers 1024 are left of the spectrum; gradients go through all.
        (
            *("aten::fft_rfft 0-11 shapes=[[4,1024],[],[],[]]", "aten::_fft_r2c 1-11 shapes=[[4,2047],[],[],[]]"),
            *("aten::_fft_c2r 20-25 shapes=[[4,1024],[],[],[]]", "aten::_fft_c2c 30-34 shapes=[[4,2047],[],[],[]]"),
            "aten::_fft_r2c 40-45 shapes=[[4,512],[],[],[]]",
        ),
        {"n": 2047},
        19,
    ),
    Case(
        "fft_prime_length",  # A spectrum that stays one.
        ("aten::_fft_r2c 0-10 shapes=[[4,509],[],[],[]]", "aten::_fft_c2r 20-25 shapes=[[4,256],[],[],[]]"),
        {"n": 509},
        10,
    ),
    Case(
        "direct_long_convolution",
        (
            "aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,250],[6]] sequence=1",
            node("Convolution", "50-60", 1),
        ),
        {"batch": 2, "channels": 3, "filters": 6, "each": 3, "length": 1000, "taps": 250},
        12,
    ),
    Case(
        "all_pairs_for_diagonal",
        (
            *("aten::sub 30-31 shapes=[[50,2],[50,2]]", OUTER, "aten::unbind 10-11 shapes=[[50,50,2]]"),
            *("aten::clamp_ 11-17 shapes=[[50,50]]", TAKEN, node("Mul", "40-50", 1)),
        ),
        {"n": 50},
        28,
    ),
    Case(
        "all_pairs_for_diagonal",  # Overlaps of boxes as torchvision computes them.
        (
            *("aten::max 0-4 shapes=[[50,1,2],[50,2]]", "aten::sub 4-8 shapes=[[50,50,2],[50,50,2]]"),
            *("aten::slice 8-9 shapes=[[50,50,2],[],[],[],[]]", "aten::select 9-10 shapes=[[50,50,2],[],[]]"),
            *("aten::mul 10-14 shapes=[[50,50],[50,50]]", "aten::diag 14-15 shapes=[[50,50],[]]"),
        ),
        {},
        15,
    ),
    Case("all_pairs_for_diagonal", ("aten::matmul 0-10 shapes=[[50,8],[8,50]]", TAKEN), {}, 11),
    Case("all_pairs_for_diagonal", ("aten::cdist 0-10 shapes=[[50,8],[50,8]]", TAKEN), {}, 11),
    Case(
        "brute_force_lookup",
        (COMPARED, NONZERO, "aten::mm 20-30 shapes=[[8,8],[8,8]]"),
        {"ids": 40, "others": 900},
        14,
    ),
    *(
        Case(
            "full_row_for_one",  # Not `where`, nor what comes before the mask.
            (
                *(mask, "aten::abs 0-2 shapes=[[40,900]]", "aten::to 6-8 shapes=[[40,900],[]]", MARGIN, WHERE),
                node("Acos", "40-51", 1),
            ),
            {"rows": 40, "columns": 900},
            21,
        )
        for mask in (MASK, "aten::scatter_ 2-6 shapes=[[40,900],[],[40,1],[]]")
    ),
    Case("unmerged_lora", (THIN, MERGED, LAYER, *LAYERS_BACK), {"rank": 8, "out": 768, "width": 512}, 55),
    Case(
        "unmerged_lora",  # The sum may be scaled and transposed.
        (
            *(THIN, "aten::mul 10-11 shapes=[[768,512],[]] | aten::t 15-16 shapes=[[768,512]]"),
            *(MERGED.replace("10-15", "11-15"), "aten::mm 16-30 shapes=[[64,512],[512,768]] sequence=5", *LAYERS_BACK),
        ),
        {},
        54,
    ),
    Case("gradients_of_slices", (cuts(8), cuts_back(8)), {"whole": (32, 10, 64)}, 16),
    Case(
        "gradients_of_slices",  # What works on pieces comes in between.
        (cuts(8), "aten::linear 1.6-1.9 x8 every 1 shapes=[[32,64],[64,64]]", cuts_back(8)),
        {},
        16,
    ),
    *(
        Case("column_major_gather", (gather("[1000,480]", "[1,1000]", op),), {"table": (1000, 480)}, 40)
        for op in ("aten::index", "aten::index_select", "aten::embedding")
    ),
    Case("column_major_gather", (gather("[1000,3,32,32]", "[1,1024000,32000,1000]"),), {}, 40),
]


@pytest.mark.parametrize("case", FOUND, ids=lambda one: one.rule)
def test_what_is_found(case: Case) -> None:
    (one,) = found(case.rule, *case.items)
    assert {name: one.first.bound[name] for name in case.sizes} == case.sizes
    assert one.work.host_ns == case.host_ms * MS


ALONE = [
    ("broadcast_pairwise", (SUB, "aten::abs 10-20 shapes=[[256,128,64]]", SUM)),
    ("broadcast_pairwise", (SUB, SUM.replace("20-30", "10-20"))),
    ("broadcast_pairwise", (MUL, SQUARE, SUM)),
    ("broadcast_pairwise", (MUL, NORM)),
    ("broadcast_pairwise", ("aten::add 0-10 shapes=[[256,1,64],[1,128,64],[]]", SQUARE, SUM)),
    ("broadcast_pairwise", (SUB, "aten::square 10-20 shapes=[[256,128,32]]", SUM)),  # another tensor in between
    *(
        ("broadcast_pairwise", (f"aten::sub 0-10 shapes={shapes}", SQUARE, SUM))
        for shapes in (
            "[[256,128,64],[1,128,64],[]]",  # one has the shape of the result
            "[[256,1,64],[1,4,64],[]]",  # the result is four times as large as the larger one
            "[[16,1,64],[1,16,64],[]]",  # 16,384 elements
            "[[512,1],[1,512],[]]",  # an outer product has nothing to sum over but its rows
        )
    ),
    ("one_hot_matmul", (ONE_HOT, CAST, "aten::mul 20-40 shapes=[[256,8000],[256,8000]]")),
    ("one_hot_matmul", (ONE_HOT, "aten::mm 10-20 shapes=[[64,64],[64,64]]")),  # of a layer
    ("full_sort_for_topk", (SORT, CUT, "aten::eq 42-43 shapes=[[32,400],[32,400]]")),  # half
    ("full_sort_for_topk", (SORT, BEST)),  # of something else
    ("full_sort_for_topk", (SORT, CUT, "aten::sub 42-43 shapes=[[32,800],[32,1]]")),  # and then all
    ("full_sort_for_topk", (SORT, CUT)),  # nobody knows
    ("full_sort_for_topk", (SORT,)),
    ("unique_on_rows", (PAIRS.format("0-20").replace("unique_dim", "_unique2"),)),  # numbers
    ("unique_on_rows", (PAIRS.format("0-20").replace("4096,2", "4096,9"),)),  # too many columns for 64 bits
    ("embedding_max_norm", ("aten::embedding 0-20 shapes=[[9000,64],[512]]",)),
    # Noise on a kernel's diagonal; others of that shape were there before; as large as a weight may be; numbers.
    ("diagonal_matrices", (DIAGONAL, "aten::add 1-2 shapes=[[128,16,16],[128,16,16],[]]", FACTORED)),
    ("diagonal_matrices", ("aten::linalg_svd 0-1 shapes=[[128,16,16]]", DIAGONAL.replace("0-1", "2-3"), FACTORED)),
    ("diagonal_matrices", ("aten::diag_embed 0-1 shapes=[[16],[],[],[]]", FACTORED)),
    ("diagonal_matrices", ("aten::diag_embed 0-1 shapes=[[128,1],[],[],[]]", FACTORED)),
    ("diagonal_matrices", ("aten::diagonal 0-1 shapes=[[128,16,16],[],[],[]]", FACTORED)),
    # No thinner than half; another matrix; nothing is solved; solved before; of something else for each.
    ("low_rank_solve", ("aten::matmul 0-10 shapes=[[4,256,160],[4,160,256]]", SOLVE)),
    ("low_rank_solve", ("aten::matmul 0-10 shapes=[[4,64,256],[4,256,64]]", SOLVE.replace("256", "64"))),
    ("low_rank_solve", (GRAM, SOLVE.replace("256", "128"))),
    ("low_rank_solve", (GRAM, RIDGE)),
    ("low_rank_solve", (SOLVE, GRAM.replace("0-10", "50-60"))),
    ("low_rank_solve", ("aten::matmul 0-10 shapes=[[4,256,64],[64,256]]", SOLVE)),
    *(
        ("fft_prime_length", (f"aten::_fft_r2c 0-10 shapes=[[4,{length}],[],[],[]]",))
        for length in (8192, 2310, 8190, 61, 1 << 24)  # of small primes, short, and longer than any
    ),
    ("direct_long_convolution", ("aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,31],[6]]",)),  # short
    ("direct_long_convolution", ("aten::conv2d 0-2 shapes=[[2,3,100,100],[6,3,90,90],[6]]",)),  # of two dimensions
    ("all_pairs_for_diagonal", (OUTER, "aten::logsumexp 12-13 shapes=[[50,50]]", TAKEN)),  # a contrastive loss
    ("all_pairs_for_diagonal", ("aten::mm 0-9 shapes=[[50,9],[9,50]]", TAKEN, "aten::view 22-23 shapes=[[50,50]]")),
    ("all_pairs_for_diagonal", (OUTER, "aten::slice 12-13 shapes=[[50,50]]", TAKEN)),
    ("all_pairs_for_diagonal", (OUTER, "aten::max 12-13 shapes=[[50,50],[],[]]", TAKEN)),  # the nearest of each
    ("all_pairs_for_diagonal", (TAKEN,)),  # nobody knows who made it
    ("all_pairs_for_diagonal", ("aten::mul 0-9 shapes=[[8,1],[1,8]]", "aten::diagonal 20-21 shapes=[[8,8]]")),  # small
    ("all_pairs_for_diagonal", (OUTER, "aten::diagonal 20-21 shapes=[[50,60]]")),
    ("brute_force_lookup", (COMPARED, "aten::sum 10-14 shapes=[[40,900]]")),  # how many are alike
    ("brute_force_lookup", (COMPARED, "aten::nonzero 10-14 shapes=[[40]]")),  # of something else
    ("brute_force_lookup", (COMPARED.replace("long int", "float"), NONZERO)),  # near each other is not equal
    ("brute_force_lookup", (COMPARED.replace("[900]", "[40,900]"), NONZERO)),  # each with its own
    ("brute_force_lookup", (COMPARED.replace("900", "9"), NONZERO.replace("900", "9"))),  # a short list
    ("brute_force_lookup", (COMPARED,)),
    ("full_row_for_one", ("aten::gt 0-6 shapes=[[40,900],[]]", MARGIN, WHERE)),  # any places
    ("full_row_for_one", (MASK, MARGIN, "aten::softmax 12-13 shapes=[[40,900],[]]", WHERE.replace("12-", "13-"))),
    ("full_row_for_one", (MASK, MARGIN, WHERE.replace("[40,900]]", "[]]"))),  # nothing is computed for the others
    ("full_row_for_one", (MASK.replace("40", "50"), MARGIN, WHERE)),  # of something else
    ("full_row_for_one", ("aten::scatter_ 0-6 shapes=[[40,900],[],[40,5],[]]", MARGIN, WHERE)),  # five of each row
    ("full_row_for_one", (MARGIN, WHERE)),
    # Not thin; taken by itself; no layer takes it; a bias is added; of another size; the weight learns.
    ("unmerged_lora", (THIN.replace("8", "100"), MERGED, LAYER, *LAYERS_BACK)),
    ("unmerged_lora", (THIN, LAYER, *LAYERS_BACK)),
    ("unmerged_lora", (THIN, MERGED, *LAYERS_BACK)),
    ("unmerged_lora", (THIN, MERGED.replace("[768,512],[]", "[512],[]"), LAYER, *LAYERS_BACK)),
    ("unmerged_lora", (THIN, MERGED, LAYER.replace("[768,512]", "[768,500]"), *LAYERS_BACK)),
    (
        "unmerged_lora",
        (
            *(THIN, MERGED, LAYER, *LAYERS_BACK),
            '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 80-85'
            " | torch::autograd::AccumulateGrad 80-85 shapes=[[768,512]]",
        ),
    ),
    ("gradients_of_slices", (cuts(7), cuts_back(7))),  # few
    # An op on the whole ends a row: four pieces before it and four after it, of two tensors.
    (
        "gradients_of_slices",
        (cuts(4), "aten::add 5-5.5 shapes=[[32,10,64],[32,10,64]]", cuts(4, 6, 2), cuts_back(8)),
    ),
    *(
        ("column_major_gather", (gather(shape, strides),))
        for shape, strides in (
            ("[1000,3,32,32]", "[3072,1,96,3]"),  # channels last lie side by side; that others do not is no matter
            ("[1000,480]", "[480,1]"),
            ("[1000,480]", "[960,2]"),  # every second column: half of each line of the cache is used
            ("[1000,1]", "[1,1000]"),  # a row is one number
            ("[1000]", "[7]"),
        )
    ),
    ("column_major_gather", (gather("[1000,480]", "", "aten::mul"),)),
]


@pytest.mark.parametrize(("rule", "items"), ALONE, ids=[f"{rule}-{k}" for k, (rule, _) in enumerate(ALONE)])
def test_what_is_left_alone(rule: str, items: tuple[str, ...]) -> None:
    assert found(rule, *items) == []


def test_rows_end_with_the_step() -> None:
    drawn = f"2 steps of 100\n2 threads, 4 cores\ncpu  {cuts(4)} | {cuts_back(4)}"
    assert entry("gradients_of_slices").found(facts_of(drawn)) == []


def test_no_gradient_goes_to_some_pieces() -> None:
    """Then nothing is filled for them."""
    (one,) = found("gradients_of_slices", cuts(8).replace("sequence=1", ""), cuts_back(8))
    assert one.work.host_ns == 0


@pytest.mark.parametrize(("lasts", "share"), [(2, 0.885), (0.2, 0.1)])
def test_recording_the_ops_inside_is_not_their_own(lasts: float, share: float) -> None:
    """A thousand of 230 ns each: 0.23 ms; a tenth counts at least."""
    (one,) = found("unique_on_rows", PAIRS.format(f"0-{lasts}"), "aten::equal 0-0.0002 x1000 every 0.0002")
    assert one.own_share == pytest.approx(share)


def test_what_transforms_would_take() -> None:
    """2 x (3 + 6) rows and 6 x 3 filters, 1,000 + 250 long: 45,000 numbers at 3 ns, at worst 8, at best 1.2.

    With gradients four times as much.
    """
    conv = "aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,250],[6]]"
    (alone,) = found("direct_long_convolution", conv)
    keep = left("direct_long_convolution", alone)
    expected = (45_000 * 8 / 2e6, 45_000 * 3 / 2e6, 45_000 * 1.2 / 2e6)
    assert (keep.low, keep.likely, keep.high) == pytest.approx(expected)
    (both,) = found("direct_long_convolution", f"{conv} sequence=1", node("Convolution", "50-60", 1))
    assert left("direct_long_convolution", both).likely == pytest.approx(4 * 45_000 * 3 / 12e6)


def test_on_a_gpu_nobody_has_measured_transforms() -> None:
    drawn = "4 steps of 100\ncpu  aten::conv1d 0-20 shapes=[[2,3,1000],[6,3,250],[6]]\ngpu  conv 1-90 @1"
    with pytest.raises(Missing, match="on this device"):
        list(entry("direct_long_convolution").run(facts_of(drawn)))
    assert entry("direct_long_convolution").found(facts_of(drawn.replace("250", "25"))) == []


def test_of_pairs_that_are_not_wanted_a_call_is_left() -> None:
    """Of five ops and nodes in 28 ms each takes 10 us; of kernels of 10 and 1 ms 3 us each are left."""
    items = (OUTER, "aten::unbind 10-11 shapes=[[50,50,2]]", "aten::clamp_ 11-17 shapes=[[50,50]]")
    (one,) = found("all_pairs_for_diagonal", *items, TAKEN, node("Mul", "40-50", 1))
    assert one.least_left == pytest.approx(5 * 0.010 / 28)
    cpu = "aten::mul 0-1 shapes=[[50,1],[1,50]] | aten::diagonal 20-21 shapes=[[50,50]]"
    facts = facts_of(f"4 steps of 100\ncpu  {cpu}\ngpu  pointwise 2-12 @0.5 | pointwise 22-23 @20.5")
    (one,) = entry("all_pairs_for_diagonal").found(facts)
    assert one.work.device_ns == 11 * MS
    assert one.least_left == pytest.approx(2 * 0.003 / 11)


def test_what_the_thin_matrices_of_an_adapter_take() -> None:
    """Thin products are 8 x 1280 in 768 x 512 of the layer's 15 ms, three times; of the sum's 5 ms it is twice 64 in
    512, three times. Of the layer's backward pass, of two products in 30 ms, half stays: the gradient of the words.
    """
    products = "aten::mm 40-58 shapes=[[512,64],[64,768]] | aten::mm 58-70 shapes=[[64,768],[768,512]]"
    (one,) = found("unmerged_lora", THIN, MERGED, LAYER, *LAYERS_BACK, products)
    keep = one.first.pattern[2].back
    assert callable(keep)
    value = keep(one)
    assert isinstance(value, Between)
    assert value.likely == pytest.approx(1.1 * (0.5 + 4.921875 / 30))


def test_without_a_backward_pass_nobody_knows_which_weights_learn() -> None:
    with pytest.raises(Missing, match="backward passes"):
        found("unmerged_lora", THIN, MERGED, LAYER)


def test_strides_have_to_be_known_where_rows_are_gathered() -> None:
    with pytest.raises(Missing, match="strides"):
        found("column_major_gather", gather("[1000,480]", ""))


def test_a_device_does_it_where_it_was_launched() -> None:
    facts = facts_of(
        f"""
        1 steps of 100
        cpu  {SUB.replace("0-10", "0-1")} | {SQUARE.replace("10-20", "1-2")} | {SUM.replace("20-30", "2-3")}
        gpu  pointwise 1-11 @0.5 | pointwise 11-18 @1.5 | reduce 18-22 @2.5 | sgemm 22-30 @4
        """
    )
    (one,) = entry("broadcast_pairwise").found(facts)
    assert (one.work.host_ns, one.work.device_ns, len(one.work.work_ids)) == (3 * MS, 21 * MS, 3)


@pytest.mark.parametrize("rule", ["full_sort_for_topk", "fft_prime_length"])
def test_shapes_have_to_be_known(rule: str) -> None:
    with pytest.raises(Missing, match="shapes"):
        found(rule, "aten::argsort 0-40")


def test_lookups_of_all_lengths_are_one_finding() -> None:
    """As sequences of a text have: 10 ms each, the longest is shown."""
    items = [
        item.format(10 * k, 10 * k + 1, 10 * k + 10, 256 + k)
        for k in range(4)
        for item in ("aten::one_hot {0}-{1} shapes=[[{3}],[]]", "aten::matmul {1}-{2} shapes=[[{3},8000],[8000,128]]")
    ]
    (one,) = found("one_hot_matmul", *items)
    assert (one.times, one.work.host_ns) == (4, 40 * MS)
    (said,) = list(entry("one_hot_matmul").run(step(*items)))
    assert isinstance(said, Finding)
    assert "259 x 8,000, are made" in said.evidence[0].text


def test_what_all_of_it_takes_is_told_at_once() -> None:
    """Tables of 30 ms, and 40 ms of their backward pass: no less than what is told with more effort."""
    (one,) = found(
        "diagonal_matrices",
        "aten::diag_embed 0-10 shapes=[[128,64],[],[],[]] sequence=3",
        "aten::matmul 10-30 shapes=[[128,64,64],[128,64,64]] sequence=4",
        node("Bmm", "40-60", 4),
        node("DiagEmbed", "60-80", 3),
    )
    assert one.work.host_ns == 70 * MS
    assert one.at_most_ns == 70 * MS
