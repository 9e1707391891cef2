// Times of calls of libfastnorm_nccl beside NCCL's functions and the norm by hand.
//
// A graph of each rank holds many calls. A shorter graph of the same calls goes before: as its last
// sums need all ranks, they begin the timed one together. Before both a GPU is busy until all is
// queued. A time is that of the slowest rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "bench/nccl.h"
#include "bench/report.h"

namespace bench {
namespace {

using fastnorm::support::devmem_check;

// Calls of a graph: about so many bytes of rows, so that a replay is long beside its launch.
int calls_of(const Case& c) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  return static_cast<int>(std::clamp<int64_t>(kBytes / c.tensor_bytes(), 8, 64));
}

// Keeps the GPUs busy while one thread queues the work of all.
class Hold {
 public:
  explicit Hold(const NcclRanks& ranks) : ranks_(ranks) {
    for (size_t r = 0; ranks.cuda() && r < ranks.count(); ++r)
      memory_.push_back(ranks.machine(r).allocate(kBytes));
  }
  void enqueue() const {
    for (size_t r = 0; r < memory_.size(); ++r) {
      for (int i = 0; i < kFills; ++i) {
        devmem_check(devmem_fill(ranks_.machine(r).device(), memory_[r].get(), 0, kBytes,
                                 ranks_.streams()[r]));
      }
    }
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 30;
  static constexpr int kFills = 5;

  const NcclRanks& ranks_;
  std::vector<tool::Block> memory_;
};

// The calls of all ranks, many times over.
class Repeated {
 public:
  // `call` enqueues one call of each rank.
  Repeated(const NcclRanks& ranks, const Hold& hold, int calls, bool graphs,
           std::function<void()> call)
      : ranks_(ranks), hold_(hold), calls_(calls), call_(std::move(call)) {
    if (!ranks.cuda()) return;
    for (size_t r = 0; r < ranks.count(); ++r) {
      devmem* const device = ranks.machine(r).device();
      devmem_check(devmem_event_create(device, &begin_.emplace_back()));
      devmem_check(devmem_event_create(device, &end_.emplace_back()));
    }
    if (!graphs) return;
    lead_ = capture(lead_calls());
    timed_ = capture(calls_);
  }
  ~Repeated() {
    ranks_.synchronize();
    for (size_t r = 0; r < begin_.size(); ++r) {
      devmem* const device = ranks_.machine(r).device();
      devmem_event_destroy(device, begin_[r]);
      devmem_event_destroy(device, end_[r]);
      if (!lead_.empty()) devmem_graph_destroy(device, lead_[r]);
      if (!timed_.empty()) devmem_graph_destroy(device, timed_[r]);
    }
  }
  Repeated(const Repeated&) = delete;

  // Microseconds of a call.
  double replay() {
    ranks_.synchronize();
    if (!ranks_.cuda()) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue({}, calls_);
      const auto end = std::chrono::steady_clock::now();
      return std::chrono::duration<double, std::micro>(end - begin).count() / calls_;
    }
    hold_.enqueue();
    enqueue(lead_, lead_calls());
    record(begin_);
    enqueue(timed_, calls_);
    record(end_);
    float longest = 0;
    for (size_t r = 0; r < ranks_.count(); ++r) {
      float ms = 0;
      devmem_check(devmem_event_elapsed_ms(ranks_.machine(r).device(), begin_[r], end_[r], &ms));
      longest = std::max(longest, ms);
    }
    return static_cast<double>(longest) * 1e3 / calls_;
  }

  std::vector<double> us;

 private:
  int lead_calls() const { return calls_ / 2; }

  std::vector<void*> capture(int calls) {
    for (size_t r = 0; r < ranks_.count(); ++r)
      devmem_check(devmem_capture_begin(ranks_.machine(r).device(), ranks_.streams()[r]));
    std::string wrong;
    try {
      for (int i = 0; i < calls; ++i) call_();
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    // All captures must end, also where something was refused.
    std::vector<void*> graphs;
    for (size_t r = 0; r < ranks_.count(); ++r) {
      void* graph = nullptr;
      const int32_t error =
          devmem_capture_end(ranks_.machine(r).device(), ranks_.streams()[r], &graph);
      if (error != 0 && wrong.empty()) wrong = devmem_error();
      if (error == 0) graphs.push_back(graph);
    }
    if (!wrong.empty()) throw std::runtime_error("no graph: " + wrong);
    return graphs;
  }
  void enqueue(const std::vector<void*>& graphs, int calls) {
    for (int i = 0; graphs.empty() && i < calls; ++i) call_();
    for (size_t r = 0; r < graphs.size(); ++r) {
      devmem_check(devmem_graph_launch(ranks_.machine(r).device(), graphs[r], ranks_.streams()[r]));
    }
  }
  void record(const std::vector<void*>& events) {
    for (size_t r = 0; r < events.size(); ++r) {
      devmem_check(devmem_event_record(ranks_.machine(r).device(), events[r], ranks_.streams()[r]));
    }
  }

  const NcclRanks& ranks_;
  const Hold& hold_;
  const int calls_;
  const std::function<void()> call_;
  std::vector<void*> begin_, end_, lead_, timed_;
};

class Timer {
 public:
  Timer(const NcclRanks& ranks, const NcclTimeOptions& options, Watch& watch)
      : ranks_(ranks),
        options_(options),
        watch_(watch),
        default_(ranks, nccl_options(FASTNORM_DTYPE_BF16), true),
        no_peers_(ranks, nccl_options(FASTNORM_DTYPE_BF16, FASTNORM_NCCL_NO_PEERS), true),
        hold_(ranks) {
    default_.require();
    no_peers_.require();
  }

  nlohmann::json time(bool sequence, const Case& c) {
    CallShape shape;
    shape.sequence = sequence;
    shape.tokens = c.rows;
    shape.columns = c.n;
    RankCalls calls(ranks_, shape, Numbers(shape.dtype, ranks_.count(), true));
    const bool by_peers = !sequence && default_.peer(0) != nullptr;
    struct Way {
      const char* prefix;
      std::function<void()> call;
    };
    const bool one_thread = ranks_.cuda() || !by_peers;
    std::vector<Way> ways = {{"", [&] { calls.run(default_, one_thread); }}};
    if (by_peers) ways.push_back({"nccl_", [&] { calls.run(no_peers_, true); }});
    ways.push_back({"by_hand_", [&] { calls.run_by_hand(); }});
    for (const NcclHandles* handles : {&default_, &no_peers_}) {
      calls.reserve(*handles);
      calls.prepare(*handles);
    }
    // NCCL connects at first use, which no graph can hold.
    for (const Way& way : ways) {
      way.call();
      ranks_.synchronize();
    }
    bool graphs = options_.graphs && ranks_.cuda();
    std::string why;
    std::vector<std::unique_ptr<Repeated>> repeated;
    const auto make = [&] {
      repeated.clear();
      for (const Way& way : ways)
        repeated.push_back(
            std::make_unique<Repeated>(ranks_, hold_, calls_of(c), graphs, way.call));
    };
    try {
      make();
    } catch (const std::exception& e) {
      if (!graphs) throw;
      graphs = false;
      why = e.what();
      make();
    }
    for (int round = -1; round < options_.rounds; ++round) {
      for (size_t i = 0; i < repeated.size(); ++i) {
        // Each way is first in some rounds.
        Repeated& of = *repeated[(i + static_cast<size_t>(round + 1)) % repeated.size()];
        const double us = of.replay();
        if (round >= 0) of.us.push_back(us);
      }
    }
    for (const auto& of : repeated) {
      calls.poison();
      of->replay();
      if (const std::string text = calls.difference(); !text.empty())
        throw std::runtime_error(text);
    }
    nlohmann::json row = {{"op", sequence ? "sequence_norm" : "allreduce_norm"},
                          {"dtype", "bf16"},
                          {"rows", c.rows},
                          {"n", c.n},
                          {"way", by_peers ? "peers" : "nccl"},
                          {"calls_per_graph", graphs ? calls_of(c) : 0},
                          {"rounds", options_.rounds}};
    if (!why.empty()) row["no_graphs"] = why;
    const double by_hand = median(repeated.back()->us);
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::string prefix = ways[i].prefix;
      const double us = median(repeated[i]->us);
      row[prefix + "us"] = us;
      row[prefix + "spread"] = spread(repeated[i]->us);
      if (i + 1 < ways.size()) row[prefix + "ratio"] = us / by_hand;
    }
    return row;
  }

  int time_all(nlohmann::json* document) {
    nlohmann::json& results = (*document)["results"] = nlohmann::json::array();
    int failed = 0;
    std::printf("%-15s %6s %6s %5s %10s %10s %10s %8s %8s %8s\n", "op", "rows", "n", "way", "us",
                "on NCCL", "by hand", "ratio", "on NCCL", "spread");
    for (const bool sequence : {false, true}) {
      for (const std::string& text : options_.shapes) {
        Case c = parse_shape(text);
        c.dtype = "bf16";
        if (sequence && c.rows % static_cast<int64_t>(ranks_.count()) != 0) continue;
        const char* const op = sequence ? "sequence_norm" : "allreduce_norm";
        watch_.step(std::string(op) + " " + text);
        try {
          results.push_back(time(sequence, c));
          print(results.back());
        } catch (const std::exception& e) {
          ++failed;
          std::printf("%-15s %6lld %6lld failed: %s\n", op, static_cast<long long>(c.rows),
                      static_cast<long long>(c.n), e.what());
          results.push_back(
              {{"op", op}, {"dtype", "bf16"}, {"rows", c.rows}, {"n", c.n}, {"error", e.what()}});
        }
        std::fflush(stdout);
        if (options_.save) options_.save(*document);
      }
    }
    for (const char* op : {"allreduce_norm", "sequence_norm"}) sum_up(op, results);
    return failed;
  }

 private:
  // The library's times beside those of calls by hand, over all shapes.
  static void sum_up(const std::string& op, const nlohmann::json& results) {
    for (const char* name : {"ratio", "nccl_ratio"}) {
      double logs = 0, worst = 0;
      int count = 0;
      for (const nlohmann::json& row : results) {
        if (row["op"] != op || !row.contains(name)) continue;
        logs += std::log(row[name].get<double>());
        worst = std::max(worst, row[name].get<double>());
        ++count;
      }
      if (count == 0) continue;
      std::printf("%s, %s: %.3f in geometric mean of %d, at most %.3f\n", op.c_str(), name,
                  std::exp(logs / count), count, worst);
    }
  }
  static void print(const nlohmann::json& row) {
    const auto number = [&](const char* name) { return row.value(name, 0.0); };
    std::printf("%-15s %6lld %6lld %5s %10.3f %10.3f %10.3f %8.3f %8.3f %7.1f%%\n",
                row["op"].get<std::string>().c_str(), row["rows"].get<long long>(),
                row["n"].get<long long>(), row["way"].get<std::string>().c_str(), number("us"),
                number("nccl_us"), number("by_hand_us"), number("ratio"), number("nccl_ratio"),
                number("spread") * 100);
    if (row.contains("no_graphs")) std::printf("  %s\n", row["no_graphs"].dump().c_str());
  }

  const NcclRanks& ranks_;
  const NcclTimeOptions& options_;
  Watch& watch_;
  const NcclHandles default_, no_peers_;
  const Hold hold_;
};

}  // namespace

int time_nccl_calls(const NcclRanks& ranks, const NcclTimeOptions& options, Watch& watch,
                    nlohmann::json* document) {
  watch.step("handles to time");
  return Timer(ranks, options, watch).time_all(document);
}

}  // namespace bench
