"""A Fourier transform's length has a large prime factor.

`torch.fft.rfft(x, n=2 * length - 1)` takes just what a convolution needs, which may be a prime number.

Why it costs
    A transform is fast as it splits into those of the factors of its length. For a large prime two or three transforms
    of more than twice the length take its place.

How to fix
    Pad to a length whose factors are 2, 3, 5 and 7; `scipy.fft.next_fast_len` finds one. What was cut off after a
    convolution is cut off all the same.

Ignore when
    the frequencies themselves are wanted as they are: another length has others.

Sources
    https://docs.nvidia.com/cuda/cufft/index.html
    https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html
"""

from diagnose.facts.shapes.transforms import UnhandyTransforms
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.7, 0.25, 0.13)  # of the time: ten primes and twelve products of them, 127 to 65,521 long, on a CPU
PADDED = Fix(
    "Pad the transform to a length of small factors.", before="spectrum = torch.fft.rfft(sound, n=2 * length - 1)",
    after="size = scipy.fft.next_fast_len(2 * length - 1, real=True)\nspectrum = torch.fft.rfft(sound, n=size)",
    safety=Safety.ROUNDING, link="https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html",
)  # fmt: skip
CHOSEN = Fix(
    "Choose windows of a length of small factors; their frequencies are others.",
    before="spectrum = torch.fft.rfft(sound)", after="spectrum = torch.fft.rfft(sound, n=512)",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html",
)  # fmt: skip


@rule("AT21")
def length_with_a_large_prime(unhandy_transforms: tuple[UnhandyTransforms, ...], steps: Steps) -> Verdicts:
    large = [one for one in unhandy_transforms if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in unhandy_transforms), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"transforms of lengths with a large prime factor take {share} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.times:.3g} transforms a step are {one.length:,} long, which {one.prime:,} divides:"
                    f" {ms(one.work.longest_ns)}. {one.handy:,} has no factor over 7.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT), Shorten(one.work.work_ids, LEFT)),
            fixes=(PADDED if one.goes_back else CHOSEN,),
            confidence=Confidence(Level.MEDIUM, "that the last dimension is transformed is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # of 40 ms, there and back
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::_fft_r2c 0-20 shapes=[[32,8191],[],[],[]] | aten::_fft_c2r 20-40 shapes=[[32,4096],[],[],[]]
        cpu  aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(12, 52.4),
    ),
    Silent(  # 8192 is handy
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::_fft_r2c 0-20 shapes=[[32,8192],[],[],[]] | aten::_fft_c2r 20-40 shapes=[[32,4097],[],[],[]]
        cpu  aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
