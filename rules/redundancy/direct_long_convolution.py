"""Long convolution without FFT.

`conv1d(sound, clap)` with a `clap` of hundreds of samples multiplies each sample with each of them.

Ignore when
    the convolution has a stride.
"""

from diagnose.rulekit.vocabulary import *

LEAST_TAPS = 32  # shorter filters are quicker as they are (our choice)
# To convolve by transforms took 1.2 to 4.4 ns for each number of the inputs, filters and results on one core, and 7.8
# where most are of filters (MKL of torch 2.13; 19 convolutions, filters of 32 to 1000). With gradients of input and
# filter it took 2.5 to 6.2 times that.
TRANSFORM_NS, WITH_BACKWARD = (8.0, 3.0, 1.2), 4.0


def _left(one: Found) -> Between:
    if not one.on_cpu:
        raise Missing("how long Fourier transforms take on this device", "Compare torch.fft with the convolution.")
    numbers = (one.batch * (one.channels + one.filters) + one.filters * one.each) * (one.length + one.taps)
    times = one.times * (WITH_BACKWARD if len(one.backs[0].ids) else 1)
    return Between(*(min(ns * times * numbers / max(one.work.host_ns, 1), 1.0) for ns in TRANSFORM_NS))


RULE = rewrite(
    "AT22",
    "convolving with long filters",
    (Op("conv1d|convolution|_convolution", ("batch channels length", "filters each taps")),),
    where=lambda one: one.taps >= LEAST_TAPS,
    says="Filters of {taps:,} taps go over {batch} x {channels} rows of {length:,}",
    left=_left,
    fixes=(
        Fix(
            "Convolve by Fourier transforms.",
            before="heard = conv1d(sounds[:, None], clap.flip(0)[None, None])",
            after="size = scipy.fft.next_fast_len(sounds.shape[1] + len(clap) - 1, real=True)\n"
            "heard = torch.fft.irfft(torch.fft.rfft(sounds, size) * torch.fft.rfft(clap, size), size)"
            "[:, :sounds.shape[1]]",
            safety=Safety.ROUNDING,
            effort=2,
            link="https://docs.pytorch.org/audio/stable/generated/torchaudio.functional.fftconvolve.html",
        ),
    ),
    why="by what transforms took on another machine; the stride is not known",
)

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
]
