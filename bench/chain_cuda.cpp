// Times a chain of norms on a GPU, each of which normalises what the one before it wrote: as one
// CUDA graph, and launched one by one. With programmatic dependent launch and without.
#include <cstdio>

#include "bench/call.h"
#include "bench/devices.h"
#include "bench/gpu.h"

namespace bench {
namespace {

constexpr int64_t kAlignment = 1024;

// How the calls of a chain follow each other.
struct Mode {
  const char* name;
  bool pdl;  // of the context
  uint32_t flags;
};
constexpr Mode kModes[] = {{"off", false, 0}, {"default", true, 0}, {"constant", true, Call::kPdl}};

// A chain over two buffers: a call reads the one that the call before it wrote.
class Chain {
 public:
  Chain(Gpu& gpu, const Case& c, int calls)
      : gpu_(gpu),
        calls_(calls),
        layout_(c, kAlignment),
        arena_(gpu.arena(layout_.bytes(1), c.dtype)),
        call_(c, FASTNORM_DEVICE_CUDA, layout_.at(arena_, 0)) {}

  void use(const Mode& mode) {
    gpu_.set_pdl(mode.pdl);
    call_.set_flags(mode.flags);
    call_.prepare(gpu_.context());
  }
  void run() {
    Buffers b = layout_.at(arena_, 0);
    for (int i = 0; i < calls_; ++i) {
      call_.set(b);
      call_.run(gpu_.context(), gpu_.queue());
      std::swap(b.x, b.y);
    }
  }
  fastnorm_info query() { return call_.query(gpu_.context()); }

 private:
  Gpu& gpu_;
  int calls_;
  Layout layout_;
  char* arena_;
  Call call_;
};

// Microseconds of a call in each mode.
struct ChainTimes {
  double graph[std::size(kModes)], eager[std::size(kModes)];
};

ChainTimes time_chain(Gpu& gpu, Chain& chain, const Options& options) {
  std::vector<Timed> graphs;
  std::vector<double> eager[std::size(kModes)];
  for (const Mode& mode : kModes) {
    chain.use(mode);
    graphs.emplace_back(gpu.capture([&] { chain.run(); }));
    gpu.replay(graphs.back().graph, false);
  }
  for (int i = 0; i < options.replays; ++i) {
    for (size_t m = 0; m < std::size(kModes); ++m) {
      graphs[m].us.push_back(gpu.replay(graphs[m].graph, false));
      chain.use(kModes[m]);
      eager[m].push_back(gpu.time([&] { chain.run(); }));
    }
  }
  ChainTimes times;
  for (size_t m = 0; m < std::size(kModes); ++m) {
    times.graph[m] = median(graphs[m].us) / options.chain;
    times.eager[m] = median(eager[m]) / options.chain;
  }
  return times;
}

}  // namespace

int bench_chain_cuda(int id, const std::vector<Case>& cases, const Options& options) {
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  document["chain"] = options.chain;
  nlohmann::json& results = document["results"] = nlohmann::json::array();
  std::printf("microseconds of a call in a chain of %d\n%-18s %-4s %7s %8s", options.chain, "op",
              "type", "rows", "n");
  for (const char* how : {"graph", "eager"}) {
    for (const Mode& mode : kModes)
      std::printf(" %14s", (std::string(how) + ' ' + mode.name).c_str());
  }
  std::printf("  kernel\n");
  int failed = 0;
  for (const Case& c : cases) {
    nlohmann::json row = {{"op", c.op}, {"dtype", c.dtype}, {"rows", c.rows}, {"n", c.n}};
    std::printf("%-18s %-4s %7lld %8lld", c.op.c_str(), c.dtype.c_str(),
                static_cast<long long>(c.rows), static_cast<long long>(c.n));
    try {
      if (c.backward() || c.heads() || c.codes() != Codes::kNone)
        throw std::invalid_argument("a chain is of calls that write a row to y");
      Chain chain(gpu, c, options.chain);
      const ChainTimes times = time_chain(gpu, chain, options);
      const std::string kernel = chain.query().kernel;
      for (size_t m = 0; m < std::size(kModes); ++m) {
        row[std::string("graph_us_") + kModes[m].name] = times.graph[m];
        row[std::string("eager_us_") + kModes[m].name] = times.eager[m];
      }
      row["kernel"] = kernel;
      for (const auto& of : {times.graph, times.eager}) {
        for (size_t m = 0; m < std::size(kModes); ++m) std::printf(" %14.3f", of[m]);
      }
      std::printf("  %s\n", kernel.c_str());
    } catch (const std::exception& e) {
      ++failed;
      std::printf(" failed: %s\n", e.what());
      row["error"] = e.what();
    }
    std::fflush(stdout);
    results.push_back(row);
    options.save(document);
  }
  return failed;
}

}  // namespace bench
