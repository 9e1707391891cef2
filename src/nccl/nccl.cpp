// Handles on a communicator, and their calls: by peers where that was agreed, else by NCCL and the
// library's own norm.
#include "fastnorm/nccl.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/common/workspace.h"
#include "core/peer/norm_fields.h"
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

// The number of elements of a tensor whose shape check_shape() passed.
int64_t elements_of(const fastnorm_tensor& t) {
  if (std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim) return 0;
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
  if (t.strides == nullptr || elements_of(t) == 0) return true;
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != step) return false;
    step *= t.shape[d];
  }
  return true;
}

fastnorm_status check_shape(const fastnorm_tensor& t, const char* name) {
  const bool empty = std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;
  int64_t elements = 1;
  for (int32_t d = 0; d < t.ndim; ++d) {
    NCCL_REQUIRE(t.shape[d] >= 0, FASTNORM_ERROR_SHAPE,
                 "%s.shape[%d] is %" PRId64 "; required: >= 0", name, d, t.shape[d]);
    NCCL_REQUIRE(!__builtin_mul_overflow(elements, t.shape[d], &elements) || empty,
                 FASTNORM_ERROR_SHAPE,
                 "%s.shape[%d] is %" PRId64 "; required: a shape of fewer than 2^63 elements", name,
                 d, t.shape[d]);
  }
  return FASTNORM_OK;
}

fastnorm_status require_compact(const fastnorm_tensor& t, const char* name) {
  NCCL_REQUIRE(is_compact(t), FASTNORM_ERROR_LAYOUT,
               "%s has strides with gaps or of another order; required: a compact tensor", name);
  return FASTNORM_OK;
}

// What NCCL adds.
fastnorm_status nccl_type(const fastnorm_tensor& x, const char* name, const fastnorm_nccl& handle,
                          int* type) {
  const auto id = static_cast<uint32_t>(x.dtype.code | x.dtype.bits << 8 | x.dtype.lanes << 16);
  NCCL_REQUIRE(id == static_cast<uint32_t>(handle.options.dtype), FASTNORM_ERROR_DTYPE,
               "%s.dtype is 0x%08x; required: options.dtype, 0x%08x", name, id,
               static_cast<unsigned>(handle.options.dtype));
  *type = id == FASTNORM_DTYPE_F32   ? kNcclFloat32
          : id == FASTNORM_DTYPE_F16 ? kNcclFloat16
                                     : kNcclBfloat16;
  return FASTNORM_OK;
}

fastnorm_status check_x(const fastnorm_tensor* x, const char* name) {
  NCCL_REQUIRE(x != nullptr, FASTNORM_ERROR_ARGUMENT, "%s is NULL; required: a tensor", name);
  NCCL_REQUIRE(x->ndim >= 1 && x->ndim <= 8 && x->shape != nullptr, FASTNORM_ERROR_SHAPE,
               "%s.ndim is %d; required: 1 to 8 and a shape", name, x->ndim);
  return check_shape(*x, name);
}

fastnorm_status check_workspace(const void* workspace, size_t bytes, uint64_t needed) {
  NCCL_REQUIRE(bytes >= needed, FASTNORM_ERROR_ARGUMENT,
               "workspace_bytes is %zu; required: at least %" PRIu64, bytes, needed);
  NCCL_REQUIRE(
      needed == 0 ||
          (workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlign == 0),
      FASTNORM_ERROR_ARGUMENT, "workspace is %p; required: a 256-byte aligned address", workspace);
  return FASTNORM_OK;
}

fastnorm_status require_fallback(const fastnorm_nccl& handle) {
  NCCL_REQUIRE((handle.options.flags & FASTNORM_NCCL_FIXED_ORDER) == 0, FASTNORM_ERROR_UNSUPPORTED,
               "the call needs NCCL, whose sums have no fixed order, and options.flags has "
               "FASTNORM_NCCL_FIXED_ORDER; nearest: fastnorm_nccl_allreduce_norm by peers");
  return FASTNORM_OK;
}

// --- creation

enum class Verdict : uint8_t { kPeers, kNoPeers, kError };

// A rank of this process on its way to a handle.
struct Joining {
  fastnorm_nccl* handle;
  void* stream;
  Staging staging;
  Verdict verdict;
  std::vector<unsigned char> own, all;  // what it gathers: of this rank, of all ranks
  std::string text;                     // of why it is no peer
};

// Runs `each(i)` for the ranks of this process; NCCL starts their operations together.
template <typename Each>
fastnorm_status grouped(const fastnorm_nccl_functions& f, size_t ranks, Each each) {
  if (ranks == 1) return each(size_t{0});
  NCCL_TRY(check(f, "ncclGroupStart", f.group_start()));
  fastnorm_status status = FASTNORM_OK;
  for (size_t i = 0; i < ranks && status == FASTNORM_OK; ++i) status = each(i);
  const int ended = f.group_end();
  if (status != FASTNORM_OK) return status;
  return check(f, "ncclGroupEnd", ended);
}

// One all-gather of `own` of each rank.
fastnorm_status gather(std::span<Joining> local) {
  for (Joining& j : local) {
    NCCL_TRY(j.staging.put(static_cast<size_t>(j.handle->rank) * j.own.size(), j.own.data(),
                           j.own.size()));
  }
  const fastnorm_nccl_functions& f = local[0].handle->functions;
  NCCL_TRY(grouped(f, local.size(), [&](size_t i) {
    const Joining& j = local[i];
    std::byte* const data = j.staging.data();
    return check(f, "ncclAllGather",
                 f.all_gather(data + static_cast<size_t>(j.handle->rank) * j.own.size(), data,
                              j.own.size(), kNcclUint8, j.handle->comm, j.stream));
  }));
  for (Joining& j : local) {
    j.all.resize(j.own.size() * static_cast<size_t>(j.handle->ranks));
    NCCL_TRY(j.staging.get(0, j.all.data(), j.all.size()));
  }
  return FASTNORM_OK;
}

bool wants_peers(const fastnorm_nccl& h) {
  return (h.options.flags & FASTNORM_NCCL_NO_PEERS) == 0 && h.ranks >= 2 &&
         h.ranks <= FASTNORM_PEER_MAX_RANKS;
}

// True where `status` is a success. An option that is wrong is the caller's error; all else means
// that there are no peers.
bool judge(Joining& j, fastnorm_status status) {
  if (status == FASTNORM_OK) return true;
  of_library(status);
  j.text = last_error();
  j.verdict = status == FASTNORM_ERROR_ARGUMENT || status == FASTNORM_ERROR_DTYPE
                  ? Verdict::kError
                  : Verdict::kNoPeers;
  return false;
}

// Makes the rank's buffer and says where it is; zeros where there is none.
void offer_peer(Joining& j) {
  fastnorm_nccl& h = *j.handle;
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
  j.own.assign(FASTNORM_PEER_BLOB_BYTES, 0);
  j.verdict = wants_peers(h) ? Verdict::kPeers : Verdict::kNoPeers;
  if (wants_peers(h) && judge(j, fastnorm_peer_create(h.context, &options, &h.peer)) &&
      !judge(j, fastnorm_peer_export(h.peer, j.own.data(), j.own.size()))) {
    j.own.assign(j.own.size(), 0);
  }
}

// Takes the other ranks' buffers, where all have one.
void import_peers(Joining& j) {
  for (size_t at = 0; at < j.all.size() && j.verdict == Verdict::kPeers; at += j.own.size()) {
    const auto first = j.all.begin() + static_cast<ptrdiff_t>(at);
    if (std::all_of(first, first + static_cast<ptrdiff_t>(j.own.size()),
                    [](unsigned char byte) { return byte == 0; }))
      j.verdict = Verdict::kNoPeers;
  }
  if (j.verdict == Verdict::kPeers)
    judge(j, fastnorm_peer_import(j.handle->peer, j.all.data(), j.all.size()));
}

// `all` has every rank's verdict: a peer stays if all are peers.
fastnorm_status conclude(Joining& j) {
  fastnorm_nccl& h = *j.handle;
  const auto any = [&](Verdict v) {
    return std::find(j.all.begin(), j.all.end(), static_cast<unsigned char>(v)) != j.all.end();
  };
  if (j.verdict == Verdict::kError) return fail(FASTNORM_ERROR_ARGUMENT, "%s", j.text.c_str());
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
               j.text.empty() ? "" : ": ", j.text.c_str());
  return FASTNORM_OK;
}

// Makes all ranks peers, or none. A rank that cannot be a peer takes part in both exchanges. A rank
// that has no memory for them, or whose NCCL or CUDA fails, cannot do so, and the others wait.
fastnorm_status agree(std::span<Joining> local) {
  for (Joining& j : local) {
    const auto ranks = static_cast<size_t>(j.handle->ranks);
    NCCL_TRY(j.staging.create(j.handle->device, ranks * FASTNORM_PEER_BLOB_BYTES, j.stream));
  }
  for (Joining& j : local) offer_peer(j);
  NCCL_TRY(gather(local));
  for (Joining& j : local) {
    import_peers(j);
    j.own.assign(1, static_cast<unsigned char>(j.verdict));
  }
  NCCL_TRY(gather(local));
  for (Joining& j : local) NCCL_TRY(conclude(j));
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

// A handle whose ranks have not agreed yet.
fastnorm_status start(fastnorm_context* context, fastnorm_device device, void* comm,
                      const fastnorm_nccl_options& options, std::unique_ptr<fastnorm_nccl>* made) {
  NCCL_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT, "context is NULL; required: a context");
  NCCL_REQUIRE(comm != nullptr, FASTNORM_ERROR_ARGUMENT, "comm is NULL; required: an ncclComm_t");
  auto h = std::make_unique<fastnorm_nccl>();
  bool given = false;
  NCCL_TRY(find_functions(&h->functions, &given));
  const bool cuda = device.device_type == FASTNORM_DEVICE_CUDA;
  NCCL_REQUIRE(cuda || given, FASTNORM_ERROR_UNSUPPORTED,
               "device.device_type is %d, and NCCL is for CUDA (2); nearest: a CUDA context, or "
               "functions over host memory by fastnorm_nccl_set_functions",
               device.device_type);
  const fastnorm_nccl_functions& f = h->functions;
  h->context = context;
  h->device = device;
  h->comm = comm;
  h->options = options;
  NCCL_TRY(check(f, "ncclCommCount", f.comm_count(comm, &h->ranks)));
  NCCL_TRY(check(f, "ncclCommUserRank", f.comm_user_rank(comm, &h->rank)));
  int of_comm = 0;
  NCCL_TRY(check(f, "ncclCommCuDevice", f.comm_cu_device(comm, &of_comm)));
  NCCL_REQUIRE(!cuda || of_comm == device.device_id, FASTNORM_ERROR_ARGUMENT,
               "comm is of device %d and device.device_id is %d; required: one device", of_comm,
               device.device_id);
  *made = std::move(h);
  return FASTNORM_OK;
}

// The text of an error of one of several ranks says which.
fastnorm_status name_rank(fastnorm_status status, const char* what, size_t index, size_t count) {
  if (status == FASTNORM_OK || count == 1) return status;
  return fail(status, "%s[%zu]: %s", what, index, std::string(last_error()).c_str());
}

fastnorm_status create_all(fastnorm_context* const* contexts, const fastnorm_device* devices,
                           void* const* comms, const fastnorm_nccl_options* options,
                           void* const* streams, size_t count, fastnorm_nccl** handles) {
  NCCL_REQUIRE(handles != nullptr, FASTNORM_ERROR_ARGUMENT,
               "handles is NULL; required: room for the handles");
  std::fill_n(handles, count, nullptr);
  fastnorm_nccl_options own;
  NCCL_TRY(check_options(options, &own));
  std::vector<std::unique_ptr<fastnorm_nccl>> made(count);
  std::vector<Joining> local(count);
  for (size_t i = 0; i < count; ++i) {
    NCCL_TRY(name_rank(start(contexts[i], devices[i], comms[i], own, &made[i]), "rank", i, count));
    local[i].handle = made[i].get();
    local[i].stream = streams == nullptr ? nullptr : streams[i];
  }
  NCCL_TRY(agree(local));
  for (size_t i = 0; i < count; ++i) handles[i] = made[i].release();
  return FASTNORM_OK;
}

// --- all-reduce and norm

struct Allreduce {
  fastnorm_peer_allreduce_norm_args args;  // of peers
  bool by_peers;
  int type;
  uint64_t elements, workspace_bytes;  // of the fallback
  fastnorm_norm_args norm;             // of the sum
  fastnorm_tensor sum;
  std::byte* x;
};

// The library's status of the fallback's norm, which the caller knows as args.norm.
fastnorm_status of_norm(fastnorm_status status) {
  if (status == FASTNORM_OK || status >= FASTNORM_ERROR_UNSUPPORTED) return of_library(status);
  return fail(status, "norm.%s", fastnorm_last_error());
}

// `workspace`: where the fallback's sum is.
fastnorm_status plan(const fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args,
                     std::byte* workspace, Allreduce* call) {
  NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT, "handle is NULL; required: a handle");
  const fastnorm_nccl& h = *handle;
  NCCL_TRY(accept(args, "args", &call->args));
  NCCL_REQUIRE(call->args.peer == nullptr, FASTNORM_ERROR_ARGUMENT,
               "args.peer is %p; required: NULL, as the handle has its own",
               static_cast<void*>(call->args.peer));
  NCCL_TRY(accept(call->args.norm, "norm", &call->norm));
  NCCL_TRY(check_x(call->norm.x, "norm.x"));
  const fastnorm_tensor& x = *call->norm.x;
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
  const char* const field = not_of_allreduce(call->norm);
  NCCL_REQUIRE(
      field == nullptr, FASTNORM_ERROR_UNSUPPORTED,
      "norm.%s is given, which an all-reduce does not have; nearest: 0 or NULL, and another "
      "call for it",
      field);
  constexpr uint32_t kFlags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER |
                              FASTNORM_NORM_PDL_CONSTANT_WEIGHTS | FASTNORM_NORM_NO_PDL;
  NCCL_REQUIRE((call->norm.flags & ~kFlags) == 0, FASTNORM_ERROR_UNSUPPORTED,
               "norm.flags is 0x%x; this version has the flags 0x%x; nearest: flags 0x%x",
               call->norm.flags, kFlags, call->norm.flags & kFlags);
  if (call->norm.quant != nullptr) {
    fastnorm_quant quant;
    NCCL_TRY(accept(call->norm.quant, "norm.quant", &quant));
    NCCL_REQUIRE(quant.rotation == 0, FASTNORM_ERROR_UNSUPPORTED,
                 "norm.quant.rotation is %d, which an all-reduce does not have; nearest: 0, and "
                 "another call for it",
                 quant.rotation);
  }
  NCCL_TRY(nccl_type(x, "norm.x", h, &call->type));
  NCCL_TRY(require_compact(x, "norm.x"));
  call->elements = static_cast<uint64_t>(elements_of(x));
  call->workspace_bytes = workspace_aligned(bytes);
  call->x = address_of(x);
  if (call->args.parallel_user != nullptr) call->norm.parallel_user = call->args.parallel_user;
  call->sum = x;
  call->sum.data = workspace;
  call->sum.byte_offset = 0;
  call->sum.strides = nullptr;
  call->norm.x = &call->sum;
  return FASTNORM_OK;
}

fastnorm_status require_ranks(fastnorm_nccl* const* handles, int32_t count) {
  NCCL_REQUIRE(count >= 1, FASTNORM_ERROR_ARGUMENT, "count is %d; required: >= 1", count);
  NCCL_REQUIRE(handles != nullptr, FASTNORM_ERROR_ARGUMENT,
               "handles is NULL; required: a handle of each rank");
  return FASTNORM_OK;
}

// What one rank's call needs besides its own struct.
template <class Args>
struct Call {
  fastnorm_nccl* handle;
  const Args* args;
  void* workspace;
  size_t workspace_bytes;
  void* stream;
};
template <class Args>
std::vector<Call<Args>> calls_of(fastnorm_nccl* const* handles, const Args* const* args,
                                 void* const* workspaces, size_t workspace_bytes,
                                 void* const* streams, int32_t count) {
  std::vector<Call<Args>> calls;
  for (int32_t i = 0; i < count; ++i) {
    calls.push_back({handles[i], args == nullptr ? nullptr : args[i],
                     workspaces == nullptr ? nullptr : workspaces[i], workspace_bytes,
                     streams == nullptr ? nullptr : streams[i]});
  }
  return calls;
}

// Checks and plans one rank's call; nothing is sent.
fastnorm_status prepare(const Call<fastnorm_peer_allreduce_norm_args>& call, Allreduce* plan_of) {
  NCCL_TRY(plan(call.handle, call.args, static_cast<std::byte*>(call.workspace), plan_of));
  const fastnorm_nccl& h = *call.handle;
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  if (plan_of->by_peers) {
    NCCL_TRY(of_library(fastnorm_peer_allreduce_norm_query(h.context, &plan_of->args, &info)));
    return check_workspace(call.workspace, call.workspace_bytes, info.workspace_bytes);
  }
  NCCL_TRY(check_workspace(call.workspace, call.workspace_bytes, plan_of->workspace_bytes));
  return of_norm(fastnorm_norm_query(h.context, &plan_of->norm, &info));
}

// Ranks of this process that are peers on CPUs meet in their calls: each needs a thread.
fastnorm_status require_streams(const fastnorm_nccl& h, size_t ranks) {
  NCCL_REQUIRE(ranks == 1 || h.device.device_type == FASTNORM_DEVICE_CUDA,
               FASTNORM_ERROR_UNSUPPORTED,
               "%zu ranks are peers on a CPU and called together; nearest: "
               "fastnorm_nccl_allreduce_norm from a thread of each",
               ranks);
  return FASTNORM_OK;
}

// The ranks of this process. All are checked before anything is sent.
fastnorm_status run(std::span<const Call<fastnorm_peer_allreduce_norm_args>> local) {
  std::vector<Allreduce> plans(local.size());
  for (size_t i = 0; i < local.size(); ++i)
    NCCL_TRY(name_rank(prepare(local[i], &plans[i]), "args", i, local.size()));
  for (const Allreduce& p : plans) {
    NCCL_REQUIRE(
        p.by_peers == plans[0].by_peers && (p.by_peers || p.elements == plans[0].elements),
        FASTNORM_ERROR_SHAPE,
        "args[%zu].norm.x has another size than args[0].norm.x; required: the same rows on all "
        "ranks",
        static_cast<size_t>(&p - plans.data()));
  }
  if (plans[0].by_peers) {
    NCCL_TRY(require_streams(*local[0].handle, local.size()));
    for (size_t i = 0; i < local.size(); ++i) {
      NCCL_TRY(of_library(fastnorm_peer_allreduce_norm(local[i].handle->context, &plans[i].args,
                                                       local[i].workspace, local[i].workspace_bytes,
                                                       local[i].stream)));
    }
    return FASTNORM_OK;
  }
  if (plans[0].elements == 0) return FASTNORM_OK;
  const fastnorm_nccl_functions& f = local[0].handle->functions;
  NCCL_TRY(grouped(f, local.size(), [&](size_t i) {
    return check(f, "ncclAllReduce",
                 f.all_reduce(plans[i].x, local[i].workspace, plans[i].elements, plans[i].type,
                              kNcclSum, local[i].handle->comm, local[i].stream));
  }));
  for (size_t i = 0; i < local.size(); ++i) {
    NCCL_TRY(of_library(
        fastnorm_norm(local[i].handle->context, &plans[i].norm, nullptr, 0, local[i].stream)));
  }
  return FASTNORM_OK;
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
  NCCL_TRY(check_shape(t, name));
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
  fastnorm_quant quant = {};  // of norm
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
  if (call->args.parallel_user != nullptr) n.parallel_user = call->args.parallel_user;
  if (n.quant != nullptr) {
    NCCL_TRY(accept(n.quant, "args.norm.quant", &call->quant));
    n.quant = &call->quant;
  }
  NCCL_TRY(check_x(n.x, "x"));
  NCCL_TRY(nccl_type(*n.x, "x", h, &call->type));
  const int64_t tokens = n.x->shape[0];
  NCCL_REQUIRE(n.x->ndim >= 2 && tokens % h.ranks == 0, FASTNORM_ERROR_SHAPE,
               "x has %d dimensions and %" PRId64
               " tokens; required: at least 2, and a multiple of "
               "the %d ranks",
               n.x->ndim, tokens, h.ranks);
  fastnorm_quant& q = call->quant;
  NCCL_REQUIRE(q.amax == nullptr, FASTNORM_ERROR_UNSUPPORTED,
               "quant.amax is given; nearest: NULL, and an all-reduce of the caller's");
  NCCL_REQUIRE(q.rotation == 0, FASTNORM_ERROR_UNSUPPORTED,
               "quant.rotation is %d; nearest: 0, and another call for it", q.rotation);
  int32_t layout = 0;
  std::memcpy(&layout, &q.scale_layout, sizeof layout);
  NCCL_REQUIRE(layout == FASTNORM_SCALE_ROW_MAJOR, FASTNORM_ERROR_UNSUPPORTED,
               "quant.scale_layout is %d; nearest: FASTNORM_SCALE_ROW_MAJOR (0), whose rows are "
               "gathered",
               layout);
  NCCL_TRY(slice_of(h, "x", *n.x, tokens, &call->sum));
  call->x = call->sum.all;
  call->elements = static_cast<uint64_t>(elements_of(*n.x)) / static_cast<uint64_t>(h.ranks);
  call->workspace_bytes = workspace_aligned(call->sum.local_bytes);
  call->sum.tensor.data = workspace;
  n.x = &call->sum.tensor;
  call->gathers = 0;
  int32_t scheme = 0;
  std::memcpy(&scheme, &q.scheme, sizeof scheme);
  const bool scale_is_output = scheme != FASTNORM_QUANT_NONE && scheme != FASTNORM_QUANT_PER_TENSOR;
  const struct {
    const char* name;
    const fastnorm_tensor** tensor;
    bool wanted;
  } outputs[] = {{"y", &n.y, true},
                 {"quant.quantized", &q.quantized, true},
                 {"quant.scale", &q.scale, scale_is_output}};
  for (const auto& output : outputs) {
    if (*output.tensor == nullptr || !output.wanted) continue;
    Slice& slice = call->gathered[call->gathers++];
    NCCL_TRY(slice_of(h, output.name, **output.tensor, tokens, &slice));
    *output.tensor = &slice.tensor;
  }
  return FASTNORM_OK;
}

fastnorm_status gather_results(std::span<const Call<fastnorm_nccl_sequence_norm_args>> local,
                               const std::vector<Sequence>& plans) {
  const fastnorm_nccl_functions& f = local[0].handle->functions;
  NCCL_TRY(check(f, "ncclGroupStart", f.group_start()));
  fastnorm_status status = FASTNORM_OK;
  for (size_t i = 0; i < local.size(); ++i) {
    for (int g = 0; g < plans[i].gathers && status == FASTNORM_OK; ++g) {
      const Slice& slice = plans[i].gathered[g];
      status = check(f, "ncclAllGather",
                     f.all_gather(slice.tensor.data, slice.all, slice.local_bytes, kNcclUint8,
                                  local[i].handle->comm, local[i].stream));
    }
  }
  const int ended = f.group_end();
  if (status != FASTNORM_OK) return status;
  return check(f, "ncclGroupEnd", ended);
}

fastnorm_status prepare(const Call<fastnorm_nccl_sequence_norm_args>& call, Sequence* plan_of) {
  NCCL_TRY(plan(call.handle, call.args, static_cast<std::byte*>(call.workspace), plan_of));
  NCCL_TRY(check_workspace(call.workspace, call.workspace_bytes, plan_of->workspace_bytes));
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  return of_library(fastnorm_norm_query(call.handle->context, &plan_of->norm, &info));
}

fastnorm_status run(std::span<const Call<fastnorm_nccl_sequence_norm_args>> local) {
  std::vector<Sequence> plans(local.size());
  for (size_t i = 0; i < local.size(); ++i)
    NCCL_TRY(name_rank(prepare(local[i], &plans[i]), "args", i, local.size()));
  for (const Sequence& p : plans) {
    NCCL_REQUIRE(p.elements == plans[0].elements && p.args.gather == plans[0].args.gather,
                 FASTNORM_ERROR_SHAPE,
                 "args[%zu] has another size of x or another gather than args[0]; required: the "
                 "same on all ranks",
                 static_cast<size_t>(&p - plans.data()));
  }
  if (plans[0].elements == 0) return FASTNORM_OK;
  const fastnorm_nccl_functions& f = local[0].handle->functions;
  NCCL_TRY(grouped(f, local.size(), [&](size_t i) {
    return check(f, "ncclReduceScatter",
                 f.reduce_scatter(plans[i].x, local[i].workspace, plans[i].elements, plans[i].type,
                                  kNcclSum, local[i].handle->comm, local[i].stream));
  }));
  for (size_t i = 0; i < local.size(); ++i) {
    NCCL_TRY(of_library(
        fastnorm_norm(local[i].handle->context, &plans[i].norm, nullptr, 0, local[i].stream)));
  }
  if (plans[0].args.gather == 0) return FASTNORM_OK;
  return gather_results(local, plans);
}

// One rank, or several of this process, from the arguments of a function of the ABI.
template <class Args>
fastnorm_status run_all(fastnorm_nccl* const* handles, const Args* const* args,
                        void* const* workspaces, size_t workspace_bytes, void* const* streams,
                        int32_t count) {
  NCCL_TRY(require_ranks(handles, count));
  return run(std::span<const Call<Args>>(
      calls_of(handles, args, workspaces, workspace_bytes, streams, count)));
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
  return nccl::guarded([&]() -> fastnorm_status {
    NCCL_REQUIRE(handle != nullptr, FASTNORM_ERROR_ARGUMENT,
                 "handle is NULL; required: a pointer to receive the handle");
    return nccl::create_all(&context, &device, &comm, options, &stream, 1, handle);
  });
}

fastnorm_status fastnorm_nccl_create_all(fastnorm_context* const* contexts,
                                         const fastnorm_device* devices, void* const* comms,
                                         const fastnorm_nccl_options* options, void* const* streams,
                                         int32_t count, fastnorm_nccl** handles) {
  return nccl::guarded([&]() -> fastnorm_status {
    NCCL_REQUIRE(count >= 1, FASTNORM_ERROR_ARGUMENT, "count is %d; required: >= 1", count);
    NCCL_REQUIRE(contexts != nullptr && devices != nullptr && comms != nullptr,
                 FASTNORM_ERROR_ARGUMENT, "%s is NULL; required: one of each rank",
                 contexts == nullptr  ? "contexts"
                 : devices == nullptr ? "devices"
                                      : "comms");
    return nccl::create_all(contexts, devices, comms, options, streams, static_cast<size_t>(count),
                            handles);
  });
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
    NCCL_TRY(nccl::plan(handle, args, fastnorm::pretended_workspace(), &call));
    if (call.by_peers) {
      return nccl::of_library(
          fastnorm_peer_allreduce_norm_query(handle->context, &call.args, info));
    }
    NCCL_TRY(nccl::of_norm(fastnorm_norm_query(handle->context, &call.norm, info)));
    info->workspace_bytes = call.workspace_bytes;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_allreduce_norm_prepare(
    fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args) {
  return nccl::guarded([&]() -> fastnorm_status {
    nccl::Allreduce call;
    NCCL_TRY(nccl::plan(handle, args, fastnorm::pretended_workspace(), &call));
    if (call.by_peers) {
      return nccl::of_library(fastnorm_peer_allreduce_norm_prepare(handle->context, &call.args));
    }
    return nccl::of_norm(fastnorm_norm_prepare(handle->context, &call.norm));
  });
}

fastnorm_status fastnorm_nccl_allreduce_norm(fastnorm_nccl* handle,
                                             const fastnorm_peer_allreduce_norm_args* args,
                                             void* workspace, size_t workspace_bytes,
                                             void* stream) {
  return nccl::guarded(
      [&] { return nccl::run_all(&handle, &args, &workspace, workspace_bytes, &stream, 1); });
}

fastnorm_status fastnorm_nccl_allreduce_norm_all(
    fastnorm_nccl* const* handles, const fastnorm_peer_allreduce_norm_args* const* args,
    void* const* workspaces, size_t workspace_bytes, void* const* streams, int32_t count) {
  return nccl::guarded(
      [&] { return nccl::run_all(handles, args, workspaces, workspace_bytes, streams, count); });
}

fastnorm_status fastnorm_nccl_sequence_norm_query(fastnorm_nccl* handle,
                                                  const fastnorm_nccl_sequence_norm_args* args,
                                                  fastnorm_info* info) {
  return nccl::guarded([&]() -> fastnorm_status {
    nccl::Sequence call;
    NCCL_TRY(nccl::plan(handle, args, fastnorm::pretended_workspace(), &call));
    NCCL_TRY(nccl::of_library(fastnorm_norm_query(handle->context, &call.norm, info)));
    info->workspace_bytes = call.workspace_bytes;
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_nccl_sequence_norm_prepare(fastnorm_nccl* handle,
                                                    const fastnorm_nccl_sequence_norm_args* args) {
  return nccl::guarded([&]() -> fastnorm_status {
    nccl::Sequence call;
    NCCL_TRY(nccl::plan(handle, args, fastnorm::pretended_workspace(), &call));
    return nccl::of_library(fastnorm_norm_prepare(handle->context, &call.norm));
  });
}

fastnorm_status fastnorm_nccl_sequence_norm(fastnorm_nccl* handle,
                                            const fastnorm_nccl_sequence_norm_args* args,
                                            void* workspace, size_t workspace_bytes, void* stream) {
  return nccl::guarded(
      [&] { return nccl::run_all(&handle, &args, &workspace, workspace_bytes, &stream, 1); });
}

fastnorm_status fastnorm_nccl_sequence_norm_all(fastnorm_nccl* const* handles,
                                                const fastnorm_nccl_sequence_norm_args* const* args,
                                                void* const* workspaces, size_t workspace_bytes,
                                                void* const* streams, int32_t count) {
  return nccl::guarded(
      [&] { return nccl::run_all(handles, args, workspaces, workspace_bytes, streams, count); });
}

const char* fastnorm_nccl_last_error(void) { return nccl::last_error().c_str(); }
