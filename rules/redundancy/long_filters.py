"""A filter is so long that Fourier transforms are quicker.

`conv1d(sound, clap)` with a `clap` of hundreds of samples multiplies each sample with each of them.

Why it costs
    A filter of k taps takes k products for each result; by way of transforms their number hardly grows with k. And
    torch is slow at gradients of long filters.

How to fix
    Transform, multiply, transform back: `torchaudio.functional.fftconvolve`, or `torch.fft.rfft` and `irfft` with both
    padded to a length of small factors, of at least length + taps - 1.

Ignore when
    the filter is needed at a few places only: a large stride.

Sources
    https://docs.pytorch.org/audio/stable/generated/torchaudio.functional.fftconvolve.html
    https://arxiv.org/abs/1312.5851
"""

from diagnose.facts.shapes.filters import LongFilters
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step (our choice)
BY_TRANSFORMS = Fix(
    "Convolve by Fourier transforms.", before="heard = conv1d(sounds[:, None], clap.flip(0)[None, None])",
    after="size = scipy.fft.next_fast_len(sounds.shape[1] + len(clap) - 1, real=True)\n"
    "heard = torch.fft.irfft(torch.fft.rfft(sounds, size) * torch.fft.rfft(clap, size), size)[:, :sounds.shape[1]]",
    safety=Safety.ROUNDING, effort=2,
    link="https://docs.pytorch.org/audio/stable/generated/torchaudio.functional.fftconvolve.html",
)  # fmt: skip


@rule("AT22")
def filter_of_many_taps(long_filters: tuple[LongFilters, ...], steps: Steps) -> Verdicts:
    large = [one for one in long_filters if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in long_filters), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"filters long enough for transforms take {share} of the step at most")
    for one in large:
        sizes = one.sizes
        yield Finding(
            evidence=(
                Evidence(
                    f"Filters of {sizes.taps:,} taps go over {sizes.batch * sizes.channels:,} rows of {sizes.length:,}:"
                    f" {ms(one.work.longest_ns)} a step, of which transforms take {percent(one.left[1])}.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, Between(*one.left)),),
            fixes=(BY_TRANSFORMS,),
            confidence=Confidence(Level.MEDIUM, "by what transforms took on another machine; the stride is not known"),
            basis=Basis.RULE_OF_THUMB, site=one.site, host_bound=True,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # transforms of 2 rows and a filter of 100,000 numbers take 3 x 100,000 x 3 ns = 0.9 ms; at worst 2.4
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::conv1d 0-40 shapes=[[1,1,99000],[1,1,1000],[],[],[],[],[]]
        cpu  aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(37.6, 60.9),
    ),
    Silent(  # three taps
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::conv1d 0-40 shapes=[[1,1,99000],[1,1,3],[],[],[],[],[]]
        cpu  aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
