#include "bench_case.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "dtype.h"

namespace fastnorm::tool {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

fastnorm_dtype columns_dtype(const BenchCase& c) {
  return c.has_f32_columns() ? fastnorm_dtype_of(FASTNORM_DTYPE_F32) : find_dtype(c.dtype)->dtype;
}

fastnorm_dtype scale_dtype(fastnorm_quant_scheme scheme) {
  return fastnorm_dtype_of(scheme == FASTNORM_QUANT_MXFP8   ? FASTNORM_DTYPE_F8_E8M0FNU
                           : scheme == FASTNORM_QUANT_NVFP4 ? FASTNORM_DTYPE_F8_E4M3FN
                                                            : FASTNORM_DTYPE_F32);
}

}  // namespace

std::vector<std::string> bench_ops() {
  return {"rms",           "add",           "layer",         "rms_fp8",
          "add_fp8",       "layer_fp8",     "rms_row_fp8",   "add_row_fp8",
          "layer_row_fp8", "rms_block_fp8", "add_block_fp8", "layer_block_fp8",
          "rms_mxfp8",     "rms_nvfp4",     "rms_f32",       "layer_f32"};
}

fastnorm_quant_scheme BenchCase::scheme() const {
  return op.ends_with("_row_fp8")     ? FASTNORM_QUANT_PER_ROW
         : op.ends_with("_block_fp8") ? FASTNORM_QUANT_PER_BLOCK
         : op.ends_with("_mxfp8")     ? FASTNORM_QUANT_MXFP8
         : op.ends_with("_nvfp4")     ? FASTNORM_QUANT_NVFP4
         : op.ends_with("_fp8")       ? FASTNORM_QUANT_PER_TENSOR
                                      : FASTNORM_QUANT_NONE;
}

int64_t BenchCase::scale_columns() const {
  switch (scheme()) {
    case FASTNORM_QUANT_PER_BLOCK:
      return 128;
    case FASTNORM_QUANT_MXFP8:
      return 32;
    case FASTNORM_QUANT_NVFP4:
      return 16;
    default:
      return 0;
  }
}

size_t BenchCase::tensor_bytes() const {
  return static_cast<size_t>(rows * n) * element_bytes(find_dtype(dtype)->dtype);
}

size_t BenchCase::code_bytes() const {
  return static_cast<size_t>(scheme() == FASTNORM_QUANT_NVFP4 ? rows * n / 2 : rows * n);
}

size_t BenchCase::scale_bytes() const {
  if (scheme() == FASTNORM_QUANT_NONE || scheme() == FASTNORM_QUANT_PER_TENSOR) return 0;
  const int64_t columns = scale_columns(),
                scales = columns == 0 ? rows : rows * ((n + columns - 1) / columns);
  return static_cast<size_t>(scales) * element_bytes(scale_dtype(scheme()));
}

size_t BenchCase::bytes_moved() const {
  return tensor_bytes() * (adds() ? 3 : 1) +
         (quantises() ? code_bytes() + scale_bytes() : tensor_bytes());
}

CaseCall::CaseCall(const Target& target, const BenchCase& c, std::byte* data, size_t tensor_stride,
                   std::byte* parameters, size_t parameter_stride)
    : layer_(c.is_layer()), scheme_(c.scheme()) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype;
  const auto next = [&](fastnorm_dtype of) {
    const TensorView view(target, data, of, {c.rows, c.n});
    data += tensor_stride;
    return view;
  };
  x_ = next(dtype);
  if (c.adds()) residual_ = next(dtype);
  y_ = next(!c.quantises()
                ? dtype
                : fastnorm_dtype_of(scheme_ == FASTNORM_QUANT_NVFP4 ? FASTNORM_DTYPE_F4_E2M1FN
                                                                    : FASTNORM_DTYPE_F8_E4M3FN));
  if (c.adds()) residual_out_ = next(dtype);
  const fastnorm_dtype columns = columns_dtype(c);
  weight_ = TensorView(target, parameters, columns, {c.n});
  if (layer_) bias_ = TensorView(target, parameters + parameter_stride, columns, {c.n});
  const fastnorm_dtype of_scales = scale_dtype(scheme_);
  if (scheme_ == FASTNORM_QUANT_PER_TENSOR) {
    scale_ = TensorView(target, parameters + 2 * parameter_stride, of_scales, {1});
  } else if (scheme_ == FASTNORM_QUANT_PER_ROW) {
    scale_ = TensorView(target, data, of_scales, {c.rows});  // behind the other tensors
  } else if (c.quantises()) {
    const int64_t columns = c.scale_columns();
    scale_ = TensorView(target, data, of_scales, {c.rows, (c.n + columns - 1) / columns});
  }
}

fastnorm_norm_args CaseCall::args() {
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = layer_ ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args.eps = 1e-6f;
  args.x = x_.get();
  args.residual = residual_.get();
  args.weight = weight_.get();
  args.bias = bias_.get();
  (scheme_ == FASTNORM_QUANT_NONE ? args.y : args.quantized) = y_.get();
  args.quant_scheme = scheme_;
  args.quant_block_size = scheme_ == FASTNORM_QUANT_PER_BLOCK ? 128 : 0;
  args.scale = scale_.get();
  args.residual_out = residual_out_.get();
  return args;
}

CaseMemory::CaseMemory(const Machine& machine, const BenchCase& c) : machine_(machine) {
  const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype;
  const size_t tensor_stride = aligned(c.tensor_bytes()),
               parameter_stride =
                   aligned(static_cast<size_t>(c.n) * element_bytes(columns_dtype(c))),
               set_bytes = tensor_stride * (c.adds() ? 4 : 2) + aligned(c.scale_bytes());
  choose_sets(set_bytes);
  const size_t parameters = 2 * parameter_stride + kAlignment;
  const size_t bytes = parameters + sets_ * set_bytes;
  memory_ = machine.allocate(bytes);
  fill(dtype, bytes);
  workload_.copy_bytes = aligned(c.bytes_moved() / 2);
  calls_.reserve(sets_);
  for (size_t i = 0; i < sets_; ++i) {
    std::byte* const data = memory_.get() + parameters + i * set_bytes;
    calls_.emplace_back(machine.target(), c, data, tensor_stride, memory_.get(), parameter_stride);
    workload_.calls.push_back(calls_.back().args());
    workload_.sets.push_back({data, data + set_bytes / 2});
  }
}

void CaseMemory::choose_sets(size_t set_bytes) {
  constexpr size_t kGpuColdBytes = size_t{600} << 20, kGpuMaxSets = 256;
  constexpr size_t kCpuColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20;
  if (machine_.target().is_cuda()) {
    sets_ = std::clamp<size_t>(kGpuColdBytes / set_bytes, 2, kGpuMaxSets);
    workload_.cold = true;
  } else {
    workload_.cold = set_bytes > kCacheBytes;
    sets_ = workload_.cold ? std::max<size_t>(2, kCpuColdBytes / set_bytes) : 1;
  }
}

// Values near 1 of both signs: speed may depend on how many bits flip.
void CaseMemory::fill(fastnorm_dtype dtype, size_t bytes) {
  const size_t size = element_bytes(dtype), period = std::min<size_t>(bytes, size_t{1} << 20);
  std::vector<std::byte> pattern(period);
  uint64_t state = 1;
  for (size_t i = 0; i + size <= period; i += size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto h = static_cast<double>(static_cast<int32_t>(state >> 32));
    encode(dtype, h * 0x1p-30, &pattern[i]);
  }
  for (size_t at = 0; at < bytes; at += period) {
    machine_.upload(memory_.get() + at, pattern.data(), std::min(period, bytes - at));
  }
}

void show_progress(size_t done, size_t all, const BenchCase* next) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K");
  if (next != nullptr) {
    std::fprintf(stderr, "%zu/%zu %s %s %lldx%lld", done + 1, all, next->op.c_str(),
                 next->dtype.c_str(), static_cast<long long>(next->rows),
                 static_cast<long long>(next->n));
  }
  std::fflush(stderr);
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace fastnorm::tool
