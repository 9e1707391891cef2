// Handles on a communicator, and their calls: by peers where that was agreed, else by NCCL and the
// library's own norm.
#include "fastnorm/nccl.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>
#include <vector>

#include "nccl/functions.h"
#include "nccl/staging.h"

struct fastnorm_nccl {
  ~fastnorm_nccl() { fastnorm_peer_destroy(peer); }

  fastnorm_nccl_functions functions;
  fastnorm_context* context;
  fastnorm_device device;
  void* comm;
  int ranks, rank;
  fastnorm_nccl_options options;
  fastnorm_peer* peer = nullptr;
};

namespace fastnorm::nccl {
namespace {

constexpr uint64_t kAlign = 256;
uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Copies a struct of the caller's, which may be of an earlier version.
template <class Struct>
fastnorm_status accept(const Struct* given, const char* name, Struct* own) {
  NCCL_REQUIRE(given != nullptr, FASTNORM_ERROR_ARGUMENT, "%s is NULL; required: a pointer", name);
  NCCL_REQUIRE(given->struct_size >= sizeof(size_t), FASTNORM_ERROR_ARGUMENT,
               "%s.struct_size is %zu; required: %zu", name, given->struct_size, sizeof(Struct));
  NCCL_REQUIRE(given->struct_size <= sizeof(Struct), FASTNORM_ERROR_UNSUPPORTED,
               "%s.struct_size is %zu; this library knows %zu; nearest: the struct of this version",
               name, given->struct_size, sizeof(Struct));
  std::memset(own, 0, sizeof *own);
  std::memcpy(own, given, given->struct_size);
  own->struct_size = sizeof *own;
  return FASTNORM_OK;
}

int64_t elements_of(const fastnorm_tensor& t) {
  int64_t elements = 1;
  for (int32_t d = 0; d < t.ndim; ++d) elements *= t.shape[d];
  return elements;
}
uint64_t bytes_of(const fastnorm_tensor& t) {
  return static_cast<uint64_t>(elements_of(t)) * t.dtype.bits * t.dtype.lanes / 8;
}
std::byte* address_of(const fastnorm_tensor& t) {
  return static_cast<std::byte*>(t.data) + t.byte_offset;
}

bool is_compact(const fastnorm_tensor& t) {
  if (t.strides == nullptr) return true;
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != step) return false;
    step *= t.shape[d];
  }
  return true;
}

fastnorm_status require_compact(const fastnorm_tensor& t, const char* name) {
  NCCL_REQUIRE(is_compact(t), FASTNORM_ERROR_LAYOUT,
               "%s has strides with gaps or of another order; required: a compact tensor", name);
  return FASTNORM_OK;
}

// What NCCL adds.
fastnorm_status nccl_type(const fastnorm_tensor& x, const fastnorm_nccl& handle, int* type) {
  const auto id = static_cast<uint32_t>(x.dtype.code | x.dtype.bits << 8 | x.dtype.lanes << 16);
  NCCL_REQUIRE(id == static_cast<uint32_t>(handle.options.dtype), FASTNORM_ERROR_DTYPE,
               "x.dtype is 0x%08x; required: options.dtype, 0x%08x", id,
               static_cast<unsigned>(handle.options.dtype));
  *type = id == FASTNORM_DTYPE_F32   ? kNcclFloat32
          : id == FASTNORM_DTYPE_F16 ? kNcclFloat16
                                     : kNcclBfloat16;
  return FASTNORM_OK;
}

fastnorm_status check_x(const fastnorm_tensor* x) {
  NCCL_REQUIRE(x != nullptr, FASTNORM_ERROR_ARGUMENT, "x is NULL; required: a tensor");
  NCCL_REQUIRE(x->ndim >= 1 && x->ndim <= 8 && x->shape != nullptr, FASTNORM_ERROR_SHAPE,
               "x.ndim is %d; required: 1 to 8 and a shape", x->ndim);
  for (int32_t d = 0; d < x->ndim; ++d) {
    NCCL_REQUIRE(x->shape[d] >= 0, FASTNORM_ERROR_SHAPE,
                 "x.shape[%d] is %" PRId64 "; required: >= 0", d, x->shape[d]);
  }
  return FASTNORM_OK;
}

fastnorm_status check_workspace(const void* workspace, size_t bytes, uint64_t needed) {
  NCCL_REQUIRE(bytes >= needed, FASTNORM_ERROR_ARGUMENT,
               "workspace_bytes is %zu; required: at least %" PRIu64, bytes, needed);
  NCCL_REQUIRE(
      needed == 0 || (workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % kAlign == 0),
      FASTNORM_ERROR_ARGUMENT, "workspace is %p; required: a 256-byte aligned address", workspace);
  return FASTNORM_OK;
}

fastnorm_status require_fallback(const fastnorm_nccl& handle) {
  NCCL_REQUIRE((handle.options.flags & FASTNORM_NCCL_FIXED_ORDER) == 0, FASTNORM_ERROR_UNSUPPORTED,
               "the call needs NCCL, whose sums have no fixed order, and options.flags has "
               "FASTNORM_NCCL_FIXED_ORDER; nearest: fastnorm_nccl_allreduce_norm by peers");
  return FASTNORM_OK;
}

// Where the workspace of a query lies: nowhere near memory that a tensor may have.
std::byte* pretended_workspace() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 61); }

// --- creation

enum class Verdict : uint8_t { kPeers, kNoPeers, kError };

// One all-gather of `bytes` of each rank: own ones at data() + rank * bytes.
fastnorm_status gather(const fastnorm_nccl& h, Staging& staging, size_t bytes, const void* own,
                       void* all, void* stream) {
  const size_t at = static_cast<size_t>(h.rank) * bytes;
  NCCL_TRY(staging.put(at, own, bytes));
  NCCL_TRY(check(h.functions, "ncclAllGather",
                 h.functions.all_gather(staging.data() + at, staging.data(), bytes, kNcclUint8,
                                        h.comm, stream)));
  return staging.get(0, all, bytes * static_cast<size_t>(h.ranks));
}

// Makes all ranks peers, or none. Every rank takes part in both exchanges, whatever it found.
fastnorm_status agree(fastnorm_nccl& h, void* stream) {
  Staging staging;
  NCCL_TRY(
      staging.create(h.device, static_cast<size_t>(h.ranks) * FASTNORM_PEER_BLOB_BYTES, stream));
  fastnorm_peer_options options = {};
  options.struct_size = sizeof options;
  options.rank = h.rank;
  options.ranks = h.ranks;
  options.dtype = h.options.dtype;
  options.algorithm = h.options.algorithm;
  options.max_columns = h.options.max_columns;
  options.one_shot_bytes = h.options.one_shot_bytes;
  options.wait_ns = h.options.wait_ns;
  options.rings = h.options.rings;
  std::vector<unsigned char> blob(FASTNORM_PEER_BLOB_BYTES),
      blobs(static_cast<size_t>(h.ranks) * FASTNORM_PEER_BLOB_BYTES);
  const bool wanted = (h.options.flags & FASTNORM_NCCL_NO_PEERS) == 0 && h.ranks >= 2 &&
                      h.ranks <= FASTNORM_PEER_MAX_RANKS;
  Verdict verdict = wanted ? Verdict::kPeers : Verdict::kNoPeers;
  // An option that is wrong is the caller's error; all else means that there are no peers.
  const auto judge = [&](fastnorm_status status) {
    if (status == FASTNORM_OK) return true;
    of_library(status);
    verdict = status == FASTNORM_ERROR_ARGUMENT || status == FASTNORM_ERROR_DTYPE
                  ? Verdict::kError
                  : Verdict::kNoPeers;
    return false;
  };
  if (wanted && judge(fastnorm_peer_create(h.context, &options, &h.peer)) &&
      !judge(fastnorm_peer_export(h.peer, blob.data(), blob.size()))) {
    blob.assign(blob.size(), 0);
  }
  NCCL_TRY(gather(h, staging, blob.size(), blob.data(), blobs.data(), stream));
  for (int r = 0; r < h.ranks && verdict == Verdict::kPeers; ++r) {
    const auto first = blobs.begin() + r * static_cast<ptrdiff_t>(blob.size());
    if (std::all_of(first, first + static_cast<ptrdiff_t>(blob.size()),
                    [](unsigned char byte) { return byte == 0; }))
      verdict = Verdict::kNoPeers;
  }
  if (verdict == Verdict::kPeers) judge(fastnorm_peer_import(h.peer, blobs.data(), blobs.size()));
  std::vector<Verdict> verdicts(static_cast<size_t>(h.ranks));
  NCCL_TRY(gather(h, staging, 1, &verdict, verdicts.data(), stream));
  const auto any = [&](Verdict v) {
    return std::find(verdicts.begin(), verdicts.end(), v) != verdicts.end();
  };
  if (verdict == Verdict::kError) return FASTNORM_ERROR_ARGUMENT;
  NCCL_REQUIRE(!any(Verdict::kError), FASTNORM_ERROR_ARGUMENT,
               "another rank's options are wrong or differ; required: the same options on all "
               "ranks");
  if (any(Verdict::kNoPeers)) {
    fastnorm_peer_destroy(h.peer);
    h.peer = nullptr;
  }
  NCCL_REQUIRE(h.peer != nullptr || (h.options.flags & FASTNORM_NCCL_FIXED_ORDER) == 0,
               FASTNORM_ERROR_UNSUPPORTED,
               "options.flags has FASTNORM_NCCL_FIXED_ORDER and the ranks are no peers%s%s; "
               "nearest: without the flag, by NCCL",
               verdict == Verdict::kNoPeers && wanted ? ": " : "",
               verdict == Verdict::kNoPeers && wanted ? std::string(last_error()).c_str() : "");
  return FASTNORM_OK;
}

fastnorm_status check_options(const fastnorm_nccl_options* given, fastnorm_nccl_options* options) {
  NCCL_TRY(accept(given, "options", options));
  constexpr uint32_t kKnown = FASTNORM_NCCL_NO_PEERS | FASTNORM_NCCL_FIXED_ORDER;
  NCCL_REQUIRE((options->flags & ~kKnown) == 0, FASTNORM_ERROR_ARGUMENT,
               "options.flags is 0x%x; required: bits of fastnorm_nccl_flags", options->flags);
  NCCL_REQUIRE(options->peer_bytes >= 0, FASTNORM_ERROR_ARGUMENT,
               "options.peer_bytes is %" PRId64 "; required: >= 0", options->peer_bytes);
  NCCL_REQUIRE(options->max_columns >= 1 && options->max_columns <= 65536, FASTNORM_ERROR_ARGUMENT,
               "options.max_columns is %" PRId64 "; required: 1 to 65536", options->max_columns);
  const auto dtype = static_cast<uint32_t>(options->dtype);
  NCCL_REQUIRE(
      dtype == FASTNORM_DTYPE_F32 || dtype == FASTNORM_DTYPE_F16 || dtype == FASTNORM_DTYPE_BF16,
      FASTNORM_ERROR_DTYPE, "options.dtype is 0x%08x; required: f32, f16 or bf16", dtype);
  return FASTNORM_OK;
}

fastnorm_status create(fastnorm_context* context, fastnorm_device device, void* comm,
                       const fastnorm_nccl_options* options, void* stream, fastnorm_nccl** handle) {
  NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT,
               "handle is NULL; required: a pointer to receive the handle");
  *handle = nullptr;
  NCCL_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT, "context is NULL; required: a context");
  NCCL_REQUIRE(comm != nullptr, FASTNORM_ERROR_ARGUMENT, "comm is NULL; required: an ncclComm_t");
  auto made = std::make_unique<fastnorm_nccl>();
  NCCL_TRY(check_options(options, &made->options));
  bool given = false;
  NCCL_TRY(find_functions(&made->functions, &given));
  const bool cuda = device.device_type == FASTNORM_DEVICE_CUDA;
  NCCL_REQUIRE(cuda || given, FASTNORM_ERROR_UNSUPPORTED,
               "device.device_type is %d, and NCCL is for CUDA (2); nearest: a CUDA context, or "
               "functions over host memory by fastnorm_nccl_set_functions",
               device.device_type);
  const fastnorm_nccl_functions& f = made->functions;
  made->context = context;
  made->device = device;
  made->comm = comm;
  NCCL_TRY(check(f, "ncclCommCount", f.comm_count(comm, &made->ranks)));
  NCCL_TRY(check(f, "ncclCommUserRank", f.comm_user_rank(comm, &made->rank)));
  int of_comm = 0;
  NCCL_TRY(check(f, "ncclCommCuDevice", f.comm_cu_device(comm, &of_comm)));
  NCCL_REQUIRE(!cuda || of_comm == device.device_id, FASTNORM_ERROR_ARGUMENT,
               "comm is of device %d and device.device_id is %d; required: one device", of_comm,
               device.device_id);
  NCCL_TRY(agree(*made, stream));
  *handle = made.release();
  return FASTNORM_OK;
}

// --- all-reduce and norm

// The norm of an all-reduce: fields of one name mean the same.
fastnorm_norm_args norm_of(const fastnorm_peer_allreduce_norm_args& a) {
  fastnorm_norm_args n = {};
  n.struct_size = sizeof n;
  const auto copy = [](auto& to, const auto& from) {
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);  // enums may hold any number
  };
  copy(n.kind, a.kind), copy(n.eps, a.eps), copy(n.weight_offset, a.weight_offset);
  copy(n.rounding, a.rounding), copy(n.residual_rounding, a.residual_rounding);
  copy(n.flags, a.flags);
  n.x = a.x, n.residual = a.residual, n.weight = a.weight, n.bias = a.bias;
  n.y = a.y, n.residual_out = a.residual_out, n.mean = a.mean, n.rstd = a.rstd;
  copy(n.quant_scheme, a.quant_scheme), copy(n.quant_block_size, a.quant_block_size);
  copy(n.quant_source, a.quant_source), copy(n.scale_layout, a.scale_layout);
  copy(n.scale_pow2, a.scale_pow2), copy(n.amax_floor, a.amax_floor), copy(n.clamp, a.clamp);
  copy(n.quant_division, a.quant_division);
  n.global_scale = a.global_scale, n.quantized = a.quantized, n.scale = a.scale;
  n.amax = a.amax, n.clamp_scale = a.clamp_scale;
  return n;
}

struct Allreduce {
  fastnorm_peer_allreduce_norm_args args;  // of peers
  bool by_peers;
  int type;
  uint64_t elements, workspace_bytes;  // of the fallback
  fastnorm_norm_args norm;
  fastnorm_tensor sum;
};

// `workspace`: where the fallback's sum is.
fastnorm_status plan(const fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args,
                     std::byte* workspace, Allreduce* call) {
  NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT, "handle is NULL; required: a handle");
  const fastnorm_nccl& h = *handle;
  NCCL_TRY(accept(args, "args", &call->args));
  NCCL_REQUIRE(call->args.peer == nullptr, FASTNORM_ERROR_ARGUMENT,
               "args.peer is %p; required: NULL, as the handle has its own",
               static_cast<void*>(call->args.peer));
  NCCL_TRY(check_x(call->args.x));
  const fastnorm_tensor& x = *call->args.x;
  const uint64_t bytes = bytes_of(x);
  call->by_peers = h.peer != nullptr && (h.options.peer_bytes == 0 ||
                                         bytes <= static_cast<uint64_t>(h.options.peer_bytes));
  if (call->by_peers) {
    call->args.peer = h.peer;
    return FASTNORM_OK;
  }
  NCCL_TRY(require_fallback(h));
  int32_t rounding = 0;
  std::memcpy(&rounding, &call->args.sum_rounding, sizeof rounding);
  NCCL_REQUIRE(rounding == FASTNORM_PEER_SUM_ROUNDED, FASTNORM_ERROR_UNSUPPORTED,
               "sum_rounding is %d and the call goes by NCCL, which rounds sums; nearest: "
               "FASTNORM_PEER_SUM_ROUNDED (0)",
               rounding);
  NCCL_REQUIRE(call->args.reserved == 0, FASTNORM_ERROR_ARGUMENT,
               "args.reserved is %d; required: 0", call->args.reserved);
  NCCL_TRY(nccl_type(x, h, &call->type));
  NCCL_TRY(require_compact(x, "x"));
  call->elements = static_cast<uint64_t>(elements_of(x));
  call->workspace_bytes = aligned(bytes);
  call->norm = norm_of(call->args);
  call->sum = x;
  call->sum.data = workspace;
  call->sum.byte_offset = 0;
  call->sum.strides = nullptr;
  call->norm.x = &call->sum;
  return FASTNORM_OK;
}

fastnorm_status run(fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args,
                    void* workspace, size_t workspace_bytes, void* stream) {
  Allreduce call;
  NCCL_TRY(plan(handle, args, static_cast<std::byte*>(workspace), &call));
  const fastnorm_nccl& h = *handle;
  if (call.by_peers) {
    return of_library(
        fastnorm_peer_allreduce_norm(h.context, &call.args, workspace, workspace_bytes, stream));
  }
  NCCL_TRY(check_workspace(workspace, workspace_bytes, call.workspace_bytes));
  // What the norm refuses is refused before anything is sent.
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  NCCL_TRY(of_library(fastnorm_norm_query(h.context, &call.norm, &info)));
  if (call.elements == 0) return FASTNORM_OK;
  NCCL_TRY(check(h.functions, "ncclAllReduce",
                 h.functions.all_reduce(address_of(*call.args.x), workspace, call.elements,
                                        call.type, kNcclSum, h.comm, stream)));
  return of_library(fastnorm_norm(h.context, &call.norm, nullptr, 0, stream));
}

// --- sequence parallel

// This rank's tokens of a tensor of all tokens.
struct Slice {
  fastnorm_tensor tensor;
  int64_t shape[8];
  std::byte* all;        // of all tokens
  uint64_t local_bytes;  // of one rank's
};

fastnorm_status slice_of(const fastnorm_nccl& h, const char* name, const fastnorm_tensor& t,
                         int64_t tokens, Slice* slice) {
  NCCL_REQUIRE(t.ndim >= 1 && t.ndim <= 8 && t.shape != nullptr && t.shape[0] == tokens,
               FASTNORM_ERROR_SHAPE, "%s has %" PRId64 " tokens; required: %" PRId64 ", as x", name,
               t.ndim >= 1 && t.shape != nullptr ? t.shape[0] : 0, tokens);
  NCCL_TRY(require_compact(t, name));
  slice->tensor = t;
  std::copy_n(t.shape, t.ndim, slice->shape);
  slice->shape[0] = tokens / h.ranks;
  slice->tensor.shape = slice->shape;
  slice->tensor.strides = nullptr;
  slice->all = address_of(t);
  slice->local_bytes = bytes_of(t) / static_cast<uint64_t>(h.ranks);
  slice->tensor.data = slice->all + static_cast<uint64_t>(h.rank) * slice->local_bytes;
  slice->tensor.byte_offset = 0;
  return FASTNORM_OK;
}

struct Sequence {
  fastnorm_nccl_sequence_norm_args args;
  fastnorm_norm_args norm;
  int type;
  uint64_t elements, workspace_bytes;  // of this rank's tokens
  std::byte* x;
  Slice sum, gathered[3];
  int gathers;
};

fastnorm_status plan(const fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args,
                     std::byte* workspace, Sequence* call) {
  NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT, "handle is NULL; required: a handle");
  const fastnorm_nccl& h = *handle;
  NCCL_TRY(accept(args, "args", &call->args));
  NCCL_REQUIRE(call->args.gather == 0 || call->args.gather == 1, FASTNORM_ERROR_ARGUMENT,
               "args.gather is %d; required: 0 or 1", call->args.gather);
  NCCL_REQUIRE(call->args.reserved == 0, FASTNORM_ERROR_ARGUMENT,
               "args.reserved is %d; required: 0", call->args.reserved);
  NCCL_TRY(accept(call->args.norm, "args.norm", &call->norm));
  NCCL_TRY(require_fallback(h));
  fastnorm_norm_args& n = call->norm;
  NCCL_TRY(check_x(n.x));
  NCCL_TRY(nccl_type(*n.x, h, &call->type));
  const int64_t tokens = n.x->shape[0];
  NCCL_REQUIRE(n.x->ndim >= 2 && tokens % h.ranks == 0, FASTNORM_ERROR_SHAPE,
               "x has %d dimensions and %" PRId64
               " tokens; required: at least 2, and a multiple of "
               "the %d ranks",
               n.x->ndim, tokens, h.ranks);
  NCCL_REQUIRE(n.amax == nullptr, FASTNORM_ERROR_UNSUPPORTED,
               "amax is given; nearest: NULL, and an all-reduce of the caller's");
  int32_t layout = 0;
  std::memcpy(&layout, &n.scale_layout, sizeof layout);
  NCCL_REQUIRE(layout == FASTNORM_SCALE_ROW_MAJOR, FASTNORM_ERROR_UNSUPPORTED,
               "scale_layout is %d; nearest: FASTNORM_SCALE_ROW_MAJOR (0), whose rows are gathered",
               layout);
  NCCL_TRY(slice_of(h, "x", *n.x, tokens, &call->sum));
  call->x = call->sum.all;
  call->elements = static_cast<uint64_t>(elements_of(*n.x)) / static_cast<uint64_t>(h.ranks);
  call->workspace_bytes = aligned(call->sum.local_bytes);
  call->sum.tensor.data = workspace;
  n.x = &call->sum.tensor;
  call->gathers = 0;
  int32_t scheme = 0;
  std::memcpy(&scheme, &n.quant_scheme, sizeof scheme);
  const bool scale_is_output = scheme != FASTNORM_QUANT_NONE && scheme != FASTNORM_QUANT_PER_TENSOR;
  const struct {
    const char* name;
    const fastnorm_tensor** tensor;
    bool wanted;
  } outputs[] = {
      {"y", &n.y, true}, {"quantized", &n.quantized, true}, {"scale", &n.scale, scale_is_output}};
  for (const auto& output : outputs) {
    if (*output.tensor == nullptr || !output.wanted) continue;
    Slice& slice = call->gathered[call->gathers++];
    NCCL_TRY(slice_of(h, output.name, **output.tensor, tokens, &slice));
    *output.tensor = &slice.tensor;
  }
  return FASTNORM_OK;
}

fastnorm_status gather_results(const fastnorm_nccl& h, const Sequence& call, void* stream) {
  const fastnorm_nccl_functions& f = h.functions;
  NCCL_TRY(check(f, "ncclGroupStart", f.group_start()));
  fastnorm_status status = FASTNORM_OK;
  for (int i = 0; i < call.gathers && status == FASTNORM_OK; ++i) {
    const Slice& slice = call.gathered[i];
    status = check(
        f, "ncclAllGather",
        f.all_gather(slice.tensor.data, slice.all, slice.local_bytes, kNcclUint8, h.comm, stream));
  }
  const int ended = f.group_end();
  if (status != FASTNORM_OK) return status;
  return check(f, "ncclGroupEnd", ended);
}

fastnorm_status run(fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args,
                    void* workspace, size_t workspace_bytes, void* stream) {
  Sequence call;
  NCCL_TRY(plan(handle, args, static_cast<std::byte*>(workspace), &call));
  const fastnorm_nccl& h = *handle;
  NCCL_TRY(check_workspace(workspace, workspace_bytes, call.workspace_bytes));
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  NCCL_TRY(of_library(fastnorm_norm_query(h.context, &call.norm, &info)));
  if (call.elements == 0) return FASTNORM_OK;
  NCCL_TRY(check(h.functions, "ncclReduceScatter",
                 h.functions.reduce_scatter(call.x, workspace, call.elements, call.type, kNcclSum,
                                            h.comm, stream)));
  NCCL_TRY(of_library(fastnorm_norm(h.context, &call.norm, nullptr, 0, stream)));
  if (call.args.gather == 0) return FASTNORM_OK;
  return gather_results(h, call, stream);
}

}  // namespace
}  // namespace fastnorm::nccl

namespace nccl = fastnorm::nccl;

fastnorm_status fastnorm_nccl_set_functions(const fastnorm_nccl_functions* functions) {
  return nccl::guarded([&] { return nccl::set_functions(functions); });
}

fastnorm_status fastnorm_nccl_version(int32_t* version) {
  return nccl::guarded([&]() -> fastnorm_status {
    NCCL_REQUIRE(version != nullptr, FASTNORM_ERROR_ARGUMENT,
                 "version is NULL; required: a pointer to receive the number");
    fastnorm_nccl_functions functions;
    bool given = false;
    NCCL_TRY(nccl::find_functions(&functions, &given));
    int found = 0;
    NCCL_TRY(nccl::check(functions, "ncclGetVersion", functions.get_version(&found)));
    *version = found;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_create(fastnorm_context* context, fastnorm_device device, void* comm,
                                     const fastnorm_nccl_options* options, void* stream,
                                     fastnorm_nccl** handle) {
  return nccl::guarded(
      [&] { return nccl::create(context, device, comm, options, stream, handle); });
}

void fastnorm_nccl_destroy(fastnorm_nccl* handle) { delete handle; }

fastnorm_status fastnorm_nccl_peer(fastnorm_nccl* handle, fastnorm_peer** peer) {
  return nccl::guarded([&]() -> fastnorm_status {
    NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT, "handle is NULL; required: a handle");
    NCCL_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT,
                 "peer is NULL; required: a pointer to receive the peer");
    *peer = handle->peer;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_allreduce_norm_query(fastnorm_nccl* handle,
                                                   const fastnorm_peer_allreduce_norm_args* args,
                                                   fastnorm_info* info) {
  return nccl::guarded([&]() -> fastnorm_status {
    nccl::Allreduce call;
    NCCL_TRY(nccl::plan(handle, args, nccl::pretended_workspace(), &call));
    if (call.by_peers) {
      return nccl::of_library(
          fastnorm_peer_allreduce_norm_query(handle->context, &call.args, info));
    }
    NCCL_TRY(nccl::of_library(fastnorm_norm_query(handle->context, &call.norm, info)));
    info->workspace_bytes = call.workspace_bytes;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_allreduce_norm(fastnorm_nccl* handle,
                                             const fastnorm_peer_allreduce_norm_args* args,
                                             void* workspace, size_t workspace_bytes,
                                             void* stream) {
  return nccl::guarded([&] { return nccl::run(handle, args, workspace, workspace_bytes, stream); });
}

fastnorm_status fastnorm_nccl_sequence_norm_query(fastnorm_nccl* handle,
                                                  const fastnorm_nccl_sequence_norm_args* args,
                                                  fastnorm_info* info) {
  return nccl::guarded([&]() -> fastnorm_status {
    nccl::Sequence call;
    NCCL_TRY(nccl::plan(handle, args, nccl::pretended_workspace(), &call));
    NCCL_TRY(nccl::of_library(fastnorm_norm_query(handle->context, &call.norm, info)));
    info->workspace_bytes = call.workspace_bytes;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_sequence_norm(fastnorm_nccl* handle,
                                            const fastnorm_nccl_sequence_norm_args* args,
                                            void* workspace, size_t workspace_bytes, void* stream) {
  return nccl::guarded([&] { return nccl::run(handle, args, workspace, workspace_bytes, stream); });
}

const char* fastnorm_nccl_last_error(void) { return nccl::last_error().c_str(); }
