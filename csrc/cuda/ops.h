// Every op of the library `parley_cuda`, as C++ sees it. Schemas and dispatch: registration.cpp. What each op computes
// is defined by its torch reference: engine/core/ops/library.py, and engine/core/ops/row_reference.py for those that a
// CPU does not have. The numbers in index tensors are not checked: they lie on the device.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace parley::cuda {

using torch::stable::Tensor;

// "Floats" are all of one type: float32, bfloat16 or float16. Caches are [num_blocks, block_size,
// num_kv_heads, dim]; a head's numbers lie in one run.

void store_kv(
    const Tensor& key,           // [num_tokens, num_kv_heads, head_dim] floats
    const Tensor& value,         // [num_tokens, num_kv_heads, value_head_dim] floats
    const Tensor& key_cache,     // written
    const Tensor& value_cache,   // written
    const Tensor& slot_mapping   // [num_tokens] int64, negative is skipped
);

// Any batch, any widths; meant for what no faster kernel takes.
void paged_attention(
    const Tensor& query,         // [num_tokens, num_heads, head_dim] floats
    const Tensor& key_cache,
    const Tensor& value_cache,
    const Tensor& block_tables,  // [num_seqs, max_blocks] int32
    const Tensor& cu_seqlens_q,  // [num_seqs + 1] int32
    const Tensor& seq_lens,      // [num_seqs] int32
    const Tensor& out,           // [num_tokens, num_heads, value_head_dim] floats, written
    double scale,
    int64_t sliding_window,      // 0 = all
    double softcap,              // 0 = off
    std::optional<Tensor> sinks  // [num_heads] floats
);

// Whether `decode_attention` takes heads of this width: 64, 128 or 256.
bool can_decode(int64_t head_dim, int64_t block_size);

// One query for each sequence, bfloat16 or float16.
void decode_attention(
    const Tensor& query,         // [num_seqs, num_heads, head_dim]
    const Tensor& key_cache,
    const Tensor& value_cache,
    const Tensor& block_tables,
    const Tensor& seq_lens,      // 0: the row becomes zeros
    const Tensor& out,           // [num_seqs, num_heads, head_dim], written
    const Tensor& partials,      // float32, written: where long contexts are split, as far as it reaches
    const Tensor& counters,      // int32 zeros, which stay zeros: num_seqs * num_heads of them
    double scale,
    int64_t sliding_window,
    double softcap,
    std::optional<Tensor> sinks  // [num_heads] as the query
);

void add_rms_norm(
    const Tensor& hidden,        // [num_rows, width] floats; `delta` is added to it
    std::optional<Tensor> delta, // [num_rows, width]
    const Tensor& weight,        // [width]
    const Tensor& out,           // [num_rows, width], written: what `hidden` becomes, normalized
    double epsilon);

void rotate_and_store(
    const Tensor& qkv,           // [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: queries rotated in place
    std::optional<Tensor> qk_norms,  // [2, head_dim]: of queries and keys, before they are rotated
    const Tensor& rotary,        // [positions, 2, head_dim / 2] float32: cosines and sines
    const Tensor& positions,     // [num_rows] int64
    const Tensor& slot_mapping,  // [num_rows] int64, negative is not stored
    const Tensor& key_cache,     // written
    const Tensor& value_cache,   // written
    int64_t num_heads, double epsilon);

void silu_and_mul(
    const Tensor& gate_up,       // [num_rows, 2 * width] floats
    const Tensor& out            // [num_rows, width], written: silu(gate) * up
);

void penalize(
    const Tensor& logits,        // [num_rows, vocab] float32, written
    const Tensor& rows,          // [n] int64, ascending
    const Tensor& offsets,       // [n + 1] int64
    const Tensor& ids,           // [num_ids] int64, in a row each once
    const Tensor& counts,        // [num_ids] float32
    const Tensor& repetition,    // [n] float64, as the next two
    const Tensor& frequency, const Tensor& presence);

void choose_tokens(
    const Tensor& logits,        // [num_rows, vocab] float32
    const Tensor& temperatures,  // [num_rows] float64, as the next two and `uniforms`; 0 = the best token
    const Tensor& min_p, const Tensor& top_p,
    const Tensor& top_k,         // [num_rows] int64, at least 1; the vocabulary's size = all
    const Tensor& uniforms,      // in [0, 1)
    const Tensor& tokens         // [num_rows] int64, written; -1 where the maximum is not finite
);

}  // namespace parley::cuda
