"""Names as recorders write them. Expected values come from what the libraries' kernels do, not from the functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import frames, kinds
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.frames import Site
from diagnose.trace.kinds import Activity, ApiKind, KernelKind

ATEN = "void at::native::"
ANON = "void at::native::(anonymous namespace)::"

# V100, A100, H100, B200, MI210, MI250 and MI300X traces; where no trace has one, as the library's source names it.
KERNELS = {
    KernelKind.MEMORY: [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "MEMORY_COPY_HOST_TO_DEVICE",
        "__amd_rocclr_fillBufferAligned.kd",
        "__amd_rocclr_copyBuffer",
    ],
    KernelKind.COMMUNICATION: [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC",
        "_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE",
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, "
            "unsigned int**, unsigned long, unsigned long)"
        ),
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int)",
        "void dpsk::ep::internode_ll::combine<8, 7168, 9>(void*, void*, int*)",
    ],
    KernelKind.TRITON_TEMPLATE: ["triton_tem_fused_mm_16", "triton_tem_fused__to_copy_bmm_flex_attention_2"],
    KernelKind.TRITON_POINTWISE: [
        "triton_poi_fused_add_cos_sin_0",
        "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0",
        "triton_poi_fused_addmm_gelu_3",
        "triton_poi_fused__scaled_dot_product_flash_attention_cat_5",
    ],
    KernelKind.TRITON_REDUCTION: [
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "triton_per_fused_native_layer_norm_3",
        "triton_spl_fused_cumsum_0",
    ],
    KernelKind.TRITON_FOREACH: ["triton_for_fused_0"],
    KernelKind.TRITON_OTHER: ["triton__0d1d2d3d"],
    KernelKind.EMBEDDING: [
        (
            "split_embedding_backward_codegen_adagrad_unweighted_find_long_segments("
            "at::GenericPackedTensorAccessor<int, 1ul>)"
        ),
        "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false, long, 1ul, 8ul>(float*)",
        "void dense_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 1ul, 8ul>(float*)",
        (
            "void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*, "
            "decltype(nullptr) const*, int const*, int const*, int const*, int*, decltype(nullptr)*)"
        ),
        "void linearize_index_kernel<long>(long*, int)",
        ANON + "EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*, long const*, float const*)",
        ANON + "embedding_backward_feature_kernel<float, float, int>(int const*, float const*, float*, int)",
        ANON + "compute_grad_weight<float, long>(long const*, float const*, long const*, long, long)",
    ],
    KernelKind.OPTIMIZER: [
        ANON + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
        "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, "
        "false>, float const*>"
        "(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)",
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, float>"
            "(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, float)"
        ),
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>, float>(int, float)",
        "void lamb_cuda_kernel_part1<float, float, 512>(float*, float*, float*)",
    ],
    KernelKind.FOREACH: [
        ANON + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, "
        "at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float>"
        "(at::native::(anonymous namespace)::TensorListMetadata<1>)",
        ANON + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, "
        "at::native::(anonymous namespace)::CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, long> >"
        "(at::native::(anonymous namespace)::TensorListMetadata<2>)",
    ],
    KernelKind.ATTENTION: [
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
            "false, "
            "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> "
            ">, false, false, "
            "false, false, false, true, false>(pytorch_flash::Flash_fwd_params)"
        ),
        (
            "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, "
            "128, 128, 8, 4, 4, "
            "4, false, false, cutlass::half_t> >(pytorch_flash::Flash_bwd_params)"
        ),
        (
            "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
            "cutlass::bfloat16_t> > >()"
        ),
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        (
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
            "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"
        ),
        "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<float>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "attn_fwd",
        "bwd_kernel_dk_dv",
        "_ZN5aiter26fmha_fwd_hd128_bf16_causalE",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>(int)",
    ],
    KernelKind.SOFTMAX_LOSS: [
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, "
            "float const*, "
            "int, int, int, bool const*, int, bool)"
        ),
        (
            "void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2 *, "
            "const T1 *, int, int, "
            "int, const bool *, int, bool)"
        ),
        ANON + "nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float*, long*)",
        "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*, long*)",
        "liger_cross_entropy_kernel",
    ],
    KernelKind.NORM: [
        ANON + "vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*)",
        ATEN + "batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16, c10::BFloat16, float, int>(float)",
        "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*)"
        ),
        "_rms_norm_forward_kernel",
    ],
    KernelKind.CONV: [
        "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1",
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_"
            "warpsize2x2x1"
            "_g1_tensor16x8x8_alignc4_execute_kernel_cudnn"
        ),
        (
            "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4>"
            "(cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4::Params)"
        ),
        (
            "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<"
            "cutlass_cudnn_train::"
            "MatrixShape<4, 128>, float> >(int)"
        ),
        (
            "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemmMulti"
            "stageINS_4gemm9GemmShapeILi128ELi128ELi32EEENS_10tfloat32_tE"
        ),
        (
            "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1_wr1x1_ta1x4x1x4_1x16x1x16"
            "_tb1x4x1x4_1x16x1x16_gkgs"
        ),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_"
            "cshuffle_v3INS_13tensor_layout4gemm8RowMajorENS6_11ColumnMajorES7_ttfttNS0_12element_wise11PassThroughE"
        ),
        "cask_cudnn::computeWgradSplitKOffsetsKernel(cask_cudnn::ComputeSplitKOffsetsParams)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::WinogradDataParams<float, float>)",
        "void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params, float const*, float*)",
        "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int, int, int)",
        "void fft1d_c2r_32<float2, float, float, false, true, false, false>(float*, float2 const*, int)",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, true, true>(int, int, int)",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
    ],
    KernelKind.LAYOUT: [
        "void nchwToNhwcKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int, int, int, int)",
        "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(float*)",
        "batched_transpose_16x64_pack_1x4_ediv_1x2_half",
        "transpose_CNHW2NCHW_V2_2D_WG_off64",
        "SubTensorOpWithScalar1d",
        "void transpose_readWrite_alignment_kernel<float2, float2, 1, false, 6, 4, 4>(cublasTransposeParams<float2>)",
    ],
    KernelKind.ROPE: [
        "void rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, int)",
        "void fused_rope_forward_kernel<float>(float const*, float const*)",
    ],
    KernelKind.GEMM: [
        "volta_sgemm_32x32_sliced1x4_tn",
        "ampere_gcgemm_64x64_nt",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>"
            "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8::Params)"
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
            "__5x_cublas"
        ),
        "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN",
        "Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1_AFC1_AFEM1",
        "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
        (
            "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn_"
            "xdlops"
            "_bwd_weightILi64EttftLNS_25InMemoryDataOperationEnumE1E"
        ),
        "void splitKreduce_kernel<float, float, float>(cublasSplitKParams<float>, float const*, float const*, float*)",
        (
            "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false, "
            "cublasGemvParams<cublasGemvTensorStridedBatched<float const> > >(float)"
        ),
        (
            "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>, "
            "cublasGemvTensorStridedBatched<float> > >(int)"
        ),
        "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*)",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_sm100f",
    ],
    KernelKind.INDEX_SORT: [
        (
            "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, "
            "false, long>(int*)"
        ),
        (
            "void cub::DeviceScanKernel<cub::DeviceScanPolicy<int>::Policy600, int*, int*, cub::Sum, "
            "cub::NullType, int>(int*)"
        ),
        (
            "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400200_NS::detail::"
            "wrapped_scan_config<rocprim::ROCPRIM_400200_NS::default_config, long> >(void*)"
        ),
        ANON + "indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(unsigned int, long)",
        "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long*, long*, float*, float*, long)",
        ATEN + "vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)",
        ATEN + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous namespace)::"
        "masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}> >(int)",
    ],
    KernelKind.CAST_QUANT: [
        (
            "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2, "
            "__nv_bfloat16, 32, true>(int, int, int, int, __nv_bfloat16 const*)"
        ),
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
        ATEN + "vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda(float)#1}, std::array<char*, 2ul> >(int)",
        "void transformer_engine::detail::cast_transpose_kernel<8, 4, float, __nv_fp8_e4m3>(float const*)",
        "void fbgemm_gpu::_float_to_FP8rowwise_cuda_kernel<float>(float const*, int, int, unsigned char*)",
    ],
    KernelKind.COPY: [
        ANON
        + "CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 1, "
        "128, 1>(at::native::(anonymous namespace)::OpaqueType<4u>*)",
        ATEN
        + "unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator&, bool)::{lambda()#2}::"
        "operator()() const::{lambda()#8}, at::detail::Array<char*, 2>, at::native::memory::LoadWithoutCast>(int)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>(int)",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>((anonymous namespace)::StoreKVCacheParams)",
    ],
    KernelKind.FILL: [
        ATEN + "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)",
    ],
    KernelKind.RNG_DROPOUT: [
        ANON
        + "fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(unsigned int, float, at::PhiloxCudaState)",
        ANON
        + "distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::uniform_and_transform<"
        "float, float, 4ul, at::CUDAGeneratorImpl*> >(int)",
    ],
    KernelKind.POOL_INTERP: [
        ANON + "max_pool_backward_nchw<c10::BFloat16, float, int>(c10::BFloat16 const*, long const*, int)",
        ANON + "adaptive_average_pool<float>(float const*, float*, int, int, int, int, long, long, long)",
        ANON + "upsample_bilinear2d_out_frame<float, float>(int, float, float, bool)",
    ],
    KernelKind.RNN: [
        ANON + "kernel::gru_cell_forward<float, float, long, 1>(at::cuda::detail::TensorInfo<float, long>)",
        "void elemWiseRNNcell<float, float, float, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>(int, int, int, int)",
    ],
    KernelKind.MOE_ROUTE: [
        (
            "void moe::dev::routing::routingRenormalize::routingIndicesHistogramScoresKernel<moe::dev::routing::"
            "routingRenormalize::KernelParams<__nv_bfloat16, __nv_bfloat16, 128, false, true, true> >(int)"
        ),
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t> >(int)",
    ],
    KernelKind.REDUCTION: [
        ATEN + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
        "unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float> >)",
    ],
    KernelKind.ELEMENTWISE: [
        ATEN
        + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)",
        ATEN + "unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, "
        "TrivialOffsetCalculator<2, unsigned int>, at::native::memory::LoadWithCast<2>, "
        "at::native::memory::StoreWithCast<1> >(int, at::native::CUDAFunctor_add<float>)",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
        "_swiglu_forward_kernel",
        "_geglu_tanh_forward_kernel",
    ],
    KernelKind.OTHER: [
        "at::cuda::(anonymous namespace)::spin_kernel(long)",
        "void (anonymous namespace)::clamp_position_kernel<long>(long*, long const*, unsigned long)",
        "create_flashinfer_kv_indices_triton",
        "saxpy(double *, double *, double *, double, int)",
        "Kernel",
        "",
    ],
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in KERNELS.items() for name in names])
def test_kernel_kind(name: str, kind: KernelKind) -> None:
    assert kinds.kernel_kind(name) is kind


def test_every_kernel_kind_has_a_name() -> None:
    assert set(KERNELS) == set(KernelKind)
    assert sum(map(len, KERNELS.values())) >= 80


@pytest.mark.parametrize(
    ("name", "tensor_cores", "dtype"),
    [
        # SIMT, by arch and letter, by ffma, by simt, by algorithm.
        ("volta_sgemm_128x64_nn", False, "fp32"),
        ("ampere_sgemm_32x32_sliced1x4_tn", False, "fp32"),
        ("ampere_gcgemm_64x64_nt", False, "fp32"),
        ("volta_cgemm_32x32_tn", False, "fp32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x32x8_stage3_warpsize2x2x1_ffma_aligna4", False, "fp32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(int)", False, "fp32"),
        ("void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 32>(float*)", False, "fp32"),
        ("void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int)", False, "fp32"),
        ("void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024, false>(float)", False, "fp32"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<float const> >(int)", False, "fp32"),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", False, "fp32"),
        ("void cudnn::winograd_nonfused::winogradWgradDelta4x4<float, float>(int)", False, "fp32"),
        ("void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*)", False, "fp32"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int)", False, "fp32"),
        ("void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>(int)", False, "fp32"),
        # Tensor cores, by MMA shape. 1688 without a type is TF32; d884 is fp64.
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True, "fp16"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", True, "fp16"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True, "bf16"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(int)", True, "tf32"),
        ("void cutlass::Kernel2<cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align1>", True, "bf16"),
        ("void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(int)", True, "fp64"),
        ("void cutlass::Kernel<cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16>(int)", True, "int8"),
        # By family.
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", True, "bf16"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT", True, "fp16"),
        ("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT", True, "bf16"),
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT", True, "fp8"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute", True, "bf16"),
        (
            "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8",
            True,
            "tf32",
        ),
        ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS_10tfloat32_tE", True, "tf32"),
        ("Cijk_Ailk_Bjlk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x64x32_MI32x32x1_SN_LDSB0", True, "bf16"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x224x64_MI16x16x1_SN_LDSB1", True, "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1_SN_1LDSB0", True, "fp16"),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16_MI16x16x1_SN_LDSB0", True, "fp32"),
        ("Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN", True, "tf32"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1_SN", True, "fp8"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2", True, "bf16"),
        (
            "_ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3ABINS_1AES7_ttfttNS0_E",
            True,
            "bf16",
        ),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightILi64EttftLNS_2EmE1E", True, "bf16"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1", True, "fp8"),
        # Attention.
        (KERNELS[KernelKind.ATTENTION][0], True, "bf16"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", True, "fp8"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(int)", True, "fp16"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1", True, "fp16"),
        (
            (
                "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, "
                "(vllm::Fp8KVCacheDataType)0>()"
            ),
            True,
            "bf16",
        ),
        # Not said: no type or shape in the name, helpers of a matmul, fp32 attention.
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(int)", None, "fp32"),
        ("attn_fwd", None, None),
        ("triton_tem_fused_mm_16", None, None),
        ("void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)", None, "bf16"),
        ("void epilogue::impl::globalKernel<float, float, float, true, true>(int)", None, "fp32"),
        ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", None, None),
        ("void cutlass::gemm_nn_128x128<float>(float*, float*)", None, "fp32"),
        # Nothing like a matmul, whatever the name holds.
        ("triton_poi_fused_addmm_gelu_3", None, None),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)", None, None),
        ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)", None, None),
        ("batched_transpose_32x32_half", None, None),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None, None),
    ],
)
def test_tensor_cores_and_dtype(name: str, tensor_cores: bool | None, dtype: str | None) -> None:
    assert kinds.uses_tensor_cores(name) is tensor_cores
    assert kinds.math_dtype(name) == dtype


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void (anonymous namespace)::f<int>(int, long)", "(anonymous namespace)::f<int>"),
        ("void <unnamed>::f<(int)128, (bool)1>(T2 *, const T1 *)", "(anonymous namespace)::f<128, 1>"),
        ("f<g(at::TensorIterator &)::[lambda() (instance 3)]>(T3)", "f<g(at::TensorIterator&)::{lambda()#3}>"),
        ("f<[lambda(float) (instance 1)]::operator ()() const>(int)", "f<{lambda(float)#1}::operator()() const>"),
        ("f<std::array<char *, (unsigned long)2>>(int)", "f<std::array<char*, 2>>"),
        ("f<g<float> >(int)", "f<g<float>>"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        ("__amd_rocclr_copyBuffer.kd", "__amd_rocclr_copyBuffer"),
        ("add_one(const float *, float *, int)", "add_one"),
        ("(anonymous namespace)", "(anonymous namespace)"),
        ("f::operator()", "f::operator()"),
        ("f(int", "f(int"),
        ("f)", "f)"),
        ("  ", ""),
    ],
)
def test_normalise(name: str, expected: str) -> None:
    assert kinds.normalise(name) == expected


def test_both_demanglers_give_one_name() -> None:
    nsight = (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
        "std::array<char *, (unsigned long)1>>(int, T2, T3)"
    )
    kineto = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1>)"
    )
    assert kinds.normalise(nsight) == kinds.normalise(kineto)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (KERNELS[KernelKind.ELEMENTWISE][0], "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (KERNELS[KernelKind.REDUCTION][0], "reduce_kernel<MeanOps>"),
        (KERNELS[KernelKind.FILL][0], "vectorized_elementwise_kernel<FillFunctor>"),
        (KERNELS[KernelKind.OPTIMIZER][0], "multi_tensor_apply_kernel<FusedAdamMathFunctor>"),
        (KERNELS[KernelKind.FOREACH][0], "multi_tensor_apply_kernel<BinaryOpScalarFunctor>"),
        (
            (
                "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
                "at::native::"
                "BinaryFunctor<float, float, float, "
                "at::native::binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &, "
                "const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
            ),
            "elementwise_kernel<MulFunctor>",
        ),
        (KERNELS[KernelKind.INDEX_SORT][-1], "elementwise_kernel<masked_fill_kernel>"),
        (KERNELS[KernelKind.SOFTMAX_LOSS][0], "softmax_warp_forward"),
        (KERNELS[KernelKind.SOFTMAX_LOSS][1], "softmax_warp_forward"),
        (KERNELS[KernelKind.ATTENTION][0], "flash_fwd_kernel"),
        (KERNELS[KernelKind.NORM][4], "fused_add_rms_norm_kernel"),
        (KERNELS[KernelKind.NORM][3], "add_rmsnorm_quant_kernel"),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_16kernelINS_1A", "kernel"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(int)",
            "Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Foo<int>::operator()(int)", "Foo"),
        ("unknown", "unknown"),
        ("<<<", "<<<"),
        ("two\nlines", "two lines"),
    ],
)
def test_short_name(name: str, expected: str) -> None:
    assert kinds.short_name(name) == expected


def test_short_name_keeps_to_its_width() -> None:
    assert kinds.short_name("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", 20) == "nvjet_tst_144x128_6…"
    assert kinds.short_name("volta_sgemm", 11) == "volta_sgemm"


# Every call in the sample traces, CUDA runtime and driver, HIP; then others of the same families.
CALLS = {
    ApiKind.KERNEL_LAUNCH: "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx cudaLaunchKernel_v7000"
    " cudaLaunchKernelExC_v11060 hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel"
    " cudaLaunch cudaLaunchKernel_ptsz_v7000 cudaLaunchCooperativeKernel cudaLaunchCooperativeKernelMultiDevice"
    " cuLaunchKernel_ptsz cuLaunchGridAsync hipHccModuleLaunchKernel hipLaunchCooperativeKernel hipLaunchByPtr"
    " hipModuleLaunchCooperativeKernel hipExtLaunchMultiKernelMultiDevice hipLaunchKernel_spt hipDrvLaunchKernelEx",
    ApiKind.GRAPH_LAUNCH: "cudaGraphLaunch cudaGraphLaunch_v10000 hipGraphLaunch cuGraphLaunch cudaGraphLaunch_ptsz",
    ApiKind.COPY: "cudaMemcpy cudaMemcpyAsync cudaMemcpyAsync_v3020 cudaMemcpy_v3020 hipMemcpyAsync hipMemcpyWithStream"
    " cudaMemcpy2DAsync cudaMemcpyPeerAsync cudaMemcpyToSymbol cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2_ptds hipMemcpy"
    " hipMemcpyDtoD hipDrvMemcpy2DUnaligned",
    ApiKind.MEMSET: "cudaMemsetAsync cudaMemsetAsync_v3020 hipMemsetAsync cudaMemset cuMemsetD32Async hipMemsetD8",
    ApiKind.STREAM_SYNC: "cudaStreamSynchronize cudaStreamSynchronize_v3020 hipStreamSynchronize cuStreamSynchronize"
    " cudaStreamSynchronize_ptsz_v7000",
    ApiKind.DEVICE_SYNC: "cudaDeviceSynchronize hipDeviceSynchronize cuCtxSynchronize cudaThreadSynchronize"
    " cudaDeviceSynchronize_v3020",
    ApiKind.EVENT_SYNC: "cudaEventSynchronize hipEventSynchronize cuEventSynchronize",
    ApiKind.EVENT_RECORD: "cudaEventRecord cudaEventRecordWithFlags cudaEventRecordWithFlags_v11010"
    " cudaEventRecord_v3020"
    " hipEventRecord cuEventRecord",
    ApiKind.EVENT_QUERY: "cudaEventQuery hipEventQuery cuEventQuery",
    ApiKind.STREAM_WAIT: "cudaStreamWaitEvent cudaStreamWaitEvent_v3020 hipStreamWaitEvent cuStreamWaitEvent",
    ApiKind.MALLOC: "cudaMalloc cudaMalloc_v3020 hipMalloc cudaMallocManaged cudaMallocPitch cudaMalloc3DArray"
    " cuMemAlloc_v2"
    " cuMemCreate cuMemMap",
    ApiKind.FREE: "cudaFree cudaFree_v3020 hipFree cuMemFree_v2 cudaFreeArray cuMemUnmap cuMemRelease",
    ApiKind.HOST_MALLOC: "cudaHostAlloc cudaHostAlloc_v3020 hipHostMalloc cudaMallocHost cuMemHostAlloc"
    " cuMemAllocHost_v2"
    " hipHostAlloc cudaHostRegister_v4000 hipHostRegister cuMemHostRegister_v2",
    ApiKind.HOST_FREE: "cudaFreeHost cuMemFreeHost hipHostFree hipFreeHost cudaHostUnregister_v4000",
    ApiKind.OTHER: "INVALID cudaDeviceGetAttribute cudaDeviceGetStreamPriorityRange cudaDriverGetVersion"
    " cudaEventCreate"
    " cudaEventCreateWithFlags cudaEventCreateWithFlags_v3020 cudaEventCreate_v3020"
    " cudaEventDestroy cudaEventDestroy_v3020"
    " cudaEventElapsedTime cudaFuncGetAttributes cudaFuncSetAttribute cudaGetDeviceCount cudaGetDeviceProperties"
    " cudaGetDeviceProperties_v12000 cudaGetFuncBySymbol cudaGetSymbolAddress cudaGraphDestroy_v10000"
    " cudaGraphExecDestroy_v10000 cudaGraphInstantiate_v12000 cudaHostGetDevicePointer cudaMemGetInfo"
    " cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    " cudaPeekAtLastError cudaPointerGetAttributes cudaStreamBeginCapture_v10000 cudaStreamCreateWithFlags"
    " cudaStreamCreateWithPriority cudaStreamCreate_v3020 cudaStreamDestroy_v5050 cudaStreamEndCapture_v10000"
    " cudaStreamGetCaptureInfo_v2 cudaStreamGetPriority cudaStreamIsCapturing cudaStreamIsCapturing_v10000"
    " cuKernelGetName cuLibraryGetKernel cuLibraryLoadData cuModuleGetLoadingMode hipDeviceGetAttribute"
    " hipDriverGetVersion hipEventDestroy hipGetDevicePropertiesR0600 hipPointerGetAttribute hipStreamGetCaptureInfo"
    " hipStreamGetCaptureInfo_v2 hipStreamGetDevice hipStreamIsCapturing"
    " cudaMallocAsync cudaMallocAsync_v11020 cudaMallocFromPoolAsync cudaFreeAsync cuMemAllocAsync cuMemFreeAsync"
    " hipMallocAsync hipFreeAsync cudaStreamQuery cudaLaunchHostFunc cudaGraphAddMemcpyNode Memcpy malloc",
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in CALLS.items() for name in names.split()])
def test_api_kind(name: str, kind: ApiKind) -> None:
    assert kinds.api_kind(name) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("musaStreamSynchronize", ApiKind.STREAM_SYNC),
        ("abcDeviceSynchronize", ApiKind.DEVICE_SYNC),
        ("abcEventSynchronize", ApiKind.EVENT_SYNC),
        ("muLaunchKernel", ApiKind.KERNEL_LAUNCH),
        ("abcMemcpyAsync", ApiKind.COPY),
        ("StreamSynchronize", ApiKind.OTHER),
        ("abcGetDevice", ApiKind.OTHER),
    ],
)
def test_calls_of_other_makers_are_told_by_what_follows_the_prefix(name: str, kind: ApiKind) -> None:
    assert kinds.api_kind(name) is kind


def test_every_api_kind_has_a_name() -> None:
    assert set(CALLS) == set(ApiKind)


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Direction.H2D, HostMemory.PAGEABLE),
        ("Memcpy HtoD (Pinned -> Device)", Direction.H2D, HostMemory.PINNED),
        ("Memcpy DtoH (Device -> Pageable)", Direction.D2H, HostMemory.PAGEABLE),
        ("Memcpy DtoH (Device -> Pinned)", Direction.D2H, HostMemory.PINNED),
        ("Memcpy DtoD (Device -> Device)", Direction.D2D, HostMemory.NONE),
        ("Memcpy PtoP (Device -> Device)", Direction.P2P, HostMemory.NONE),
        ("Memcpy HtoD (Host -> Device)", Direction.H2D, HostMemory.UNKNOWN),
        ("Memcpy DtoH (Device -> Host)", Direction.D2H, HostMemory.UNKNOWN),
        ("Memcpy HtoA (Pinned -> Array)", Direction.H2D, HostMemory.PINNED),
        ("Memcpy AtoH (Array -> Pageable)", Direction.D2H, HostMemory.PAGEABLE),
        ("Memcpy DtoA (Device -> Array)", Direction.D2D, HostMemory.NONE),
        ("Memcpy HtoH (Pageable -> Pinned)", Direction.H2H, HostMemory.PAGEABLE),
        ("Memcpy HtoD (Managed -> Device)", Direction.H2D, HostMemory.MANAGED),
        ("Memcpy DtoD (Managed Static -> Device)", Direction.D2D, HostMemory.MANAGED),
        ("Memcpy <unknown> (Unknown -> Unknown)", Direction.UNKNOWN, HostMemory.UNKNOWN),
        ("Memset (Device)", Direction.UNKNOWN, HostMemory.UNKNOWN),
    ],
)
def test_copies(name: str, direction: Direction, memory: HostMemory) -> None:
    assert kinds.copy_direction(name) is direction
    assert kinds.host_memory(name) is memory


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProfilerStep#551", Activity.STEP),
        ("ProfilerStep#0", Activity.STEP),
        ("ProfilerStep#12, op_id = 5", Activity.STEP),
        ("ProfilerStep*", Activity.OTHER),
        ("ProfilerStep#", Activity.OTHER),
        ("ProfilerStep#1 warmup", Activity.OTHER),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Activity.LOADER),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Activity.LOADER),
        ("Optimizer.step#FusedAdam.step", Activity.OPTIMIZER_STEP),
        ("Optimizer.zero_grad#SGD.zero_grad", Activity.ZERO_GRAD),
        ("_compile.compile_inner (dynamo_timed)", Activity.COMPILE),
        ("bytecode_tracing (dynamo_timed)", Activity.COMPILE),
        ("_compile.compile_inner", Activity.COMPILE),
        ("torch/_dynamo/convert_frame.py(1633): _compile", Activity.COMPILE),
        ("TorchDynamo Cache Lookup", Activity.OTHER),
        ("Torch-Compiled Region: 0/0", Activity.OTHER),
        ("torch/_dynamo/convert_frame.py(2522): __call__", Activity.OTHER),
        ("Python GC", Activity.GARBAGE_COLLECTION),
        ("<built-in function collect>", Activity.GARBAGE_COLLECTION),
        ("record_param_comms", Activity.COLLECTIVE),
        ("nccl:_all_gather_base", Activity.COLLECTIVE),
        ("gloo:all_reduce", Activity.COLLECTIVE),
        ("mpi:broadcast", Activity.COLLECTIVE),
        ("c10d::allreduce_", Activity.COLLECTIVE),
        ("_c10d_functional::wait_tensor", Activity.COLLECTIVE),
        ("symm_mem::multimem_all_reduce_", Activity.COLLECTIVE),
        ("ncclAllReduce", Activity.COLLECTIVE),
        ("torch/serialization.py(944): save", Activity.CHECKPOINT),
        ("/venv/lib/python3.11/site-packages/torch/serialization.py(944): save", Activity.CHECKPOINT),
        ("torch/utils/checkpoint.py(135): checkpoint", Activity.OTHER),
        ("aten::mm", Activity.OTHER),
        ("## backward ##", Activity.OTHER),
        ("", Activity.OTHER),
    ],
)
def test_activity(name: str, expected: Activity) -> None:
    assert kinds.activity(name) is expected


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#551", 551),
        ("ProfilerStep#0", 0),
        ("ProfilerStep#12, op_id = 5", 12),
        ("ProfilerStep#-1", None),
        ("ProfilerStep#" + "9" * 5000, None),
        ("ProfilerStep*", None),
        ("step 3", None),
    ],
)
def test_step_number(name: str, number: int | None) -> None:
    assert kinds.step_number(name) == number


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_AllToAll(ncclDevKernelArgsStorage<4096ul>)", "all_to_all"),
        ("ncclSymkDevKernel_ReduceScatter_LL_sum_f32(ncclSymkDevWorkArgs4K)", "reduce_scatter"),
        ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE", None),
        ("void at::native::reduce_kernel<512, 1>(int)", None),
    ],
)
def test_collective_of(name: str, collective: str | None) -> None:
    assert kinds.collective_of(name) == collective


@pytest.mark.parametrize(
    ("name", "site", "user"),
    [
        ("train_ddp.py(180): main", Site("train_ddp.py", 180, "main"), True),
        ("gctest.py(8): <module>", Site("gctest.py", 8, "<module>"), True),
        ("/home/me/proj/datasets/coco.py(12): load", Site("/home/me/proj/datasets/coco.py", 12, "load"), True),
        ("datasets/coco.py(12): load", Site("datasets/coco.py", 12, "load"), True),
        ("/home/me/torch/train.py(1): <module>", Site("/home/me/torch/train.py", 1, "<module>"), True),
        ("my (copy).py(3): f", Site("my (copy).py", 3, "f"), True),
        ("/tmp/ipykernel_71/384.py(2): step", Site("/tmp/ipykernel_71/384.py", 2, "step"), True),
        ("<ipython-input-3-abc>(2): step", Site("<ipython-input-3-abc>", 2, "step"), True),
        (r"C:\work\train.py(3): main", Site(r"C:\work\train.py", 3, "main"), True),
        ("torch/nn/modules/conv.py(552): forward", Site("torch/nn/modules/conv.py", 552, "forward"), False),
        ("transformers/activations.py(77): forward", Site("transformers/activations.py", 77, "forward"), False),
        ("numpy/_core/_methods.py(50): _sum", Site("numpy/_core/_methods.py", 50, "_sum"), False),
        ("contextlib.py(141): __exit__", Site("contextlib.py", 141, "__exit__"), False),
        ("json/decoder.py(346): raw_decode", Site("json/decoder.py", 346, "raw_decode"), False),
        ("typing_extensions.py(3366): f", Site("typing_extensions.py", 3366, "f"), False),
        ("/v/lib/python3.11/site-packages/x/a.py(1): f", Site("/v/lib/python3.11/site-packages/x/a.py", 1, "f"), False),
        ("/usr/lib/python3/dist-packages/x.py(1): f", Site("/usr/lib/python3/dist-packages/x.py", 1, "f"), False),
        ("/opt/conda/lib/python3.10/queue.py(171): get", Site("/opt/conda/lib/python3.10/queue.py", 171, "get"), False),
        (r"C:\py\Lib\site-packages\x.py(1): f", Site(r"C:\py\Lib\site-packages\x.py", 1, "f"), False),
        ("/tmp/torchinductor_root/ab/cab.py(9): call", Site("/tmp/torchinductor_root/ab/cab.py", 9, "call"), False),
        ("/src/pytorch/torch/optim/adam.py(1): step", Site("/src/pytorch/torch/optim/adam.py", 1, "step"), False),
        (
            "/src/diagnose/capture/agent/steps.py(75): step",
            Site("/src/diagnose/capture/agent/steps.py", 75, "step"),
            False,
        ),
        ("diagnose/capture/agent/steps.py(75): step", Site("diagnose/capture/agent/steps.py", 75, "step"), False),
        ("<frozen os>(709): __getitem__", Site("<frozen os>", 709, "__getitem__"), False),
        ("<string>(1): <lambda>", Site("<string>", 1, "<lambda>"), False),
        ("<built-in method size of Tensor object at 0x7fc740c45b50>", None, False),
        ("<built-in function len>", None, False),
        ("nn.Module: Linear_160", None, False),
        ("Python GC", None, False),
        ("a.py(" + "9" * 5000 + "): f", None, False),
        ("", None, False),
    ],
)
def test_frames(name: str, site: Site | None, user: bool) -> None:
    assert frames.frame_site(name) == site
    assert frames.is_user_frame(name) is user


def test_what_is_known_to_be_installed_is_not_the_user_s_own() -> None:
    """Names are cut to where Python finds a file: only who recorded it knows."""
    name = "gymnasium/spaces/discrete.py(198): contains"
    assert frames.is_user_frame(name)
    assert not frames.is_user_frame(name, ("gymnasium",))
    assert not frames.is_user_frame("six.py(3): moves", ("six",))
    assert frames.is_user_frame("gymnasium_of_mine.py(3): contains", ("gymnasium",))


PIECES = [
    "void ",
    "(",
    ")",
    "<",
    ">",
    "::",
    " ",
    ", ",
    "{lambda",
    "[lambda()",
    " (instance 1)]",
    "operator()",
    "_ZN",
    "12",
    "a",
]
PIECES += [
    "nccl",
    "Kernel_",
    "cuda",
    "Memcpy",
    "_v7000",
    "(int)1",
    "ProfilerStep#",
    "f.py(3): ",
    "…",
    "\n",
    "\x00",
    "²",
]
NAMES = st.text() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(NAMES)
def test_any_text_has_an_answer(name: str) -> None:
    assert isinstance(kinds.normalise(name), str)
    assert isinstance(kinds.kernel_kind(name), KernelKind)
    assert isinstance(kinds.api_kind(name), ApiKind)
    assert isinstance(kinds.activity(name), Activity)
    assert isinstance(kinds.copy_direction(name), Direction)
    assert isinstance(kinds.host_memory(name), HostMemory)
    assert kinds.uses_tensor_cores(name) in (True, False, None)
    assert frames.is_user_frame(name) in (True, False)
    kinds.math_dtype(name), kinds.collective_of(name), kinds.step_number(name)
    short = kinds.short_name(name)
    assert short.strip() or not name.strip()
    assert len(short) <= 60
    assert bool(short) == bool(name)


@pytest.mark.parametrize(
    "piece", ["<", "(", ")", " ", "<a(", "[lambda(", "_ZN1a", "(1): ", "float16", "cuda_v1", "nccl_Kernel_", "Cijk_"]
)
def test_a_hostile_name_costs_linear_time(piece: str) -> None:
    """No clock: time quadratic in a million characters would be hours."""
    name = piece * (1_000_000 // len(piece))
    assert kinds.normalise(name).strip() or not name.strip()
    assert 0 < len(kinds.short_name(name)) <= 60
    assert kinds.kernel_kind(name) in KernelKind
    assert kinds.uses_tensor_cores(name) is None
    assert kinds.activity(name) is Activity.OTHER
    assert kinds.copy_direction(name) is Direction.UNKNOWN
    assert kinds.host_memory(name) is HostMemory.UNKNOWN
    assert kinds.collective_of(name) is None
    assert isinstance(kinds.api_kind(name), ApiKind)
    assert isinstance(frames.is_user_frame(name), bool)
