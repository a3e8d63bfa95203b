// What paged attention computes and in which pieces: shared by attention.cpp, which cuts the work, and
// attention_kernel.h, which does it.
#pragma once

#include <cstdint>
#include <vector>

namespace parley {

constexpr int64_t kSpan = 256;         // keys whose scores are held at once; 16 blocks
constexpr int64_t kUnitQueries = 16;   // (token, head) pairs of a unit, where the group allows it

struct Problem {
  const void *query, *key_cache, *value_cache, *sinks;  // sinks may be null
  void* out;
  const int32_t *block_tables, *cu_seqlens_q, *seq_lens;
  int64_t max_blocks, num_kv_heads, group, key_dim, value_dim, window;
  int64_t query_token, query_head, out_token, out_head;           // strides
  int64_t key_block, key_head, value_block, value_token, value_head;  // strides
  const float* cache_scales;  // of bytes: [block][keys, values][head][token]; null for other caches
  float scale, softcap;
};

struct Unit {
  int32_t sequence, kv_head, token, num_tokens;  // token: first one, counted within this step
};

// What a thread needs to attend to a unit. It may be kept: nothing in it outlives the unit.
struct Scratch {
  void fit(const Problem& p);

  std::vector<float> queries;  // [queries][key_dim], scaled
  std::vector<float> scores;   // [queries][kSpan]
  std::vector<float> sums;     // [queries][value_dim rounded up to whole vectors]
  std::vector<float> maxima, totals;
};

// Cut the batch into units; later tokens first, which see most, so that threads end together. Adds up the
// multiplications in `work`. Throws where lengths, chunks or block tables contradict each other.
void make_units(
    const Problem& p, int64_t num_seqs, int64_t num_blocks, std::vector<Unit>& units, double* work);

using AttendUnit = void (*)(const Problem&, const Unit&, Scratch&);

}  // namespace parley
