#include "team.h"

#include <exception>
#include <map>
#include <memory>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "common.h"

namespace parley {
namespace {

// Longer than any phase that is well balanced, and short beside what waking a thread costs when the
// other one has lost its core: then the core is needed elsewhere.
constexpr int kSpins = 4000;       // some 50 to 100 microseconds
constexpr int kIdleSpins = 20000;  // between two steps, a few hundred microseconds

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` is no longer `seen`: spinning first, asleep then.
void wait_for_change(std::atomic<uint32_t>& value, uint32_t seen, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != seen) return;
    pause();
  }
  value.wait(seen, std::memory_order_acquire);
}

// Each helper keeps to a processor of its own: a new thread otherwise begins on its starter's. Only where
// the team has all processors that we may use: on fewer of them, teams of several processes would all
// choose the first ones, and what else runs there could not be evaded.
void keep_to_processor(int thread, int size) {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  if (CPU_COUNT(&allowed) != size) return;
  int place = 0;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || place++ != thread) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(processor, &own);
    pthread_setaffinity_np(pthread_self(), sizeof(own), &own);  // refused: any will do
    return;
  }
#endif
}

}  // namespace

Team& Team::of_size(int size) {
  static std::mutex mutex;
  static auto* const teams = new std::map<int, std::unique_ptr<Team>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& team = (*teams)[size];
  if (!team) team.reset(new Team(size));
  return *team;
}

Team::Team(int size) : size_(size), shares_(new Share[size]) {
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(size);
    for (int thread = 1; thread < size; ++thread) {
      helpers.emplace_back([this, thread] { serve(thread); });
    }
  } catch (const std::exception& error) {
    start_round(nullptr);
    for (std::thread& helper : helpers) helper.join();  // they look at this team, which goes
    STD_TORCH_CHECK(
        false, "thread ", helpers.size() + 2, " of ", size, " could not be started: ", error.what());
  }
  for (std::thread& helper : helpers) helper.detach();
}

void Team::start_round(const std::function<void(int)>* work) {
  work_ = work;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void Team::run(const std::function<void(int)>& work) {
  const std::lock_guard<std::mutex> lock(turn_);
  if (size_ > 1) start_round(&work);
  work(0);
  meet();
}

void Team::serve(int thread) {
  keep_to_processor(thread, size_);
  uint32_t round = 0;
  while (true) {
    wait_for_change(round_, round, kIdleSpins);
    ++round;
    if (work_ == nullptr) return;
    (*work_)(thread);
    meet();
  }
}

void Team::meet() {
  const uint32_t passed = passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    for (int i = 0; i < size_; ++i) shares_[i].taken.store(0, std::memory_order_relaxed);
    if (size_ == 1) return;
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
  } else {
    wait_for_change(passed_, passed, kSpins);
  }
}

}  // namespace parley
