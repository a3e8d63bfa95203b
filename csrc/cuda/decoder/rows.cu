// What happens to rows between the matrix products: norms, rotations, activations.
#include "common/arguments.h"
#include "common/reduce.h"

namespace parley::cuda {
namespace {

constexpr unsigned kThreads = 256, kMostThreads = 1024;
constexpr int kMostParts = 4;  // vectors of a row that a thread keeps in registers

// ---- add_rms_norm --------------------------------------------------------------------------------------

// A block for each row. As transformers computes it: what is added is rounded before it is normalized, and
// what is normalized before it is multiplied.
template <typename T>
__global__ void add_and_normalize(
    T* hidden, const T* delta, const T* weight, T* out, int64_t width, int64_t hidden_stride,
    int64_t delta_stride, int64_t out_stride, float epsilon) {
  constexpr int kSize = Vector<T>::kSize;
  T* const row = hidden + blockIdx.x * hidden_stride;
  Vector<T> kept[kMostParts];
  float squares = 0;
  for (int part = 0; part < kMostParts; ++part) {
    const int64_t place = (int64_t{part} * blockDim.x + threadIdx.x) * kSize;
    if (place >= width) break;
    kept[part] = load_vector(row + place);
    if (delta != nullptr) {
      const Vector<T> more = load_vector(delta + blockIdx.x * delta_stride + place);
      for (int i = 0; i < kSize; ++i) {
        kept[part].items[i] = from_float<T>(to_float(kept[part].items[i]) + to_float(more.items[i]));
      }
      store_vector(row + place, kept[part]);
    }
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(kept[part].items[i]);
      squares += x * x;
    }
  }
  const float factor = rsqrtf(sum_of_block(squares) / static_cast<float>(width) + epsilon);
  for (int part = 0; part < kMostParts; ++part) {
    const int64_t place = (int64_t{part} * blockDim.x + threadIdx.x) * kSize;
    if (place >= width) break;
    const Vector<T> weights = load_vector(weight + place);
    for (int i = 0; i < kSize; ++i) {
      const float normalized = rounded<T>(to_float(kept[part].items[i]) * factor);
      kept[part].items[i] = from_float<T>(normalized * to_float(weights.items[i]));
    }
    store_vector(out + blockIdx.x * out_stride + place, kept[part]);
  }
}

// ---- rotate_and_store ----------------------------------------------------------------------------------

constexpr int kMostPairs = 8;  // of numbers that are rotated together, of a lane: heads of up to 512

// What all heads of all rows have in common.
template <typename T>
struct Heads {
  T* qkv;
  int64_t stride;     // of rows
  const T* qk_norms;  // may be null
  const float* rotary;
  const int64_t *positions, *slots;
  T *key_cache, *value_cache;
  CacheStrides key_strides, value_strides;
  int64_t block_size, num_heads, num_kv_heads, head_dim;
  float epsilon;
};

// A warp for each head of each row: queries, then keys, then values.
template <typename T>
__global__ void rotate_heads(Heads<T> h, int64_t num_rows) {
  const int64_t per_row = h.num_heads + 2 * h.num_kv_heads;
  const int64_t unit = int64_t{blockIdx.x} * (blockDim.x / kWarpThreads) + warp_of_thread();
  if (unit >= num_rows * per_row) return;
  const int64_t row = unit / per_row, place = unit % per_row, half = h.head_dim / 2;
  const bool is_query = place < h.num_heads, is_value = place >= h.num_heads + h.num_kv_heads;
  T* const from = h.qkv + row * h.stride + place * h.head_dim;
  T* to = from;
  if (!is_query) {
    const int64_t slot = h.slots[row];
    if (slot < 0) return;
    const int64_t block = slot / h.block_size, offset = slot % h.block_size;
    const int64_t head = (place - h.num_heads) % h.num_kv_heads;
    const CacheStrides& strides = is_value ? h.value_strides : h.key_strides;
    to = (is_value ? h.value_cache : h.key_cache) + block * strides.block + offset * strides.token +
         head * strides.head;
  }
  if (is_value) {
    for (int64_t i = lane_of_thread(); i < h.head_dim; i += kWarpThreads) to[i] = from[i];
    return;
  }
  float low[kMostPairs], high[kMostPairs], squares = 0;
  for (int i = 0; i < kMostPairs; ++i) {
    const int64_t pair = lane_of_thread() + i * kWarpThreads;
    if (pair >= half) break;
    low[i] = to_float(from[pair]);
    high[i] = to_float(from[half + pair]);
    squares += low[i] * low[i] + high[i] * high[i];
  }
  if (h.qk_norms != nullptr) {
    const T* const weight = h.qk_norms + (is_query ? 0 : h.head_dim);
    const float mean = sum_of_warp(squares) / static_cast<float>(h.head_dim);
    const float factor = rsqrtf(mean + h.epsilon);
    for (int i = 0; i < kMostPairs; ++i) {
      const int64_t pair = lane_of_thread() + i * kWarpThreads;
      if (pair >= half) break;
      low[i] = rounded<T>(rounded<T>(low[i] * factor) * to_float(weight[pair]));
      high[i] = rounded<T>(rounded<T>(high[i] * factor) * to_float(weight[half + pair]));
    }
  }
  const float* const cosines = h.rotary + h.positions[row] * h.head_dim;
  const float* const sines = cosines + half;
  for (int i = 0; i < kMostPairs; ++i) {
    const int64_t pair = lane_of_thread() + i * kWarpThreads;
    if (pair >= half) break;
    to[pair] = from_float<T>(low[i] * cosines[pair] - high[i] * sines[pair]);
    to[half + pair] = from_float<T>(high[i] * cosines[pair] + low[i] * sines[pair]);
  }
}

// ---- silu_and_mul --------------------------------------------------------------------------------------

// A thread for each vector of a row; blocks in x are rows, because y may be too small to count them.
template <typename T>
__global__ void gate(const T* gate_up, T* out, int64_t width, int64_t stride, int64_t out_stride) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t place = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize;
  if (place >= width) return;
  const T* const row = gate_up + blockIdx.x * stride + place;
  Vector<T> gates = load_vector(row);
  const Vector<T> ups = load_vector(row + width);
  for (int i = 0; i < kSize; ++i) {
    const float x = to_float(gates.items[i]);
    const float activated = rounded<T>(x / (1 + expf(-x)));
    gates.items[i] = from_float<T>(activated * to_float(ups.items[i]));
  }
  store_vector(out + blockIdx.x * out_stride + place, gates);
}

}  // namespace

void add_rms_norm(
    const Tensor& hidden, std::optional<Tensor> delta, const Tensor& weight, const Tensor& out,
    double epsilon) {
  const ScalarType type = hidden.scalar_type();
  const int64_t num_rows = hidden.size(0), width = hidden.size(1);
  check_rows(hidden, type, num_rows, "hidden");
  check_rows(out, type, num_rows, "out");
  if (delta) check_rows(*delta, type, num_rows, "delta");
  check_column(weight, type, width, "weight");
  STD_TORCH_CHECK(begins_at_vector(weight), "weight must begin at a multiple of 16 bytes");
  STD_TORCH_CHECK(out.size(1) == width && (!delta || delta->size(1) == width), "rows differ in width");
  with_floats(hidden, [&](auto element) {
    using T = decltype(element);
    const int64_t vectors = width / Vector<T>::kSize;
    STD_TORCH_CHECK(vectors <= kMostParts * kMostThreads, "rows of ", width, " are too wide");
    const auto num_threads = static_cast<unsigned>(
        std::min<int64_t>((vectors + kWarpThreads - 1) / kWarpThreads * kWarpThreads, kMostThreads));
    launch(
        hidden, add_and_normalize<T>, dim3(num_rows), num_threads, written_of<T>(hidden), data_of<T>(delta),
        data_of<T>(weight), written_of<T>(out), width, hidden.stride(0), delta ? delta->stride(0) : 0,
        out.stride(0), epsilon);
  });
}

void rotate_and_store(
    const Tensor& qkv, std::optional<Tensor> qk_norms, const Tensor& rotary, const Tensor& positions,
    const Tensor& slot_mapping, const Tensor& key_cache, const Tensor& value_cache, int64_t num_heads,
    double epsilon) {
  const ScalarType type = qkv.scalar_type();
  check_cache(key_cache, value_cache, type);
  const int64_t num_rows = qkv.size(0), num_kv_heads = key_cache.size(2), head_dim = key_cache.size(3);
  STD_TORCH_CHECK(
      qkv.dim() == 2 && qkv.stride(1) == 1 && qkv.size(1) == (num_heads + 2 * num_kv_heads) * head_dim,
      "qkv must hold the heads of queries, keys and values, each row in one run");
  STD_TORCH_CHECK(
      value_cache.size(3) == head_dim && head_dim % 2 == 0 && head_dim <= 2 * kMostPairs * kWarpThreads,
      "heads have an even width up to ", 2 * kMostPairs * kWarpThreads, ", and values have the same");
  STD_TORCH_CHECK(
      rotary.scalar_type() == ScalarType::Float && rotary.is_contiguous() && rotary.dim() == 3 &&
          rotary.size(1) == 2 && rotary.size(2) == head_dim / 2,
      "rotary is float32 [positions, 2, head_dim / 2]");
  check_column(positions, ScalarType::Long, num_rows, "positions");
  check_column(slot_mapping, ScalarType::Long, num_rows, "slot_mapping");
  STD_TORCH_CHECK(
      !qk_norms || (qk_norms->scalar_type() == type && qk_norms->is_contiguous() && qk_norms->dim() == 2 &&
                    qk_norms->size(0) == 2 && qk_norms->size(1) == head_dim),
      "qk_norms are [2, head_dim] of the type of qkv");
  with_floats(qkv, [&](auto element) {
    using T = decltype(element);
    const Heads<T> heads{
        written_of<T>(qkv), qkv.stride(0), data_of<T>(qk_norms), data_of<float>(rotary),
        data_of<int64_t>(positions), data_of<int64_t>(slot_mapping), written_of<T>(key_cache),
        written_of<T>(value_cache), strides_of(key_cache), strides_of(value_cache), key_cache.size(1),
        num_heads, num_kv_heads, head_dim, static_cast<float>(epsilon)};
    const int64_t num_units = num_rows * (num_heads + 2 * num_kv_heads), warps = kThreads / kWarpThreads;
    launch(qkv, rotate_heads<T>, dim3((num_units + warps - 1) / warps), kThreads, heads, num_rows);
  });
}

void silu_and_mul(const Tensor& gate_up, const Tensor& out) {
  const int64_t num_rows = out.size(0), width = out.size(1);
  check_rows(out, gate_up.scalar_type(), num_rows, "out");
  check_rows(gate_up, gate_up.scalar_type(), num_rows, "gate_up");
  STD_TORCH_CHECK(gate_up.size(1) == 2 * width, "gate_up is twice as wide as out");
  with_floats(gate_up, [&](auto element) {
    using T = decltype(element);
    const int64_t per_block = kThreads * Vector<T>::kSize;
    launch(
        gate_up, gate<T>, dim3(num_rows, (width + per_block - 1) / per_block), kThreads, data_of<T>(gate_up),
        written_of<T>(out), width, gate_up.stride(0), out.stride(0));
  });
}

}  // namespace parley::cuda
