#include "random_call.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>

namespace fastnorm::fuzz {
namespace {

constexpr fastnorm_dtype_id kAllDtypes[] = {
    FASTNORM_DTYPE_F32,       FASTNORM_DTYPE_F16,          FASTNORM_DTYPE_BF16,
    FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,      FASTNORM_DTYPE_F8_E8M0FNU,
    FASTNORM_DTYPE_F4_E2M1FN, FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_I8,
    FASTNORM_DTYPE_U8,        FASTNORM_DTYPE_I32,          FASTNORM_DTYPE_I64};

// Numbers at which arithmetic on extents, strides and addresses breaks.
constexpr int64_t kHardNumbers[] = {-1,
                                    0,
                                    1,
                                    std::numeric_limits<int32_t>::max(),
                                    int64_t{1} << 31,
                                    (int64_t{1} << 33) + 1,
                                    int64_t{1} << 61,
                                    int64_t{1} << 62,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::min() + 1};

int64_t hard_number(Bytes& bytes) { return kHardNumbers[bytes.pick(std::size(kHardNumbers))]; }

int64_t extent(Bytes& bytes) {
  const uint8_t b = bytes.byte();
  return b < 250 ? b % 6 : hard_number(bytes);
}

// n: the sizes around which a kernel is chosen, small and long.
int64_t columns_of_row(Bytes& bytes) {
  switch (bytes.pick(4)) {
    case 0:
      return 1 + bytes.byte();
    case 1:
      return 8 * (1 + bytes.take<uint16_t>());
    case 2:
      return (int64_t{1} << bytes.pick(21)) + bytes.pick(3) - 1;
    default:
      return bytes.rarely() ? hard_number(bytes) : 64 * (1 + bytes.byte());
  }
}

// Addresses lie in three buffers a little way apart, so that overlap is as likely as not.
uintptr_t address(Bytes& bytes) {
  constexpr uintptr_t kBuffer = uintptr_t{1} << 40, kApart = uintptr_t{1} << 16;
  uintptr_t a = kBuffer + kApart * bytes.pick(16);
  if ((bytes.byte() & 3) == 0) a += bytes.byte();
  return bytes.rarely() ? bytes.take<uint64_t>() : a;
}

// Fields in the order of the struct.
const fastnorm_tensor* fastnorm_norm_args::*const kFields[kTensors] = {
    &fastnorm_norm_args::x,
    &fastnorm_norm_args::residual,
    &fastnorm_norm_args::weight,
    &fastnorm_norm_args::bias,
    &fastnorm_norm_args::y,
    &fastnorm_norm_args::residual_out,
    &fastnorm_norm_args::mean,
    &fastnorm_norm_args::rstd,
    &fastnorm_norm_args::global_scale,
    &fastnorm_norm_args::quantized,
    &fastnorm_norm_args::scale,
    &fastnorm_norm_args::amax,
    &fastnorm_norm_args::clamp_scale,
    &fastnorm_norm_args::gate,
    &fastnorm_norm_args::sumsq,
    &fastnorm_norm_args::mean_in,
    &fastnorm_norm_args::rstd_in,
    &fastnorm_norm_args::branch_weight,
    &fastnorm_norm_args::branch_bias,
    &fastnorm_norm_args::branch_rstd,
    &fastnorm_norm_args::sum_scale,
    &fastnorm_norm_args::residual_gate,
    &fastnorm_norm_args::residual_gate_table,
    &fastnorm_norm_args::modulation_scale,
    &fastnorm_norm_args::scale_table,
    &fastnorm_norm_args::modulation_shift,
    &fastnorm_norm_args::shift_table,
    &fastnorm_norm_args::modulation_index};
constexpr const char* kNames[kTensors] = {"x",
                                          "residual",
                                          "weight",
                                          "bias",
                                          "y",
                                          "residual_out",
                                          "mean",
                                          "rstd",
                                          "global_scale",
                                          "quantized",
                                          "scale",
                                          "amax",
                                          "clamp_scale",
                                          "gate",
                                          "sumsq",
                                          "mean_in",
                                          "rstd_in",
                                          "branch_weight",
                                          "branch_bias",
                                          "branch_rstd",
                                          "sum_scale",
                                          "residual_gate",
                                          "residual_gate_table",
                                          "modulation_scale",
                                          "scale_table",
                                          "modulation_shift",
                                          "shift_table",
                                          "modulation_index"};
enum Field {
  kX,
  kResidual,
  kWeight,
  kBias,
  kY,
  kResidualOut,
  kMean,
  kRstd,
  kGlobalScale,
  kQuantized,
  kScale,
  kAmax,
  kClampScale,
  kGate,
  kSumsq,
  kMeanIn,
  kRstdIn,
  kBranchWeight,
  kBranchBias,
  kBranchRstd,
  kSumScale,
  kResidualGate,
  kResidualGateTable,
  kModulationScale,
  kScaleTable,
  kModulationShift,
  kShiftTable,
  kModulationIndex
};

template <typename T>
T damaged(Bytes& bytes, T value) {
  return bytes.rarely() ? static_cast<T>(bytes.take<int32_t>()) : value;
}

float random_float(Bytes& bytes) {
  if (!bytes.rarely()) return static_cast<float>(bytes.byte()) / 256;
  float value;
  const uint32_t bits = bytes.take<uint32_t>();
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

RandomCall::RandomCall(Bytes& bytes, int32_t device_type, bool quantised)
    : device_type_(device_type) {
  fastnorm_norm_args args{};
  dtype_ =
      bytes.rarely() ? kAllDtypes[bytes.pick(std::size(kAllDtypes))] : kAllDtypes[bytes.pick(3)];
  shape_.resize(1 + bytes.pick(4));
  for (int64_t& e : shape_) e = extent(bytes);
  shape_.back() = columns_of_row(bytes);

  const uint8_t present = bytes.byte();
  const uint8_t wide = bytes.byte();  // which tensors have another dtype than x
  const auto row_dtype = [&](int bit) {
    return wide >> bit & 1 ? kAllDtypes[wide >> 2 & 1 ? wide % 3 : 0] : dtype_;
  };
  if ((wide >> 2 & 3) == 3) add_dimensions(bytes, wide >> 4 & 7);
  args.kind = damaged(bytes, static_cast<fastnorm_norm_kind>(present >> 7));
  tensor_like_x(bytes, &tensors_[kX], dtype_);
  tensor_like_x(bytes, &tensors_[kY], wide % 5 == 4 ? FASTNORM_DTYPE_F32 : dtype_);
  if (present & 1) tensor_like_x(bytes, &tensors_[kResidual], row_dtype(0));
  if (present & 2) tensor_like_x(bytes, &tensors_[kResidualOut], row_dtype(1));
  if (present & 4) columns(bytes, &tensors_[kWeight]);
  if (present & 8) columns(bytes, &tensors_[kBias]);
  if (present & 16) statistic(bytes, &tensors_[kMean]);
  if (present & 32) statistic(bytes, &tensors_[kRstd]);
  if (bytes.rarely()) {
    for (int i = kGlobalScale; i <= kClampScale; ++i) {
      if (bytes.byte() & 1) tensor_like_x(bytes, &tensors_[i], kAllDtypes[bytes.pick(12)]);
    }
  }
  for (int i = 0; i < kTensors; ++i) args.*kFields[i] = tensors_[i].tensor.get();
  if (bytes.rarely()) args.x = nullptr;
  if (bytes.rarely()) args.y = nullptr;
  if (bytes.byte() & 1) args.y = args.x;  // in place, as the same struct
  if (present & 64) args.residual_out = args.residual;
  if (wide >> 7 != 0) {  // outputs over the other one's input
    args.y = present & 1 ? args.residual : args.y;
    args.residual_out = present & 1 ? args.x : args.residual_out;
  }

  args.eps = random_float(bytes);
  args.weight_offset = present & 4 ? random_float(bytes) : 0;
  args.rounding = damaged(bytes, static_cast<fastnorm_rounding>(bytes.pick(4)));
  args.residual_rounding = damaged(bytes, static_cast<fastnorm_residual_rounding>(bytes.pick(3)));
  args.flags = damaged(bytes, 0u);
  if (bytes.rarely()) {
    args.quant_scheme = static_cast<fastnorm_quant_scheme>(bytes.pick(8));
    args.quant_block_size = bytes.byte();
    args.quant_source = static_cast<fastnorm_quant_source>(bytes.pick(3));
    args.scale_layout = static_cast<fastnorm_scale_layout>(bytes.pick(4));
    args.scale_pow2 = static_cast<int32_t>(bytes.pick(3));
    args.amax_floor = random_float(bytes);
    args.clamp = random_float(bytes);
    args.quant_division = static_cast<fastnorm_quant_division>(bytes.pick(3));
  }
  if (quantised) quantise(bytes, &args);
  if ((bytes.byte() & 7) == 7) stages(bytes, &args);
  pack(bytes, args);
}

// Quantised outputs that fit each other and x, but for a rare mistake.
void RandomCall::quantise(Bytes& bytes, fastnorm_norm_args* args) {
  for (int i = kGlobalScale; i <= kClampScale; ++i) tensors_[i] = {};
  // Plain calls miss what these need often enough.
  if (args->residual == nullptr) args->residual_out = nullptr;
  if (args->mean != nullptr) args->kind = FASTNORM_NORM_LAYER;
  const uint32_t scheme = bytes.pick(8) % 7;
  const bool mxfp4 = scheme == FASTNORM_QUANT_MXFP4;
  const bool none = scheme == FASTNORM_QUANT_NONE, fp4 = scheme == FASTNORM_QUANT_NVFP4 || mxfp4;
  const bool mx = scheme == FASTNORM_QUANT_MXFP8 || mxfp4,
             block = scheme == FASTNORM_QUANT_PER_BLOCK;
  const bool dynamic = block || scheme == FASTNORM_QUANT_PER_ROW;
  const uint8_t choice = bytes.byte();
  const bool swizzled = (block || mx || fp4) && (choice & 3) == 2;
  const bool pow2 = dynamic && ((choice & 4) != 0 || swizzled);
  const uint32_t layout = swizzled ? 2 : block || mx || fp4 ? choice & 1 : 0;
  args->quant_scheme = static_cast<fastnorm_quant_scheme>(scheme);
  args->quant_block_size = block ? 64 << (choice >> 3 & 1) : 0;
  args->quant_source = static_cast<fastnorm_quant_source>(none ? 0 : choice >> 4 & 1);
  args->scale_layout = static_cast<fastnorm_scale_layout>(layout);
  args->scale_pow2 = pow2 ? 1 : 0;
  args->amax_floor = dynamic && (choice & 32) ? random_float(bytes) : 0;
  args->clamp = !none && (choice & 64) ? random_float(bytes) : 0;
  const bool divides = (dynamic || scheme == FASTNORM_QUANT_PER_TENSOR) && (choice & 128) != 0;
  args->quant_division = static_cast<fastnorm_quant_division>(damaged(bytes, divides ? 1 : 0));
  if (!none) {
    codes(bytes, fp4, pow2 || mx);
    scales(bytes, *args, pow2 || mx);
    own_memory(bytes, kQuantized);
    own_memory(bytes, kScale);
  }
  const int32_t wrong =
      bytes.pick(8) < 7 ? static_cast<int32_t>(bytes.pick(200)) - 2 : bytes.take<int32_t>();
  switch (bytes.pick(64)) {  // one number that fits nothing else
    case 63:
      args->quant_scheme = static_cast<fastnorm_quant_scheme>(wrong);
      break;
    case 62:
      args->quant_block_size = wrong;
      break;
    case 61:
      args->quant_source = static_cast<fastnorm_quant_source>(wrong);
      break;
    case 60:
      args->scale_layout = static_cast<fastnorm_scale_layout>(wrong);
      break;
    case 59:
      args->scale_pow2 = wrong;
      break;
    case 58:
      args->amax_floor = static_cast<float>(wrong);
      break;
    case 57:
      args->clamp = static_cast<float>(wrong);
      break;
    case 56:
      args->quant_division = static_cast<fastnorm_quant_division>(wrong);
      break;
    default:
      break;
  }
  const uint8_t present = bytes.byte();
  for (const int field : {int{kGlobalScale}, int{kAmax}}) {
    if (field == kGlobalScale ? fp4 && !mxfp4 && (present & 1) : (present & 6) != 0 || none) {
      fill(bytes, &tensors_[field], {bytes.rarely() ? extent(bytes) : 1}, FASTNORM_DTYPE_F32);
      own_memory(bytes, field);
    }
  }
  // Instead of the number, most of the time.
  if (!none && (present & 0x28) == 0x28) {
    fill(bytes, &tensors_[kClampScale], {1}, FASTNORM_DTYPE_F32);
    own_memory(bytes, kClampScale);
    if (!bytes.rarely()) args->clamp = 0;
  }
  for (int i = kGlobalScale; i <= kClampScale; ++i) args->*kFields[i] = tensors_[i].tensor.get();
  if (!none && (present & 0x18) == 0x18) args->y = nullptr;
  if ((present & 0xe0) == 0xe0) args->*kFields[kGlobalScale + bytes.pick(4)] = nullptr;
}

// Stages that fit each other and x, but for a rare mistake.
void RandomCall::stages(Bytes& bytes, fastnorm_norm_args* args) {
  const uint8_t choice = bytes.byte();
  const int64_t n = shape_.back();
  if (choice & 1) {
    fill(bytes, &tensors_[kGate], shape_, choice & 2 ? FASTNORM_DTYPE_F32 : dtype_);
    own_memory(bytes, kGate);
    args->gate_act = damaged(bytes, static_cast<fastnorm_activation>(bytes.pick(3)));
    args->gate_position = damaged(bytes, static_cast<fastnorm_gate_position>(choice >> 2 & 1));
    if (!(choice & 4) || bytes.rarely())
      args->gate_source = damaged(bytes, static_cast<fastnorm_gate_source>(choice >> 3 & 1));
  } else if (bytes.rarely()) {
    args->gate_source = FASTNORM_GATE_FROM_ROUNDED;
  }
  args->activation = damaged(bytes, static_cast<fastnorm_activation>(bytes.pick(3)));
  if (choice & 16) args->group_size = int64_t{1} << bytes.pick(8);
  if (bytes.rarely()) args->group_size = hard_number(bytes);
  const bool several = args->group_size > 0 && args->group_size <= n;
  const int64_t groups = several ? n / args->group_size : 1;
  uint32_t kind;  // which may be no value of its enum
  std::memcpy(&kind, &args->kind, sizeof kind);
  const bool layer = kind == FASTNORM_NORM_LAYER;
  for (const int field : {int{kMean}, int{kRstd}}) {
    if (args->*kFields[field] == nullptr) continue;
    group_statistic(bytes, field, groups, false);
    args->*kFields[field] = tensors_[field].tensor.get();
  }
  if (choice & 32) {
    group_statistic(bytes, kSumsq, groups, layer != bytes.rarely());
    if (choice & 128) args->y = nullptr;
  } else if (choice & 64) {
    args->mean = args->rstd = nullptr;
    group_statistic(bytes, kRstdIn, groups, false);
    if (layer) group_statistic(bytes, kMeanIn, groups, false);
  }
  const uint8_t sum = bytes.byte();
  if (sum & 1) {
    args->branch_norm = damaged(bytes, 1);
    args->branch_kind = damaged(bytes, static_cast<fastnorm_norm_kind>(sum >> 1 & 1));
    args->branch_rounding = damaged(bytes, static_cast<fastnorm_rounding>(bytes.pick(3)));
    args->branch_rounded = damaged(bytes, sum >> 2 & 1);
    args->branch_eps = random_float(bytes);
    if (sum & 8) columns(bytes, &tensors_[kBranchWeight]);
    if (sum & 8) args->branch_weight_offset = random_float(bytes);
    if (sum & 16) columns(bytes, &tensors_[kBranchBias]);
    if (sum & 32) {
      statistic(bytes, &tensors_[kBranchRstd]);
      own_memory(bytes, kBranchRstd);
    }
  } else if (bytes.rarely()) {
    args->branch_rounded = 1;
  }
  if (sum & 64) args->alpha = random_float(bytes);
  if (sum & 128) {
    fill(bytes, &tensors_[kSumScale], {1}, FASTNORM_DTYPE_F32);
    own_memory(bytes, kSumScale);
  }
  if ((sum & 0x42) == 0x42)
    args->sum_rounding = damaged(bytes, static_cast<fastnorm_sum_rounding>(1));
  if ((bytes.byte() & 3) == 3) modulation(bytes, args);
  for (int i = kGate; i <= kModulationIndex; ++i) args->*kFields[i] = tensors_[i].tensor.get();
  if ((choice & 0x83) == 0x81) args->y = args->gate;
}

void RandomCall::modulation(Bytes& bytes, fastnorm_norm_args* args) {
  const uint8_t choice = bytes.byte();
  const bool indexed = (choice & 7) != 0 ? (choice & 8) != 0 : bytes.rarely();
  if (choice & 1) {
    modulator(bytes, kResidualGate, indexed);
    args->residual_gate_act = damaged(bytes, static_cast<fastnorm_activation>(bytes.pick(4)));
  } else if (bytes.rarely()) {
    args->residual_gate_act = FASTNORM_ACTIVATION_TANH;
  }
  if (choice & 2) modulator(bytes, kModulationScale, indexed);
  if (choice & 4) modulator(bytes, kModulationShift, indexed);
  if ((choice & 6) != 0 || bytes.rarely()) {
    const auto rounding = static_cast<fastnorm_modulation_rounding>(choice >> 4 & 1);
    args->modulation_rounding = damaged(bytes, rounding);
  }
  if ((choice & 0x22) == 0x22 || bytes.rarely())
    args->flags |= FASTNORM_NORM_MODULATION_PLAIN_SCALE;
  if (!indexed) return;
  statistic(bytes, &tensors_[kModulationIndex]);
  own_memory(bytes, kModulationIndex);
  const fastnorm_dtype_id dtype = choice & 64 ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32;
  if (!bytes.rarely()) tensors_[kModulationIndex].tensor->dtype = fastnorm_dtype_of(dtype);
}

// A modulator, and often its table, the field behind it.
void RandomCall::modulator(Bytes& bytes, int field, bool indexed) {
  const uint8_t choice = bytes.byte();
  std::vector<int64_t> shape = shape_;
  for (size_t d = 0; d + 1 < shape.size(); ++d) {
    if (choice >> (d % 4) & 1) shape[d] = 1;
  }
  if (choice & 16) shape.erase(shape.begin(), shape.end() - 1);
  if (indexed != bytes.rarely()) shape = {1 + (choice & 7), shape_.back()};
  if (choice & 32) shape.back() = 1;
  if (bytes.rarely()) shape.back() = extent(bytes);
  fill(bytes, &tensors_[field], shape, choice & 64 ? FASTNORM_DTYPE_F32 : dtype_);
  own_memory(bytes, field);
  if (!(choice & 128)) return;
  columns(bytes, &tensors_[field + 1]);
  own_memory(bytes, field + 1);
  if (bytes.rarely()) tensors_[field].tensor.reset();
}

// x.shape[:-1], with the groups where there are several, or with a last 1, and pairs.
void RandomCall::group_statistic(Bytes& bytes, int field, int64_t groups, bool pairs) {
  std::vector<int64_t> shape = shape_;
  shape.pop_back();
  const bool last_one = groups == 1 && !pairs && (shape.empty() || (bytes.byte() & 1));
  if (groups > 1 || last_one) shape.push_back(groups);
  if (pairs) shape.push_back(2);
  if (shape.size() > 8) return;
  fill(bytes, &tensors_[field], shape, FASTNORM_DTYPE_F32);
  own_memory(bytes, field);
}

void RandomCall::codes(Bytes& bytes, bool fp4, bool pow2) {
  constexpr fastnorm_dtype_id kFp4[] = {FASTNORM_DTYPE_F4_E2M1FN, FASTNORM_DTYPE_F4_E2M1FN_X2,
                                        FASTNORM_DTYPE_U8};
  constexpr fastnorm_dtype_id kOthers[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                           FASTNORM_DTYPE_I8};
  const uint32_t i = bytes.pick(fp4 || !pow2 ? 3 : 2);
  std::vector<int64_t> shape = shape_;
  if (fp4 && i > 0) shape.back() /= 2;
  if (bytes.rarely()) shape[bytes.pick(static_cast<uint32_t>(shape.size()))] = extent(bytes);
  const fastnorm_dtype_id dtype = fp4 ? kFp4[i] : kOthers[i];
  fill(bytes, &tensors_[kQuantized], shape,
       bytes.rarely() ? kAllDtypes[bytes.pick(std::size(kAllDtypes))] : dtype);
  // Rows of f4 begin with a byte, most of them here.
  int64_t* const strides = tensors_[kQuantized].strides.get();
  for (size_t d = 0; fp4 && i == 0 && strides != nullptr && d + 1 < shape.size(); ++d) {
    if ((bytes.byte() & 3) != 3)
      strides[d] = static_cast<int64_t>(static_cast<uint64_t>(strides[d]) & ~1ull);
  }
}

void RandomCall::scales(Bytes& bytes, const fastnorm_norm_args& args, bool pow2) {
  const auto scheme = static_cast<uint32_t>(args.quant_scheme);
  const bool nvfp4 = scheme == FASTNORM_QUANT_NVFP4;
  const bool mx = scheme == FASTNORM_QUANT_MXFP8 || scheme == FASTNORM_QUANT_MXFP4;
  const bool swizzled = args.scale_layout == FASTNORM_SCALE_SWIZZLED_128X4;
  const uint8_t choice = bytes.byte();
  fastnorm_dtype_id dtype = FASTNORM_DTYPE_F32;
  if (nvfp4) dtype = FASTNORM_DTYPE_F8_E4M3FN;
  if (mx || (pow2 && (swizzled || (choice & 1)))) dtype = FASTNORM_DTYPE_F8_E8M0FNU;
  if (dtype != FASTNORM_DTYPE_F32 && (choice & 2)) dtype = FASTNORM_DTYPE_U8;
  if (bytes.rarely()) dtype = kAllDtypes[bytes.pick(std::size(kAllDtypes))];
  const int64_t n = shape_.back(), block = nvfp4 ? 16 : mx ? 32 : args.quant_block_size;
  const int64_t count = block <= 0 ? 1 : n / block + (n % block != 0);
  std::vector<int64_t> shape = shape_;
  shape.back() = count;
  if (scheme == FASTNORM_QUANT_PER_ROW && shape.size() > 1 && (choice & 4)) shape.pop_back();
  if (scheme == FASTNORM_QUANT_PER_TENSOR) shape = {1};
  if (swizzled) {
    uint64_t rows = 1;  // wraps for hopeless shapes, as intended
    for (size_t d = 0; d + 1 < shape_.size(); ++d) rows *= static_cast<uint64_t>(shape_[d]);
    shape = {
        static_cast<int64_t>((rows + 127) / 128 * 512 * static_cast<uint64_t>((count + 3) / 4))};
  }
  if (bytes.rarely()) shape[bytes.pick(static_cast<uint32_t>(shape.size()))] = extent(bytes);
  fill(bytes, &tensors_[kScale], shape, dtype);
}

// Mostly away from everything else, for calls that have many outputs.
void RandomCall::own_memory(Bytes& bytes, int field) {
  fastnorm_tensor& t = *tensors_[field].tensor;
  if (t.data == nullptr || (bytes.byte() & 3) == 3) return;
  constexpr uintptr_t kApart = uintptr_t{1} << 34;
  t.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(t.data) +
                                   kApart * static_cast<uintptr_t>(field));
}

void RandomCall::tensor_like_x(Bytes& bytes, RandomTensor* t, fastnorm_dtype_id dtype) {
  std::vector<int64_t> shape = shape_;
  if (bytes.rarely()) shape[bytes.pick(static_cast<uint32_t>(shape.size()))] = extent(bytes);
  fill(bytes, t, shape, dtype);
}

// Up to `most` more leading dimensions, most of them of one index.
void RandomCall::add_dimensions(Bytes& bytes, int most) {
  for (int i = 0; i < most && shape_.size() < 9; ++i) {
    const uint8_t b = bytes.byte();
    const auto at = static_cast<std::ptrdiff_t>(b % shape_.size());
    shape_.insert(shape_.begin() + at, b >> 6 == 0 ? extent(bytes) : 1);
  }
}

void RandomCall::columns(Bytes& bytes, RandomTensor* t) {
  std::vector<int64_t> shape = {shape_.back()};
  const uint8_t choice = shape_.size() >= 2 ? bytes.byte() : 0;
  if ((choice & 6) == 6) {  // broadcast in any way, of as many dimensions as x or fewer
    shape = shape_;
    for (size_t d = 0; d + 1 < shape.size(); ++d) {
      if (choice >> (3 + d % 5) & 1) shape[d] = 1;
    }
    if (choice & 1) shape.erase(shape.begin());
  } else if (choice & 1) {
    shape.insert(shape.begin(), shape_[shape_.size() - 2]);
  }
  const uint8_t other = bytes.byte();
  fill(bytes, t, shape, other & 1 ? kAllDtypes[other / 2 % 3] : dtype_);
}

void RandomCall::statistic(Bytes& bytes, RandomTensor* t) {
  std::vector<int64_t> shape = shape_;
  if (shape.size() > 1 && (bytes.byte() & 1)) {
    shape.pop_back();
  } else {
    shape.back() = 1;
  }
  fill(bytes, t, shape, FASTNORM_DTYPE_F32);
}

void RandomCall::fill(Bytes& bytes, RandomTensor* t, const std::vector<int64_t>& shape,
                      fastnorm_dtype_id dtype) {
  t->tensor = std::make_unique<fastnorm_tensor>();
  t->shape = std::make_unique<int64_t[]>(shape.size());
  std::copy(shape.begin(), shape.end(), t->shape.get());
  fastnorm_tensor& out = *t->tensor;
  out.data = reinterpret_cast<void*>(address(bytes));
  out.device_type = device_type_;
  out.device_id = 0;
  out.ndim = static_cast<int32_t>(shape.size());
  out.dtype = fastnorm_dtype_of(dtype);
  out.shape = t->shape.get();
  out.strides = nullptr;
  out.byte_offset = (bytes.byte() & 7) == 7 ? bytes.byte() : 0;
  if (bytes.byte() & 1) strides(bytes, t, shape);
  if (bytes.rarely()) damage(bytes, t);
}

// Compact strides, then a little off: padded, broadcast, negative, permuted or hard.
void RandomCall::strides(Bytes& bytes, RandomTensor* t, const std::vector<int64_t>& shape) {
  const size_t rank = shape.size();
  t->strides = std::make_unique<int64_t[]>(rank);
  uint64_t step = 1;  // wraps for hopeless shapes, as intended
  for (size_t i = rank; i-- > 0;) {
    t->strides[i] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(shape[i]);
    switch (bytes.pick(8)) {
      case 0:
        step += bytes.byte();
        break;
      case 1:
        if (i + 1 < rank) t->strides[i] = 0;
        break;
      case 2:
        if (i + 1 < rank)
          t->strides[i] = static_cast<int64_t>(-static_cast<uint64_t>(t->strides[i]));
        break;
      case 3:
        if (bytes.rarely()) t->strides[i] = hard_number(bytes);
        break;
      case 4:
        if (i + 1 < rank)
          std::swap(t->strides[i], t->strides[bytes.pick(static_cast<uint32_t>(rank))]);
        break;
      default:
        break;
    }
  }
  t->tensor->strides = t->strides.get();
}

void RandomCall::damage(Bytes& bytes, RandomTensor* t) {
  fastnorm_tensor& out = *t->tensor;
  switch (bytes.pick(8)) {
    case 0:
      out.data = nullptr;
      break;
    case 1:
      out.device_type = static_cast<int32_t>(bytes.pick(16));
      break;
    case 2:
      out.device_id = bytes.take<int32_t>();
      break;
    case 3: {
      // A rank for which there are no arrays: they must not be read.
      constexpr int32_t kRanks[] = {
          0, -1, 9, 64, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
      out.ndim = kRanks[bytes.pick(std::size(kRanks))];
      break;
    }
    case 4:
      out.dtype = {bytes.byte(), bytes.byte(), bytes.take<uint16_t>()};
      break;
    case 5:
      out.shape = nullptr;
      break;
    case 6:
      out.byte_offset = bytes.take<uint64_t>();
      break;
    default:
      out.ndim = static_cast<int32_t>(1 + bytes.pick(static_cast<uint32_t>(out.ndim)));
      break;
  }
}

// Puts the struct into a block of the size it claims: a shorter one of a caller that is too old, or
// a longer one of a newer caller, whose tail may be set.
void RandomCall::pack(Bytes& bytes, fastnorm_norm_args args) {
  size_t size = sizeof args;
  // No size cuts a pointer in two.
  if (bytes.rarely()) size = bytes.take<uint16_t>() % 128 * sizeof(void*);
  const size_t block = std::max(size, sizeof args.struct_size);
  block_ = std::make_unique<uint8_t[]>(block);
  args.struct_size = size;
  std::memcpy(block_.get(), &args, std::min(block, sizeof args));
  if (block > sizeof args && (bytes.byte() & 1)) block_[block - 1] = bytes.byte();
  args_ = reinterpret_cast<const fastnorm_norm_args*>(block_.get());
}

fastnorm_norm_args RandomCall::known() const {
  fastnorm_norm_args args{};
  const size_t size = args_->struct_size;
  std::memcpy(&args, args_, std::min(size, sizeof args));
  return args;
}

void RandomCall::print() const {
  const fastnorm_norm_args args = known();
  std::fprintf(stderr,
               "norm: struct_size %zu, kind %d, rounding %d, %d, eps %g, weight_offset %g\n",
               args.struct_size, static_cast<int>(args.kind), static_cast<int>(args.rounding),
               static_cast<int>(args.residual_rounding), static_cast<double>(args.eps),
               static_cast<double>(args.weight_offset));
  int32_t enums[4];
  std::memcpy(&enums[0], &args.quant_scheme, sizeof enums[0]);
  std::memcpy(&enums[1], &args.quant_source, sizeof enums[1]);
  std::memcpy(&enums[2], &args.scale_layout, sizeof enums[2]);
  std::memcpy(&enums[3], &args.quant_division, sizeof enums[3]);
  std::fprintf(stderr,
               "  quant_scheme %d, block %d, source %d, layout %d, pow2 %d, floor %g, clamp %g, "
               "division %d\n",
               enums[0], args.quant_block_size, enums[1], enums[2], args.scale_pow2,
               static_cast<double>(args.amax_floor), static_cast<double>(args.clamp), enums[3]);
  int32_t stage[4];
  std::memcpy(&stage[0], &args.gate_act, sizeof stage[0]);
  std::memcpy(&stage[1], &args.gate_position, sizeof stage[1]);
  std::memcpy(&stage[2], &args.gate_source, sizeof stage[2]);
  std::memcpy(&stage[3], &args.activation, sizeof stage[3]);
  std::fprintf(stderr,
               "  gate_act %d, position %d, source %d, activation %d, group_size %" PRId64 "\n",
               stage[0], stage[1], stage[2], stage[3], args.group_size);
  int32_t branch[3];
  std::memcpy(&branch[0], &args.branch_kind, sizeof branch[0]);
  std::memcpy(&branch[1], &args.branch_rounding, sizeof branch[1]);
  std::memcpy(&branch[2], &args.sum_rounding, sizeof branch[2]);
  std::fprintf(stderr,
               "  branch_norm %d, kind %d, rounding %d, rounded %d, eps %g, offset %g; alpha %g, "
               "sum_rounding %d\n",
               args.branch_norm, branch[0], branch[1], args.branch_rounded,
               static_cast<double>(args.branch_eps), static_cast<double>(args.branch_weight_offset),
               static_cast<double>(args.alpha), branch[2]);
  for (int i = 0; i < kTensors; ++i) {
    const fastnorm_tensor* t = args.*kFields[i];
    if (t == nullptr) continue;
    std::fprintf(stderr, "  %-12s %p + %" PRIu64 ", device %d:%d, dtype %d.%d.%d, shape [",
                 kNames[i], t->data, t->byte_offset, t->device_type, t->device_id, t->dtype.code,
                 t->dtype.bits, t->dtype.lanes);
    const bool readable = t->ndim >= 1 && t->ndim <= 8;
    for (int d = 0; readable && t->shape != nullptr && d < t->ndim; ++d) {
      std::fprintf(stderr, " %" PRId64, t->shape[d]);
    }
    std::fprintf(stderr, " ], strides [");
    for (int d = 0; readable && t->strides != nullptr && d < t->ndim; ++d) {
      std::fprintf(stderr, " %" PRId64, t->strides[d]);
    }
    std::fprintf(stderr, " ]\n");
  }
}

}  // namespace fastnorm::fuzz
