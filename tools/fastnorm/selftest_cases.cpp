// The sweep of the self-test: its cases, their input, and running one of them in some layout.
#include <algorithm>
#include <cstring>

#include "dtype.h"
#include "selftest.h"

namespace fastnorm::tool {
namespace {

// One 64-bit hash of an index: splitmix64's finaliser.
uint64_t hash(uint64_t index) {
  uint64_t z = index + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [-2, 2) on a grid of 2^-22, one value in 64 sixteen times as large, plus 0.375, so that
// a mean is there to be subtracted. Every step is exact in binary floating point.
double value_at(uint64_t stream, uint64_t index) {
  const uint64_t h = hash(stream << 48 ^ index);
  const double uniform = (static_cast<double>(h & 0xffffff) - 0x800000) * 0x1p-22;
  return (h >> 32) % 64 == 0 ? uniform * 16 + 0.375 : uniform + 0.375;
}

std::vector<std::byte> make_tensor(fastnorm_dtype dtype, int64_t count, uint64_t stream) {
  const size_t size = element_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size);
  for (int64_t i = 0; i < count; ++i) {
    encode(dtype, value_at(stream, static_cast<uint64_t>(i)),
           &bytes[static_cast<size_t>(i) * size]);
  }
  return bytes;
}

// A tensor of rows in memory, with a guard before, between and after the rows.
class Rows {
 public:
  Rows(const Machine& machine, fastnorm_dtype dtype, int64_t rows, int64_t n,
       const CaseLayout& layout)
      : machine_(machine), rows_(rows), layout_(layout) {
    size_ = element_bytes(dtype);
    row_bytes_ = static_cast<size_t>(n) * size_;
    stride_bytes_ = static_cast<size_t>(n + layout.gap_elems) * size_;
    first_ = kGuardBytes + static_cast<size_t>(layout.offset_elems) * size_;
    image_.assign(first_ + static_cast<size_t>(rows) * stride_bytes_ + kGuardBytes,
                  std::byte{layout.poison});
    memory_ = machine.allocate(image_.size());
    view_ = TensorView(machine.target(), memory_.get() + first_, dtype, {rows, n},
                       {n + layout.gap_elems, 1});
  }

  // Sets the rows to those of `compact`, over and over.
  void fill(const std::vector<std::byte>& compact) {
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t from = static_cast<size_t>(r) * row_bytes_ % compact.size();
      std::memcpy(at(r), compact.data() + from, row_bytes_);
    }
  }
  void upload() { machine_.upload(memory_.get(), image_.data(), image_.size()); }

  // Reads the memory back and returns the rows; *intact tells if all the rest is as it was.
  std::vector<std::byte> read(bool* intact) {
    std::vector<std::byte> now(image_.size());
    machine_.download(now.data(), memory_.get(), now.size());
    std::vector<std::byte> compact(static_cast<size_t>(rows_) * row_bytes_);
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t place = static_cast<size_t>(at(r) - image_.data());
      std::memcpy(&compact[static_cast<size_t>(r) * row_bytes_], &now[place], row_bytes_);
      std::memcpy(&now[place], &image_[place], row_bytes_);
    }
    *intact = now == image_;
    return compact;
  }

  const fastnorm_tensor* view() { return view_.get(); }

 private:
  static constexpr size_t kGuardBytes = 256;

  std::byte* at(int64_t row) {
    return image_.data() + first_ + static_cast<size_t>(row) * stride_bytes_;
  }

  const Machine& machine_;
  int64_t rows_;
  CaseLayout layout_;
  size_t size_ = 0, row_bytes_ = 0, stride_bytes_ = 0, first_ = 0;
  std::vector<std::byte> image_;
  Block memory_;
  TensorView view_;
};

std::vector<std::byte> row_of(const std::vector<std::byte>& rows, int64_t count, int64_t row) {
  if (rows.empty()) return {};
  const size_t bytes = rows.size() / static_cast<size_t>(count);
  const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(bytes * static_cast<size_t>(row));
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

}  // namespace

std::string SelftestCase::name() const {
  static constexpr const char* kRoundings[] = {"once", "normalized", "every-step"};
  static constexpr const char* kResiduals[] = {"exact", "before-apply", "before-statistics"};
  std::string text = std::string(find_dtype(dtype)->name) +
                     (kind == FASTNORM_NORM_LAYER ? " layer" : " rms") + (residual ? " add" : "") +
                     " n=" + std::to_string(n);
  if (rounding != FASTNORM_ROUND_ONCE) text += std::string(" ") + kRoundings[rounding];
  if (residual_rounding != FASTNORM_RESIDUAL_EXACT) {
    text += std::string(" ") + kResiduals[residual_rounding];
  }
  return text;
}

std::vector<SelftestCase> selftest_cases() {
  constexpr int64_t kRows = 6;
  std::vector<SelftestCase> cases;
  for (const std::string& name : row_dtype_names()) {
    const fastnorm_dtype dtype = find_dtype(name)->dtype;
    for (const auto kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      for (const bool residual : {false, true}) {
        // Below, at and above powers of two, short tails, and a row longer than a GPU's registers.
        for (const int64_t n : {1, 7, 64, 129, 1000, 4096, 8192, 20000, 70001}) {
          cases.push_back({dtype, kind, residual, kRows, n});
        }
        for (const auto rounding : {FASTNORM_ROUND_NORMALIZED, FASTNORM_ROUND_EVERY_STEP}) {
          cases.push_back({dtype, kind, residual, kRows, 768, rounding});
        }
        if (!residual) continue;
        for (const auto rounding :
             {FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY, FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS}) {
          cases.push_back({dtype, kind, residual, kRows, 768, FASTNORM_ROUND_ONCE, rounding});
        }
      }
    }
  }
  return cases;
}

CaseInputs make_inputs(const SelftestCase& c) {
  const int64_t count = c.rows * c.n;
  CaseInputs inputs = {make_tensor(c.dtype, count, 1), {}, make_tensor(c.dtype, c.n, 3), {}};
  if (c.residual) inputs.residual = make_tensor(c.dtype, count, 2);
  if (c.kind == FASTNORM_NORM_LAYER) inputs.bias = make_tensor(c.dtype, c.n, 4);
  return inputs;
}

CaseOutputs run_case(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseLayout& layout, Tally* tally) {
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const bool alone = layout.only_row >= 0;
  const int64_t rows = alone ? 1 : c.rows * layout.copies;
  const auto chosen = [&](const std::vector<std::byte>& all) {
    return alone ? row_of(all, c.rows, layout.only_row) : all;
  };
  const CaseLayout parameters;
  Rows x(machine, c.dtype, rows, c.n, layout), residual(machine, c.dtype, rows, c.n, layout);
  Rows y(machine, c.dtype, rows, c.n, layout), sum(machine, c.dtype, rows, c.n, layout);
  Rows mean(machine, f32, rows, 1, layout), rstd(machine, f32, rows, 1, layout);
  Rows weight(machine, c.dtype, 1, c.n, parameters), bias(machine, c.dtype, 1, c.n, parameters);
  x.fill(chosen(inputs.x));
  weight.fill(inputs.weight);
  if (c.residual) residual.fill(chosen(inputs.residual));
  if (!inputs.bias.empty()) bias.fill(inputs.bias);
  for (Rows* t : {&x, &residual, &y, &sum, &mean, &rstd, &weight, &bias}) t->upload();

  fastnorm_tensor weight_row = *weight.view(), bias_row = *bias.view();
  for (fastnorm_tensor* t : {&weight_row, &bias_row}) {
    t->ndim = 1;
    t->shape += 1;
    t->strides = nullptr;
  }
  const bool layer = c.kind == FASTNORM_NORM_LAYER;
  Rows& y_at = layout.in_place ? x : y;
  Rows& sum_at = layout.in_place ? residual : sum;
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = c.kind;
  args.eps = kSelftestEps;
  args.weight_offset = kSelftestWeightOffset;
  args.rounding = c.rounding;
  args.residual_rounding = c.residual_rounding;
  args.x = x.view();
  args.residual = c.residual ? residual.view() : nullptr;
  args.weight = &weight_row;
  args.bias = layer ? &bias_row : nullptr;
  args.y = y_at.view();
  args.residual_out = c.residual ? sum_at.view() : nullptr;
  args.mean = layer ? mean.view() : nullptr;
  args.rstd = rstd.view();
  machine.run(args);

  CaseOutputs outputs;
  const auto read = [&](Rows& from, bool wanted, const char* what) {
    if (!wanted) return std::vector<std::byte>();
    bool intact = false;
    std::vector<std::byte> found = from.read(&intact);
    tally->expect(intact, c.name() + ", " + layout.name + ": bytes around " + what + " changed");
    return found;
  };
  outputs.y = read(y_at, true, "y");
  outputs.residual_out = read(sum_at, c.residual, "residual_out");
  outputs.mean = read(mean, layer, "mean");
  outputs.rstd = read(rstd, true, "rstd");
  return outputs;
}

}  // namespace fastnorm::tool
