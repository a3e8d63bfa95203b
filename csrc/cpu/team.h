// A team of threads that do one piece of work together and meet in between.
//
// A step of the model is hundreds of short phases, each of which needs the one before it from all threads.
// So the threads stay for the whole step and meet at barriers that spin, which takes a fraction of a
// microsecond, instead of being started for each phase.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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

 private:
  explicit Team(int size);
  void serve(int thread);
  void start_round(const std::function<void(int)>* work);

  const int size_;
  std::mutex turn_;
  const std::function<void(int)>* work_ = nullptr;  // null in a round: the helpers end
  alignas(64) std::atomic<uint32_t> round_{0};    // counts calls of run
  alignas(64) std::atomic<uint32_t> arrived_{0};  // at the barrier
  alignas(64) std::atomic<uint32_t> passed_{0};   // counts barriers
};

}  // namespace parley
