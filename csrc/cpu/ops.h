// Every op of the library `parley`, as C++ sees it. Schemas and dispatch: registration.cpp.
// What each op computes is defined by its torch reference in engine/core/ops/library.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace parley {

using torch::stable::Tensor;

// The instruction set that all ops use; throws if PARLEY_CPU_LEVEL names none of this machine.
std::string cpu_level();

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
    const Tensor& panels,        // a packed weight of one layer
    std::optional<Tensor> scales,
    std::optional<Tensor> bias,  // [num_outputs] float32
    const Tensor& out            // [num_rows, num_outputs] float32, written
);

// A weight of every layer, packed: [layers][panels][inputs / n][16][n] with n = 1 for float32, 2 for
// bfloat16 and 4 for int8, whose scales are float32, [layers][panels][inputs / 128][16]. What has fewer bits, and
// weights that are numbers in their files, lie as product.h and packed_weight.h say.
void decoder_step_cpu(
    const Tensor& input_ids,     // [num_tokens] int64, as the next two
    const Tensor& positions,
    const Tensor& slot_mapping,
    const Tensor& block_tables,  // as for paged_attention, as the next two
    const Tensor& cu_seqlens_q,
    const Tensor& seq_lens,
    const Tensor& logits_rows,   // [num_logits] int64
    const Tensor& key_cache,     // [layers, num_blocks, 16, num_kv_heads, head_dim], written
    const Tensor& value_cache,   // likewise
    std::optional<Tensor> cache_scales,  // [layers, blocks, 2, num_kv_heads, 16] float32, written
    std::optional<Tensor> embeddings,  // [vocab, hidden]; absent: the rows of `head`
    const Tensor& norms,         // [2 * layers + 1, hidden]: of attention and MLP of each layer, the last
    std::optional<Tensor> qk_norms,  // [layers, 2, head_dim]
    std::optional<Tensor> qkv_bias,  // [layers, outputs]
    const Tensor& rotary,        // [positions, 2, head_dim / 2]: cosines and sines
    std::vector<Tensor> weights,        // packed, each of some layers of which it is a piece
    std::vector<Tensor> weight_scales,  // of each, empty for floats
    // [pieces, 5] int64, in the order of stacks (qkv, attention_out, gate_up with panels of both in turn, down) and
    // layers: stack, layer, which of `weights`, which of its layers, number of outputs
    const Tensor& weight_pieces,
    const Tensor& head, std::optional<Tensor> head_scales,
    const Tensor& logits,        // [num_logits, vocab] float32, written
    std::vector<int64_t> windows,  // of each layer, 0 = all
    int64_t num_heads, double scale, double epsilon,
    std::optional<Tensor> hidden_rows,  // [num_hidden] int64: tokens whose last hidden states are wanted
    std::optional<Tensor> hidden,       // [num_hidden, hidden] float32, written: after the last norm
    std::optional<Tensor> adapter_rows,  // [num_tokens] int64: the place of a row's adapter, -1 = none
    std::optional<std::vector<Tensor>> adapters,  // each [layers, n] float32: csrc/cpu/decoder/adapters.h
    std::optional<Tensor> adapter_targets,  // [num_adapters, layers] int64: bits, by module
    std::optional<Tensor> adapter_ranks);   // [num_adapters] int64

void penalize_cpu(
    const Tensor& logits,        // [num_rows, vocab] float32, written
    const Tensor& rows,          // [n] int64: those with penalties, ascending
    const Tensor& offsets,       // [n + 1] int64: rows[i] has the ids from offsets[i] to offsets[i + 1]
    const Tensor& ids,           // [num_ids] int64: tokens of the text, in a row each once
    const Tensor& counts,        // [num_ids] float32: how often in the answer; 0 = in the prompt alone
    const Tensor& repetition,    // [n] float64, as the next two: a factor of all ids, 1 = none
    const Tensor& frequency,     // for each time in the answer
    const Tensor& presence       // for being in the answer
);

void choose_tokens_cpu(
    const Tensor& logits,        // [num_rows, vocab] float32
    const Tensor& temperatures,  // [num_rows] float64, as the next two and `uniforms`; 0 = the best token
    const Tensor& min_p,
    const Tensor& top_p,         // 1 = all
    const Tensor& top_k,         // [num_rows] int64, at least 1; the vocabulary's size = all
    const Tensor& uniforms,      // in [0, 1)
    const Tensor& tokens         // [num_rows] int64, written; -1 where the maximum is not finite
);

}  // namespace parley
