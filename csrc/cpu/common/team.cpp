#include "common/team.h"

#include <exception>
#include <map>
#include <memory>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "common/arguments.h"

namespace parley {
namespace {

// Longer than the last piece of a phase takes, and short beside what waking a thread costs when the one
// that has that piece has lost its processor.
constexpr int kSpins = 4000;       // some 50 to 100 microseconds
constexpr int kIdleSpins = 20000;  // between two steps, a few hundred microseconds

// A thread yields its processor this often, between two pieces, when it holds nothing that the others need.
// Otherwise the system takes the processor away within a piece. Yielding takes a fraction of a microsecond.
constexpr std::chrono::microseconds kYieldInterval{100};

constexpr uint32_t kOpen = 1u << 31;  // in inside_, above the number of helpers

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` is no longer `seen`: spinning first, asleep then. Who changes it does so in sequential
// order: notify_all first looks whether somebody sleeps, and must not do so before the change is seen.
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
void keep_to_processor([[maybe_unused]] std::thread& helper, int thread, int size) {
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
    pthread_setaffinity_np(helper.native_handle(), sizeof(own), &own);  // refused: any will do
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

Team::Team(int size) : size_(size), seats_(new Seat[size]) {
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(size);
    for (int thread = 1; thread < size; ++thread) {
      helpers.emplace_back([this, thread] { serve(thread); });
      keep_to_processor(helpers.back(), thread, size);  // here, so that it is done before the first step
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
  number_ = round_.load(std::memory_order_relaxed) + 1;
  first_phase_ = ended_.load(std::memory_order_relaxed);
  inside_.store(kOpen, std::memory_order_release);
  round_.fetch_add(1);
  round_.notify_all();
}

// All is done: threads that have not begun need not, and late ones are awaited.
void Team::end_round() {
  uint32_t inside = inside_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  for (; inside != 0; inside = inside_.load(std::memory_order_acquire)) {
    wait_for_change(inside_, inside, kSpins);
  }
}

bool Team::enter() {
  uint32_t inside = inside_.load(std::memory_order_relaxed);
  while (inside & kOpen) {
    if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

void Team::leave() {
  if (inside_.fetch_sub(1) == 1) inside_.notify_all();
}

void Team::run(const std::function<void(int)>& work) {
  const std::lock_guard<std::mutex> lock(turn_);
  start_round(&work);
  seats_[0].phase = first_phase_;
  work(0);
  end_round();
}

void Team::serve(int thread) {
  uint32_t seen = 0, served = 0;  // rounds
  while (true) {
    wait_for_change(round_, seen, kIdleSpins);
    seen = round_.load(std::memory_order_acquire);
    if (!enter()) continue;
    if (work_ == nullptr) return;
    if (number_ != served) {  // who came late to a round may have entered the next one before it was counted
      served = number_;
      seats_[thread].phase = first_phase_;
      (*work_)(thread);
    }
    leave();
  }
}

void Team::report(uint32_t phase, int64_t count, int64_t done) {
  if (done == 0 || done_.fetch_add(done, std::memory_order_acq_rel) + done < count) return;
  done_.store(0, std::memory_order_relaxed);
  for (int i = 0; i < size_; ++i) {
    seats_[i].taken.store(static_cast<uint64_t>(phase + 1) << 32, std::memory_order_relaxed);
  }
  ended_.store(phase + 1);
  if (size_ > 1) ended_.notify_all();
}

void Team::wait_for_end(uint32_t phase) {
  const auto is_over = [&](uint32_t ended) { return static_cast<int32_t>(ended - phase) > 0; };
  for (uint32_t ended; !is_over(ended = ended_.load(std::memory_order_acquire));) {
    wait_for_change(ended_, ended, kSpins);
  }
}

bool Team::is_time_to_yield(int thread) const {
  return size_ > 1 && std::chrono::steady_clock::now() - seats_[thread].yielded >= kYieldInterval;
}

void Team::yield(int thread) {
  std::this_thread::yield();
  seats_[thread].yielded = std::chrono::steady_clock::now();
}

}  // namespace parley
