// paged_attention: causal attention of a mixed batch of prefills and decodes over cache blocks.
//
// A unit of work is a run of query tokens of one sequence with the heads that share one key-value head:
// some queries, which read each key and value once. Threads take units until there are none; what a query
// computes depends neither on its unit nor on who takes it. Where there are few units, those of single
// tokens with a long context are shared: each stretch of it is a unit, and the last thread joins them (as
// Flash-Decoding does, Dao et al. 2023).
#include "kernels/attention.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>

#include "common/arguments.h"
#include "kernels/kernels.h"

namespace parley {
namespace {

constexpr int64_t kSerialWork = 1 << 17;  // multiplications; below it, one thread is quicker
constexpr int64_t kThreadUnits = 4;       // at least, before units grow: threads are not equally fast

void check_arguments(
    const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& block_tables, const Tensor& cu_seqlens_q, const Tensor& seq_lens,
    const Tensor& out) {
  check_cache(key_cache, value_cache);
  STD_TORCH_CHECK(query.dim() == 3 && out.dim() == 3, "queries and out have 3 dimensions");
  STD_TORCH_CHECK(
      query.scalar_type() == key_cache.scalar_type() && out.scalar_type() == query.scalar_type(),
      "queries and out are ", name_of(key_cache.scalar_type()), " as the cache, got ",
      name_of(query.scalar_type()), " and ", name_of(out.scalar_type()));
  STD_TORCH_CHECK(
      query.size(2) == key_cache.size(3) && out.size(2) == value_cache.size(3) &&
          out.size(0) == query.size(0) && out.size(1) == query.size(1) &&
          query.size(1) % key_cache.size(2) == 0,
      "queries or out differ from the cache in heads or dims");
  STD_TORCH_CHECK(
      (query.stride(2) == 1 || query.size(2) == 1) && (out.stride(2) == 1 || out.size(2) == 1),
      "the last dimension must be contiguous");
  check_sequences(block_tables, cu_seqlens_q, seq_lens);
}

}  // namespace

void make_units(
    Problem& p, int64_t num_seqs, int64_t num_blocks, int64_t num_threads, std::vector<Unit>& units,
    Parts& parts, double* work) {
  units.clear();
  const int64_t heads = p.num_kv_heads * p.group;
  const int64_t num_queries = std::clamp(
      p.cu_seqlens_q[num_seqs] * heads / (kThreadUnits * num_threads), kFewestQueries, kMostQueries);
  const int64_t step = std::max<int64_t>(1, num_queries / p.group);
  const bool are_few = p.cu_seqlens_q[num_seqs] * p.num_kv_heads < kThreadUnits * num_threads;
  int32_t num_parts = 0;
  STD_TORCH_CHECK(p.cu_seqlens_q[0] == 0, "cu_seqlens_q begins at ", p.cu_seqlens_q[0], ", not 0");
  for (int32_t sequence = 0; sequence < num_seqs; ++sequence) {
    const int64_t chunk = p.cu_seqlens_q[sequence + 1] - p.cu_seqlens_q[sequence];
    const int64_t length = p.seq_lens[sequence];
    STD_TORCH_CHECK(
        0 <= chunk && chunk <= length && length <= p.max_blocks * kBlockSize, "sequence ", sequence,
        " has ", chunk, " queries, ", length, " tokens and ", p.max_blocks, " blocks");
    for (int64_t i = 0; i * kBlockSize < length; ++i) {
      const int64_t block = p.block_tables[sequence * p.max_blocks + i];
      STD_TORCH_CHECK(0 <= block && block < num_blocks, "block ", block, " of ", num_blocks);
    }
    const auto num_stretches = static_cast<int32_t>((length + kStretch - 1) / kStretch);
    for (int32_t head = 0; head < p.num_kv_heads; ++head) {
      if (are_few && chunk == 1 && num_stretches > 1) {
        for (int32_t i = 0; i < num_stretches; ++i) {
          units.push_back({sequence, head, 0, 1, i, num_parts, num_stretches});
        }
        num_parts += num_stretches;
        continue;
      }
      for (int64_t token = 0; token < chunk; token += step) {
        units.push_back(
            {sequence, head, static_cast<int32_t>(token),
             static_cast<int32_t>(std::min(step, chunk - token))});
      }
    }
    *work += static_cast<double>(chunk) * length * p.num_kv_heads * p.group *
             (p.key_dim + p.value_dim);
  }
  parts.fit(p, num_parts);
  p.parts = parts.states.data();
  p.left = parts.left.get();
  for (const Unit& unit : units) {
    if (unit.num_parts) p.left[unit.first_part] = unit.num_parts;
  }
}

void Scratch::fit(const Problem& p) {
  const int64_t num_queries = std::max(kMostQueries, p.group);
  queries.resize(num_queries * p.key_dim);
  scores.resize(num_queries * kSpan);
  states.resize(2 * State::size(num_queries, p.value_stride()));
  floats.resize(kSpan * std::max(p.key_dim, p.value_dim));
}

void Parts::fit(const Problem& p, int64_t num_parts) {
  states.resize(num_parts * State::size(p.group, p.value_stride()));
  if (num_parts > num_left) {
    num_left = 0;  // also if there is no memory
    left.reset(new std::atomic<int32_t>[num_parts]);
    num_left = num_parts;
  }
}

void paged_attention_cpu(
    const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& block_tables, const Tensor& cu_seqlens_q, const Tensor& seq_lens,
    const Tensor& out, double scale, int64_t sliding_window, double softcap,
    std::optional<Tensor> sinks) {
  check_arguments(query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens, out);
  STD_TORCH_CHECK(
      !sinks || (sinks->scalar_type() == query.scalar_type() && sinks->is_contiguous() &&
                 sinks->numel() == query.size(1)),
      "sinks are one number per head of the queries' dtype");
  Problem p{};
  p.query = query.const_data_ptr();
  p.key_cache = key_cache.const_data_ptr();
  p.value_cache = value_cache.const_data_ptr();
  p.sinks = sinks ? sinks->const_data_ptr() : nullptr;
  p.out = out.mutable_data_ptr();
  p.block_tables = static_cast<const int32_t*>(block_tables.const_data_ptr());
  p.cu_seqlens_q = static_cast<const int32_t*>(cu_seqlens_q.const_data_ptr());
  p.seq_lens = static_cast<const int32_t*>(seq_lens.const_data_ptr());
  p.max_blocks = block_tables.size(1);
  p.num_kv_heads = key_cache.size(2);
  p.group = query.size(1) / p.num_kv_heads;
  p.key_dim = query.size(2);
  p.value_dim = out.size(2);
  p.window = sliding_window;
  p.query_token = query.stride(0), p.query_head = query.stride(1);
  p.out_token = out.stride(0), p.out_head = out.stride(1);
  p.key_block = key_cache.stride(0), p.key_head = key_cache.stride(2);
  p.value_block = value_cache.stride(0), p.value_token = value_cache.stride(1);
  p.value_head = value_cache.stride(2);
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);

  double work = 0;
  std::vector<Unit> units;
  Parts parts;
  make_units(
      p, seq_lens.size(0), key_cache.size(0), torch::stable::get_num_threads(), units, parts, &work);
  STD_TORCH_CHECK(
      p.cu_seqlens_q[seq_lens.size(0)] == query.size(0), "cu_seqlens_q ends at ",
      p.cu_seqlens_q[seq_lens.size(0)], " of ", query.size(0), " tokens");
  const AttendUnit attend = query.scalar_type() == ScalarType::Float ? kernels().attend_float
                                                                     : kernels().attend_bfloat16;
  std::atomic<size_t> next{0};
  const auto worker = [&](int64_t, int64_t) {  // a thread takes units until there are none
    Scratch scratch;
    scratch.fit(p);
    for (size_t unit; (unit = next++) < units.size();) attend(p, units[unit], scratch);
  };
  const int64_t num_workers = work < kSerialWork ? 1 : torch::stable::get_num_threads();
  torch::stable::parallel_for(0, num_workers, 1, worker);
}

}  // namespace parley
