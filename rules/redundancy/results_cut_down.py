"""Results are computed of which little or nothing is read.

A spectrogram is made of whole clips and a short piece is cut out of it; a frozen model tells about all words and the
loss asks about some; pictures are normalised, and then cropped; of a model that tells all only one answer is used.

Why it costs
    What is cut away has been computed, moved and stored like the rest.

How to fix
    Cut first, compute then: most ops make each row, or each element, of the one in its place.

Ignore when
    something that torch does not see reads the rest: an extension, or another thread.

Sources
    https://huggingface.co/docs/transformers/main_classes/text_generation
    https://docs.pytorch.org/docs/stable/tensor_view.html
"""

from diagnose.facts.values.parts_read import PartRead
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such ops (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
# Of the time for what nothing reads this is left: none of a reference model's, a frozen encoder's and of pictures that
# are cropped late (torch 2.13, two cores of a Xeon), more where fewer rows take more time each (our choice).
STILL = Between(0.5, 0.15, 0.0)
CUT = Fix(
    "Cut first, and compute then.", before="piece = spectrogram(sounds)[:, :, first:last]",
    after="piece = spectrogram(sounds[:, hop * first : hop * (last - 1) + window])", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/tensor_view.html",
)  # fmt: skip
LEAVE = Fix(
    "Leave out what nothing reads.", before="states, scores = teacher(words)  # and scores are not used",
    after="states = teacher.body(words)", safety=Safety.SAME_NUMBERS,
    link="https://huggingface.co/docs/transformers/main_classes/model",
)  # fmt: skip
ASK = Fix(
    "Of a model, ask for what is read.", before="scores = teacher(words).logits[:, -kept:]",
    after="scores = teacher(words, logits_to_keep=kept).logits  # in transformers", safety=Safety.ROUNDING,
    link="https://huggingface.co/docs/transformers/main_classes/text_generation",
)  # fmt: skip


@rule("AT33")
def results_cut_down(parts_read: tuple[PartRead, ...], steps: Steps) -> Verdicts:
    often = [one for one in parts_read if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.unread_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.unread_ns for one in often), default=0)
        yield Clean(f"what nothing reads takes {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        yield Finding(
            evidence=(
                Evidence(
                    f"{names}: {_read(one)} All of it takes {ms(one.work.longest_ns)} a step, what nothing reads"
                    f" {ms(one.unread_ns)} of that.",
                    one.unread_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, STILL.of_share(1 - one.percent / 100)),),
            fixes=(CUT, ASK) if one.percent else (LEAVE,),
            confidence=Confidence(Level.MEDIUM, "two steps were looked at; in others it may be more or less"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


def _read(one: PartRead) -> str:
    if not one.percent:
        return "nothing reads what they compute."
    place = f" It is cut down in `{one.read_at.function}`." if one.read_at not in (None, one.site) else ""
    return f"{percent(one.percent / 100)} of what they compute is read by anything.{place}"


EXAMPLES = [
    Fires(  # of 60 ms four fifths are for nothing
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_fft_r2c read 20 | aten::abs takes 0 read 20 | aten::convolution takes 1
        cpu  aten::_fft_r2c 0-40 | aten::abs 40-60 | aten::convolution 60-90
        """,
        saving_ms=(24, 67.1),
    ),
    Fires(  # of a head nothing is read
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::addmm takes 0 read 0 | aten::add takes 0
        cpu  aten::mm 0-20 | aten::addmm 20-60 | aten::add 60-90
        """,
        saving_ms=(20, 58.4),
    ),
    Silent(  # all is read
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_fft_r2c | aten::abs takes 0 | aten::convolution takes 1
        cpu  aten::_fft_r2c 0-40 | aten::abs 40-60 | aten::convolution 60-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
