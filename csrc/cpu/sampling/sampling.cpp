// choose_tokens: one token for each row of logits.
#include <atomic>
#include <iterator>
#include <vector>

#include "common/arguments.h"
#include "common/team.h"
#include "kernels/kernels.h"

#include <torch/csrc/stable/ops.h>

namespace parley {
namespace {

// One for each thread of a team. They are the caller's, which all its threads use until the next call.
ChoiceScratch* fit_scratches(int num_threads, int64_t vocab) {
  static thread_local std::vector<ChoiceScratch> scratches;
  if (std::ssize(scratches) < num_threads) scratches.resize(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) scratches[thread].fit(vocab);
  return scratches.data();
}

}  // namespace

void choose_tokens_cpu(
    const Tensor& logits, const Tensor& temperatures, const Tensor& min_p, const Tensor& top_p,
    const Tensor& top_k, const Tensor& uniforms, const Tensor& tokens) {
  STD_TORCH_CHECK(
      logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.stride(1) == 1,
      "logits are float32 [rows, vocab], contiguous in a row");
  const int64_t num_rows = logits.size(0), vocab = logits.size(1), stride = logits.stride(0);
  STD_TORCH_CHECK(vocab > 0, "there is no token to choose");
  const auto* const values = static_cast<const float*>(logits.const_data_ptr());
  const auto* const temperature = read_column<double>(temperatures, num_rows, "temperatures");
  const auto* const least = read_column<double>(min_p, num_rows, "min_p");
  const auto* const share = read_column<double>(top_p, num_rows, "top_p");
  const auto* const best = read_column<int64_t>(top_k, num_rows, "top_k");
  const auto* const uniform = read_column<double>(uniforms, num_rows, "uniforms");
  read_column<int64_t>(tokens, num_rows, "tokens");
  auto* const chosen = static_cast<int64_t*>(tokens.mutable_data_ptr());
  bool is_random = false;
  for (int64_t row = 0; row < num_rows; ++row) {
    STD_TORCH_CHECK(
        temperature[row] >= 0 && best[row] >= 1 && 0 <= uniform[row] && uniform[row] < 1,
        "temperatures are not negative, top_k is at least 1, uniforms are in [0, 1)");
    is_random |= temperature[row] > 0;
  }

  Team* const team =
      num_rows > 1 ? &Team::of_size(static_cast<int>(torch::stable::get_num_threads())) : nullptr;
  ChoiceScratch* const scratches = fit_scratches(team ? team->size() : 1, is_random ? vocab : 0);
  const Choose choose = kernels().choose;
  const auto choose_row = [&](int64_t row, ChoiceScratch& scratch) {
    const Choice choice{
        .logits = values + row * stride, .vocab = vocab,
        .temperature = static_cast<float>(temperature[row]), .min_p = least[row],
        .top_p = share[row], .top_k = best[row], .uniform = uniform[row]};
    chosen[row] = choose(choice, scratch);
  };
  if (team == nullptr) {
    for (int64_t row = 0; row < num_rows; ++row) choose_row(row, scratches[0]);
    return;
  }
  std::atomic<int64_t> next{0};
  team->run([&](int thread) {
    for (int64_t row; (row = next++) < num_rows;) choose_row(row, scratches[thread]);
  });
}

}  // namespace parley
