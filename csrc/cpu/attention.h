// What paged attention computes and in which pieces: shared by attention.cpp, which cuts the work, and
// attention_kernel.h, which does it.
#pragma once

#include <cstdint>
#include <vector>

namespace parley {

constexpr int64_t kSpan = 256;         // keys whose scores are held at once; 16 blocks
constexpr int64_t kFewestQueries = 16, kMostQueries = 64;  // of a unit, where group and chunk allow it

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
  Lines sums;     // [queries][value_dim rounded up to whole vectors]
  Lines floats;   // a span's keys or values, as many queries read them
  std::vector<float> maxima, totals;
};

// Cut the batch into units for so many threads; those that read the same keys lie side by side. Adds up the
// multiplications in `work`. Throws where lengths, chunks or block tables contradict each other.
void make_units(
    const Problem& p, int64_t num_seqs, int64_t num_blocks, int64_t num_threads,
    std::vector<Unit>& units, double* work);

using AttendUnit = void (*)(const Problem&, const Unit&, Scratch&);

}  // namespace parley
