"""Embedding lookup by one-hot matmul.

`one_hot(words, classes).float() @ table` picks a row for each word. It writes a row of zeros and a one for each, and
multiplies every row of the table with every one of them.
"""

from diagnose.rulekit.vocabulary import *

RULE = rewrite(
    "AT07",
    "multiplying with rows of zeros and ones",
    (
        Op("one_hot", ("*words",)),
        Op("to|_to_copy|clone|contiguous", ("*words classes",), least=0, most=2),
        Op("matmul|mm|bmm|linear|addmm", some="*words classes"),
    ),
    says="Rows of zeros and ones, {words} x {classes:,}, are made and multiplied with a table",
    left=Between(0.3, 0.05, 0.01),  # a lookup copies one row for each word (our choice)
    back=Between(0.9, 0.5, 0.2),  # the gradient of the whole table is filled with zeros all the same (our choice)
    any_size=True,
    fixes=(
        Fix(
            "Look rows up by their numbers.",
            before="rows = one_hot(words, classes).float() @ table",
            after="rows = torch.nn.functional.embedding(words, table)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html",
        ),
    ),
    why="that they are multiplied is recorded, by their shape",
    level=Level.HIGH,
)

EXAMPLES = [
    Fires(  # of 40 ms 28 go at least, most likely 38; the rest gets faster then, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::one_hot 0-10 shapes=[[256],[]] | aten::fill_ 1-9 shapes=[[256,8000],[]]
        cpu  aten::to 10-20 shapes=[[256,8000],[]]
        cpu  aten::matmul 20-40 shapes=[[256,8000],[8000,128]] | aten::mm 40-90 shapes=[[256,128],[128,128]]
        """,
        saving_ms=(28, 60.3),
    ),
    Silent(  # a lookup
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding 0-10 shapes=[[8000,128],[256]] | aten::mm 40-90 shapes=[[256,128],[128,128]]
        """
    ),
]
