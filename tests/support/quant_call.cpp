#include "support/quant_call.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace fastnorm::support {

using ref::Scheme;

QuantModel::QuantModel(const fastnorm_quant* args, const Operands& memory, ref::Type type,
                       ref::Type y, bool every_step, Operand* codes)
    : type_(type), codes_(codes) {
  if (args == nullptr) return;
  given_ = *args;
  ref::QuantOptions& q = options_;
  if (codes_ == nullptr) codes_ = memory(args->quantized);
  amax_ = memory(args->amax);
  q.scheme = ref::kSchemes[args->scheme];
  q.block_size = args->block_size;
  q.pow2 = args->scale_pow2 != 0;
  q.amax_floor = args->amax_floor;
  q.divide = args->division == FASTNORM_QUANT_DIVIDE;
  q.rotation = args->rotation;
  if (const Operand* signs = memory(args->rotation_signs))
    signs_ = signs->values(signs->place({0}), signs->shape[0]);
  q.clamp = args->clamp;
  if (const Operand* given = memory(args->clamp_scale)) q.clamp = std::fmax(0.0f, given->scalar());
  const bool rounded = args->source == FASTNORM_QUANT_FROM_ROUNDED || every_step;
  // Without codes the amax is that of y.
  if (codes_ == nullptr && !rounded) type_ = y;
  q.source = rounded || codes_ == nullptr ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
  if (codes_ == nullptr) return;
  const uint32_t dtype = codes_->dtype;
  q.format = ref::is_fp4(q.scheme)               ? ref::Format::kE2M1
             : dtype == FASTNORM_DTYPE_F8_E5M2   ? ref::Format::kE5M2
             : dtype == FASTNORM_DTYPE_F8_E4M3FN ? ref::Format::kE4M3
                                                 : ref::Format::kI8;
  scopes_ = ref::scopes_of(q, codes_->shape.back() * (ref::is_fp4(q.scheme) ? 2 : 1));
  if (const Operand* global = memory(args->global_scale)) global_ = global->scalar();
  Operand* const scale = memory(args->scale);
  if (scale == nullptr) return;
  if (q.scheme == Scheme::kPerTensor) {
    tensor_scale_ = scale->scalar();
    return;
  }
  scale_ = scale;
  q.e8m0 = q.pow2 && scale->bytes == 1;
  if (is_swizzled())
    std::fill_n(scale->expected.data() + scale->first, scale->shape[0], uint8_t{0});
}

size_t QuantModel::place_of_scale(Index leading, int64_t row, int64_t i, int64_t scopes) const {
  if (is_swizzled()) return scale_->place({ref::swizzled_index(row, i, scopes)});
  std::vector<int64_t> index(leading.begin(), leading.end());
  if (scale_->shape.size() > leading.size()) index.push_back(i);
  return scale_->place(index);
}

void QuantModel::keep(int64_t row) const {
  for (int64_t i = 0; scale_ != nullptr && is_swizzled() && i < scopes_; ++i) {
    const size_t at = scale_->place({ref::swizzled_index(row, i, scopes_)});
    scale_->expected[at] = scale_->now[at];
  }
}

std::vector<float> QuantModel::expect(Index leading, int64_t row, const std::vector<float>& z) {
  const auto n = static_cast<int64_t>(z.size());
  std::vector<float> seen = z;
  if (options_.rotation != 0) {
    ref::rotate_model(options_, signs_.empty() ? nullptr : signs_.data(),
                      static_cast<int64_t>(signs_.size()) != n, type_, n, seen.data());
  }
  expect_seen(leading, row, seen);
  return given_.y_rotated != 0 ? seen : z;
}

void QuantModel::expect_seen(Index leading, int64_t row, const std::vector<float>& z) {
  if (codes_ == nullptr && amax_ == nullptr) return;
  const auto n = static_cast<int64_t>(z.size());
  ref::QuantResult r;
  ref::quant_model(options_, z.data(), n, type_, tensor_scale_, global_, &r);
  if (amax_ != nullptr) {
    float most = 0;
    std::memcpy(&most, amax_->expected.data() + amax_->first, sizeof most);
    most = ref::max_magnitude(most, r.amax);
    amax_->expect(amax_->first, &most, 1);
  }
  if (codes_ == nullptr) return;
  last_scale_ = options_.scheme == Scheme::kPerTensor ? tensor_scale_ : r.scale[0];
  std::vector<uint8_t> bytes = r.codes;
  if (options_.format == ref::Format::kE2M1) {
    ref::pack_e2m1(r.codes.data(), n, bytes.data());
    bytes.resize(static_cast<size_t>(n / 2));
  }
  codes_->expect_bytes(codes_->place(leading), bytes.data(), bytes.size());
  for (int64_t i = 0; scale_ != nullptr && i < scopes_; ++i) {
    const size_t at = place_of_scale(leading, row, i, scopes_), k = static_cast<size_t>(i);
    if (ref::has_scale_bytes(options_)) {
      scale_->expect_bytes(at, &r.scale_bytes[k], 1);
    } else {
      scale_->expect(at, &r.scale[k], 1);
    }
  }
}

// ---- Drawing.

namespace {

// Scales of any layout.
void draw_scales(ref::Random& random, LineWriter& line, const std::string& path,
                 const ref::QuantOptions& q, int64_t outer, int64_t inner, int64_t scopes) {
  const std::string scale = path + ".scale";
  const fastnorm_dtype_id dtype = q.scheme == Scheme::kNvfp4 ? FASTNORM_DTYPE_F8_E4M3FN
                                  : ref::has_scale_bytes(q)  ? FASTNORM_DTYPE_F8_E8M0FNU
                                                             : FASTNORM_DTYPE_F32;
  const std::vector<int64_t> shape = {outer, inner, scopes};
  if (q.scheme != Scheme::kPerRow && random.one_in(2)) {
    const bool swizzled = random.one_in(2) && ref::has_scale_bytes(q);
    line.set(path + ".scale_layout", std::string(swizzled ? "swizzled_128x4" : "column_major"));
    return line.tensor(
        scale, dtype,
        swizzled ? std::vector<int64_t>{ref::swizzled_bytes(outer * inner, scopes)} : shape);
  }
  if (!random.one_in(3)) return line.tensor(scale, dtype, shape, random.below(2));
  line.tensor(scale, dtype, shape);
  const int64_t row = scopes * 3 + 5;
  line.strides(scale, {inner * row, row, 3});
}

}  // namespace

void draw_rotation(ref::Random& random, LineWriter& line, const std::string& path, int64_t n,
                   int64_t scale_block, bool has_y) {
  int64_t block = int64_t{16} << random.below(4);
  while (block >= 16 && (n % block != 0 || scale_block % block != 0)) block /= 2;
  if (block < 16) return;
  line.set(path + ".rotation", block);
  if (has_y && random.one_in(3)) line.set(path + ".y_rotated", int64_t{1});
  if (random.one_in(2))
    line.tensor(path + ".rotation_signs", FASTNORM_DTYPE_F32, {random.one_in(2) ? n : block}, 0,
                random.below(3));
}

DrawnQuant draw_quant(ref::Random& random, LineWriter& line, const std::string& path, int64_t outer,
                      int64_t inner, int64_t n, QuantKind kind) {
  const bool plain = kind == QuantKind::kPlain, bare = kind == QuantKind::kBare;
  DrawnQuant drawn;
  ref::QuantOptions& q = drawn.options;
  constexpr auto kSchemes = static_cast<int64_t>(std::size(ref::kSchemes)) - 1;  // without kNone
  int64_t scheme = plain ? 1 : 1 + random.below(kSchemes), format = random.below(3);
  if (ref::is_fp4(ref::kSchemes[scheme]) && n % 2 != 0) scheme = 2;
  q.scheme = ref::kSchemes[scheme];
  if (q.scheme == Scheme::kMxfp8) format = random.below(2);
  q.format = ref::is_fp4(q.scheme) ? ref::Format::kE2M1 : ref::kFormats[format];
  drawn.codes = ref::is_fp4(q.scheme) ? FASTNORM_DTYPE_F4_E2M1FN_X2 : kCodeTypes[format];
  line.set(path + ".scheme", scheme);
  if (q.scheme == Scheme::kPerBlock) {
    q.block_size = random.one_in(2) ? 64 : 128;
    line.set(path + ".block_size", q.block_size);
  }
  q.divide = !bare && scheme <= 3 && random.one_in(3);
  if (q.divide) line.set(path + ".division", std::string("divide"));
  drawn.from_rounded = !bare && random.one_in(2);
  if (drawn.from_rounded) line.set(path + ".source", std::string("rounded"));
  if (!plain) {
    const bool dynamic = q.scheme == Scheme::kPerRow || q.scheme == Scheme::kPerBlock;
    if (dynamic && q.format != ref::Format::kI8 && random.one_in(2)) {
      q.pow2 = true;
      q.e8m0 = random.one_in(2);
      line.set(path + ".scale_pow2", int64_t{1});
    }
    const float floor = dynamic ? random.of({0.0f, 0.0f, 0x1p-9f, 4.0f}) : 0.0f;
    if (floor != 0) line.set(path + ".amax_floor", static_cast<double>(floor));
    if (!bare && random.one_in(3)) {
      line.set(path + ".clamp", 1.5);
    } else if (!bare && random.one_in(3)) {
      line.scalar(path + ".clamp_scale",
                  random.of({1.5f, 0.25f, 1e30f, 0.0f, -0.0f, -1.5f, std::nanf("")}));
    }
  }
  if (q.scheme == Scheme::kPerTensor) {
    line.scalar(path + ".scale", 0.5f);
  } else {
    draw_scales(random, line, path, q, outer, inner, ref::scopes_of(q, n));
  }
  if (q.scheme == Scheme::kNvfp4) line.scalar(path + ".global_scale", 0.5f);
  const int64_t columns = ref::scope_columns(q, n);
  const bool rotates = kind == QuantKind::kRotated || bare;
  if (rotates || random.one_in(plain ? 16 : 2))
    draw_rotation(random, line, path, n, columns == n && q.block_size == 0 ? 0 : columns,
                  !plain && !bare);
  return drawn;
}

}  // namespace fastnorm::support
