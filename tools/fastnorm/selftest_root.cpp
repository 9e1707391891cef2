// The reciprocal root, over every positive float, through the public interface.
//
// For rows of one element RMSNorm stores rstd = 1 / sqrt(v) with v = x * x + eps, each operation
// rounded to f32. Squares alone reach about half of the floats: where x runs through [2^k,
// 2^(k+1)), neighbouring squares lie up to four units in the last place of 2^(2k) apart. With eps =
// 0, 1, 2 and 3 such units the sums fill the gaps. The values that were reached are counted in a
// bitmap, so "every" is an observation, not a claim.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <thread>

#include "selftest.h"
#include "yardstick.h"

namespace fastnorm::tool {
namespace {

constexpr int kLeastExponent = -75;  // x * x is 2^-150 here, which rounds to 0
constexpr int kMostExponent = 63;
constexpr int64_t kBinade = int64_t{1} << 23;  // floats in [2^k, 2^(k+1))
// Rows of a call: on a CPU so many that they stay in its caches.
int64_t chunk_rows(const Machine& machine) {
  return int64_t{1} << (machine.target().is_cuda() ? 22 : 16);
}

uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }

// Counts which floats of a range of bit patterns were seen.
class Seen {
 public:
  // The patterns of [2^(2k), 2^(2k+2)), without 0. shared: add() may be called from any thread.
  Seen(int k, bool shared)
      : first_(std::max(1u, bits_of(std::ldexp(1.0f, 2 * k)))),
        end_(2 * k + 2 > 127 ? 0x7f800000u : bits_of(std::ldexp(1.0f, 2 * k + 2))),
        shared_(shared),
        words_((size() + 63) / 64) {}

  void add(float v) {
    const uint32_t bits = bits_of(v);
    if (bits < first_ || bits >= end_) return;
    const uint32_t at = bits - first_;
    const uint64_t bit = uint64_t{1} << at % 64;
    if (!shared_) {
      words_[at / 64] |= bit;
      return;
    }
    const std::atomic_ref<uint64_t> word(words_[at / 64]);
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  int64_t size() const { return end_ - first_; }
  int64_t count() const {
    int64_t n = 0;
    for (const uint64_t word : words_) n += std::popcount(word);
    return n;
  }

 private:
  uint32_t first_, end_;
  bool shared_;
  std::vector<uint64_t> words_;
};

// Runs rows of one element: up to chunk_rows() at a time.
class RootCall {
 public:
  explicit RootCall(const Machine& machine)
      : machine_(machine),
        chunk_rows_(chunk_rows(machine)),
        x_memory_(machine.allocate(static_cast<size_t>(chunk_rows_) * sizeof(float))),
        y_memory_(machine.allocate(static_cast<size_t>(chunk_rows_) * sizeof(float))),
        rstd_memory_(machine.allocate(static_cast<size_t>(chunk_rows_) * sizeof(float))) {}

  int64_t most_rows() const { return chunk_rows_; }
  // How many threads compare its results: all of the machine on a GPU, where that is most of the
  // work. A CPU's call has one thread, beside others that are busy.
  int comparing_threads() const {
    return machine_.target().is_cuda()
               ? static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u))
               : 1;
  }

  void set_x(const std::vector<float>& x) {
    rows_ = static_cast<int64_t>(x.size());
    machine_.upload(x_memory_.get(), x.data(), x.size() * sizeof(float));
  }

  void run(float eps, std::vector<float>* rstd) {
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    TensorView x(machine_.target(), x_memory_.get(), f32, {rows_, 1});
    TensorView y(machine_.target(), y_memory_.get(), f32, {rows_, 1});
    TensorView out(machine_.target(), rstd_memory_.get(), f32, {rows_});
    fastnorm_norm_args args = {};
    args.struct_size = sizeof args;
    args.eps = eps;
    args.x = x.get();
    args.y = y.get();
    args.rstd = out.get();
    machine_.run(args);
    rstd->resize(static_cast<size_t>(rows_));
    machine_.download(rstd->data(), rstd_memory_.get(), rstd->size() * sizeof(float));
  }

 private:
  const Machine& machine_;
  int64_t chunk_rows_;
  Block x_memory_, y_memory_, rstd_memory_;
  int64_t rows_ = 0;
};

// The comparison of one call's results.
struct Comparison {
  const std::vector<float>& x;
  const std::vector<float>& rstd;
  float eps;
  Seen* seen;
  std::atomic<int64_t> wrong = 0;  // results that are not 1 / sqrt(v)
};

void compare_slice(void* user, size_t begin_bytes, size_t end_bytes) {
  Comparison& c = *static_cast<Comparison*>(user);
  int64_t wrong = 0;
  for (size_t i = begin_bytes / sizeof(float); i < end_bytes / sizeof(float); ++i) {
    const float v = c.x[i] * c.x[i] + c.eps;  // two roundings: the build forbids contraction
    wrong += bits_of(c.rstd[i]) != bits_of(1.0f / std::sqrt(v));
    c.seen->add(v);
  }
  c.wrong += wrong;
}

int64_t count_wrong(int threads, const std::vector<float>& x, float eps,
                    const std::vector<float>& rstd, Seen* seen) {
  Comparison comparison{x, rstd, eps, seen};
  on_slices(threads, x.size() * sizeof(float), compare_slice, &comparison);
  return comparison.wrong;
}

// Tries x in [2^k, 2^(k+1)), every `step`-th, with each eps. Returns the number of wrong results.
int64_t test_binade(RootCall& call, int k, int64_t step, Seen* seen) {
  const float unit = std::max(std::ldexp(1.0f, 2 * k - 23), std::ldexp(1.0f, -149));
  const float first = std::ldexp(1.0f, k);
  std::vector<float> x, rstd;
  int64_t wrong = 0;
  const int64_t chunk = call.most_rows() * step;
  for (int64_t begin = 0; begin < kBinade; begin += chunk) {
    x.clear();
    for (int64_t i = begin; i < std::min(kBinade, begin + chunk); i += step) {
      x.push_back(std::bit_cast<float>(bits_of(first) + static_cast<uint32_t>(i)));
    }
    call.set_x(x);
    for (int units = 0; units < 4; ++units) {
      const float eps = static_cast<float>(units) * unit;
      call.run(eps, &rstd);
      wrong += count_wrong(call.comparing_threads(), x, eps, rstd, seen);
    }
  }
  return wrong;
}

void test_special(RootCall& call, Tally* tally) {
  const float inf = INFINITY;
  const std::vector<float> x = {0.0f, -0.0f, 0x1p64f, -0x1p100f, inf, -inf, NAN, -1.0f};
  std::vector<float> rstd;
  call.set_x(x);
  call.run(0.0f, &rstd);
  tally->expect(rstd[0] == inf && rstd[1] == inf, "1 / sqrt(0) is not infinite");
  const bool zero = rstd[2] == 0 && rstd[3] == 0 && rstd[4] == 0 && rstd[5] == 0;
  tally->expect(zero, "1 / sqrt(infinity) is not 0");
  tally->expect(std::isnan(rstd[6]), "the root of NaN is not NaN");
  tally->expect(rstd[7] == 1, "1 / sqrt(1) is not 1");
}

}  // namespace

void test_root(const Machine& machine, const Effort& effort, Tally* tally) {
  const Workers workers(machine);
  std::vector<RootCall> calls;
  for (size_t i = 0; i < workers.count(); ++i) calls.emplace_back(workers.machine(i));
  test_special(calls[0], tally);
  struct Binade {
    int64_t wrong, reached, all;
  };
  std::vector<Binade> binades(kMostExponent - kLeastExponent + 1);
  // A step that is odd visits every residue; 4099 leaves 2047 samples of a binade.
  const auto step = [&](int k) { return effort.full ? 1 : k == 0 ? effort.every : 4099; };
  workers.run(binades.size(), "reciprocal root", [&](size_t worker, size_t i) {
    const int k = kLeastExponent + static_cast<int>(i);
    Seen seen(k, calls[worker].comparing_threads() > 1);
    const int64_t wrong = test_binade(calls[worker], k, step(k), &seen);
    binades[i] = {wrong, seen.count(), seen.size()};
  });
  int64_t reached = 0, all = 0;
  for (int k = kLeastExponent; k <= kMostExponent; ++k) {
    const Binade& binade = binades[static_cast<size_t>(k - kLeastExponent)];
    const std::string range =
        "[2^" + std::to_string(2 * k) + ", 2^" + std::to_string(2 * k + 2) + ")";
    tally->expect(binade.wrong == 0, "the reciprocal root is wrong " +
                                         std::to_string(binade.wrong) + " times for v in " + range);
    if (step(k) == 1) {
      tally->expect(binade.reached == binade.all, "only " + std::to_string(binade.reached) +
                                                      " of " + std::to_string(binade.all) +
                                                      " values were reached in " + range);
    }
    reached += binade.reached;
    all += binade.all;
  }
  tally->notes.push_back("root: tried " + std::to_string(reached) + " of " + std::to_string(all) +
                         " positive floats");
}

}  // namespace fastnorm::tool
