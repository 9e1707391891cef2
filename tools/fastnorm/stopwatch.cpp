#include "stopwatch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "progress.h"
#include "yardstick.h"

namespace fastnorm::tool {
namespace {

using support::devmem_check;

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 != 0 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

Timing summary(const std::vector<double>& calls, const std::vector<double>& copies) {
  const auto [least, most] = std::minmax_element(calls.begin(), calls.end());
  const double middle = median(calls);
  return {middle, median(copies), (*most - *least) / middle};
}

// --- GPU ---

// Something recorded on a stream once and replayed.
class Graph {
 public:
  template <typename Record>
  Graph(const Machine& machine, Record record) : machine_(machine) {
    devmem_check(devmem_capture_begin(machine.device(), machine.stream()));
    try {
      record();
    } catch (...) {  // end the capture, or the stream stays unusable
      void* unused = nullptr;
      if (devmem_capture_end(machine.device(), machine.stream(), &unused) == 0) {
        devmem_graph_destroy(machine.device(), unused);
      }
      throw;
    }
    devmem_check(devmem_capture_end(machine.device(), machine.stream(), &graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { devmem_graph_destroy(machine_.device(), graph_); }

  void launch() const {
    devmem_check(devmem_graph_launch(machine_.device(), graph_, machine_.stream()));
  }

 private:
  const Machine& machine_;
  void* graph_ = nullptr;
};

class Event {
 public:
  explicit Event(const Machine& machine) : machine_(machine) {
    devmem_check(devmem_event_create(machine.device(), &event_));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { devmem_event_destroy(machine_.device(), event_); }

  void record() const {
    devmem_check(devmem_event_record(machine_.device(), event_, machine_.stream()));
  }
  double us_since(const Event& start) const {
    float ms = 0;
    devmem_check(devmem_event_elapsed_ms(machine_.device(), start.event_, event_, &ms));
    return ms * 1e3;
  }

 private:
  const Machine& machine_;
  void* event_ = nullptr;
};

Timing time_gpu(const Machine& machine, const TimedCalls& timed, int repeats) {
  constexpr size_t kFlushBytes = size_t{256} << 20;  // some times the L2 of any GPU
  const Block flush = machine.allocate(kFlushBytes);
  const auto count = static_cast<double>(timed.sets.size());
  const Graph calls(machine, [&] {
    for (size_t i = 0; i < timed.sets.size(); ++i) timed.run(i);
  });
  const Graph copies(machine, [&] {
    for (const BufferSet& set : timed.sets) {
      devmem_check(devmem_copy(machine.device(), set.outputs, set.inputs, timed.copy_bytes,
                               machine.stream()));
    }
  });
  const Event start(machine), stop(machine);
  const auto time_us = [&](const Graph& graph) {
    devmem_check(devmem_fill(machine.device(), flush.get(), 0, kFlushBytes, machine.stream()));
    start.record();
    graph.launch();
    stop.record();
    return stop.us_since(start) / count;
  };
  std::vector<double> call_us, copy_us;
  for (int i = -1; i < repeats; ++i) {  // the first round warms up
    show_sample(i < 0 ? 0 : static_cast<size_t>(i), static_cast<size_t>(repeats));
    const double call = time_us(calls), copy = time_us(copies);
    if (i < 0) continue;
    call_us.push_back(call);
    copy_us.push_back(copy);
  }
  return summary(call_us, copy_us);
}

// --- CPU ---

template <typename Body>
double elapsed_us(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

struct CopyTask {
  const TimedCalls* timed;
  int passes;
  bool non_temporal;
};

// Each thread copies its slice of every set: no thread is started in between.
void copy_slice(void* user, size_t begin, size_t end) {
  const CopyTask& task = *static_cast<const CopyTask*>(user);
  for (int pass = 0; pass < task.passes; ++pass) {
    for (const BufferSet& set : task.timed->sets) {
      if (task.non_temporal) {
        copy_non_temporal(set.outputs + begin, set.inputs + begin, end - begin);
      } else {
        std::memcpy(set.outputs + begin, set.inputs + begin, end - begin);
      }
    }
  }
}

Timing time_cpu(const TimedCalls& timed, int repeats, int threads) {
  // Enough work in a sample that reading the clock is nothing.
  constexpr size_t kSampleBytes = size_t{64} << 20;
  const size_t moved = timed.sets.size() * timed.copy_bytes * 2;
  const int passes =
      moved >= kSampleBytes ? 1 : static_cast<int>(std::min<size_t>(kSampleBytes / moved, 20000));
  const double count = static_cast<double>(passes) * static_cast<double>(timed.sets.size());
  const auto copy_us = [&](bool non_temporal) {
    CopyTask task{&timed, passes, non_temporal};
    return elapsed_us([&] { on_slices(threads, timed.copy_bytes, copy_slice, &task); }) / count;
  };
  std::vector<double> call_us, streamed_us, cached_us;
  for (int i = -1; i < repeats; ++i) {
    show_sample(i < 0 ? 0 : static_cast<size_t>(i), static_cast<size_t>(repeats));
    const double call = elapsed_us([&] {
      for (int pass = 0; pass < passes; ++pass) {
        for (size_t i = 0; i < timed.sets.size(); ++i) timed.run(i);
      }
    });
    const double streamed = copy_us(true);
    const double cached = timed.cold ? streamed : copy_us(false);
    if (i < 0) continue;
    call_us.push_back(call / count);
    streamed_us.push_back(streamed);
    cached_us.push_back(cached);
  }
  return summary(call_us, median(cached_us) < median(streamed_us) ? cached_us : streamed_us);
}

struct ReadTask {
  const std::byte* data;
  std::atomic<uint64_t> sum;  // so that no read can be left out
};

void read_slice(void* user, size_t begin, size_t end) {
  ReadTask& task = *static_cast<ReadTask*>(user);
  using Words = uint64_t __attribute__((vector_size(64)));
  constexpr size_t kChains = 4;  // of additions, independent of each other
  Words sums[kChains] = {};
  for (size_t i = begin; i + sizeof sums <= end; i += sizeof sums) {
    Words words[kChains];
    std::memcpy(words, task.data + i, sizeof words);
    for (size_t k = 0; k < kChains; ++k) sums[k] += words[k];
  }
  const Words all = sums[0] + sums[1] + sums[2] + sums[3];
  for (size_t k = 0; k < 8; ++k) task.sum += all[k];
}

}  // namespace

double host_read_gb_per_s(const std::byte* data, size_t bytes, int repeats, int threads) {
  // Enough work in a sample that starting threads is nothing.
  constexpr size_t kSampleBytes = size_t{64} << 20;
  const size_t passes = std::max<size_t>(1, kSampleBytes / std::max<size_t>(bytes, 1));
  std::vector<double> us;
  ReadTask task{data, {}};
  for (int i = -1; i < repeats; ++i) {  // the first pass warms up
    const double taken = elapsed_us([&] {
      for (size_t pass = 0; pass < passes; ++pass) on_slices(threads, bytes, read_slice, &task);
    });
    if (i >= 0) us.push_back(taken / static_cast<double>(passes));
  }
  return static_cast<double>(bytes) / median(us) / 1e3;
}

Timing time_calls(const Machine& machine, const TimedCalls& calls, int repeats, int threads) {
  return machine.target().is_cuda() ? time_gpu(machine, calls, repeats)
                                    : time_cpu(calls, repeats, threads);
}

Timing time_workload(const Machine& machine, const Workload& workload, int repeats, int threads) {
  // One workspace for all calls: they differ in addresses only.
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(machine.context(), workload.calls.data(), &info));
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  check(fastnorm_norm_prepare(machine.context(), workload.calls.data()));
  const auto run = [&](size_t i) {
    check(fastnorm_norm(machine.context(), &workload.calls[i], workspace.get(),
                        info.workspace_bytes, machine.stream()));
  };
  return time_calls(machine, {run, workload.sets, workload.copy_bytes, workload.cold}, repeats,
                    threads);
}

}  // namespace fastnorm::tool
