// A team of threads that do one piece of work together, phase by phase.
//
// A step of the model is hundreds of short phases, and each needs all of the one before it. So the threads
// stay for the whole step and go from phase to phase by counters in memory, which takes a fraction of a
// microsecond, instead of being started for each. A phase is over when its pieces are done, not when all
// threads have come: a thread that loses its processor for a millisecond or two delays nobody, and finds
// later that its phase is over.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace parley {

class Team {
 public:
  // The process' team of this size, made when it is first asked for. It is never destroyed: its threads
  // sleep between steps and end with the process. Throws if the system gives no more threads, and leaves
  // none, so that the caller may try again.
  static Team& of_size(int size);

  int size() const { return size_; }

  // Calls work(0) here and work(1) to work(size - 1) on the others, unless all is done before one of them
  // has begun; returns when all who have begun are done. Work must not throw, and must ask for the same
  // phases in all threads. Callers take turns.
  void run(const std::function<void(int)>& work);

  // Within work, a phase: calls part(begin, end) for pieces of [0, count), and returns when all pieces are
  // done, by whomever; what others wrote for them is seen then. A thread takes its own share from one end to
  // the other, `block` at a time, and then of the shares of those that are slower.
  template <typename Part>
  void share(int thread, int64_t count, int64_t block, Part part) {
    if (count <= 0) return;
    const uint32_t phase = seats_[thread].phase++;
    int64_t done = 0;
    for (int i = 0; i < size_; ++i) {
      const int owner = (thread + i) % size_;
      const int64_t begin = count * owner / size_, end = count * (owner + 1) / size_;
      for (int64_t first; (first = take(owner, phase, begin, end, block)) < end;) {
        const int64_t last = std::min(first + block, end);
        part(first, last);
        done += last - first;
        if (is_time_to_yield(thread)) {
          report(phase, count, done);
          done = 0;
          yield(thread);
        }
      }
    }
    report(phase, count, done);
    wait_for_end(phase);
  }

  // The same in as many pieces as there are threads, for what is soon done.
  template <typename Part>
  void share_evenly(int thread, int64_t count, Part part) {
    share(thread, count, (count + size_ - 1) / size_, part);
  }

 private:
  struct alignas(64) Seat {  // of a thread
    uint32_t phase = 0;      // the next one that it comes to
    std::chrono::steady_clock::time_point yielded;
    std::atomic<uint64_t> taken{0};  // of its share: the phase, and in the 32 bits after it how much
  };

  explicit Team(int size);
  void serve(int thread);
  void start_round(const std::function<void(int)>* work);
  void end_round();
  bool enter();
  void leave();

  // The first of a block of this share that nobody has, which now is the caller's; `end` if there is none,
  // or if the phase is over.
  int64_t take(int owner, uint32_t phase, int64_t begin, int64_t end, int64_t block) {
    std::atomic<uint64_t>& taken = seats_[owner].taken;
    uint64_t seen = taken.load(std::memory_order_relaxed);
    while (seen >> 32 == phase && begin + static_cast<int64_t>(seen & 0xffffffff) < end) {
      if (taken.compare_exchange_weak(seen, seen + block, std::memory_order_relaxed)) {
        return begin + static_cast<int64_t>(seen & 0xffffffff);
      }
    }
    return end;
  }

  void report(uint32_t phase, int64_t count, int64_t done);  // so many more of the phase are done
  void wait_for_end(uint32_t phase);
  bool is_time_to_yield(int thread) const;
  void yield(int thread);

  const int size_;
  const std::unique_ptr<Seat[]> seats_;
  std::mutex turn_;
  const std::function<void(int)>* work_ = nullptr;  // null in a round: the helpers end
  uint32_t number_ = 0, first_phase_ = 0;           // of this round
  alignas(64) std::atomic<uint32_t> round_{0};   // counts calls of run
  alignas(64) std::atomic<uint32_t> inside_{0};  // helpers in this round, and kOpen while more may enter
  alignas(64) std::atomic<int64_t> done_{0};     // of this phase
  alignas(64) std::atomic<uint32_t> ended_{0};   // counts phases
};

}  // namespace parley
