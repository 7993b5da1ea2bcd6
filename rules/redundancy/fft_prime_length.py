"""FFT length has a large prime factor.

`torch.fft.rfft(x, n=2 * length - 1)` takes just what a convolution needs, which may be a prime number. For small
factors a transform is many small ones; for a large prime it is made of two or three of more than twice the length.

Ignore when
    the frequencies have to be those of just this length.
"""

from diagnose.rulekit.vocabulary import *

# With 13 as the largest prime a transform took 0.5 to 1.4 times as long as that of the next length of factors up to 7,
# with 23 to 67 1.4 to 17 times, and with larger ones 1.6 to 8 (MKL of torch 2.13, lengths 127 to 65,521).
LEAST_PRIME = 23  # see above
HANDY = 7  # cuFFT and MKL have kernels of their own for factors up to this
PADDED = Fix(
    "Pad the transform to a length of small factors.",
    before="spectrum = torch.fft.rfft(sound, n=2 * length - 1)",
    after="size = scipy.fft.next_fast_len(2 * length - 1, real=True)\nspectrum = torch.fft.rfft(sound, n=size)",
    safety=Safety.ROUNDING,
    link="https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html",
)
CHOSEN = Fix(
    "Choose windows of a length of small factors; their frequencies are others.",
    before="spectrum = torch.fft.rfft(sound)",
    after="spectrum = torch.fft.rfft(sound, n=512)",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html",
)


def _largest_prime(number: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number) if number > 1 else largest


def _said(one: Found) -> str:
    handy = next(more for more in range(one.n, 2 * one.n) if _largest_prime(more) <= HANDY)
    return (
        f"Transforms are {one.n:,} long, which {_largest_prime(one.n):,} divides; {handy:,} has no factor over {HANDY}"
    )


RULE = rewrite(
    "AT21",
    "transforming lengths with a large prime factor",
    (Op("_fft_r2c|_fft_c2c", ("*_ n",), most=64), Op("_fft_c2r", ("*_ n//2+1",), least=0, most=64)),
    inner="_fft_r2c|_fft_c2r|_fft_c2c",
    where=lambda one: 64 <= one.n < 1 << 24 and _largest_prime(one.n) >= LEAST_PRIME,
    says=_said,
    left=Between(0.7, 0.25, 0.13),  # of ten primes and twelve products of them, 127 to 65,521 long, on a CPU
    back=1,  # in which such transforms are looked at, too
    calls_go=True,
    fixes=lambda one: (PADDED if any(match.ops[1] for match in one.matches) else CHOSEN,),
    why="that the last dimension is transformed is not recorded",
)

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
]
