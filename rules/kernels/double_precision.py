"""Part of the model computes in double precision (fp64).

NumPy creates float64 by default. A float64 tensor promotes the tensors it meets, or needs float64 parameters.

Why it costs
    float64 doubles the bytes and halves the elements per CPU vector. GPUs compute float64 at half to a 64th of the
    rate of float32, most of them without Tensor Cores.
How to fix
    Convert data once, where it is loaded: `.float()`, or `np.float32` in the dataset.
Ignore when
    the numbers need more than seven digits.
Sources
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions
"""

from diagnose.facts.device.precision import Doubles
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in double precision (our choice)
FLOAT = Fix(
    "Convert the data to float32 once, where it is loaded.",
    after="torch.from_numpy(readings).float()",
    safety=Safety.PRECISION,
    link="https://docs.pytorch.org/docs/stable/generated/torch.from_numpy.html",
)


@rule("KE09")
def double_precision(doubles: Doubles, steps: Steps) -> Verdicts:
    if doubles.ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"ops on float64 take {ms(doubles.ns)}/step")
        return
    yield Finding(
        evidence=(Evidence(f"Ops on float64 take {ms(doubles.ns)}/step, mostly {doubles.longest}.", doubles.ns, "ns"),),
        edits=(Recost(doubles.ids if doubles.on_cpu else doubles.work_ids, InPrecision("fp32")),),
        fixes=(FLOAT,),
        confidence=Confidence(Level.MEDIUM, "the numbers may need the digits"),
        basis=Basis.RULE_OF_THUMB,
        site=doubles.site,
    )


EXAMPLES = [
    Fires(  # 60 ms of products: half the bytes at least, at best 1.1e12 operations at 0.84 of 67 TFLOP/s
        """
        4 steps of 100
        cpu  aten::mm 0-0.1 shapes=[[8192,8192],[8192,8192]] types=["double","double"] | device_sync 1-99.9
        gpu  ampere_dgemm_64x64_nn 0.1-60 @0.05 | pointwise 60-99.8 @0.5
        """,
        saving_ms=(30, 40.4),
    ),
    # of float32
    Silent("""
        4 steps of 100
        cpu  aten::mm 0-0.1 shapes=[[64,64],[64,64]] types=["float","float"] | device_sync 1-99.9
        gpu  sgemm 0.1-60 @0.05 | pointwise 60-99.8 @0.5
    """),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 0-0.1 | device_sync 1-99.9
        gpu  sgemm 0.1-60 @0.05 | pointwise 60-99.8 @0.5
        """,
        because="shapes",
    ),
]
