// Times heads, and the gradients of heads, on the CPU beside a loop that moves the same bytes.
//
// Cases that are larger than the caches rotate over distinct buffers; others stay in the cache.
#include <cstdio>
#include <cstring>

#include "bench/call.h"
#include "bench/cpu.h"
#include "bench/norm_heads_backward.h"

namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{512} << 20;
constexpr int64_t kCacheBytes = int64_t{1} << 20;  // more than this moved is called cold

int64_t whole_pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Calls of a case with memory of their own, and the loop beside them.
class ForwardCalls {
 public:
  using Case = NormHeadsCase;

  static int64_t set_bytes(const Case& c) {
    return x_bytes(c) + whole_pages(c.cache_bytes()) +
           (c.in_place() ? 0 : whole_pages(c.stream_bytes()));
  }
  ForwardCalls(fastnorm_context*, const Case& c, int sets)
      : c_(c),
        sets_(sets),
        memory_(allocate(sets * set_bytes(c))),
        tables_(c),
        call_(c, FASTNORM_DEVICE_CPU, buffers(0)) {
    fill(memory_.get(), sets * set_bytes(c), c.dtype);
  }

  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(buffers(i));
    call_.run(context, nullptr);
  }
  // Tokens [begin, end) of what the loop moves: rows in place where the call works so.
  void stream_tokens(int i, int64_t begin, int64_t end, bool cold) const {
    char* const x = at(i);
    if (!c_.in_place()) {
      char* const spare = x + x_bytes(c_) + whole_pages(c_.cache_bytes());
      const int64_t bytes = c_.stream_bytes(), token = bytes / c_.tokens;
      const int64_t stop = end == c_.tokens ? bytes : end * token;
      if (cold)
        return stream_copy(spare + begin * token, x + begin * token, stop - begin * token, true);
      std::memcpy(spare + begin * token, x + begin * token,
                  static_cast<size_t>(stop - begin * token));
      return;
    }
    for (int64_t t = begin; t < end; ++t) {
      char* const row = x + t * c_.token_bytes();
      stream_copy(row, row, c_.read_bytes(), false);
    }
  }
  std::string ceiling(bool cold) const {
    return c_.in_place() ? "rows in place" : cold ? "non-temporal copy" : "memcpy in cache";
  }

 private:
  static int64_t x_bytes(const Case& c) {
    return whole_pages(std::max(c.buffer_bytes(), c.stream_bytes()));
  }
  char* at(int i) const { return memory_.get() + i % sets_ * set_bytes(c_); }
  NormHeadsBuffers buffers(int i) {
    return {at(i),
            at(i) + x_bytes(c_),
            tables_.weight.data(),
            tables_.cos.data(),
            tables_.sin.data(),
            tables_.scale.data(),
            tables_.positions.data(),
            tables_.slots.data()};
  }

  const Case c_;
  const int sets_;
  Memory memory_;
  NormHeadsTables tables_;
  NormHeadsCall call_;
};

// The same of gradients. The loop beside them reads dy and x, and writes dx.
class BackwardCalls {
 public:
  using Case = NormHeadsBackwardCase;

  static int64_t set_bytes(const Case& c) { return 3 * tensor_bytes(c) + statistics_bytes(c); }
  BackwardCalls(fastnorm_context* context, const Case& c, int sets)
      : c_(c),
        sets_(sets),
        memory_(allocate(sets * set_bytes(c))),
        tables_(c.heads),
        weights_(allocate(4 * NormHeadsBackwardCall::weight_bytes(c))),
        call_(c, FASTNORM_DEVICE_CPU, buffers(0)),
        workspace_bytes_(call_.query(context).workspace_bytes),
        workspace_(allocate(std::max<int64_t>(1, static_cast<int64_t>(workspace_bytes_)))) {
    fill(memory_.get(), sets * set_bytes(c), c.heads.dtype);
    fill(weights_.get(), 4 * NormHeadsBackwardCall::weight_bytes(c), c.heads.dtype);
    for (int i = 0; i < sets; ++i) fill(buffers(i).rstd, statistics_bytes(c), "f32");
  }

  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(buffers(i));
    call_.run(context, workspace_bytes_ == 0 ? nullptr : workspace_.get(), workspace_bytes_,
              nullptr);
  }
  void stream_tokens(int i, int64_t begin, int64_t end, bool cold) const {
    const int64_t bytes = c_.stream_bytes(), token = bytes / c_.heads.tokens / 64 * 64;
    const int64_t stop = end == c_.heads.tokens ? bytes : end * token, from = begin * token;
    const NormHeadsBackwardBuffers b = buffers(i);
    const char* const read[] = {b.dy + from, b.x + from};
    stream_join(b.dx + from, read, c_.reads(), stop - from, cold);
  }
  std::string ceiling(bool cold) const {
    return std::string(c_.reads() == 2 ? "R2W1" : "R1W1") + (cold ? " non-temporal" : " in cache");
  }

 private:
  // A stream moves as many bytes of each tensor.
  static int64_t tensor_bytes(const Case& c) {
    return whole_pages(std::max(c.tensor_bytes(), c.stream_bytes()));
  }
  static int64_t statistics_bytes(const Case& c) { return whole_pages(c.statistics_bytes()); }
  NormHeadsBackwardBuffers buffers(int i) const {
    char* const base = memory_.get() + i % sets_ * set_bytes(c_);
    const int64_t tensor = tensor_bytes(c_);
    return {base,
            base + tensor,
            base + 2 * tensor,
            base + 3 * tensor,
            weights_.get(),
            const_cast<float*>(tables_.cos.data()),
            const_cast<float*>(tables_.sin.data()),
            const_cast<int32_t*>(tables_.positions.data())};
  }

  const Case c_;
  const int sets_;
  Memory memory_;
  NormHeadsTables tables_;
  Memory weights_;
  NormHeadsBackwardCall call_;
  const uint64_t workspace_bytes_;
  Memory workspace_;
};

template <class Calls>
NormHeadsResult time_calls(fastnorm_context* context, const typename Calls::Case& c, int64_t tokens,
                           const Options& options) {
  const int64_t bytes = Calls::set_bytes(c);
  const bool cold = c.bytes_moved() > kCacheBytes;
  const auto sets = static_cast<int>(cold ? std::max<int64_t>(2, kColdBytes / bytes) : 1);
  // Small cases take many calls to a sample, so that the clock's own cost is nothing.
  const auto calls = static_cast<int>(
      cold ? sets : std::max<int64_t>(1, (int64_t{64} << 20) / std::max<int64_t>(bytes, 1)));
  Calls of(context, c, sets);
  const fastnorm_info info = of.query(context);

  std::vector<double> ours, ceiling;
  for (int pass = -1; pass < options.replays; ++pass) {  // the first pass warms up
    const double us = time_us([&] {
      for (int i = 0; i < calls; ++i) of.run(context, i);
    });
    const double copy_us = time_us([&] {
      on_threads(cold ? options.threads : 1, tokens, 1, [&](int64_t begin, int64_t end) {
        for (int i = 0; i < calls; ++i) of.stream_tokens(i, begin, end, cold);
      });
    });
    if (pass < 0) continue;
    ours.push_back(us / calls);
    ceiling.push_back(copy_us / calls);
  }
  NormHeadsResult r;
  r.us = median(ours);
  r.spread = spread(ours);
  r.ceiling_us = median(ceiling);
  r.ceiling = of.ceiling(cold);
  r.kernel = info.kernel;
  r.more["threads"] = options.threads;
  r.more["cold"] = cold;
  if (info.workspace_bytes != 0) r.more["workspace_bytes"] = info.workspace_bytes;
  return r;
}

}  // namespace

int bench_norm_heads_cpu(const std::vector<NormHeadsCase>& cases, const Options& options) {
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all_heads<NormHeadsCase>(
      cases,
      [&](const NormHeadsCase& c) {
        return time_calls<ForwardCalls>(context.get(), c, c.tokens, options);
      },
      options.save, &document);
}

int bench_norm_heads_backward_cpu(const std::vector<NormHeadsBackwardCase>& cases,
                                  const Options& options) {
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all_heads<NormHeadsBackwardCase>(
      cases,
      [&](const NormHeadsBackwardCase& c) {
        return time_calls<BackwardCalls>(context.get(), c, c.heads.tokens, options);
      },
      options.save, &document);
}

}  // namespace bench
