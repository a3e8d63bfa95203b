// penalize: the logits of tokens that a text has already, lowered or raised before one is chosen.
#include "common/arguments.h"

namespace parley::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block for each row with penalties. `__fmul_rn` rounds each product by itself, as the reference does: a plain
// one, of doubles too, nvcc fuses with the subtraction after it.
__global__ void penalize_rows(
    float* logits, int64_t stride, const int64_t* rows, const int64_t* offsets, const int64_t* ids,
    const float* counts, const double* repetition, const double* frequency, const double* presence) {
  const auto factor = static_cast<float>(repetition[blockIdx.x]);
  const auto each = static_cast<float>(frequency[blockIdx.x]);
  const auto once = static_cast<float>(presence[blockIdx.x]);
  float* const row = logits + rows[blockIdx.x] * stride;
  const int64_t end = offsets[blockIdx.x + 1];
  for (int64_t i = offsets[blockIdx.x] + threadIdx.x; i < end; i += blockDim.x) {
    float& logit = row[ids[i]];
    const float repeated = logit > 0 ? logit / factor : __fmul_rn(logit, factor);
    logit = repeated - __fmul_rn(each, counts[i]) - (counts[i] > 0 ? once : 0.0f);
  }
}

}  // namespace

void penalize(
    const Tensor& logits, const Tensor& rows, const Tensor& offsets, const Tensor& ids,
    const Tensor& counts, const Tensor& repetition, const Tensor& frequency, const Tensor& presence) {
  STD_TORCH_CHECK(
      logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.stride(1) == 1,
      "logits are float32 [rows, vocab], contiguous in a row");
  const int64_t num_rows = rows.size(0), num_ids = ids.size(0);
  check_column(rows, ScalarType::Long, num_rows, "rows");
  check_column(offsets, ScalarType::Long, num_rows + 1, "offsets");
  check_column(ids, ScalarType::Long, num_ids, "ids");
  check_column(counts, ScalarType::Float, num_ids, "counts");
  check_column(repetition, ScalarType::Double, num_rows, "repetition penalties");
  check_column(frequency, ScalarType::Double, num_rows, "frequency penalties");
  check_column(presence, ScalarType::Double, num_rows, "presence penalties");
  launch(
      logits, penalize_rows, dim3(num_rows), kThreads, written_of<float>(logits), logits.stride(0),
      data_of<int64_t>(rows), data_of<int64_t>(offsets), data_of<int64_t>(ids), data_of<float>(counts),
      data_of<double>(repetition), data_of<double>(frequency), data_of<double>(presence));
}

}  // namespace parley::cuda
