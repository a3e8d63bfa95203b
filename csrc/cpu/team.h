// A team of threads that do one piece of work together and meet in between.
//
// A step of the model is hundreds of short phases, each of which needs the one before it from all threads.
// So the threads stay for the whole step and meet at barriers that spin, which takes a fraction of a
// microsecond, instead of being started for each phase.
#pragma once

#include <algorithm>
#include <atomic>
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
  // sleep between steps and end with the process. Throws if the system gives no more threads, with none
  // left behind, so that it may be asked for again.
  static Team& of_size(int size);

  int size() const { return size_; }

  // Calls work(0) here and work(1) to work(size - 1) on the others; returns when all are done. Work must
  // not throw. Callers take turns.
  void run(const std::function<void(int)>& work);

  // Within work: waits until all have come here. What they wrote before is seen behind it.
  void meet();

  // Within work: calls part(begin, end) for pieces of [0, count) until others have the rest. A thread takes
  // its own share from one end to the other, `block` at a time, and then of the shares of those that are
  // slower, because something else has their processor. At most once between two meetings.
  template <typename Part>
  void share(int thread, int64_t count, int64_t block, Part part) {
    for (int i = 0; i < size_; ++i) {
      const int owner = (thread + i) % size_;
      const int64_t begin = count * owner / size_, end = count * (owner + 1) / size_;
      while (true) {
        const int64_t first = begin + shares_[owner].taken.fetch_add(block, std::memory_order_relaxed);
        if (first >= end) break;
        part(first, std::min(first + block, end));
      }
    }
  }

  // The same in as many parts as there are threads, for what is soon done.
  template <typename Part>
  void share_evenly(int thread, int64_t count, Part part) const {
    const int64_t begin = count * thread / size_, end = count * (thread + 1) / size_;
    if (begin < end) part(begin, end);
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> taken{0};
  };

  explicit Team(int size);
  void serve(int thread);
  void start_round(const std::function<void(int)>* work);

  const int size_;
  const std::unique_ptr<Share[]> shares_;  // of each thread; whole behind each meeting
  std::mutex turn_;
  const std::function<void(int)>* work_ = nullptr;  // null in a round: the helpers end
  alignas(64) std::atomic<uint32_t> round_{0};    // counts calls of run
  alignas(64) std::atomic<uint32_t> arrived_{0};  // at the barrier
  alignas(64) std::atomic<uint32_t> passed_{0};   // counts barriers
};

}  // namespace parley
