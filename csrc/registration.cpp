// Every schema and every implementation: the only file that knows the dispatcher.
#include <torch/csrc/stable/library.h>

#include "ops.h"

STABLE_TORCH_LIBRARY(parley, ops) {
  ops.def(
      "store_kv(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()");
  ops.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
      "Tensor cu_seqlens_q, Tensor seq_lens, Tensor(a!) out, float scale, int sliding_window, "
      "float softcap, Tensor? sinks) -> ()");
  ops.def("linear(Tensor rows, Tensor panels, Tensor? bias, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(parley, CPU, ops) {
  ops.impl("store_kv", TORCH_BOX(&parley::store_kv_cpu));
  ops.impl("paged_attention", TORCH_BOX(&parley::paged_attention_cpu));
  ops.impl("linear", TORCH_BOX(&parley::linear_cpu));
}
