// One forward pass of a Llama-like decoder: what it reads, what it writes, and what one thread of a team
// does for it. decoder.cpp makes one of the op's arguments.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "common/arguments.h"
#include "common/team.h"
#include "decoder/adapters.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"

namespace parley {

// Memory that grows and is kept from step to step.
class Buffer {
 public:
  template <typename T>
  T* get(int64_t count) {
    const size_t size = static_cast<size_t>(count) * sizeof(T) + 64;
    if (size > size_) {
      size_ = 0;  // also if there is no memory
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64)));
      STD_TORCH_CHECK(memory_ != nullptr, "can't allocate memory: ", size, " bytes for a step");
      size_ = size;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

// Some outputs of a layer's weight. Most weights are one piece; but their outputs may differ in their bits.
struct Piece {
  Weight weight;
  int64_t first_output;
};

// The same weight of all layers.
struct Stack {
  std::vector<Piece> pieces;    // one layer's after another's
  std::vector<int64_t> begins;  // [layers + 1], of each layer
  int64_t num_inputs;           // the most that a piece has, with padding

  std::span<const Piece> layer(int64_t index) const {
    return std::span(pieces).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

struct Stacks {
  Stack qkv, attention_out, gate_up, down;

  std::array<Stack*, 4> in_order() { return {&qkv, &attention_out, &gate_up, &down}; }
};

struct Buffers {
  Stacks stacks;
  Buffer hidden, normalized, heads, attended, gated, values, scales, offsets, sums, low, pairs;
  std::vector<Unit> units;
  Parts parts;  // of units that threads share
  std::vector<Scratch> scratches;  // one for each thread

  void fit_scratches(const Problem& p, int num_threads) {
    if (std::ssize(scratches) < num_threads) scratches.resize(num_threads);
    for (Scratch& scratch : scratches) scratch.fit(p);
  }
};

struct Step {
  const Kernels& k = kernels();
  int64_t num_rows, num_logits, num_hidden, num_layers;
  int64_t hidden_size, num_heads, num_kv_heads, head_dim, num_gated;
  float epsilon;
  const int64_t *input_ids, *positions, *slots, *logits_rows, *hidden_rows;
  const void* embeddings;  // null: the output layer's
  bool embeddings_are_floats;
  ScalarType cache_type;
  int64_t cache_element;  // bytes
  const float *norms, *qk_norms, *rotary;
  Weight head;
  std::vector<int64_t> windows;
  Problem attention;
  std::byte *key_cache, *value_cache;
  int64_t key_layer, value_layer;  // bytes from layer to layer
  float* cache_scales;             // of an int8 cache: see attention.h
  int64_t scales_layer;            // elements from layer to layer
  float *logits, *hidden_out;
  ModuleSizes module_sizes;
  std::vector<Adapter> adapters;
  std::vector<int64_t> adapted;     // rows with an adapter, one adapter's after another's
  std::vector<AdaptedRows> blocks;  // of these

  float *hidden, *normalized, *heads, *attended, *gated;  // [num_rows][...]
  std::byte* values;  // prepared rows
  float* scales;
  int32_t* offsets;
  float* sums;
  float* low;          // [adapted rows][modules][low_stride], what their adapters make of inputs
  int64_t low_stride;
  float* pairs;        // [num_rows][2 * num_gated], gates and ups in turn, before they are multiplied
  Buffers* buffers;

  int64_t heads_size() const { return (num_heads + 2 * num_kv_heads) * head_dim; }

  // What one thread does.
  void run(Team& team, int thread);

 private:
  Rows prepare(
      Team& team, int thread, const Weight& weight, const float* rows, int64_t count, int64_t stride);
  void multiply(
      Team& team, int thread, const Weight& weight, const float* rows, int64_t count, int64_t stride,
      Epilogue epilogue, float* out, int64_t out_stride);
  void multiply(
      Team& team, int thread, const Stack& stack, int64_t layer, const float* rows, int64_t stride,
      Epilogue epilogue, float* out, int64_t out_stride);
  void embed(int64_t row);
  void finish_heads(int64_t layer, int64_t row);
  void normalize_rows(Team& team, int thread, const float* weight);
  void attend(Team& team, int thread, int64_t layer) const;
  void gate_rows(Team& team, int thread, int64_t layer);
  bool adapts(int64_t layer, int first, int last) const;  // any of these modules, of any row
  void adapt(Team& team, int thread, int64_t layer, std::initializer_list<Place> places);
};

}  // namespace parley
