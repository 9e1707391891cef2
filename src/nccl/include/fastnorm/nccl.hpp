/** @file nccl.hpp
 *  libfastnorm_nccl for C++11 and later: handles that destroy themselves, errors as exceptions.
 *  Header-only, over the C ABI.
 *
 *      fastnorm::nccl_options options;
 *      options.dtype = FASTNORM_DTYPE_BF16;
 *      options.max_columns = 8192;
 *      fastnorm::nccl rank(context, fastnorm::cuda(0), comm, options, stream);
 *      fastnorm::peer_allreduce_norm_args args; // peer stays NULL
 *      ..
 *      rank.allreduce_norm(args, workspace, workspace_bytes, stream);
 */
#ifndef FASTNORM_NCCL_HPP_
#define FASTNORM_NCCL_HPP_

#include <fastnorm/nccl.h>

#include <cstddef>
#include <cstdint>
#include <fastnorm/fastnorm.hpp>
#include <string>
#include <vector>

namespace fastnorm {

/** Throws fastnorm::error with the words of libfastnorm_nccl unless the status is FASTNORM_OK. */
inline void nccl_check(fastnorm_status status) {
  if (status == FASTNORM_OK) return;
  const std::string text = fastnorm_nccl_last_error();
  // A failure of libfastnorm itself has its text, and only then its device error counts.
  throw error(status, text, text == fastnorm_last_error() ? fastnorm_last_device_error() : 0);
}

/** ncclGetVersion's number of the NCCL that was found; throws fastnorm::error. */
inline std::int32_t nccl_version() {
  std::int32_t version = 0;
  nccl_check(fastnorm_nccl_version(&version));
  return version;
}

/** fastnorm_nccl_set_functions; throws fastnorm::error. */
inline void nccl_set_functions(const fastnorm_nccl_functions* functions) {
  nccl_check(fastnorm_nccl_set_functions(functions));
}

/** Options with their struct_size set; dtype and max_columns have no default. */
struct nccl_options : fastnorm_nccl_options {
  nccl_options() noexcept : fastnorm_nccl_options() { struct_size = sizeof(fastnorm_nccl_options); }
};

/** Arguments with their struct_size set; norm has no default. */
struct nccl_sequence_norm_args : fastnorm_nccl_sequence_norm_args {
  nccl_sequence_norm_args() noexcept : fastnorm_nccl_sequence_norm_args() {
    struct_size = sizeof(fastnorm_nccl_sequence_norm_args);
  }
};

/** Owns one rank's handle. Movable, not copyable; an empty one is false. Its context and its
 *  communicator must outlive it. Functions throw fastnorm::error. */
class nccl {
 public:
  nccl() noexcept = default;
  /** Collective: waits for all ranks. */
  nccl(const context& context, fastnorm_device device, void* comm,
       const fastnorm_nccl_options& options, void* stream = nullptr) {
    nccl_check(fastnorm_nccl_create(context.get(), device, comm, &options, stream, &handle_));
  }
  /** Takes a handle of fastnorm_nccl_create or fastnorm_nccl_create_all. */
  explicit nccl(fastnorm_nccl* handle) noexcept : handle_(handle) {}
  nccl(const nccl&) = delete;
  nccl& operator=(const nccl&) = delete;
  nccl(nccl&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  nccl& operator=(nccl&& other) noexcept {
    if (this != &other) {
      fastnorm_nccl_destroy(handle_);
      handle_ = other.handle_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  ~nccl() { fastnorm_nccl_destroy(handle_); }

  fastnorm_nccl* get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /** The handle's own peer; NULL where the ranks are no peers. */
  fastnorm_peer* peer() const {
    fastnorm_peer* found = nullptr;
    nccl_check(fastnorm_nccl_peer(handle_, &found));
    return found;
  }

  void allreduce_norm(const fastnorm_peer_allreduce_norm_args& args, void* workspace,
                      std::size_t workspace_bytes, void* stream = nullptr) {
    nccl_check(fastnorm_nccl_allreduce_norm(handle_, &args, workspace, workspace_bytes, stream));
  }
  void allreduce_norm_prepare(const fastnorm_peer_allreduce_norm_args& args) {
    nccl_check(fastnorm_nccl_allreduce_norm_prepare(handle_, &args));
  }
  fastnorm_info allreduce_norm_query(const fastnorm_peer_allreduce_norm_args& args) {
    fastnorm_info info = fastnorm_info();
    info.struct_size = sizeof info;
    nccl_check(fastnorm_nccl_allreduce_norm_query(handle_, &args, &info));
    return info;
  }

  void sequence_norm(const fastnorm_nccl_sequence_norm_args& args, void* workspace,
                     std::size_t workspace_bytes, void* stream = nullptr) {
    nccl_check(fastnorm_nccl_sequence_norm(handle_, &args, workspace, workspace_bytes, stream));
  }
  void sequence_norm_prepare(const fastnorm_nccl_sequence_norm_args& args) {
    nccl_check(fastnorm_nccl_sequence_norm_prepare(handle_, &args));
  }
  fastnorm_info sequence_norm_query(const fastnorm_nccl_sequence_norm_args& args) {
    fastnorm_info info = fastnorm_info();
    info.struct_size = sizeof info;
    nccl_check(fastnorm_nccl_sequence_norm_query(handle_, &args, &info));
    return info;
  }

 private:
  fastnorm_nccl* handle_ = nullptr;
};

/** One rank of this process, for nccl_create_all. */
struct nccl_rank {
  fastnorm_context* context;
  fastnorm_device device;
  void* comm;
  void* stream;
};

/** The handles of several ranks of this process, made by this thread; throws fastnorm::error. */
inline std::vector<nccl> nccl_create_all(const std::vector<nccl_rank>& ranks,
                                         const fastnorm_nccl_options& options) {
  std::vector<fastnorm_context*> contexts;
  std::vector<fastnorm_device> devices;
  std::vector<void*> comms, streams;
  for (const nccl_rank& rank : ranks) {
    contexts.push_back(rank.context);
    devices.push_back(rank.device);
    comms.push_back(rank.comm);
    streams.push_back(rank.stream);
  }
  std::vector<fastnorm_nccl*> handles(ranks.size());
  std::vector<nccl> made;
  made.reserve(ranks.size());
  nccl_check(fastnorm_nccl_create_all(contexts.data(), devices.data(), comms.data(), &options,
                                      streams.data(), static_cast<std::int32_t>(ranks.size()),
                                      handles.data()));
  for (fastnorm_nccl* handle : handles) made.emplace_back(handle);
  return made;
}

/** One rank's call, for the calls of several ranks from one thread. */
template <class Args>
struct nccl_call {
  fastnorm_nccl* handle;
  const Args* args;
  void* workspace;
  void* stream;
};

/** fastnorm_nccl_allreduce_norm_all; throws fastnorm::error. */
inline void nccl_allreduce_norm_all(
    const std::vector<nccl_call<fastnorm_peer_allreduce_norm_args>>& calls,
    std::size_t workspace_bytes) {
  std::vector<fastnorm_nccl*> handles;
  std::vector<const fastnorm_peer_allreduce_norm_args*> args;
  std::vector<void*> workspaces, streams;
  for (const auto& call : calls) {
    handles.push_back(call.handle);
    args.push_back(call.args);
    workspaces.push_back(call.workspace);
    streams.push_back(call.stream);
  }
  nccl_check(fastnorm_nccl_allreduce_norm_all(handles.data(), args.data(), workspaces.data(),
                                              workspace_bytes, streams.data(),
                                              static_cast<std::int32_t>(calls.size())));
}

/** fastnorm_nccl_sequence_norm_all; throws fastnorm::error. */
inline void nccl_sequence_norm_all(
    const std::vector<nccl_call<fastnorm_nccl_sequence_norm_args>>& calls,
    std::size_t workspace_bytes) {
  std::vector<fastnorm_nccl*> handles;
  std::vector<const fastnorm_nccl_sequence_norm_args*> args;
  std::vector<void*> workspaces, streams;
  for (const auto& call : calls) {
    handles.push_back(call.handle);
    args.push_back(call.args);
    workspaces.push_back(call.workspace);
    streams.push_back(call.stream);
  }
  nccl_check(fastnorm_nccl_sequence_norm_all(handles.data(), args.data(), workspaces.data(),
                                             workspace_bytes, streams.data(),
                                             static_cast<std::int32_t>(calls.size())));
}

}  // namespace fastnorm

#endif  // FASTNORM_NCCL_HPP_
