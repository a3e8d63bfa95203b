// What paged attention computes and in which pieces: shared by attention.cpp, which cuts the work, and
// attention_kernel.h, which does it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/arguments.h"

namespace parley {

constexpr int64_t kSpan = 256;  // keys whose scores are held at once; 16 blocks
constexpr int64_t kStretch = 4 * kSpan;  // keys that are summed by themselves, maybe by another thread
constexpr int64_t kFewestQueries = 16, kMostQueries = 64;  // of a unit, where group and chunk allow it

struct Problem {
  const void *query, *key_cache, *value_cache, *sinks;  // sinks may be null
  void* out;
  const int32_t *block_tables, *cu_seqlens_q, *seq_lens;
  int64_t max_blocks, num_kv_heads, group, key_dim, value_dim, window;
  int64_t query_token, query_head, out_token, out_head;           // strides
  int64_t key_block, key_head, value_block, value_token, value_head;  // strides
  const float* cache_scales;  // of bytes: [block][keys, values][head][token]; null for other caches
  float* parts;               // of units that are shared, as Parts has them
  std::atomic<int32_t>* left;
  float scale, softcap;

  int64_t value_stride() const { return (value_dim + kBlockSize - 1) / kBlockSize * kBlockSize; }
};

struct Unit {
  int32_t sequence, kv_head, token, num_tokens;  // token: first one, counted within this step
  int32_t stretch = -1;                          // -1: all of them; else one, the unit being shared
  int32_t first_part = 0, num_parts = 0;         // of a shared unit: where its stretches are put together
};

// What some queries have seen so far: the sums of their weighted values, their largest scores and the sums
// of their weights.
struct State {
  State(float* memory, int64_t num_queries, int64_t stride)
      : sums(memory), maxima(memory + num_queries * stride), totals(maxima + num_queries) {}

  static int64_t size(int64_t num_queries, int64_t stride) {  // in whole lines
    return num_queries * stride + (2 * num_queries + kBlockSize - 1) / kBlockSize * kBlockSize;
  }

  float *sums, *maxima, *totals;
};

// Numbers that begin with a line of the cache: a vector across two lines is loaded at half the speed.
class Lines {
 public:
  void resize(int64_t num_floats) { lines_.resize((num_floats + 15) / 16); }
  float* data() { return lines_.data()->floats; }

 private:
  struct alignas(64) Line {
    float floats[16];
  };
  std::vector<Line> lines_;
};

// What a thread needs to attend to a unit. It may be kept: nothing in it outlives the unit.
struct Scratch {
  void fit(const Problem& p);

  Lines queries;  // scaled; in runs of some queries, [run][dim][query]
  Lines scores;   // [queries][kSpan]
  Lines states;   // of all that was seen, and of a stretch
  Lines floats;   // a span's keys or values, as many queries read them
};

// The results of threads that share units, by stretch, and how many stretches of a unit are still missing.
struct Parts {
  void fit(const Problem& p, int64_t num_parts);

  Lines states;
  std::unique_ptr<std::atomic<int32_t>[]> left;
  int64_t num_left = 0;
};

// Cut the batch into units for so many threads; those that read the same keys lie side by side. Adds up the
// multiplications in `work`. Throws where lengths, chunks or block tables contradict each other.
void make_units(
    Problem& p, int64_t num_seqs, int64_t num_blocks, int64_t num_threads, std::vector<Unit>& units,
    Parts& parts, double* work);

using AttendUnit = void (*)(const Problem&, const Unit&, Scratch&);

}  // namespace parley
