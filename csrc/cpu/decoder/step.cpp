// A step is some hundred short phases, such as "normalize all rows" or "multiply all rows with this
// weight". A team of threads goes through them together; a phase is cut by rows, by panels of outputs or
// by attention units, never by the inputs of a sum, so that the bits of a row depend neither on the
// threads nor on the other rows. Between the products everything is float32, whatever the weights are.
#include "decoder/step.h"

#include <cstring>

namespace parley {
namespace {

// Pieces of a product that a thread takes at once: an eighth of its share, and whole tiles.
constexpr int64_t kTakes = 8, kTilePieces = 4;

}  // namespace

// The rows as the product with this weight reads them.
Rows Step::prepare(
    Team& team, int thread, const Weight& weight, const float* rows, int64_t count, int64_t stride) {
  const int64_t element = k.prepared_size(weight.format);
  if (count == 1 && element == sizeof(float)) return {rows, nullptr, nullptr, nullptr};  // one lies as it must
  const Tiles tiles(count, k.tallest_tile(weight.format));
  const int64_t groups = weight.num_groups();
  team.share_evenly(thread, tiles.count * groups, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t tile = part / groups, row = tiles.begin(tile);
      k.prepare(weight, {
          .rows = rows + row * stride, .stride = stride, .num_rows = tiles.begin(tile + 1) - row,
          .group = part % groups, .values = values + row * weight.num_inputs * element,
          .scales = scales + row * groups, .offsets = offsets + row * weight.num_parts(),
          .sums = sums + row * weight.num_parts()});
    }
  });
  return {values, scales, offsets, sums};
}

void Step::multiply(
    Team& team, int thread, const Weight& weight, const float* rows, int64_t count, int64_t stride,
    Epilogue epilogue, float* out, int64_t out_stride) {
  const Product p{
      weight, prepare(team, thread, weight, rows, count, stride), count, epilogue, out, out_stride};
  const int64_t pieces = p.num_pieces(), tiles = pieces / (team.size() * kTakes * kTilePieces) + 1;
  team.share(thread, pieces, tiles * kTilePieces, [&](int64_t begin, int64_t end) {
    k.multiply(p, begin, end);
  });
}

// All rows times the weight of a layer.
void Step::multiply(
    Team& team, int thread, const Stack& stack, int64_t layer, const float* rows, int64_t stride,
    Epilogue epilogue, float* out, int64_t out_stride) {
  for (const Piece& piece : stack.layer(layer)) {
    multiply(
        team, thread, piece.weight, rows, num_rows, stride, epilogue, out + piece.first_output,
        out_stride);
  }
}

void Step::embed(int64_t row) {
  float* const out = hidden + row * hidden_size;
  const int64_t token = input_ids[row];
  if (embeddings == nullptr) {
    k.unpack_output(head, token, out);
  } else if (embeddings_are_floats) {
    const auto* const from = static_cast<const float*>(embeddings) + token * hidden_size;
    std::copy(from, from + hidden_size, out);
  } else {
    const auto* const from = static_cast<const BFloat16*>(embeddings) + token * hidden_size;
    for (int64_t i = 0; i < hidden_size; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i].bits) << 16;
      std::memcpy(out + i, &bits, sizeof(bits));
    }
  }
}

// A row's heads: queries and keys normalized and rotated, keys and values written to the cache.
void Step::finish_heads(int64_t layer, int64_t row) {
  float* const queries = heads + row * heads_size();
  float* const keys = queries + num_heads * head_dim;
  const float* const row_values = keys + num_kv_heads * head_dim;
  const float* const cosines = rotary + positions[row] * head_dim;
  const float* const sines = cosines + head_dim / 2;
  for (int64_t head_index = 0; head_index < num_heads + num_kv_heads; ++head_index) {
    float* const one = queries + head_index * head_dim;
    if (qk_norms) {
      const float* const weight = qk_norms + (2 * layer + (head_index >= num_heads)) * head_dim;
      k.normalize(one, weight, head_dim, epsilon, one);
    }
    k.rotate(one, cosines, sines, head_dim / 2);
  }
  if (slots[row] < 0) return;
  const int64_t block = slots[row] / kBlockSize, offset = slots[row] % kBlockSize;
  for (int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    const Problem& p = attention;
    std::byte* const key_to = key_cache + layer * key_layer +
                              (block * p.key_block + kv_head * p.key_head + offset) * cache_element;
    std::byte* const value_to =
        value_cache + layer * value_layer +
        (block * p.value_block + kv_head * p.value_head + offset * p.value_token) * cache_element;
    const float *const key = keys + kv_head * head_dim, *const value = row_values + kv_head * head_dim;
    if (cache_scales) {
      float* const scale = cache_scales + layer * scales_layer +
                           (2 * block * num_kv_heads + kv_head) * kBlockSize + offset;
      k.store_int8(
          key, value, head_dim, key_to, value_to, scale, scale + num_kv_heads * kBlockSize);
    } else {
      (cache_type == ScalarType::Float ? k.store_float : k.store_bfloat16)(
          key, value, head_dim, key_to, value_to);
    }
  }
}

void Step::normalize_rows(Team& team, int thread, const float* weight) {
  team.share_evenly(thread, num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      k.normalize(
          hidden + row * hidden_size, weight, hidden_size, epsilon, normalized + row * hidden_size);
    }
  });
}

void Step::attend(Team& team, int thread, int64_t layer) const {
  Problem p = attention;
  p.window = windows[layer];
  p.key_cache = key_cache + layer * key_layer;
  p.value_cache = value_cache + layer * value_layer;
  p.cache_scales = cache_scales ? cache_scales + layer * scales_layer : nullptr;
  const AttendUnit attend_unit = cache_type == ScalarType::Float      ? k.attend_float
                                 : cache_type == ScalarType::BFloat16 ? k.attend_float_over_bfloat16
                                                                      : k.attend_float_over_int8;
  const std::vector<Unit>& units = buffers->units;
  team.share(thread, std::ssize(units), 1, [&](int64_t unit, int64_t) {
    attend_unit(p, units[unit], buffers->scratches[thread]);
  });
}

// silu(gate) * up of all rows. Where an adapter adds to them before, these are two phases, with the same bits.
void Step::gate_rows(Team& team, int thread, int64_t layer) {
  if (!adapts(layer, kGate, kUp)) {
    multiply(
        team, thread, buffers->stacks.gate_up, layer, normalized, hidden_size,
        Epilogue::kSiluMultiply, gated, num_gated);
    return;
  }
  const int64_t stride = 2 * num_gated;
  multiply(
      team, thread, buffers->stacks.gate_up, layer, normalized, hidden_size, Epilogue::kStore, pairs,
      stride);
  adapt(team, thread, layer, {
      {kGate, normalized, hidden_size, pairs, stride, 2 * kPanel},
      {kUp, normalized, hidden_size, pairs + kPanel, stride, 2 * kPanel}});
  team.share_evenly(thread, num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      k.gate(pairs + row * stride, num_gated / kPanel, gated + row * num_gated);
    }
  });
}

void Step::run(Team& team, int thread) {
  const auto& [qkv, attention_out, gate_up, down] = buffers->stacks;
  const int64_t attended_size = num_heads * head_dim;
  team.share_evenly(thread, num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) embed(row);
  });
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    normalize_rows(team, thread, norms + 2 * layer * hidden_size);
    multiply(
        team, thread, qkv, layer, normalized, hidden_size, Epilogue::kStore, heads, heads_size());
    float* const keys = heads + num_heads * head_dim;
    adapt(team, thread, layer, {
        {kQuery, normalized, hidden_size, heads, heads_size()},
        {kKey, normalized, hidden_size, keys, heads_size()},
        {kValue, normalized, hidden_size, keys + num_kv_heads * head_dim, heads_size()}});
    team.share_evenly(thread, num_rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) finish_heads(layer, row);
    });
    attend(team, thread, layer);
    multiply(
        team, thread, attention_out, layer, attended, attended_size, Epilogue::kAdd, hidden,
        hidden_size);
    adapt(team, thread, layer, {{kAttentionOut, attended, attended_size, hidden, hidden_size}});
    normalize_rows(team, thread, norms + (2 * layer + 1) * hidden_size);
    gate_rows(team, thread, layer);
    multiply(
        team, thread, down, layer, gated, num_gated, Epilogue::kAdd, hidden, hidden_size);
    adapt(team, thread, layer, {{kDown, gated, num_gated, hidden, hidden_size}});
  }
  team.share_evenly(thread, num_logits, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      k.normalize(
          hidden + logits_rows[row] * hidden_size, norms + 2 * num_layers * hidden_size, hidden_size,
          epsilon, normalized + row * hidden_size);
    }
  });
  if (num_hidden) {
    team.share_evenly(thread, num_hidden, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        k.normalize(
            hidden + hidden_rows[row] * hidden_size, norms + 2 * num_layers * hidden_size, hidden_size,
            epsilon, hidden_out + row * hidden_size);
      }
    });
  }
  if (num_logits) {
    multiply(
        team, thread, head, normalized, num_logits, hidden_size, Epilogue::kStore, logits,
        head.num_outputs);
  }
}

}  // namespace parley
