"""Names of kernels, as they stand in traces of V100, A100 and H100 GPUs; long argument lists are left out."""

from __future__ import annotations

from benchmarks.simulated.gpus import Gpu

FUNCTORS = {
    "add": "at::native::CUDAFunctor_add<{0}>",
    "add_": "at::native::CUDAFunctor_add<{0}>",
    "mul": "at::native::BinaryFunctor<{0}, {0}, {0}, at::native::binary_internal::MulFunctor<float> >",
    "mul_": "at::native::AUnaryFunctor<{0}, {0}, {0}, at::native::binary_internal::MulFunctor<float> >",
    "div": "at::native::BinaryFunctor<{0}, {0}, {0}, at::native::binary_internal::DivFunctor<float> >",
    "relu_": "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)::{{lambda()#1}}",
    "gelu": "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{{lambda()#2}}",
    "gelu_backward": "at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)::{{lambda()#2}}",
    "threshold_backward": "at::native::(anonymous namespace)::threshold_kernel_impl<{0}>(at::TensorIteratorBase&)",
}


def functor(name: str, dtype: str) -> str:
    """What an elementwise kernel is a template of."""
    return FUNCTORS.get(
        name, f"at::native::{name.strip('_')}_kernel_cuda(at::TensorIteratorBase&)::{{{{lambda()#1}}}}"
    ).format(dtype)


def matmul(gpu: Gpu, kind: str, dtype: str, align: int, layout: str) -> str:
    """Of a matmul, as cuBLAS names it; `align` is how many elements are read at once, `layout` the operands' order."""
    word = {"c10::BFloat16": "bf16", "c10::Half": "fp16"}.get(dtype, "f32")
    arch = {7: "volta", 8: "ampere", 9: "sm90"}[gpu.capability[0]]
    if kind in ("fp32", "fp64") and (kind == "fp32" or arch == "volta"):
        return f"{'volta' if arch == 'volta' else 'ampere'}_{'s' if kind == 'fp32' else 'd'}gemm_128x64_{layout}"
    if kind == "half" and align == 8:
        return _best_matmul(arch, word, layout)
    shape = {
        "fp64": f"d884gemm_64x64_16x4_{layout}_align1",
        "tf32": f"s1688gemm_256x64_16x4_{layout}_align{align}",
        "half": f"{word}_s16816gemm_{word}_128x128_32x3_{layout}_align{align}",
    }[kind]
    return f"void cutlass::Kernel2<cutlass_80_tensorop_{shape}>(cutlass_80_tensorop_{shape}::Params)"


def _best_matmul(arch: str, word: str, layout: str) -> str:
    if arch == "volta":
        return f"volta_{word}_s884gemm_{word}_128x128_ldg8_f2f_{layout}"
    if arch == "ampere":
        return f"ampere_{word}_s16816gemm_{word}_128x128_ldg8_f2f_stages_32x5_{layout}"
    order = "TNT" if layout == "tn" else "NNT"
    return f"nvjet_{'tst' if word == 'bf16' else 'hsh'}_128x256_64x4_2x1_v_bz_coopA_{order}"


def convolution(gpu: Gpu, way: str, kind: str, dtype: str, last: bool) -> str:
    """Of a convolution, as cuDNN names it; `way`: fprop, dgrad or wgrad; `last`: of tensors in NHWC."""
    word = {"c10::BFloat16": "bf16", "c10::Half": "f16"}.get(dtype, "tf32")
    if kind in ("fp32", "fp64"):
        arch = "volta" if gpu.capability[0] == 7 else "ampere"
        return {
            "fprop": f"{arch}_scudnn_128x64_relu_xregs_large_nn_v1",
            "dgrad": "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>",
            "wgrad": "void cudnn::cnn::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>",
        }[way]
    if gpu.capability[0] == 7:
        return (
            f"void cutlass_cudnn_train::Kernel<cutlass_tensorop_f16_s884{way}_optimized_f16_128x128_32x2_nhwc_align8>"
        )
    sides = "nhwckrsc_nhwc" if last or way == "wgrad" else "nhwckrsc_nchw"
    return (
        f"sm80_xmma_{way}_implicit_gemm_indexed_{word}{'f32' if word == 'tf32' else word}_{word}f32_f32_{sides}"
        "_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
    )


def attention(backend: str, backward: bool) -> str:
    """The main kernel of fused attention."""
    if backend == "cudnn":
        way = "bprop" if backward else "fprop"
        return f"cudnn_generated_fort_native_sdpa_sm90_flash_{way}_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0"
    if backend == "efficient":
        return f"fmha_cutlass{'B' if backward else 'F'}_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
    if backward:
        traits = "<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8> >"
        return f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel{traits}"
    return "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4> >"
