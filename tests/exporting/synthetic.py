"""A synthetic training on a GPU: three steps of 100 us, each with two kernels and a copy."""

from tests.drawing import Drawing

HOSTILE = "evil'; DROP TABLE kernels; --\x1b[31m\u202e\x00\ud800"


def training(**header: object) -> Drawing:
    """Each step launches a matmul early, and a pointwise kernel while that runs; then it copies."""
    draw = Drawing(**header)
    for number in range(3):
        at = number * 100
        draw.step(number, at, at + 100).frame("train.py(3): step", at, at + 99)
        draw.op("aten::linear", at + 1, at + 9, **{"Input Dims": [[8, 16]]}).op("aten::mm", at + 2, at + 8)
        draw.launch("ampere_sgemm_128x64", (at + 3, at + 4), (at + 10, at + 60), grid=[4, 1, 1], block=[256, 1, 1])
        draw.op("aten::relu", at + 20, at + 25)
        draw.launch("vectorized_elementwise_kernel", (at + 21, at + 22), (at + 60, at + 65))
        draw.op("aten::copy_", at + 69, at + 72)
        draw.copy("HtoD (Pageable -> Device)", (at + 70, at + 71), (at + 72, at + 80), 1024)
    return draw
