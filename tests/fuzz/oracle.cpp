#include "oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace fastnorm::fuzz {
namespace {

constexpr int64_t kMostSpans = 4096;
constexpr int32_t kMostRank = 8;

uint32_t id_of(fastnorm_dtype d) {
  return d.code | uint32_t{d.bits} << 8 | uint32_t{d.lanes} << 16;
}

// An enum field as the number it holds, which may be none of its names.
template <class Enum>
uint32_t number(const Enum& field) {
  uint32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

int64_t bits_of(fastnorm_dtype d) { return int64_t{d.bits} * d.lanes; }

bool is_row_dtype(uint32_t id) {
  return id == FASTNORM_DTYPE_F32 || id == FASTNORM_DTYPE_F16 || id == FASTNORM_DTYPE_BF16;
}

bool same_shape(const fastnorm_tensor& a, const fastnorm_tensor& b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// Elements, or -1 where there are more than matter here.
int64_t elements_of(const fastnorm_tensor& t) {
  int64_t count = 1;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
  }
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (__builtin_mul_overflow(count, t.shape[i], &count)) return -1;
  }
  return count;
}

int64_t stride_of(const fastnorm_tensor& t, int32_t dim) {
  if (t.strides != nullptr) return t.strides[dim];
  int64_t stride = 1;
  for (int32_t i = t.ndim - 1; i > dim; --i) stride *= t.shape[i];
  return stride;
}

bool on_device(const fastnorm_tensor& t, int32_t device_type) {
  if (device_type == FASTNORM_DEVICE_CPU) {
    return t.device_type == FASTNORM_DEVICE_CPU || t.device_type == FASTNORM_DEVICE_CUDA_HOST;
  }
  return t.device_id == 0 &&
         (t.device_type == FASTNORM_DEVICE_CUDA || t.device_type == FASTNORM_DEVICE_CUDA_MANAGED);
}

// --- one tensor ---

const char* tensor_fault(const fastnorm_tensor& t, int32_t device_type) {
  if (!on_device(t, device_type)) return "a tensor on another device";
  if (t.ndim < 1 || t.ndim > kMostRank) return "a rank that no tensor may have";
  if (t.shape == nullptr) return "a tensor without a shape";
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] < 0) return "a negative extent";
  }
  const int64_t elements = elements_of(t);
  if (elements < 0) return "too many elements";
  if (elements == 0) return nullptr;
  if (t.data == nullptr) return "no memory for elements";
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  const auto bytes = static_cast<uintptr_t>(std::max<int64_t>(bits_of(t.dtype) / 8, 1));
  if (address % bytes != 0) return "an address that does not suit the dtype";
  return nullptr;
}

const char* row_fault(const fastnorm_tensor& t, const fastnorm_tensor& x, int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (!is_row_dtype(id_of(t.dtype))) return "a dtype that rows cannot have";
  if (!same_shape(t, x)) return "a shape that is not x's";
  return nullptr;
}

const char* column_fault(const fastnorm_tensor& t, const fastnorm_tensor& x, int64_t group,
                         int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (!is_row_dtype(id_of(t.dtype))) return "a dtype that columns cannot have";
  if (t.ndim > x.ndim) return "columns of more dimensions than x";
  const int64_t last = t.shape[t.ndim - 1];
  if (last != x.shape[x.ndim - 1] && last != group) return "columns that are not n";
  for (int32_t i = 2; i <= t.ndim; ++i) {
    const int64_t extent = t.shape[t.ndim - i];
    if (extent != 1 && extent != x.shape[x.ndim - i]) return "columns that do not broadcast";
  }
  return nullptr;
}

// True if `t` is x.shape[:-1] and a last extent, which may be left out where `optional`.
bool fits_rows(const fastnorm_tensor& t, const fastnorm_tensor& x, int64_t last, bool optional) {
  const bool with_last = t.ndim == x.ndim;
  if (!with_last && !(optional && t.ndim == x.ndim - 1)) return false;
  return std::equal(x.shape, x.shape + x.ndim - 1, t.shape) &&
         (!with_last || t.shape[t.ndim - 1] == last);
}

const char* statistic_fault(const fastnorm_tensor& t, const fastnorm_tensor& x,
                            int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (id_of(t.dtype) != FASTNORM_DTYPE_F32) return "a statistic that is not f32";
  return fits_rows(t, x, 1, true) ? nullptr : "a statistic without one value a row";
}

// --- stages ---

bool has_stages(const fastnorm_norm_args& a) {
  return a.gate != nullptr || a.sumsq != nullptr || a.mean_in != nullptr || a.rstd_in != nullptr ||
         a.group_size != 0 || number(a.gate_act) != 0 || number(a.gate_position) != 0 ||
         number(a.gate_source) != 0 || number(a.activation) != 0 || a.branch_norm != 0 ||
         number(a.branch_kind) != 0 || number(a.branch_rounding) != 0 || a.branch_rounded != 0 ||
         number(a.sum_rounding) != 0 || std::bit_cast<uint32_t>(a.branch_eps) != 0 ||
         std::bit_cast<uint32_t>(a.branch_weight_offset) != 0 ||
         std::bit_cast<uint32_t>(a.alpha) != 0 || a.branch_weight != nullptr ||
         a.branch_bias != nullptr || a.branch_rstd != nullptr || a.sum_scale != nullptr ||
         a.residual_gate != nullptr || a.residual_gate_table != nullptr ||
         a.modulation_scale != nullptr || a.scale_table != nullptr ||
         a.modulation_shift != nullptr || a.shift_table != nullptr ||
         a.modulation_index != nullptr || number(a.residual_gate_act) != 0 ||
         number(a.modulation_rounding) != 0 ||
         (a.flags & FASTNORM_NORM_MODULATION_PLAIN_SCALE) != 0;
}

const char* stage_number_fault(const fastnorm_norm_args& a) {
  if (number(a.gate_act) > 3 || number(a.activation) > 3 || number(a.residual_gate_act) > 3)
    return "an unknown activation";
  if (number(a.modulation_rounding) > 1) return "an unknown rounding of the modulation";
  if (number(a.residual_gate_act) != 0 && a.residual_gate == nullptr)
    return "an activation of no residual gate";
  const bool modulates = a.modulation_scale != nullptr || a.modulation_shift != nullptr;
  if (number(a.modulation_rounding) != 0 && !modulates) return "a rounding of no modulation";
  if ((a.flags & FASTNORM_NORM_MODULATION_PLAIN_SCALE) != 0 && a.modulation_scale == nullptr)
    return "a plain scale that is absent";
  if ((a.residual_gate_table != nullptr && a.residual_gate == nullptr) ||
      (a.scale_table != nullptr && a.modulation_scale == nullptr) ||
      (a.shift_table != nullptr && a.modulation_shift == nullptr)) {
    return "a table of no modulator";
  }
  if (a.modulation_index != nullptr && !modulates && a.residual_gate == nullptr)
    return "an index of no modulator";
  if (number(a.gate_position) > 1 || number(a.gate_source) > 1) return "an unknown gate";
  const bool gates = (number(a.gate_act) | number(a.gate_position) | number(a.gate_source)) != 0;
  if (gates && a.gate == nullptr) return "fields of no gate";
  if (number(a.gate_position) == 1 && number(a.gate_source) == 1) return "a gate ahead, rounded";
  if (a.branch_norm < 0 || a.branch_norm > 1 || a.branch_rounded < 0 || a.branch_rounded > 1)
    return "a flag of the branch that is not 0 or 1";
  if (number(a.branch_kind) > 1 || number(a.branch_rounding) > 2 || number(a.sum_rounding) > 1)
    return "an unknown number of the branch";
  if (!std::isfinite(a.branch_eps) || a.branch_eps < 0) return "branch_eps out of range";
  if (!std::isfinite(a.branch_weight_offset) || !std::isfinite(a.alpha)) return "not finite";
  if (a.branch_weight == nullptr && a.branch_weight_offset != 0) return "an offset of no weight";
  const bool branch = number(a.branch_kind) != 0 || number(a.branch_rounding) != 0 ||
                      a.branch_rounded != 0 || a.branch_eps != 0 || a.branch_weight != nullptr ||
                      a.branch_bias != nullptr || a.branch_rstd != nullptr;
  if (branch && a.branch_norm == 0) return "fields of no branch norm";
  if (a.group_size < 0) return "groups of fewer than no columns";
  const bool layer = number(a.kind) == FASTNORM_NORM_LAYER;
  if (a.mean_in != nullptr && !layer) return "a given mean of RMS";
  if (layer && (a.mean_in == nullptr) != (a.rstd_in == nullptr)) return "half a statistic";
  if (a.rstd_in != nullptr && (a.mean != nullptr || a.rstd != nullptr || a.sumsq != nullptr))
    return "statistics both given and asked for";
  if (a.sumsq != nullptr && number(a.rounding) == 2) return "sums of rounded squares";
  return nullptr;
}

const char* group_statistic_fault(const fastnorm_tensor& t, const fastnorm_norm_args& a,
                                  int64_t groups, bool pairs, int32_t device_type) {
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (id_of(t.dtype) != FASTNORM_DTYPE_F32) return "a statistic that is not f32";
  const fastnorm_tensor& x = *a.x;
  std::vector<int64_t> shape(x.shape, x.shape + x.ndim - 1);
  if (groups > 1) shape.push_back(groups);
  if (pairs) shape.push_back(2);
  if (groups == 1 && !pairs && t.ndim == x.ndim) shape.push_back(1);
  const bool same = static_cast<size_t>(t.ndim) == shape.size() &&
                    std::equal(shape.begin(), shape.end(), t.shape);
  return same ? nullptr : "a statistic without one value a group";
}

// A modulator, or its table.
const char* modulator_fault(const fastnorm_tensor& t, const fastnorm_norm_args& a, bool table,
                            int32_t device_type) {
  const fastnorm_tensor& x = *a.x;
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (id_of(t.dtype) != id_of(x.dtype) && id_of(t.dtype) != FASTNORM_DTYPE_F32)
    return "a modulator of another dtype";
  const int64_t n = x.shape[x.ndim - 1], last = t.shape[t.ndim - 1];
  if (table) {
    for (int32_t i = 0; i + 1 < t.ndim; ++i) {
      if (t.shape[i] != 1) return "a table of several rows";
    }
    return last == n ? nullptr : "a table of other columns";
  }
  if (last != n && last != 1) return "a modulator of other columns";
  if (a.modulation_index != nullptr)
    return t.ndim == 2 && t.shape[0] > 0 ? nullptr : "a modulator that is no matrix";
  if (t.ndim > x.ndim) return "a modulator of more dimensions";
  for (int32_t i = 2; i <= t.ndim; ++i) {
    const int64_t extent = t.shape[t.ndim - i];
    if (extent != 1 && extent != x.shape[x.ndim - i]) return "a modulator that does not broadcast";
  }
  return nullptr;
}

const char* modulation_fault(const fastnorm_norm_args& a, int32_t device_type) {
  for (const fastnorm_tensor* t : {a.residual_gate, a.modulation_scale, a.modulation_shift}) {
    if (t == nullptr) continue;
    if (const char* fault = modulator_fault(*t, a, false, device_type)) return fault;
  }
  for (const fastnorm_tensor* t : {a.residual_gate_table, a.scale_table, a.shift_table}) {
    if (t == nullptr) continue;
    if (const char* fault = modulator_fault(*t, a, true, device_type)) return fault;
  }
  if (a.modulation_index == nullptr) return nullptr;
  const fastnorm_tensor& t = *a.modulation_index;
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  if (id_of(t.dtype) != FASTNORM_DTYPE_I32 && id_of(t.dtype) != FASTNORM_DTYPE_I64)
    return "an index that is no integer";
  return fits_rows(t, *a.x, 1, true) ? nullptr : "an index without one value a row";
}

const char* stage_fault(const fastnorm_norm_args& a, int32_t device_type) {
  const fastnorm_tensor& x = *a.x;
  const int64_t n = x.shape[x.ndim - 1], group = a.group_size != 0 ? a.group_size : n;
  if (n % group != 0) return "groups that do not divide a row";
  if (a.gate != nullptr) {
    if (const char* fault = row_fault(*a.gate, x, device_type)) return fault;
    const uint32_t id = id_of(a.gate->dtype);
    if (id != id_of(x.dtype) && id != FASTNORM_DTYPE_F32) return "a gate of another dtype";
  }
  for (const fastnorm_tensor* t : {a.branch_weight, a.branch_bias}) {
    if (t == nullptr) continue;
    if (const char* fault = column_fault(*t, x, n, device_type)) return fault;
  }
  if (a.branch_rstd != nullptr) {
    if (const char* fault = statistic_fault(*a.branch_rstd, x, device_type)) return fault;
  }
  if (a.sum_scale != nullptr) {
    const fastnorm_tensor& t = *a.sum_scale;
    if (const char* fault = tensor_fault(t, device_type)) return fault;
    if (id_of(t.dtype) != FASTNORM_DTYPE_F32 || t.ndim != 1 || t.shape[0] != 1)
      return "a factor that is not one f32";
  }
  if (const char* fault = modulation_fault(a, device_type)) return fault;
  const bool layer = number(a.kind) == FASTNORM_NORM_LAYER;
  for (const fastnorm_tensor* t : {a.mean, a.rstd, a.mean_in, a.rstd_in, a.sumsq}) {
    if (t == nullptr) continue;
    const bool pairs = t == a.sumsq && layer;
    if (const char* fault = group_statistic_fault(*t, a, n / group, pairs, device_type))
      return fault;
  }
  return nullptr;
}

// --- quantised outputs ---

bool is_one_of(uint32_t value, std::initializer_list<uint32_t> list) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool is_mx(const fastnorm_norm_args& a) {
  return is_one_of(number(a.quant_scheme), {FASTNORM_QUANT_MXFP8, FASTNORM_QUANT_MXFP4});
}

// Columns that share a scale; 0 = the row or all.
int64_t block_of(const fastnorm_norm_args& a) {
  switch (number(a.quant_scheme)) {
    case FASTNORM_QUANT_PER_BLOCK:
      return a.quant_block_size;
    case FASTNORM_QUANT_MXFP8:
    case FASTNORM_QUANT_MXFP4:
      return 32;
    case FASTNORM_QUANT_NVFP4:
      return 16;
    default:
      return 0;
  }
}

const char* quant_number_fault(const fastnorm_norm_args& a) {
  const uint32_t scheme = number(a.quant_scheme), layout = number(a.scale_layout),
                 source = number(a.quant_source);
  if (scheme > FASTNORM_QUANT_MXFP4) return "an unknown scheme";
  const bool none = scheme == FASTNORM_QUANT_NONE, nvfp4 = scheme == FASTNORM_QUANT_NVFP4;
  const bool blocks = scheme == FASTNORM_QUANT_PER_BLOCK;
  const bool floor = blocks || scheme == FASTNORM_QUANT_PER_ROW;
  if (none != (a.quantized == nullptr)) return "codes without a scheme, or none with";
  if (none != (a.scale == nullptr)) return "scales without a scheme, or none with";
  if (a.global_scale != nullptr && !nvfp4) return "a global scale of another scheme";
  if (blocks ? a.quant_block_size != 64 && a.quant_block_size != 128 : a.quant_block_size != 0) {
    return "a block size that does not exist";
  }
  if (source > (none ? 0u : 1u)) return "a source out of range";
  if (layout > (blocks || nvfp4 || is_mx(a) ? 2u : 0u)) {
    return "a scale layout out of range";
  }
  if (number(a.quant_division) > (floor || scheme == FASTNORM_QUANT_PER_TENSOR ? 1u : 0u)) {
    return "quant_division out of range";
  }
  if (a.scale_pow2 != 0 && (a.scale_pow2 != 1 || !floor)) return "scale_pow2 out of range";
  const float low = std::ldexp(1.0f, -100), high = std::ldexp(1.0f, 100);
  if (a.amax_floor != 0 && !(floor && a.amax_floor >= low && a.amax_floor <= high)) {
    return "amax_floor out of range";
  }
  if (a.clamp_scale != nullptr && (none || a.clamp != 0)) return "two clamps, or one of no codes";
  if (a.clamp != 0 && (none || !std::isfinite(a.clamp) || a.clamp < 0)) return "clamp out of range";
  return nullptr;
}

const char* single_fault(const fastnorm_tensor* t, int32_t device_type) {
  if (t == nullptr) return nullptr;
  if (const char* fault = tensor_fault(*t, device_type)) return fault;
  if (id_of(t->dtype) != FASTNORM_DTYPE_F32) return "a single value that is not f32";
  return t->ndim == 1 && t->shape[0] == 1 ? nullptr : "a single value of another shape";
}

const char* codes_fault(const fastnorm_norm_args& a, int32_t device_type) {
  const fastnorm_tensor &t = *a.quantized, &x = *a.x;
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  const uint32_t id = id_of(t.dtype), scheme = number(a.quant_scheme);
  const int64_t n = x.shape[x.ndim - 1];
  int64_t last = n;
  if (scheme == FASTNORM_QUANT_NVFP4 || scheme == FASTNORM_QUANT_MXFP4) {
    if (n % 2 != 0) return "half a byte of codes";
    if (is_one_of(id, {FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_U8})) {
      last = n / 2;
    } else if (id != FASTNORM_DTYPE_F4_E2M1FN) {
      return "codes that are not fp4";
    }
  } else if (!is_one_of(id, {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2})) {
    const bool pow2 = scheme == FASTNORM_QUANT_MXFP8 || a.scale_pow2 != 0;
    if (id != FASTNORM_DTYPE_I8 || pow2) return "codes of a wrong dtype";
  }
  return fits_rows(t, x, last, false) ? nullptr : "codes of another shape";
}

// What only the strides of codes can get wrong.
const char* codes_layout_fault(const fastnorm_tensor& t) {
  const int32_t last = t.ndim - 1;
  if (t.shape[last] > 1 && stride_of(t, last) != 1) return "codes with gaps";
  for (int32_t i = 0; id_of(t.dtype) == FASTNORM_DTYPE_F4_E2M1FN && i < last; ++i) {
    if (t.shape[i] > 1 && stride_of(t, i) % 2 != 0) return "a row that begins inside a byte";
  }
  return nullptr;
}

const char* scale_fault(const fastnorm_norm_args& a, int32_t device_type) {
  const uint32_t scheme = number(a.quant_scheme);
  if (scheme == FASTNORM_QUANT_PER_TENSOR) return single_fault(a.scale, device_type);
  const fastnorm_tensor &t = *a.scale, &x = *a.x;
  if (const char* fault = tensor_fault(t, device_type)) return fault;
  const uint32_t id = id_of(t.dtype);
  const bool swizzled = number(a.scale_layout) == FASTNORM_SCALE_SWIZZLED_128X4;
  if (scheme == FASTNORM_QUANT_NVFP4) {
    if (!is_one_of(id, {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_U8})) return "a wrong fp4 scale";
  } else if (is_mx(a) || a.scale_pow2 != 0) {
    const bool byte = is_one_of(id, {FASTNORM_DTYPE_F8_E8M0FNU, FASTNORM_DTYPE_U8});
    const bool wide = !is_mx(a) && !swizzled && id == FASTNORM_DTYPE_F32;
    if (!byte && !wide) return "a wrong power-of-two scale";
  } else if (swizzled || id != FASTNORM_DTYPE_F32) {
    return "a scale that is not f32";
  }
  const int64_t block = block_of(a), n = x.shape[x.ndim - 1];
  const int64_t scales = block == 0 ? 1 : n / block + (n % block != 0);
  if (!swizzled) return fits_rows(t, x, scales, block == 0) ? nullptr : "scales of another shape";
  int64_t rows = 1, bytes = 0;
  for (int32_t i = 0; i < x.ndim - 1; ++i) rows = elements_of(x) == 0 ? 0 : rows * x.shape[i];
  const int64_t tiles = rows / 128 + (rows % 128 != 0);
  if (__builtin_mul_overflow(tiles, (scales / 4 + (scales % 4 != 0)) * 512, &bytes)) {
    return "too many tiles";
  }
  return t.ndim == 1 && t.shape[0] == bytes ? nullptr : "tiles of another size";
}

const char* quant_fault(const fastnorm_norm_args& a, int32_t device_type) {
  const bool none = number(a.quant_scheme) == FASTNORM_QUANT_NONE;
  if (const char* fault = single_fault(a.amax, device_type)) return fault;
  if (none) return nullptr;
  if (const char* fault = codes_fault(a, device_type)) return fault;
  if (const char* fault = scale_fault(a, device_type)) return fault;
  if (const char* fault = single_fault(a.clamp_scale, device_type)) return fault;
  return single_fault(a.global_scale, device_type);
}

// --- one call ---

const char* scalar_fault(const fastnorm_norm_args& a) {
  if (a.struct_size < offsetof(fastnorm_norm_args, clamp_scale)) return "a struct of no version";
  if (a.x == nullptr || (a.y == nullptr && a.quantized == nullptr && a.sumsq == nullptr))
    return "no x or no output";
  if (a.amax != nullptr && a.y == nullptr && a.quantized == nullptr) return "an amax of nothing";
  if (const char* fault = stage_number_fault(a)) return fault;
  if (number(a.kind) > FASTNORM_NORM_LAYER) return "an unknown kind";
  if (!std::isfinite(a.eps) || a.eps < 0) return "eps out of range";
  if (!std::isfinite(a.weight_offset)) return "weight_offset out of range";
  if (a.weight == nullptr && a.weight_offset != 0) return "weight_offset without a weight";
  if (number(a.rounding) > 3) return "an unknown rounding";
  if (number(a.residual_rounding) > 2) return "an unknown residual rounding";
  if (a.residual_out != nullptr && a.residual == nullptr) return "residual_out without residual";
  if (a.mean != nullptr && number(a.kind) == FASTNORM_NORM_RMS) return "a mean of RMS";
  if (a.flags > 15) return "flags that mean nothing yet";
  if ((a.flags & 5) == 4) return "constant weights without a wait";
  return quant_number_fault(a);
}

const char* call_fault(const fastnorm_norm_args& a, int32_t device_type) {
  if (const char* fault = scalar_fault(a)) return fault;
  const fastnorm_tensor& x = *a.x;
  if (!is_row_dtype(id_of(x.dtype))) return "a dtype that rows cannot have";
  if (const char* fault = tensor_fault(x, device_type)) return fault;
  if (x.shape[x.ndim - 1] < 1) return "rows without columns";
  if (x.shape[x.ndim - 1] > int64_t{1} << 32) return "rows of too many columns";
  for (const fastnorm_tensor* t : {a.x, a.y, a.residual, a.residual_out}) {
    if (t == nullptr) continue;
    if (const char* fault = row_fault(*t, x, device_type)) return fault;
  }
  if (a.y != nullptr && id_of(a.y->dtype) != id_of(x.dtype) &&
      id_of(a.y->dtype) != FASTNORM_DTYPE_F32) {
    return "a y of another 16-bit dtype, or of fewer bits than x";
  }
  const int64_t group = a.group_size > 0 ? a.group_size : x.shape[x.ndim - 1];
  for (const fastnorm_tensor* t : {a.weight, a.bias}) {
    if (t == nullptr) continue;
    if (const char* fault = column_fault(*t, x, group, device_type)) return fault;
  }
  if (has_stages(a)) {
    if (const char* fault = stage_fault(a, device_type)) return fault;
    return quant_fault(a, device_type);
  }
  for (const fastnorm_tensor* t : {a.mean, a.rstd}) {
    if (t == nullptr) continue;
    if (const char* fault = statistic_fault(*t, x, device_type)) return fault;
  }
  return quant_fault(a, device_type);
}

// --- memory ---

// Bytes of the last dimension for one index of the leading ones.
struct Span {
  uintptr_t begin, end;
  int tensor;  // which tensor of all calls
};

struct View {
  const fastnorm_tensor* tensor;
  int call;
  bool written;
  char role;
  int64_t strides[kMostRank] = {};
};

std::vector<View> views_of(const std::vector<fastnorm_norm_args>& calls) {
  std::vector<View> views;
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    const fastnorm_norm_args& a = calls[static_cast<size_t>(i)];
    const bool scale_is_output = number(a.quant_scheme) != FASTNORM_QUANT_PER_TENSOR;
    const View all[] = {{a.x, i, false, 'x'},
                        {a.y, i, true, 'y'},
                        {a.residual, i, false, 'r'},
                        {a.residual_out, i, true, 'o'},
                        {a.weight, i, false, 'w'},
                        {a.bias, i, false, 'b'},
                        {a.mean, i, true, 'm'},
                        {a.rstd, i, true, 's'},
                        {a.quantized, i, true, 'q'},
                        {a.scale, i, scale_is_output, 'c'},
                        {a.global_scale, i, false, 'g'},
                        {a.clamp_scale, i, false, 'k'},
                        {a.amax, i, true, 'a'},
                        {a.gate, i, false, 'z'},
                        {a.mean_in, i, false, 'i'},
                        {a.rstd_in, i, false, 'j'},
                        {a.sumsq, i, true, 't'},
                        {a.branch_weight, i, false, 'W'},
                        {a.branch_bias, i, false, 'B'},
                        {a.branch_rstd, i, true, 'S'},
                        {a.sum_scale, i, false, 'f'},
                        {a.residual_gate, i, false, 'G'},
                        {a.residual_gate_table, i, false, 'u'},
                        {a.modulation_scale, i, false, 'M'},
                        {a.scale_table, i, false, 'v'},
                        {a.modulation_shift, i, false, 'H'},
                        {a.shift_table, i, false, 'p'},
                        {a.modulation_index, i, false, 'n'}};
    // Without rows a call touches nothing, its weight neither.
    if (elements_of(*a.x) == 0) continue;
    for (View view : all) {
      if (view.tensor == nullptr) continue;
      const fastnorm_tensor& t = *view.tensor;
      for (int32_t d = 0; d < t.ndim; ++d) view.strides[d] = stride_of(t, d);
      if (view.role == 'c' && t.strides == nullptr &&
          number(a.scale_layout) == FASTNORM_SCALE_COLUMN_MAJOR) {
        int64_t rows = 1;  // all rows of a column after each other
        for (int32_t d = t.ndim - 2; d >= 0; --d) {
          view.strides[d] = rows;
          rows *= t.shape[d];
        }
        view.strides[t.ndim - 1] = rows;
      }
      views.push_back(view);
    }
  }
  return views;
}

bool same_view(const fastnorm_tensor& a, const fastnorm_tensor& b) {
  if (id_of(a.dtype) != id_of(b.dtype) || !same_shape(a, b)) return false;
  if (reinterpret_cast<uintptr_t>(a.data) + a.byte_offset !=
      reinterpret_cast<uintptr_t>(b.data) + b.byte_offset) {
    return false;
  }
  for (int32_t i = 0; i < a.ndim; ++i) {
    if (a.shape[i] > 1 && stride_of(a, i) != stride_of(b, i)) return false;
  }
  return true;
}

bool whole_rows(const View& v) {
  const int32_t last = v.tensor->ndim - 1;
  return v.tensor->shape[last] <= 1 || v.strides[last] == 1;
}

// `elements` in bytes; codes of half a byte come in pairs.
uint64_t bytes_of(int64_t elements, fastnorm_dtype dtype) {
  const int64_t bits = bits_of(dtype);
  return bits < 8 ? static_cast<uint64_t>(elements / (8 / bits))
                  : static_cast<uint64_t>(elements) * static_cast<uint64_t>(bits / 8);
}

// One span an element where the last dimension has gaps (statistics and scales may), else one a
// row.
void add_spans(const View& v, int number, std::vector<Span>* spans) {
  const fastnorm_tensor& t = *v.tensor;
  const int32_t last = t.ndim - 1;
  const int64_t count = elements_of(t), step = whole_rows(v) ? t.shape[last] : 1;
  for (int64_t e = 0; e < count; e += step) {
    uint64_t place = 0;
    int64_t rest = e;
    for (int32_t d = last; d >= 0; --d) {
      place += static_cast<uint64_t>(rest % t.shape[d]) * static_cast<uint64_t>(v.strides[d]);
      rest /= t.shape[d];
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset +
                              bytes_of(static_cast<int64_t>(place), t.dtype);
    spans->push_back({address, address + bytes_of(step, t.dtype), number});
  }
}

int64_t spans_of(const View& v) {
  const int64_t count = elements_of(*v.tensor);
  if (count <= 0) return count < 0 ? kMostSpans + 1 : 0;
  return whole_rows(v) ? count / v.tensor->shape[v.tensor->ndim - 1] : count;
}

bool is_input_row(const View& v) { return v.role == 'x' || v.role == 'r'; }
bool is_output_row(const View& v) { return v.role == 'y' || v.role == 'o'; }

const char* layout_fault(const View& v) {
  if (v.role == 'q') return codes_layout_fault(*v.tensor);
  const bool row = is_input_row(v) || is_output_row(v) || v.role == 'w' || v.role == 'b' ||
                   v.role == 'z' || v.role == 'W' || v.role == 'B';
  return row && !whole_rows(v) ? "a last dimension with gaps" : nullptr;
}

bool may_overlap(const View& a, const View& b) {
  const auto are = [&](char one, char other) {
    return (a.role == one && b.role == other) || (a.role == other && b.role == one);
  };
  if (!a.written && !b.written) return a.call != b.call || !are('x', 'z');
  // An output of rows in place of an input of rows.
  const bool in_place = (is_input_row(a) && is_output_row(b)) ||
                        (is_output_row(a) && is_input_row(b)) || are('y', 'z');
  return a.call == b.call && in_place && same_view(*a.tensor, *b.tensor);
}

const char* memory_fault(const std::vector<View>& views) {
  std::vector<Span> spans;
  for (int i = 0; i < static_cast<int>(views.size()); ++i) {
    add_spans(views[static_cast<size_t>(i)], i, &spans);
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end < spans[i].begin) return "memory past the end of the address space";
    for (size_t j = i + 1; j < spans.size() && spans[j].begin < spans[i].end; ++j) {
      const View& a = views[static_cast<size_t>(spans[i].tensor)];
      const View& b = views[static_cast<size_t>(spans[j].tensor)];
      if (spans[i].tensor == spans[j].tensor) {
        if (a.written) return "an output that overlaps itself";
      } else if (!may_overlap(a, b)) {
        return "an output that overlaps another tensor";
      }
    }
  }
  return nullptr;
}

}  // namespace

bool is_small(const std::vector<fastnorm_norm_args>& calls) {
  int64_t spans = 0;
  for (const View& view : views_of(calls)) {
    spans += spans_of(view);
    if (spans > kMostSpans) return false;
  }
  return true;
}

const char* find_argument_fault(const fastnorm_norm_args& call, int32_t device_type) {
  return call_fault(call, device_type);
}

const char* find_fault(const std::vector<fastnorm_norm_args>& calls, int32_t device_type) {
  for (const fastnorm_norm_args& call : calls) {
    if (const char* fault = call_fault(call, device_type)) return fault;
  }
  const std::vector<View> views = views_of(calls);
  for (const View& view : views) {
    if (const char* fault = layout_fault(view)) return fault;
  }
  return is_small(calls) ? memory_fault(views) : nullptr;
}

}  // namespace fastnorm::fuzz
