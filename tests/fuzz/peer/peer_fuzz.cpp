// Random options, blobs and calls of peers, by dry runs: nothing crashes, query, prepare and call
// agree, and every failure has a text.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "../bytes.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "peer_fuzz: %s (last error: %s)\n", what, fastnorm_last_error());
  std::abort();
}

void require_text(fastnorm_status status) {
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  require(std::strlen(fastnorm_last_error()) > 10, "a failure without a text");
  require(std::strchr(fastnorm_last_error(), '\n') == nullptr, "a text of more than one line");
}

fastnorm_context* cpu() {
  static fastnorm_context* const context = [] {
    fastnorm_context_options options{};
    options.struct_size = sizeof options;
    options.flags = FASTNORM_CONTEXT_DRY_RUN;
    fastnorm_context* made = nullptr;
    require(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, &options, &made) == FASTNORM_OK,
            "no context");
    return made;
  }();
  return context;
}

constexpr fastnorm_dtype_id kDtypes[] = {FASTNORM_DTYPE_F32,       FASTNORM_DTYPE_F16,
                                         FASTNORM_DTYPE_BF16,      FASTNORM_DTYPE_I8,
                                         FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_U8};

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

fastnorm_peer_options good_options() {
  fastnorm_peer_options options{};
  options.struct_size = sizeof options;
  options.ranks = 2;
  options.dtype = FASTNORM_DTYPE_BF16;
  options.max_columns = 300;
  return options;
}

// Rank 0 of two, connected.
fastnorm_peer* connected() {
  static fastnorm_peer* const peer = [] {
    static fastnorm_peer* made[2] = {};
    unsigned char blobs[2][FASTNORM_PEER_BLOB_BYTES];
    for (int32_t r = 0; r < 2; ++r) {
      fastnorm_peer_options options = good_options();
      options.rank = r;
      require(fastnorm_peer_create(cpu(), &options, &made[r]) == FASTNORM_OK, "no peer");
      require(fastnorm_peer_export(made[r], blobs[r], sizeof blobs[r]) == FASTNORM_OK, "no blob");
    }
    require(fastnorm_peer_import(made[0], blobs, sizeof blobs) == FASTNORM_OK, "no import");
    return made[0];
  }();
  return peer;
}

void fuzz_options(Bytes& bytes) {
  fastnorm_peer_options options = good_options();
  options.rank = static_cast<int32_t>(bytes.pick(2));
  if (bytes.rarely()) options.rank = bytes.take<int32_t>();
  if (bytes.rarely()) options.ranks = bytes.take<int32_t>();
  if (bytes.rarely()) set(options.dtype, bytes.take<int32_t>());
  if (bytes.rarely()) set(options.algorithm, bytes.take<int32_t>());
  if (bytes.rarely()) options.max_columns = bytes.take<int64_t>();
  if (bytes.rarely()) options.one_shot_bytes = bytes.take<int64_t>();
  if (bytes.rarely()) options.wait_ns = bytes.take<int64_t>();
  if (bytes.rarely()) options.rings = bytes.take<int32_t>();
  if (bytes.rarely()) options.reserved = bytes.take<int32_t>();
  // A greater size would promise fields behind these.
  if (bytes.rarely()) options.struct_size = bytes.pick(sizeof options + 1);
  uint64_t size = 0;
  const fastnorm_status status = fastnorm_peer_buffer_bytes(cpu(), &options, &size);
  require_text(status);
  fastnorm_peer* peer = nullptr;
  require(fastnorm_peer_create(cpu(), &options, &peer) == status, "create and its size differ");
  require((status == FASTNORM_OK) == (peer != nullptr), "a peer of a failure");
  if (peer == nullptr) return;
  // Its own blob, and that of the other rank with a byte or two changed.
  unsigned char blobs[FASTNORM_PEER_MAX_RANKS * FASTNORM_PEER_BLOB_BYTES] = {};
  unsigned char* const own = blobs + options.rank * FASTNORM_PEER_BLOB_BYTES;
  require(fastnorm_peer_export(peer, own, FASTNORM_PEER_BLOB_BYTES) == FASTNORM_OK, "no blob");
  for (uint32_t i = bytes.pick(4); i > 0; --i) own[bytes.pick(128)] = bytes.byte();
  require_text(fastnorm_peer_import(peer, blobs,
                                    static_cast<size_t>(options.ranks) * FASTNORM_PEER_BLOB_BYTES));
  fastnorm_peer_destroy(peer);
}

struct Tensor {
  fastnorm_tensor view{};
  int64_t shape[4] = {}, strides[4] = {};
};

const fastnorm_tensor* make(Bytes& bytes, Tensor* t, int place, fastnorm_dtype_id dtype,
                            std::initializer_list<int64_t> shape) {
  if (bytes.rarely()) return nullptr;
  size_t rank = 0;
  for (const int64_t extent : shape) t->shape[rank++] = extent;
  if (bytes.rarely()) t->shape[bytes.pick(4)] = bytes.take<int64_t>();
  if (bytes.rarely()) dtype = kDtypes[bytes.pick(std::size(kDtypes))];
  t->view.ndim = bytes.rarely() ? static_cast<int32_t>(bytes.pick(5)) : static_cast<int32_t>(rank);
  t->view.dtype = fastnorm_dtype_of(dtype);
  t->view.device_type = bytes.rarely() ? FASTNORM_DEVICE_CUDA : FASTNORM_DEVICE_CPU;
  if (bytes.rarely()) place = static_cast<int>(bytes.pick(9));
  uint64_t address = static_cast<uint64_t>(place + 1) << 42;
  if (bytes.rarely()) address += bytes.byte();
  t->view.data = reinterpret_cast<void*>(address);
  t->view.shape = t->shape;
  if (bytes.rarely()) {
    for (int64_t& stride : t->strides) stride = bytes.take<int16_t>();
    t->strides[rank - 1] = 1;
    t->view.strides = t->strides;
  }
  return &t->view;
}

void* workspace() { return reinterpret_cast<void*>(uint64_t{30} << 42); }
constexpr size_t kWorkspaceBytes = size_t{1} << 41;

// The three functions of a family say the same of a call.
template <typename Args, typename Query, typename Prepare, typename Run>
void agree(const Args& args, Query query, Prepare prepare, Run run) {
  fastnorm_info info{};
  info.struct_size = sizeof info;
  const fastnorm_status status = query(cpu(), &args, &info);
  require_text(status);
  require(prepare(cpu(), &args) == status, "query and prepare differ");
  const bool fits = info.workspace_bytes <= kWorkspaceBytes;
  const fastnorm_status ran = run(cpu(), &args, workspace(), kWorkspaceBytes, nullptr);
  require_text(ran);
  require(ran == status || !fits, "query and call differ");
  if (status == FASTNORM_OK && info.workspace_bytes > 0) {
    require(run(cpu(), &args, workspace(), info.workspace_bytes - 1, nullptr) ==
                FASTNORM_ERROR_ARGUMENT,
            "too small a workspace passes");
  }
}

void fuzz_allreduce(Bytes& bytes) {
  Tensor t[8];
  const int64_t rows = bytes.pick(5), n = 1 + bytes.byte();
  const fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16;
  fastnorm_peer_allreduce_norm_args args{};
  args.struct_size = bytes.rarely() ? bytes.pick(sizeof args + 1) : sizeof args;
  args.peer = bytes.rarely() ? nullptr : connected();
  set(args.kind, bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(2)));
  args.eps = bytes.rarely() ? bytes.take<float>() : 1e-6f;
  args.weight_offset = bytes.rarely() ? bytes.take<float>() : 0;
  set(args.rounding, static_cast<int32_t>(bytes.pick(3)));
  set(args.residual_rounding, static_cast<int32_t>(bytes.pick(3)));
  set(args.sum_rounding,
      bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(2)));
  args.flags = bytes.rarely() ? bytes.byte() : 0;
  args.reserved = bytes.rarely() ? 1 : 0;
  args.x = make(bytes, &t[0], 0, dtype, {rows, n});
  args.y = make(bytes, &t[1], 1, dtype, {rows, n});
  if (bytes.pick(2) != 0) {
    args.residual = make(bytes, &t[2], 2, kDtypes[bytes.pick(3)], {rows, n});
    if (bytes.pick(2) != 0) args.residual_out = make(bytes, &t[3], 3, dtype, {rows, n});
  }
  if (bytes.pick(2) != 0) args.weight = make(bytes, &t[4], 4, dtype, {n});
  if (bytes.pick(2) != 0) args.bias = make(bytes, &t[5], 5, FASTNORM_DTYPE_F32, {n});
  if (bytes.pick(2) != 0) {
    set(args.quant_scheme, static_cast<int32_t>(bytes.pick(8)));
    args.quantized = make(bytes, &t[6], 6, FASTNORM_DTYPE_I8, {rows, n});
    args.scale = make(bytes, &t[7], 7, FASTNORM_DTYPE_F32, {bytes.pick(2) != 0 ? rows : 1});
  }
  agree(args, fastnorm_peer_allreduce_norm_query, fastnorm_peer_allreduce_norm_prepare,
        fastnorm_peer_allreduce_norm);
}

void fuzz_sharded(Bytes& bytes) {
  Tensor t[8];
  const int64_t tokens = bytes.pick(5), heads = 1 + bytes.pick(4), d = 1 + bytes.byte();
  const fastnorm_dtype_id dtype = kDtypes[bytes.pick(3)];
  fastnorm_peer_sharded_norm_args args{};
  args.struct_size = bytes.rarely() ? bytes.pick(sizeof args + 1) : sizeof args;
  args.peer = bytes.rarely() ? nullptr : connected();
  set(args.kind, bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(2)));
  args.eps = bytes.rarely() ? bytes.take<float>() : 1e-6f;
  args.weight_offset = bytes.rarely() ? bytes.take<float>() : 0;
  set(args.rounding, bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(2)));
  args.flags = bytes.rarely() ? bytes.byte() : 0;
  args.reserved = bytes.rarely() ? 1 : 0;
  args.x = make(bytes, &t[0], 0, dtype, {tokens, heads, d});
  args.y = make(bytes, &t[1], 1, dtype, {tokens, heads, d});
  if (bytes.pick(2) != 0) args.weight = make(bytes, &t[2], 2, dtype, {heads, d});
  if (bytes.pick(2) != 0) args.bias = make(bytes, &t[3], 3, FASTNORM_DTYPE_F32, {d});
  if (bytes.pick(2) != 0) {
    args.x2 = make(bytes, &t[4], 4, dtype, {tokens, d});
    args.y2 = make(bytes, &t[5], 5, dtype, {tokens, d});
    if (bytes.pick(2) != 0) args.weight2 = make(bytes, &t[6], 6, dtype, {d});
    if (bytes.pick(2) != 0) args.bias2 = make(bytes, &t[7], 7, FASTNORM_DTYPE_F16, {1, d});
  }
  agree(args, fastnorm_peer_sharded_norm_query, fastnorm_peer_sharded_norm_prepare,
        fastnorm_peer_sharded_norm);
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  switch (bytes.pick(4)) {
    case 0:
      fastnorm::fuzz::fuzz_options(bytes);
      break;
    case 1:
      fastnorm::fuzz::fuzz_sharded(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_allreduce(bytes);
  }
  return 0;
}
