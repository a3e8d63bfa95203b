// decoder_step: one forward pass of a Llama-like decoder, from token ids to logits, in one call. Here its
// arguments are checked and become a Step; step.cpp does it.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "decoder/step.h"
#include "product/packed_weight.h"

namespace parley {
namespace {

// A weight that several layers have, each packed in the same way.
class Kind {
 public:
  Kind(const Tensor& panels, const Tensor& scales) {
    STD_TORCH_CHECK(panels.dim() == 5, "weights are stacked by layer");
    num_places_ = panels.size(0);
    num_panels_ = panels.size(1);
    const std::optional<Tensor> given = scales.numel() ? std::optional(scales) : std::nullopt;
    first_ = read_weight(panels, given, num_places_, num_panels_ * kPanel);
  }

  Weight of_layer(int64_t place, int64_t num_outputs) const {
    STD_TORCH_CHECK(
        0 <= place && place < num_places_ && 0 < num_outputs && num_outputs <= num_panels_ * kPanel &&
            num_panels_ * kPanel < num_outputs + kPanel,
        "a piece is none of its weight's");
    Weight weight = first_;
    const int64_t panels_bytes = num_panels_ * kPanel * bytes_of(weight.format, weight.num_inputs);
    weight.num_outputs = num_outputs;
    weight.panels = static_cast<const std::byte*>(first_.panels) + place * panels_bytes;
    if (first_.scales) {
      weight.scales = static_cast<const std::byte*>(first_.scales) + place * num_panels_ * weight.scales_bytes();
    }
    return weight;
  }

 private:
  Weight first_;
  int64_t num_places_, num_panels_;
};

// `pieces` are [pieces][5] in order: number of the stack, layer, kind, place of the layer there, outputs.
void read_stacks(
    Stacks& stacks, const std::vector<Tensor>& panels,
    const std::vector<Tensor>& scales, const Tensor& pieces, int64_t num_layers) {
  constexpr int64_t kFields = 5;
  STD_TORCH_CHECK(
      pieces.scalar_type() == ScalarType::Long && pieces.is_contiguous() && pieces.dim() == 2 &&
          pieces.size(1) == kFields && panels.size() == scales.size(),
      "weight_pieces are contiguous int64, [pieces, 5], and each of weights has its scales");
  std::vector<Kind> kinds;
  for (size_t i = 0; i < panels.size(); ++i) kinds.emplace_back(panels[i], scales[i]);
  const auto* piece = static_cast<const int64_t*>(pieces.const_data_ptr());
  const auto* const end = piece + pieces.numel();
  int64_t number = 0;
  for (Stack* const each : stacks.in_order()) {
    Stack& stack = *each;
    stack.pieces.clear();
    stack.begins.assign(1, 0);
    stack.num_inputs = 0;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      int64_t first_output = 0;
      for (; piece < end && piece[0] == number && piece[1] == layer; piece += kFields) {
        STD_TORCH_CHECK(0 <= piece[2] && piece[2] < std::ssize(kinds), "a piece has no weight");
        stack.pieces.push_back({kinds[piece[2]].of_layer(piece[3], piece[4]), first_output});
        stack.num_inputs = std::max(stack.num_inputs, stack.pieces.back().weight.num_inputs);
        first_output += piece[4];
      }
      stack.begins.push_back(std::ssize(stack.pieces));
    }
    ++number;
  }
  STD_TORCH_CHECK(piece == end, "weight_pieces are in the order of stacks and layers");
}

// Throws unless each layer has so many outputs, of so many inputs.
template <typename IsInputs>
void check_stack(const Stack& stack, int64_t num_outputs, IsInputs is_inputs) {
  for (size_t layer = 0; layer + 1 < stack.begins.size(); ++layer) {
    int64_t outputs = 0;
    for (const Piece& piece : stack.layer(layer)) {
      outputs += piece.weight.num_outputs;
      STD_TORCH_CHECK(is_inputs(piece.weight.num_inputs), "weights differ from the model in their inputs");
    }
    STD_TORCH_CHECK(outputs == num_outputs, "a layer has ", outputs, " outputs, not ", num_outputs);
  }
}

void add_bias(Stack& stack, const Tensor& bias, int64_t num_layers, int64_t num_outputs) {
  STD_TORCH_CHECK(
      bias.scalar_type() == ScalarType::Float && bias.is_contiguous() &&
          bias.numel() == num_layers * num_outputs,
      "bias is one float32 per output");
  const float* of_layer = static_cast<const float*>(bias.const_data_ptr());
  for (int64_t layer = 0; layer < num_layers; ++layer, of_layer += num_outputs) {
    for (int64_t i = stack.begins[layer]; i < stack.begins[layer + 1]; ++i) {
      stack.pieces[i].weight.bias = of_layer + stack.pieces[i].first_output;
    }
  }
}

// As check_cache, for caches of all layers: [layers, blocks, 16, heads, dim].
void check_stacked_cache(const Tensor& keys, const Tensor& values) {
  STD_TORCH_CHECK(
      keys.size(2) == kBlockSize && keys.stride(2) == 1 && keys.stride(4) == kBlockSize &&
          values.stride(4) == 1,
      "keys lie as [layer][block][head][dim][token], values as [layer][block][head][token][dim]");
  for (int64_t dim = 0; dim < 5; ++dim) {
    STD_TORCH_CHECK(keys.size(dim) == values.size(dim), "caches differ in dimension ", dim);
  }
  STD_TORCH_CHECK(
      keys.scalar_type() == values.scalar_type() && (keys.scalar_type() == ScalarType::Float ||
                                                     keys.scalar_type() == ScalarType::BFloat16 ||
                                                     keys.scalar_type() == ScalarType::Char),
      "caches are float32, bfloat16 or int8");
}

// What the bytes of each token stand for: [layers, blocks, keys and values, heads, 16].
float* read_cache_scales(const std::optional<Tensor>& scales, const Tensor& keys) {
  const bool has_bytes = keys.scalar_type() == ScalarType::Char;
  STD_TORCH_CHECK(has_bytes == scales.has_value(), "int8 caches have scales, others have none");
  if (!has_bytes) return nullptr;
  STD_TORCH_CHECK(
      scales->scalar_type() == ScalarType::Float && scales->is_contiguous() &&
          scales->numel() == keys.size(0) * keys.size(1) * 2 * keys.size(3) * kBlockSize,
      "cache_scales are contiguous float32, [layers, blocks, 2, heads, 16]");
  return static_cast<float*>(scales->mutable_data_ptr());
}

const float* read_floats(const Tensor& tensor, int64_t count, const char* name) {
  STD_TORCH_CHECK(
      tensor.scalar_type() == ScalarType::Float && tensor.is_contiguous() && tensor.numel() == count,
      name, " has ", tensor.numel(), " numbers, not ", count, " in float32");
  return static_cast<const float*>(tensor.const_data_ptr());
}

const int64_t* read_indices(
    const Tensor& tensor, int64_t count, int64_t least, int64_t limit, const char* name) {
  STD_TORCH_CHECK(
      tensor.scalar_type() == ScalarType::Long && tensor.dim() == 1 && tensor.is_contiguous() &&
          tensor.size(0) == count,
      name, " is a row of ", count, " int64");
  const auto* const indices = static_cast<const int64_t*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    STD_TORCH_CHECK(
        least <= indices[i] && indices[i] < limit, name, " has ", indices[i], ", the limit is ", limit);
  }
  return indices;
}

std::pair<Format, const std::byte*> read_adapter(const Step& s, const Tensor& weights, int64_t rank) {
  const bool is_float = weights.scalar_type() == ScalarType::Float;
  const int64_t size = s.num_layers * Adapter::layer_size(s.module_sizes, rank);
  STD_TORCH_CHECK(
      (is_float || weights.scalar_type() == ScalarType::BFloat16) && weights.is_contiguous() &&
          weights.numel() == size,
      "an adapter has ", weights.numel(), " numbers, not ", size, " in float32 or bfloat16");
  const bool is_even = rank % 2 == 0 && std::all_of(
      s.module_sizes.begin(), s.module_sizes.end(),
      [](const ModuleSize& module) { return module.num_inputs % 2 == 0; });
  STD_TORCH_CHECK(is_float || is_even, "an adapter in bfloat16 has an even rank and even inputs");
  return {is_float ? Format::kFloat32 : Format::kBFloat16, static_cast<const std::byte*>(weights.const_data_ptr())};
}

void read_adapters(
    Step& s, const Tensor& rows, const std::vector<Tensor>& adapters, const Tensor& targets,
    const Tensor& ranks) {
  const int64_t hidden = s.hidden_size, gated = s.num_gated, kv_size = s.num_kv_heads * s.head_dim;
  s.module_sizes = {{
      {hidden, s.num_heads * s.head_dim}, {hidden, kv_size}, {hidden, kv_size},
      {s.num_heads * s.head_dim, hidden}, {hidden, gated}, {hidden, gated},
      {s.buffers->stacks.down.num_inputs, hidden}}};
  const int64_t count = std::ssize(adapters);
  const int64_t* const each_rank = read_indices(ranks, count, 1, 1 << 16, "adapter_ranks");
  STD_TORCH_CHECK(
      targets.scalar_type() == ScalarType::Long && targets.is_contiguous() &&
          targets.numel() == count * s.num_layers,
      "adapter_targets are contiguous int64, [adapters, layers]");
  const auto* const bits = static_cast<const int64_t*>(targets.const_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const auto [format, weights] = read_adapter(s, adapters[i], each_rank[i]);
    s.adapters.push_back({format, weights, bits + i * s.num_layers, each_rank[i]});
    s.low_stride = std::max(s.low_stride, round_up_to_panels(each_rank[i]));
  }
  const int64_t* const places = read_indices(rows, s.num_rows, -1, count, "adapter_rows");
  constexpr int64_t kMostPlaces = 3;
  for (int64_t i = 0; i < count; ++i) {
    int64_t begin = std::ssize(s.adapted);
    for (int64_t row = 0; row < s.num_rows; ++row) {
      if (places[row] == i) s.adapted.push_back(row);
    }
    for (const int64_t end = std::ssize(s.adapted); begin < end; begin += kRowsAtOnce) {
      s.blocks.push_back({&s.adapters[i], begin, std::min(begin + kRowsAtOnce, end)});
    }
  }
  s.low = s.buffers->low.get<float>(std::ssize(s.adapted) * kMostPlaces * s.low_stride);
  s.pairs = s.buffers->pairs.get<float>(s.num_rows * 2 * s.num_gated);
}

}  // namespace

void decoder_step_cpu(
    const Tensor& input_ids, const Tensor& positions, const Tensor& slot_mapping,
    const Tensor& block_tables, const Tensor& cu_seqlens_q, const Tensor& seq_lens,
    const Tensor& logits_rows, const Tensor& key_cache, const Tensor& value_cache,
    std::optional<Tensor> cache_scales, std::optional<Tensor> embeddings, const Tensor& norms,
    std::optional<Tensor> qk_norms, std::optional<Tensor> qkv_bias, const Tensor& rotary,
    std::vector<Tensor> weights, std::vector<Tensor> weight_scales, const Tensor& weight_pieces,
    const Tensor& head, std::optional<Tensor> head_scales, const Tensor& logits,
    std::vector<int64_t> windows, int64_t num_heads, double scale, double epsilon,
    std::optional<Tensor> hidden_rows, std::optional<Tensor> hidden, std::optional<Tensor> adapter_rows,
    std::optional<std::vector<Tensor>> adapters, std::optional<Tensor> adapter_targets,
    std::optional<Tensor> adapter_ranks) {
  Step s{};
  s.num_rows = input_ids.size(0);
  s.num_logits = logits.size(0);
  s.num_layers = static_cast<int64_t>(windows.size());
  STD_TORCH_CHECK(
      key_cache.dim() == 5 && value_cache.dim() == 5 && key_cache.size(0) == s.num_layers &&
          value_cache.size(0) == s.num_layers && norms.dim() == 2 && rotary.dim() == 3,
      "caches are [layers, blocks, 16, heads, dim], norms [2 * layers + 1, hidden], and rotary "
      "[positions, 2, dim / 2]");
  s.hidden_size = norms.size(1);
  s.num_heads = num_heads;
  s.num_kv_heads = key_cache.size(3);
  s.head_dim = key_cache.size(4);
  STD_TORCH_CHECK(num_heads % s.num_kv_heads == 0, "key-value heads do not divide the heads");
  s.epsilon = static_cast<float>(epsilon);
  s.norms = read_floats(norms, (2 * s.num_layers + 1) * s.hidden_size, "norms");
  s.qk_norms = qk_norms ? read_floats(*qk_norms, s.num_layers * 2 * s.head_dim, "qk_norms") : nullptr;
  s.rotary = read_floats(rotary, rotary.size(0) * s.head_dim, "rotary");
  static thread_local Buffers buffers;
  s.buffers = &buffers;
  read_stacks(buffers.stacks, weights, weight_scales, weight_pieces, s.num_layers);
  auto& [qkv, attention_out, gate_up, down] = buffers.stacks;
  s.num_gated = gate_up.pieces.empty() ? 0 : gate_up.pieces.front().weight.num_outputs / (2 * kPanel) * kPanel;
  const auto is = [](int64_t expected) { return [=](int64_t inputs) { return inputs == expected; }; };
  check_stack(qkv, s.heads_size(), is(s.hidden_size));
  check_stack(attention_out, s.hidden_size, is(s.num_heads * s.head_dim));
  check_stack(gate_up, 2 * s.num_gated, is(s.hidden_size));
  STD_TORCH_CHECK(std::ssize(gate_up.pieces) == s.num_layers, "gates and ups are one piece in each layer");
  check_stack(down, s.hidden_size, [&](int64_t inputs) { return inputs <= s.num_gated; });
  if (qkv_bias) add_bias(qkv, *qkv_bias, s.num_layers, s.heads_size());
  STD_TORCH_CHECK(head.dim() == 5 && head.size(0) == 1, "the output layer is stacked as one");
  s.head = read_weight(head, head_scales, 1, logits.size(1));
  STD_TORCH_CHECK(s.head.num_inputs == s.hidden_size, "the output layer differs in its inputs");
  STD_TORCH_CHECK(
      logits.scalar_type() == ScalarType::Float && logits.is_contiguous() &&
          logits_rows.size(0) == s.num_logits,
      "logits are contiguous float32, one row for each of logits_rows");
  constexpr int64_t kAny = std::numeric_limits<int64_t>::min();
  const int64_t rows = s.num_rows, num_slots = key_cache.size(1) * kBlockSize;
  STD_TORCH_CHECK(s.num_logits <= rows, "there are more logits_rows than rows");
  s.input_ids = read_indices(input_ids, rows, 0, s.head.num_outputs, "input_ids");
  s.positions = read_indices(positions, rows, 0, rotary.size(0), "positions");
  s.slots = read_indices(slot_mapping, rows, kAny, num_slots, "slot_mapping");
  s.logits_rows = read_indices(logits_rows, s.num_logits, 0, rows, "logits_rows");
  s.logits = static_cast<float*>(logits.mutable_data_ptr());
  STD_TORCH_CHECK(hidden_rows.has_value() == hidden.has_value(), "hidden comes with hidden_rows");
  if (hidden) {
    STD_TORCH_CHECK(
        hidden->scalar_type() == ScalarType::Float && hidden->is_contiguous() && hidden->dim() == 2 &&
            hidden->size(1) == s.hidden_size,
        "hidden is contiguous float32, [num_hidden, hidden]");
    s.num_hidden = hidden->size(0);
    s.hidden_rows = read_indices(*hidden_rows, s.num_hidden, 0, rows, "hidden_rows");
    s.hidden_out = static_cast<float*>(hidden->mutable_data_ptr());
  }
  if (embeddings) {
    STD_TORCH_CHECK(
        embeddings->is_contiguous() && embeddings->size(0) >= logits.size(1) &&
            embeddings->size(1) == s.hidden_size &&
            (embeddings->scalar_type() == ScalarType::Float ||
             embeddings->scalar_type() == ScalarType::BFloat16),
        "embeddings are contiguous [vocab, hidden] in float32 or bfloat16");
    s.embeddings = embeddings->const_data_ptr();
    s.embeddings_are_floats = embeddings->scalar_type() == ScalarType::Float;
  }
  check_stacked_cache(key_cache, value_cache);
  check_sequences(block_tables, cu_seqlens_q, seq_lens);
  s.cache_type = key_cache.scalar_type();
  const int64_t size = s.cache_element =
      s.cache_type == ScalarType::Float ? 4 : s.cache_type == ScalarType::BFloat16 ? 2 : 1;
  s.cache_scales = read_cache_scales(cache_scales, key_cache);
  s.scales_layer = key_cache.size(1) * 2 * s.num_kv_heads * kBlockSize;
  s.key_cache = static_cast<std::byte*>(key_cache.mutable_data_ptr());
  s.value_cache = static_cast<std::byte*>(value_cache.mutable_data_ptr());
  s.key_layer = key_cache.stride(0) * size, s.value_layer = value_cache.stride(0) * size;
  s.windows = std::move(windows);

  s.hidden = buffers.hidden.get<float>(s.num_rows * s.hidden_size);
  s.normalized = buffers.normalized.get<float>(s.num_rows * s.hidden_size);
  s.heads = buffers.heads.get<float>(s.num_rows * s.heads_size());
  s.attended = buffers.attended.get<float>(s.num_rows * num_heads * s.head_dim);
  s.gated = buffers.gated.get<float>(s.num_rows * s.num_gated);
  const int64_t widest = std::max({s.hidden_size, num_heads * s.head_dim, s.num_gated});
  s.values = buffers.values.get<std::byte>(s.num_rows * widest * sizeof(float));
  s.scales = buffers.scales.get<float>(s.num_rows * (widest / kGroup + 1));
  s.offsets = buffers.offsets.get<int32_t>(s.num_rows * (widest / kSmallestPart + 1));
  s.sums = buffers.sums.get<float>(s.num_rows * (widest / kSmallestPart + 1));

  const bool has_adapters = adapter_rows.has_value();
  STD_TORCH_CHECK(
      adapters.has_value() == has_adapters && adapter_targets.has_value() == has_adapters &&
          adapter_ranks.has_value() == has_adapters,
      "adapter_rows, adapters, adapter_targets and adapter_ranks come together");
  if (has_adapters) read_adapters(s, *adapter_rows, *adapters, *adapter_targets, *adapter_ranks);

  Problem& p = s.attention;
  p.query = s.heads, p.out = s.attended;
  p.block_tables = static_cast<const int32_t*>(block_tables.const_data_ptr());
  p.cu_seqlens_q = static_cast<const int32_t*>(cu_seqlens_q.const_data_ptr());
  p.seq_lens = static_cast<const int32_t*>(seq_lens.const_data_ptr());
  p.max_blocks = block_tables.size(1);
  p.num_kv_heads = s.num_kv_heads;
  p.group = num_heads / s.num_kv_heads;
  p.key_dim = p.value_dim = s.head_dim;
  p.query_token = s.heads_size(), p.query_head = s.head_dim;
  p.out_token = num_heads * s.head_dim, p.out_head = s.head_dim;
  p.key_block = key_cache.stride(1), p.key_head = key_cache.stride(3);
  p.value_block = value_cache.stride(1), p.value_token = value_cache.stride(2);
  p.value_head = value_cache.stride(3);
  p.scale = static_cast<float>(scale);
  const int64_t num_seqs = seq_lens.size(0);
  STD_TORCH_CHECK(
      p.cu_seqlens_q[num_seqs] <= rows, "cu_seqlens_q ends at ", p.cu_seqlens_q[num_seqs], " of ", rows,
      " rows");
  Team& team = Team::of_size(static_cast<int>(torch::stable::get_num_threads()));
  double work = 0;
  make_units(p, num_seqs, key_cache.size(1), team.size(), buffers.units, buffers.parts, &work);
  buffers.fit_scratches(p, team.size());
  team.run([&](int thread) { s.run(team, thread); });  // so small that std::function keeps it in itself
}

}  // namespace parley
