// Every schema and every implementation: the only file that knows the dispatcher.
#include <torch/csrc/stable/library.h>

#include "ops.h"

STABLE_TORCH_LIBRARY(parley, ops) {
  ops.def("cpu_level() -> str");
  ops.def(
      "store_kv(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()");
  ops.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
      "Tensor cu_seqlens_q, Tensor seq_lens, Tensor(a!) out, float scale, int sliding_window, "
      "float softcap, Tensor? sinks) -> ()");
  ops.def("linear(Tensor rows, Tensor panels, Tensor? scales, Tensor? bias, Tensor(a!) out) -> ()");
  ops.def(
      "decoder_step(Tensor input_ids, Tensor positions, Tensor slot_mapping, Tensor block_tables, "
      "Tensor cu_seqlens_q, Tensor seq_lens, Tensor logits_rows, Tensor(a!) key_cache, "
      "Tensor(b!) value_cache, Tensor(c!)? cache_scales, Tensor? embeddings, Tensor norms, "
      "Tensor? qk_norms, Tensor? qkv_bias, Tensor rotary, Tensor[] weights, Tensor[] weight_scales, "
      "Tensor weight_pieces, Tensor head, Tensor? head_scales, Tensor(d!) logits, int[] windows, "
      "int num_heads, float scale, float epsilon, Tensor? hidden_rows=None, Tensor(e!)? hidden=None, "
      "Tensor? adapter_rows=None, Tensor[]? adapters=None, Tensor? adapter_targets=None, "
      "Tensor? adapter_ranks=None) -> ()");
  ops.def(
      "penalize(Tensor(a!) logits, Tensor rows, Tensor offsets, Tensor ids, Tensor counts, "
      "Tensor repetition, Tensor frequency, Tensor presence) -> ()");
  ops.def(
      "choose_tokens(Tensor logits, Tensor temperatures, Tensor min_p, Tensor top_p, Tensor top_k, "
      "Tensor uniforms, Tensor(a!) tokens) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(parley, CompositeExplicitAutograd, ops) {  // without a tensor, no device
  ops.impl("cpu_level", TORCH_BOX(&parley::cpu_level));
}

STABLE_TORCH_LIBRARY_IMPL(parley, CPU, ops) {
  ops.impl("store_kv", TORCH_BOX(&parley::store_kv_cpu));
  ops.impl("paged_attention", TORCH_BOX(&parley::paged_attention_cpu));
  ops.impl("linear", TORCH_BOX(&parley::linear_cpu));
  ops.impl("decoder_step", TORCH_BOX(&parley::decoder_step_cpu));
  ops.impl("penalize", TORCH_BOX(&parley::penalize_cpu));
  ops.impl("choose_tokens", TORCH_BOX(&parley::choose_tokens_cpu));
}
