// Every op of the library `parley`, as C++ sees it. Schemas and dispatch: registration.cpp.
// What each op computes is defined by its torch reference in engine/ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace parley {

using torch::stable::Tensor;

constexpr int64_t kBlockSize = 16;  // tokens of a cache block: one vector of scores

// Layout of the KV cache on a CPU, as strides of the logical shape [block, token, head, dim]:
// keys lie as [block][head][dim][token], so that 16 scores grow in one vector without a reduction;
// values lie as [block][head][token][dim], so that a token's value is read in one run.

void store_kv_cpu(
    const Tensor& key,           // [num_tokens, num_kv_heads, head_dim]
    const Tensor& value,         // [num_tokens, num_kv_heads, value_head_dim]
    const Tensor& key_cache,     // [num_blocks, 16, num_kv_heads, head_dim], written
    const Tensor& value_cache,   // [num_blocks, 16, num_kv_heads, value_head_dim], written
    const Tensor& slot_mapping   // [num_tokens] int64, negative is skipped
);

void paged_attention_cpu(
    const Tensor& query,         // [num_tokens, num_heads, head_dim]
    const Tensor& key_cache,     // [num_blocks, 16, num_kv_heads, head_dim]
    const Tensor& value_cache,   // [num_blocks, 16, num_kv_heads, value_head_dim]
    const Tensor& block_tables,  // [num_seqs, max_blocks] int32
    const Tensor& cu_seqlens_q,  // [num_seqs + 1] int32
    const Tensor& seq_lens,      // [num_seqs] int32
    const Tensor& out,           // [num_tokens, num_heads, value_head_dim], written
    double scale,
    int64_t sliding_window,      // 0 = all
    double softcap,              // 0 = off
    std::optional<Tensor> sinks  // [num_heads] of the query's dtype
);

void linear_cpu(
    const Tensor& rows,          // [num_rows, num_inputs] float32
    const Tensor& panels,        // [ceil(num_outputs / 16), num_inputs, 16] float32, padded with 0
    std::optional<Tensor> bias,  // [num_outputs]
    const Tensor& out            // [num_rows, num_outputs], written
);

}  // namespace parley
