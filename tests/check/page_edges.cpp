// Tensors that begin or end at the edge of mapped memory: a kernel that accesses bytes past a row
// faults. Only in host memory: GPU allocations are larger than pages, and compute-sanitizer checks
// there.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check/placed_case.h"
#include "check/sweep.h"
#include "ref/norm_model.h"
#include "ref/quant.h"

namespace fastnorm::check {
namespace {

constexpr int kTensors = 10;
// Room for each tensor between two protected pages: the longest row of a cluster.
constexpr int64_t kWindowBytes = 2 << 20;

char message[256];  // what runs now, for the handler

void on_fault(int) {
  const auto written = write(STDOUT_FILENO, message, std::strlen(message));
  _exit(written >= 0 ? 1 : 2);
}

// Catches faults during its lifetime.
class FaultMessage {
 public:
  FaultMessage() {
    struct sigaction action = {};
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, &before_segv_);
    sigaction(SIGBUS, &action, &before_bus_);
  }
  ~FaultMessage() {
    sigaction(SIGSEGV, &before_segv_, nullptr);
    sigaction(SIGBUS, &before_bus_, nullptr);
  }

 private:
  struct sigaction before_segv_ = {}, before_bus_ = {};
};

// Windows of memory with a protected page on both sides.
class Windows {
 public:
  Windows() : page_(sysconf(_SC_PAGESIZE)), period_(kWindowBytes + page_) {
    bytes_ = static_cast<size_t>(period_ * kTensors + page_);
    void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    block_ = static_cast<std::byte*>(memory);
    for (int i = 0; i < kTensors; ++i) {
      mprotect(block_ + begin(i), kWindowBytes, PROT_READ | PROT_WRITE);
    }
  }
  ~Windows() {
    if (block_ != nullptr) munmap(block_, bytes_);
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  std::byte* block() const { return block_; }
  int64_t begin(int i) const { return page_ + period_ * i; }
  // The position of a tensor of `bytes` bytes that touches an edge.
  int64_t at(int i, int64_t bytes, bool at_end) const {
    return at_end ? begin(i) + kWindowBytes - bytes : begin(i);
  }

 private:
  const int64_t page_, period_;
  size_t bytes_ = 0;
  std::byte* block_ = nullptr;
};

// Row lengths to try. On a CPU: all short ones and some longer ones. On a GPU: those near the
// limits of a tile.
std::vector<int64_t> lengths(const NormEntry& entry, bool cuda) {
  std::vector<int64_t> found;
  if (!cuda) {
    for (int64_t n = 1; n < 5000; n += n < 140 ? 1 : n / 7) found.push_back(n);
    return found;
  }
  const int64_t v = ref::per_vector(static_cast<ref::Type>(entry.key.dtype));
  const int64_t threads = entry.tile.threads_per_row();
  if (entry.key.access > Access::kVector) found = {1, v - 1, v + 1, 5 * v - 1};
  const int64_t vectors = entry.tile.vectors == 0 ? 2 : entry.tile.vectors;
  const int64_t run = 1;
  for (const int64_t n : {(threads * (vectors - run) + run) * v, threads * vectors * v}) {
    found.push_back(n);
    if (entry.key.access > Access::kVector) found.insert(found.end(), {n - 1, n - 2, n - v / 2});
  }
  return found;
}

// One row with every tensor, each at an edge of its own window.
PlacedCase place_at_edges(const NormEntry& entry, int64_t n, const Windows& windows, bool at_end,
                          bool cuda) {
  const auto type = static_cast<ref::Type>(entry.key.dtype);
  PlacedCase p;
  Content& c = p.what.content;
  c.n = n;
  c.options.dtype = c.options.sum_dtype = c.residual_dtype = type;
  c.options.kind = entry.key.stat == Stat::kLayer ? ref::Kind::kLayer : ref::Kind::kRms;
  c.options.eps = 1e-5f;
  c.add = entry.key.source == Source::kAdd;
  if (with_streaming_loads(entry.key.flavour) == Flavour::kRoundedStreaming) {
    c.options.rounding = ref::Rounding::kNormalized;
    if (c.add) c.options.residual_rounding = ref::ResidualRounding::kBeforeStatistics;
  }
  const ref::Type weight_type = entry.key.affine == Affine::kF32 ? ref::Type::kF32 : type;
  c.weight = c.bias = weight_type;
  p.what.layout.rank = 0;
  const auto rows = [&](int i, ref::Type dtype, int64_t elements) {
    PlacedTensor t{true, dtype, elements, 0, {}};
    t.base = windows.at(i, t.row_bytes(), at_end);
    return t;
  };
  // With rows of any length, f32 weight and bias begin at multiples of 16 bytes.
  const int64_t weight_bytes = n * ref::bytes_of(weight_type),
                weight_window =
                    entry.key.affine == Affine::kF32 ? (weight_bytes + 15) / 16 * 16 : weight_bytes;
  const auto weight = [&](int i) {
    return PlacedWeight{true, weight_type, windows.at(i, weight_window, at_end), 1, n};
  };
  p.x = rows(0, type, n);
  p.y = rows(1, type, n);
  if (c.add) {
    p.residual = rows(2, type, n);
    p.residual_out = rows(3, type, n);
  }
  if (c.options.kind == ref::Kind::kLayer) p.mean = rows(4, ref::Type::kF32, 1);
  p.rstd = rows(5, ref::Type::kF32, 1);
  if (entry.key.flavour != Flavour::kGeneral) p.mean.present = p.rstd.present = false;
  p.weight = weight(6);
  p.bias = weight(7);
  // On a GPU only the most general kernels support a bias in RMS.
  if (cuda && entry.key.affine != Affine::kAny && entry.key.stat == Stat::kRms)
    p.bias.present = false;
  if (entry.key.sink != Sink::kStore) {
    if (entry.key.flavour != Flavour::kGeneral) p.y.present = false;
    PlacedQuant& q = p.quant;
    q.present = true;
    q.code_bytes = n;
    q.codes = windows.at(8, n, at_end);
    if (entry.key.sink == Sink::kStatic) {
      c.quant.scheme = ref::Scheme::kPerTensor;
      q.tensor_scale = windows.at(9, sizeof(float), at_end);
      p.y.present = false;
    } else {
      c.quant.scheme = ref::Scheme::kPerBlock;
      c.quant.block_size = 64;
      q.scales = ref::scopes_of(c.quant, n);
      q.scale_step = q.scale_size;
      q.scale = windows.at(9, q.scales * q.scale_size, at_end);
    }
  }
  return p;
}

class EdgeCheck {
 public:
  EdgeCheck(Target& target, Counts* counts) : target_(target), counts_(counts) {}

  void run(const Options& options) {
    if (windows_.block() == nullptr) return count(false, "no memory");
    const FaultMessage faults;
    const std::span<const NormEntry> table = target_.devices[0]->table<NormEntry>();
    for (size_t i = 0; i < table.size(); ++i) {
      if (!options.wants(table[i].name) || !target_.has(i)) continue;
      entry_ = static_cast<int32_t>(i);
      int ran = 0;
      for (const int64_t n : lengths(table[i], target_.cuda)) {
        for (const bool at_end : {true, false}) ran += run_one(table[i], n, at_end);
      }
      count(ran > 0, std::string("no row at an edge runs on \"") + table[i].name + "\"");
    }
  }

 private:
  void count(bool ok, const std::string& text) {
    ok ? ++counts_->passed : ++counts_->failed;
    if (!ok) std::printf("FAIL %s: edges: %s\n", target_.name.c_str(), text.c_str());
  }

  // Returns 1 if the kernel ran such a row.
  int run_one(const NormEntry& entry, int64_t n, bool at_end) {
    const PlacedCase placed = place_at_edges(entry, n, windows_, at_end, target_.cuda);
    Device& device = *target_.devices[0];
    NormDesc desc;
    NormPlan plan;
    Error error;
    const DeviceFacts& facts = device.facts;
    if (describe(placed, windows_.block(), facts.device_type, facts.device_id, &desc, error) !=
        FASTNORM_OK) {
      count(false, error.text);
      return 0;
    }
    if (make_plan_for_entry(desc, facts, device.table<NormEntry>(), entry_, &plan, error) !=
        FASTNORM_OK) {
      return 0;
    }
    plan.non_temporal = n % 2 == 0;
    fill(placed);
    std::snprintf(message, sizeof message,
                  "FAIL %s: \"%s\" touches memory %s a row of %lld elements\n",
                  target_.name.c_str(), entry.name, at_end ? "past the end of" : "before",
                  static_cast<long long>(n));
    std::fflush(stdout);
    const NormCall call = {&desc, &plan};
    const fastnorm_status status = device.run(std::span(&call, 1), nullptr, nullptr, error);
    if (status != FASTNORM_OK || !has_result(placed)) {
      count(false, std::string(entry.name) + " n " + std::to_string(n) + " is wrong " + error.text);
    }
    return 1;
  }

  void fill(const PlacedCase& p) {
    const ref::Type type = p.x.dtype;
    const auto put = [&](std::vector<float>& values, ref::Type in, int64_t at, uint64_t seed) {
      values.resize(static_cast<size_t>(p.x.row_elements));
      ref::fill_row(ref::Pattern::kNormal, in, seed, values.data(), p.x.row_elements);
      ref::encode_row(in, values.data(), windows_.block() + at, p.x.row_elements);
    };
    put(x_, type, p.x.base, 1);
    put(weight_, p.weight.dtype, p.weight.base, 2);
    put(bias_, p.bias.dtype, p.bias.base, 3);
    if (p.residual.present) put(residual_, type, p.residual.base, 4);
    if (p.quant.tensor_scale >= 0) {
      constexpr float kScale = 0.25f;
      std::memcpy(windows_.block() + p.quant.tensor_scale, &kScale, sizeof kScale);
    }
  }

  bool has_result(const PlacedCase& p) {
    const int64_t n = p.x.row_elements;
    ref::norm_model(p.what.content.options,
                    {n, x_.data(), p.residual.present ? residual_.data() : nullptr, weight_.data(),
                     p.bias.present ? bias_.data() : nullptr},
                    target_.order, &scratch_, &result_);
    if (!p.y.present) {
      ref::QuantResult codes;
      ref::quant_model(p.what.content.quant, result_.z.data(), n, p.x.dtype, 0.25f, 1.0f, &codes);
      return std::memcmp(codes.codes.data(), windows_.block() + p.quant.codes,
                         static_cast<size_t>(n)) == 0;
    }
    std::vector<std::byte> y(static_cast<size_t>(p.y.row_bytes()));
    ref::encode_row(p.y.dtype, result_.z.data(), y.data(), n);
    return std::memcmp(y.data(), windows_.block() + p.y.base, y.size()) == 0;
  }

  Target& target_;
  Counts* const counts_;
  const Windows windows_;
  int32_t entry_ = 0;
  std::vector<float> x_, residual_, weight_, bias_;
  ref::ModelScratch scratch_;
  ref::NormResult result_;
};

}  // namespace

void check_page_edges(Target& target, const Options& options, Counts* counts) {
  // QEMU 7.2 reads all lanes of a masked AVX load. Rows at the end of a page fault there, and only
  // there.
  if (std::getenv("FASTNORM_EMULATED_AVX") != nullptr) {
    std::printf("SKIP page edges on %s: the emulator reads past masks\n", target.name.c_str());
    ++counts->skipped;
    return;
  }
  EdgeCheck(target, counts).run(options);
}

}  // namespace fastnorm::check
