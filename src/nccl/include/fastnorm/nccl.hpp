/** @file nccl.hpp
 *  libfastnorm_nccl for C++11 and later, with handles that destroy themselves and errors as
 *  exceptions. This is a header-only layer over the C ABI.
 *
 *      fastnorm::nccl_options options;
 *      options.dtype = FASTNORM_DTYPE_BF16;
 *      options.max_columns = 8192;
 *      fastnorm::nccl rank(context, fastnorm::cuda(0), comm, options, stream);
 *      fastnorm::norm_args norm;
 *      ..
 *      fastnorm::peer_allreduce_norm_args args; // peer stays NULL
 *      args.norm = &norm;
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

/** Throws fastnorm::error with the text of libfastnorm_nccl unless the status is FASTNORM_OK. */
inline void nccl_check(fastnorm_status status) {
  if (status == FASTNORM_OK) return;
  const std::string text = fastnorm_nccl_last_error();
  // A failure of libfastnorm itself has its text, and only then its device error counts.
  throw error(status, text, text == fastnorm_last_error() ? fastnorm_last_device_error() : 0);
}

/** The version of the NCCL that was found, as ncclGetVersion counts it. Throws fastnorm::error if
 *  there is no NCCL. */
inline std::int32_t nccl_version() {
  std::int32_t version = 0;
  nccl_check(fastnorm_nccl_version(&version));
  return version;
}

/** Calls fastnorm_nccl_set_functions. Throws fastnorm::error if the call fails. */
inline void nccl_set_functions(const fastnorm_nccl_functions* functions) {
  nccl_check(fastnorm_nccl_set_functions(functions));
}

/** fastnorm_nccl_options with its struct_size set. dtype and max_columns have no default and must
 *  be set. */
struct nccl_options : fastnorm_nccl_options {
  nccl_options() noexcept : fastnorm_nccl_options() { struct_size = sizeof(fastnorm_nccl_options); }
};

/** fastnorm_nccl_sequence_norm_args with its struct_size set. norm has no default and must be
 *  set. */
struct nccl_sequence_norm_args : fastnorm_nccl_sequence_norm_args {
  nccl_sequence_norm_args() noexcept : fastnorm_nccl_sequence_norm_args() {
    struct_size = sizeof(fastnorm_nccl_sequence_norm_args);
  }
};

/** Owns the handle of one rank. It can be moved but not copied, and converts to false if it is
 *  empty. Its context and its communicator must outlive it. Its functions throw fastnorm::error if
 *  a call fails. */
class nccl {
 public:
  nccl() noexcept = default;
  /** Creates the handle together with all other ranks, and waits for them. */
  nccl(const context& context, fastnorm_device device, void* comm,
       const fastnorm_nccl_options& options, void* stream = nullptr) {
    nccl_check(fastnorm_nccl_create(context.get(), device, comm, &options, stream, &handle_));
  }
  /** Takes ownership of a handle of fastnorm_nccl_create or fastnorm_nccl_create_all. */
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

  /** The peer that the handle owns; NULL if the ranks are not peers. */
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

/** Creates the handles of several ranks of this process from this thread. Throws fastnorm::error if
 *  it fails. */
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

/** Calls fastnorm_nccl_allreduce_norm_all. Throws fastnorm::error if the call fails. */
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

/** Calls fastnorm_nccl_sequence_norm_all. Throws fastnorm::error if the call fails. */
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
