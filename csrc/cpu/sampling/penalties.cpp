// penalize: the logits of tokens that a text has already, lowered or raised before one is chosen.
#include <atomic>

#include "common/arguments.h"
#include "common/team.h"

#include <torch/csrc/stable/ops.h>

namespace parley {
namespace {

struct Penalties {
  float repetition, frequency, presence;
};

// Products are exact as double, so that each is rounded by itself, as the reference does, also where a
// compiler would fuse it with the subtraction after it.
void penalize_tokens(
    float* logits, const int64_t* ids, const float* counts, int64_t num_ids, const Penalties& p) {
  for (int64_t i = 0; i < num_ids; ++i) {
    float& logit = logits[ids[i]];
    const float repeated = logit > 0 ? logit / p.repetition
                                     : static_cast<float>(double{logit} * p.repetition);
    const float often = static_cast<float>(double{p.frequency} * counts[i]);
    logit = repeated - often - (counts[i] > 0 ? p.presence : 0.0f);
  }
}

}  // namespace

void penalize_cpu(
    const Tensor& logits, const Tensor& rows, const Tensor& offsets, const Tensor& ids,
    const Tensor& counts, const Tensor& repetition, const Tensor& frequency, const Tensor& presence) {
  STD_TORCH_CHECK(
      logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.stride(1) == 1,
      "logits are float32 [rows, vocab], contiguous in a row");
  STD_TORCH_CHECK(rows.dim() == 1 && ids.dim() == 1, "rows and ids have one dimension");
  const int64_t vocab = logits.size(1), stride = logits.stride(0);
  const int64_t num_rows = rows.size(0), num_ids = ids.size(0);
  const auto* const row = read_column<int64_t>(rows, num_rows, "rows");
  const auto* const offset = read_column<int64_t>(offsets, num_rows + 1, "offsets");
  const auto* const id = read_column<int64_t>(ids, num_ids, "ids");
  const auto* const count = read_column<float>(counts, num_ids, "counts");
  const auto* const factor = read_column<double>(repetition, num_rows, "repetition penalties");
  const auto* const each = read_column<double>(frequency, num_rows, "frequency penalties");
  const auto* const once = read_column<double>(presence, num_rows, "presence penalties");
  STD_TORCH_CHECK(
      offset[0] == 0 && offset[num_rows] == num_ids, "offsets go from 0 to the number of ids");
  for (int64_t i = 0; i < num_rows; ++i) {
    STD_TORCH_CHECK(
        (i == 0 ? 0 : row[i - 1] + 1) <= row[i] && row[i] < logits.size(0),
        "rows ascend and are of the logits");  // two threads may not write to one
    STD_TORCH_CHECK(offset[i] <= offset[i + 1], "offsets do not descend");
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    STD_TORCH_CHECK(0 <= id[i] && id[i] < vocab, "ids are of the vocabulary, got ", id[i]);
  }

  auto* const values = static_cast<float*>(logits.mutable_data_ptr());
  const auto penalize_row = [&](int64_t i) {
    const Penalties penalties{
        static_cast<float>(factor[i]), static_cast<float>(each[i]), static_cast<float>(once[i])};
    const int64_t begin = offset[i], end = offset[i + 1];
    penalize_tokens(values + row[i] * stride, id + begin, count + begin, end - begin, penalties);
  };
  if (num_rows == 1) return penalize_row(0);
  std::atomic<int64_t> next{0};
  Team::of_size(static_cast<int>(torch::stable::get_num_threads())).run([&](int) {
    for (int64_t i; (i = next++) < num_rows;) penalize_row(i);
  });
}

}  // namespace parley
