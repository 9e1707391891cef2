#include "stopwatch.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "yardstick.h"

namespace fastnorm::tool {
namespace {

using support::devmem_check;

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 != 0 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

// Workspace for any of the calls: they differ in addresses only.
struct Workspace {
  Workspace(const Machine& machine, const Workload& workload) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(fastnorm_norm_query(machine.context(), workload.calls.data(), &info));
    bytes = info.workspace_bytes;
    if (bytes != 0) memory = machine.allocate(bytes);
  }
  Block memory;
  size_t bytes = 0;
};

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

Timing time_gpu(const Machine& machine, const Workload& workload, int repeats) {
  constexpr size_t kFlushBytes = size_t{256} << 20;  // some times the L2 of any GPU
  const Block flush = machine.allocate(kFlushBytes);
  const Workspace workspace(machine, workload);
  const auto count = static_cast<double>(workload.sets.size());
  check(fastnorm_norm_prepare(machine.context(), workload.calls.data()));
  const Graph calls(machine, [&] {
    for (const fastnorm_norm_args& args : workload.calls) {
      check(fastnorm_norm(machine.context(), &args, workspace.memory.get(), workspace.bytes,
                          machine.stream()));
    }
  });
  const Graph copies(machine, [&] {
    for (const BufferSet& set : workload.sets) {
      devmem_check(devmem_copy(machine.device(), set.outputs, set.inputs, workload.copy_bytes,
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
  const Workload* workload;
  int passes;
  bool non_temporal;
};

// Each thread copies its slice of every set: no thread is started in between.
void copy_slice(void* user, size_t begin, size_t end) {
  const CopyTask& task = *static_cast<const CopyTask*>(user);
  for (int pass = 0; pass < task.passes; ++pass) {
    for (const BufferSet& set : task.workload->sets) {
      if (task.non_temporal) {
        copy_non_temporal(set.outputs + begin, set.inputs + begin, end - begin);
      } else {
        std::memcpy(set.outputs + begin, set.inputs + begin, end - begin);
      }
    }
  }
}

Timing time_cpu(const Machine& machine, const Workload& workload, int repeats, int threads) {
  // Enough work in a sample that reading the clock is nothing.
  constexpr size_t kSampleBytes = size_t{64} << 20;
  const size_t moved = workload.sets.size() * workload.copy_bytes * 2;
  const int passes =
      moved >= kSampleBytes ? 1 : static_cast<int>(std::min<size_t>(kSampleBytes / moved, 20000));
  const Workspace workspace(machine, workload);
  const double count = static_cast<double>(passes) * static_cast<double>(workload.sets.size());
  const auto copy_us = [&](bool non_temporal) {
    CopyTask task{&workload, passes, non_temporal};
    return elapsed_us([&] { on_slices(threads, workload.copy_bytes, copy_slice, &task); }) / count;
  };
  std::vector<double> call_us, streamed_us, cached_us;
  for (int i = -1; i < repeats; ++i) {
    const double call = elapsed_us([&] {
      for (int pass = 0; pass < passes; ++pass) {
        for (const fastnorm_norm_args& args : workload.calls) {
          check(fastnorm_norm(machine.context(), &args, workspace.memory.get(), workspace.bytes,
                              nullptr));
        }
      }
    });
    const double streamed = copy_us(true);
    const double cached = workload.cold ? streamed : copy_us(false);
    if (i < 0) continue;
    call_us.push_back(call / count);
    streamed_us.push_back(streamed);
    cached_us.push_back(cached);
  }
  return summary(call_us, median(cached_us) < median(streamed_us) ? cached_us : streamed_us);
}

}  // namespace

Timing time_workload(const Machine& machine, const Workload& workload, int repeats, int threads) {
  return machine.target().is_cuda() ? time_gpu(machine, workload, repeats)
                                    : time_cpu(machine, workload, repeats, threads);
}

}  // namespace fastnorm::tool
