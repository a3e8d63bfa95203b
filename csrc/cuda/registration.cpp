// The schemas of all CUDA ops and where they run: the only file that knows the dispatcher.
#include <torch/csrc/stable/library.h>

#include "ops.h"

// Tests compile the same kernels for a processor (tests/csrc/cuda_emulator).
#ifndef PARLEY_CUDA_DISPATCH
#define PARLEY_CUDA_DISPATCH CUDA
#endif

STABLE_TORCH_LIBRARY(parley_cuda, ops) {
  ops.def("can_decode(int head_dim, int block_size) -> bool");
  ops.def(
      "store_kv(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()");
  ops.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
      "Tensor cu_seqlens_q, Tensor seq_lens, Tensor(a!) out, float scale, int sliding_window, "
      "float softcap, Tensor? sinks) -> ()");
  ops.def(
      "decode_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
      "Tensor seq_lens, Tensor(a!) out, Tensor(b!) partials, Tensor(c!) counters, float scale, "
      "int sliding_window, float softcap, Tensor? sinks) -> ()");
  ops.def(
      "add_rms_norm(Tensor(a!) hidden, Tensor? delta, Tensor weight, Tensor(b!) out, float epsilon) -> ()");
  ops.def(
      "rotate_and_store(Tensor(a!) qkv, Tensor? qk_norms, Tensor rotary, Tensor positions, "
      "Tensor slot_mapping, Tensor(b!) key_cache, Tensor(c!) value_cache, int num_heads, float epsilon) "
      "-> ()");
  ops.def("silu_and_mul(Tensor gate_up, Tensor(a!) out) -> ()");
  ops.def(
      "penalize(Tensor(a!) logits, Tensor rows, Tensor offsets, Tensor ids, Tensor counts, "
      "Tensor repetition, Tensor frequency, Tensor presence) -> ()");
  ops.def(
      "choose_tokens(Tensor logits, Tensor temperatures, Tensor min_p, Tensor top_p, Tensor top_k, "
      "Tensor uniforms, Tensor(a!) tokens) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(parley_cuda, CompositeExplicitAutograd, ops) {  // without a tensor, no device
  ops.impl("can_decode", TORCH_BOX(&parley::cuda::can_decode));
}

STABLE_TORCH_LIBRARY_IMPL(parley_cuda, PARLEY_CUDA_DISPATCH, ops) {
  ops.impl("store_kv", TORCH_BOX(&parley::cuda::store_kv));
  ops.impl("paged_attention", TORCH_BOX(&parley::cuda::paged_attention));
  ops.impl("decode_attention", TORCH_BOX(&parley::cuda::decode_attention));
  ops.impl("add_rms_norm", TORCH_BOX(&parley::cuda::add_rms_norm));
  ops.impl("rotate_and_store", TORCH_BOX(&parley::cuda::rotate_and_store));
  ops.impl("silu_and_mul", TORCH_BOX(&parley::cuda::silu_and_mul));
  ops.impl("penalize", TORCH_BOX(&parley::cuda::penalize));
  ops.impl("choose_tokens", TORCH_BOX(&parley::cuda::choose_tokens));
}
