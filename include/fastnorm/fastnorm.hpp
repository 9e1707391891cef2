/** @file fastnorm.hpp
 *  libfastnorm for C++11 and later: contexts that destroy themselves, tensor views, errors as
 *  exceptions. Header-only, over the C ABI; needs nothing but the standard library.
 *
 *      fastnorm::context cpu(fastnorm::cpu());
 *      fastnorm::tensor x(x_data, {rows, n}), w(w_data, {n}), y(y_data, {rows, n});
 *      fastnorm::norm_args args;
 *      args.eps = 1e-6f;
 *      args.x = x.get(); args.weight = w.get(); args.y = y.get();
 *      fastnorm::norm(cpu, args);
 */
#ifndef FASTNORM_FASTNORM_HPP_
#define FASTNORM_FASTNORM_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastnorm.h"

namespace fastnorm {

/** A call failed. what() is the library's text, which names the argument, its value and what is
 *  required. */
class error : public std::runtime_error {
 public:
  explicit error(fastnorm_status status)
      : error(status, fastnorm_last_error(), fastnorm_last_device_error()) {}
  /** Of a library beside libfastnorm, which has texts of its own. */
  error(fastnorm_status status, const std::string& text, std::int32_t device_error)
      : std::runtime_error(std::string(fastnorm_status_name(status)) + ": " + text),
        status_(status),
        device_error_(device_error) {}

  fastnorm_status status() const noexcept { return status_; }
  /** The CUDA runtime's error code, or 0. */
  std::int32_t device_error() const noexcept { return device_error_; }

 private:
  fastnorm_status status_;
  std::int32_t device_error_;
};

/** Throws fastnorm::error unless the status is FASTNORM_OK. */
inline void check(fastnorm_status status) {
  if (status != FASTNORM_OK) throw error(status);
}

inline fastnorm_device cpu() noexcept { return {FASTNORM_DEVICE_CPU, 0}; }
inline fastnorm_device cuda(std::int32_t id) noexcept { return {FASTNORM_DEVICE_CUDA, id}; }

/** Number of devices of a type; 0 CUDA devices where there is no driver. */
inline std::int32_t device_count(std::int32_t device_type) {
  std::int32_t count = 0;
  check(fastnorm_device_count(device_type, &count));
  return count;
}

/** What is known of a device. */
inline fastnorm_device_info device_describe(fastnorm_device device) {
  fastnorm_device_info info = fastnorm_device_info();
  info.struct_size = sizeof info;
  check(fastnorm_device_describe(device, &info));
  return info;
}

/** Options with their struct_size set; fill in what differs from the default. */
struct context_options : fastnorm_context_options {
  context_options() noexcept : fastnorm_context_options() {
    struct_size = sizeof(fastnorm_context_options);
  }
};

/** Owns a context. Movable, not copyable; an empty one is false. Calls may come from any thread;
 *  destruction must not race them. */
class context {
 public:
  context() noexcept = default;
  explicit context(fastnorm_device device) {
    check(fastnorm_context_create(device, nullptr, &handle_));
  }
  context(fastnorm_device device, const fastnorm_context_options& options) {
    check(fastnorm_context_create(device, &options, &handle_));
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  context(context&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  context& operator=(context&& other) noexcept {
    if (this != &other) {
      fastnorm_context_destroy(handle_);
      handle_ = other.handle_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  ~context() { fastnorm_context_destroy(handle_); }

  fastnorm_context* get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  fastnorm_context* handle_ = nullptr;
};

/** A view of memory with its shape and strides inside, up to rank 8. Owns no memory. Copies are
 *  views of their own. */
class tensor {
 public:
  static constexpr std::int32_t max_rank = 8;

  /** Compact, row-major. */
  tensor(const void* data, fastnorm_dtype_id dtype, std::initializer_list<std::int64_t> shape,
         fastnorm_device device = cpu())
      : tensor(data, dtype, shape, {}, device) {}

  /** With strides in elements; the last one must be 1. That of an extent of 1 is not looked at. */
  tensor(const void* data, fastnorm_dtype_id dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> strides, fastnorm_device device)
      : view_(), shape_(), strides_() {
    if (shape.size() < 1 || shape.size() > max_rank ||
        (strides.size() != 0 && strides.size() != shape.size())) {
      throw std::invalid_argument("fastnorm::tensor: 1 to 8 extents, and as many strides or none");
    }
    view_.data = const_cast<void*>(data);
    view_.device_type = device.device_type;
    view_.device_id = device.device_id;
    view_.ndim = static_cast<std::int32_t>(shape.size());
    view_.dtype = fastnorm_dtype_of(dtype);
    std::size_t i = 0;
    for (std::int64_t extent : shape) shape_[i++] = extent;
    i = 0;
    for (std::int64_t stride : strides) strides_[i++] = stride;
    view_.shape = shape_;
    if (strides.size() != 0) view_.strides = strides_;
  }
  tensor(const tensor& other) noexcept : view_(), shape_(), strides_() { *this = other; }
  tensor& operator=(const tensor& other) noexcept {
    view_ = other.view_;
    for (std::int32_t i = 0; i < max_rank; ++i) {
      shape_[i] = other.shape_[i];
      strides_[i] = other.strides_[i];
    }
    view_.shape = shape_;
    if (view_.strides != nullptr) view_.strides = strides_;
    return *this;
  }

  /** Compact f32 in ordinary memory. */
  tensor(const float* data, std::initializer_list<std::int64_t> shape)
      : tensor(data, FASTNORM_DTYPE_F32, shape) {}

  /** The C view; valid as long as this object. */
  const fastnorm_tensor* get() const noexcept { return &view_; }

 private:
  fastnorm_tensor view_;  // points at the arrays below
  std::int64_t shape_[max_rank];
  std::int64_t strides_[max_rank];
};

/** Arguments with their struct_size set; the defaults are those of fastnorm_norm_args. */
struct norm_args : fastnorm_norm_args {
  norm_args() noexcept : fastnorm_norm_args() { struct_size = sizeof(fastnorm_norm_args); }
};

/** fastnorm_norm; throws fastnorm::error. */
inline void norm(const context& context, const fastnorm_norm_args& args, void* stream = nullptr,
                 void* workspace = nullptr, std::size_t workspace_bytes = 0) {
  check(fastnorm_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** fastnorm_norm_prepare; throws fastnorm::error. */
inline void norm_prepare(const context& context, const fastnorm_norm_args& args) {
  check(fastnorm_norm_prepare(context.get(), &args));
}

/** fastnorm_norm_query; throws fastnorm::error. */
inline fastnorm_info norm_query(const context& context, const fastnorm_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context.get(), &args, &info));
  return info;
}

/** fastnorm_norm_many of up to 8 descriptions, two neighbours in one launch where they share a
 *  kernel; throws fastnorm::error. */
inline void norm_many(const context& context, std::initializer_list<const fastnorm_norm_args*> args,
                      void* stream = nullptr, void* workspace = nullptr,
                      std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_many(context.get(), args.begin(), static_cast<std::int32_t>(args.size()),
                           workspace, workspace_bytes, stream));
}

/** fastnorm_norm_many_prepare; throws fastnorm::error. */
inline void norm_many_prepare(const context& context,
                              std::initializer_list<const fastnorm_norm_args*> args) {
  check(fastnorm_norm_many_prepare(context.get(), args.begin(),
                                   static_cast<std::int32_t>(args.size())));
}

/** fastnorm_norm_many_query; throws fastnorm::error. */
inline fastnorm_info norm_many_query(const context& context,
                                     std::initializer_list<const fastnorm_norm_args*> args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_many_query(context.get(), args.begin(),
                                 static_cast<std::int32_t>(args.size()), &info));
  return info;
}

/** Arguments with their struct_size set; the defaults are those of fastnorm_norm_backward_args. */
struct norm_backward_args : fastnorm_norm_backward_args {
  norm_backward_args() noexcept : fastnorm_norm_backward_args() {
    struct_size = sizeof(fastnorm_norm_backward_args);
  }
};

/** fastnorm_norm_backward; throws fastnorm::error. dweight and dbias need a workspace:
 *  norm_backward_query. */
inline void norm_backward(const context& context, const fastnorm_norm_backward_args& args,
                          void* stream = nullptr, void* workspace = nullptr,
                          std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_backward(context.get(), &args, workspace, workspace_bytes, stream));
}

/** fastnorm_norm_backward_prepare; throws fastnorm::error. */
inline void norm_backward_prepare(const context& context, const fastnorm_norm_backward_args& args) {
  check(fastnorm_norm_backward_prepare(context.get(), &args));
}

/** fastnorm_norm_backward_query; throws fastnorm::error. */
inline fastnorm_info norm_backward_query(const context& context,
                                         const fastnorm_norm_backward_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_query(context.get(), &args, &info));
  return info;
}

/** fastnorm_norm_backward_many of up to 8 descriptions; throws fastnorm::error. */
inline void norm_backward_many(const context& context,
                               std::initializer_list<const fastnorm_norm_backward_args*> args,
                               void* stream = nullptr, void* workspace = nullptr,
                               std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_backward_many(context.get(), args.begin(),
                                    static_cast<std::int32_t>(args.size()), workspace,
                                    workspace_bytes, stream));
}

/** fastnorm_norm_backward_many_prepare; throws fastnorm::error. */
inline void norm_backward_many_prepare(
    const context& context, std::initializer_list<const fastnorm_norm_backward_args*> args) {
  check(fastnorm_norm_backward_many_prepare(context.get(), args.begin(),
                                            static_cast<std::int32_t>(args.size())));
}

/** fastnorm_norm_backward_many_query; throws fastnorm::error. */
inline fastnorm_info norm_backward_many_query(
    const context& context, std::initializer_list<const fastnorm_norm_backward_args*> args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_many_query(context.get(), args.begin(),
                                          static_cast<std::int32_t>(args.size()), &info));
  return info;
}

/** Arguments with their struct_size set; the defaults are those of fastnorm_mla_decode_args.
 *  sm_scale has none. */
struct mla_decode_args : fastnorm_mla_decode_args {
  mla_decode_args() noexcept : fastnorm_mla_decode_args() {
    struct_size = sizeof(fastnorm_mla_decode_args);
  }
};

/** fastnorm_mla_decode; throws fastnorm::error. */
inline void mla_decode(const context& context, const fastnorm_mla_decode_args& args,
                       void* stream = nullptr, void* workspace = nullptr,
                       std::size_t workspace_bytes = 0) {
  check(fastnorm_mla_decode(context.get(), &args, workspace, workspace_bytes, stream));
}

/** fastnorm_mla_decode_prepare; throws fastnorm::error. */
inline void mla_decode_prepare(const context& context, const fastnorm_mla_decode_args& args) {
  check(fastnorm_mla_decode_prepare(context.get(), &args));
}

/** fastnorm_mla_decode_query; throws fastnorm::error. */
inline fastnorm_info mla_decode_query(const context& context,
                                      const fastnorm_mla_decode_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_mla_decode_query(context.get(), &args, &info));
  return info;
}

/** Arguments with their struct_size set; the defaults are those of fastnorm_norm_heads_args. */
struct norm_heads_args : fastnorm_norm_heads_args {
  norm_heads_args() noexcept : fastnorm_norm_heads_args() {
    struct_size = sizeof(fastnorm_norm_heads_args);
  }
};

/** A part with its struct_size set; the defaults are those of fastnorm_norm_heads_part. */
struct norm_heads_part : fastnorm_norm_heads_part {
  norm_heads_part() noexcept : fastnorm_norm_heads_part() {
    struct_size = sizeof(fastnorm_norm_heads_part);
  }
};

/** fastnorm_norm_heads of up to 8 parts; throws fastnorm::error. */
inline void norm_heads(const context& context, const fastnorm_norm_heads_args& args,
                       std::initializer_list<const fastnorm_norm_heads_part*> parts,
                       void* stream = nullptr, void* workspace = nullptr,
                       std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_heads(context.get(), &args, parts.begin(),
                            static_cast<std::int32_t>(parts.size()), workspace, workspace_bytes,
                            stream));
}

/** fastnorm_norm_heads_prepare; throws fastnorm::error. */
inline void norm_heads_prepare(const context& context, const fastnorm_norm_heads_args& args,
                               std::initializer_list<const fastnorm_norm_heads_part*> parts) {
  check(fastnorm_norm_heads_prepare(context.get(), &args, parts.begin(),
                                    static_cast<std::int32_t>(parts.size())));
}

/** fastnorm_norm_heads_query; throws fastnorm::error. */
inline fastnorm_info norm_heads_query(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_part*> parts) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_query(context.get(), &args, parts.begin(),
                                  static_cast<std::int32_t>(parts.size()), &info));
  return info;
}

/** A part with its struct_size set; the defaults are those of fastnorm_norm_heads_backward_part. */
struct norm_heads_backward_part : fastnorm_norm_heads_backward_part {
  norm_heads_backward_part() noexcept : fastnorm_norm_heads_backward_part() {
    struct_size = sizeof(fastnorm_norm_heads_backward_part);
  }
};

/** fastnorm_norm_heads_backward of up to 8 parts; throws fastnorm::error. dweight, dbias and
 *  ACROSS_HEADS need a workspace: norm_heads_backward_query. */
inline void norm_heads_backward(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts, void* stream = nullptr,
    void* workspace = nullptr, std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_heads_backward(context.get(), &args, parts.begin(),
                                     static_cast<std::int32_t>(parts.size()), workspace,
                                     workspace_bytes, stream));
}

/** fastnorm_norm_heads_backward_prepare; throws fastnorm::error. */
inline void norm_heads_backward_prepare(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts) {
  check(fastnorm_norm_heads_backward_prepare(context.get(), &args, parts.begin(),
                                             static_cast<std::int32_t>(parts.size())));
}

/** fastnorm_norm_heads_backward_query; throws fastnorm::error. */
inline fastnorm_info norm_heads_backward_query(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_backward_query(context.get(), &args, parts.begin(),
                                           static_cast<std::int32_t>(parts.size()), &info));
  return info;
}

/** Options with their struct_size set; rank, ranks, dtype and max_columns have no default. */
struct peer_options : fastnorm_peer_options {
  peer_options() noexcept : fastnorm_peer_options() { struct_size = sizeof(fastnorm_peer_options); }
};

/** One rank's blob. */
struct peer_blob {
  unsigned char bytes[FASTNORM_PEER_BLOB_BYTES];
};

/** Owns a peer. Movable, not copyable; an empty one is false. Its context must outlive it. */
class peer {
 public:
  peer() noexcept = default;
  peer(const context& context, const fastnorm_peer_options& options) {
    check(fastnorm_peer_create(context.get(), &options, &handle_));
  }
  /** Over buffers of all ranks; no blobs are needed. */
  peer(const context& context, const fastnorm_peer_options& options,
       const std::vector<void*>& buffers) {
    check(fastnorm_peer_create_from_pointers(context.get(), &options, buffers.data(),
                                             static_cast<std::int32_t>(buffers.size()), &handle_));
  }
  peer(const peer&) = delete;
  peer& operator=(const peer&) = delete;
  peer(peer&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  peer& operator=(peer&& other) noexcept {
    if (this != &other) {
      fastnorm_peer_destroy(handle_);
      handle_ = other.handle_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  ~peer() { fastnorm_peer_destroy(handle_); }

  fastnorm_peer* get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /** What the other ranks need to reach this one. */
  peer_blob blob() const {
    peer_blob made;
    check(fastnorm_peer_export(handle_, made.bytes, sizeof made.bytes));
    return made;
  }
  /** Connects with all ranks; their blobs in rank order. */
  void connect(const std::vector<peer_blob>& blobs) {
    check(fastnorm_peer_import(handle_, blobs.data(), blobs.size() * sizeof(peer_blob)));
  }
  fastnorm_peer_state state() const {
    fastnorm_peer_state found = fastnorm_peer_state();
    found.struct_size = sizeof found;
    check(fastnorm_peer_status(handle_, &found));
    return found;
  }
  /** On every rank, between two barriers of the caller's. */
  void reset() { check(fastnorm_peer_reset(handle_)); }

 private:
  fastnorm_peer* handle_ = nullptr;
};

/** Bytes of a rank's buffer; throws fastnorm::error. */
inline std::uint64_t peer_buffer_bytes(const context& context,
                                       const fastnorm_peer_options& options) {
  std::uint64_t bytes = 0;
  check(fastnorm_peer_buffer_bytes(context.get(), &options, &bytes));
  return bytes;
}

/** Arguments with their struct_size set; the defaults are those of the C struct. */
struct peer_allreduce_norm_args : fastnorm_peer_allreduce_norm_args {
  peer_allreduce_norm_args() noexcept : fastnorm_peer_allreduce_norm_args() {
    struct_size = sizeof(fastnorm_peer_allreduce_norm_args);
  }
};

/** fastnorm_peer_allreduce_norm; throws fastnorm::error. It needs a workspace: the query has its
 *  size. */
inline void peer_allreduce_norm(const context& context,
                                const fastnorm_peer_allreduce_norm_args& args, void* workspace,
                                std::size_t workspace_bytes, void* stream = nullptr) {
  check(fastnorm_peer_allreduce_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** fastnorm_peer_allreduce_norm_prepare; throws fastnorm::error. */
inline void peer_allreduce_norm_prepare(const context& context,
                                        const fastnorm_peer_allreduce_norm_args& args) {
  check(fastnorm_peer_allreduce_norm_prepare(context.get(), &args));
}

/** fastnorm_peer_allreduce_norm_query; throws fastnorm::error. */
inline fastnorm_info peer_allreduce_norm_query(const context& context,
                                               const fastnorm_peer_allreduce_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_peer_allreduce_norm_query(context.get(), &args, &info));
  return info;
}

/** Arguments with their struct_size set; the defaults are those of the C struct. */
struct peer_sharded_norm_args : fastnorm_peer_sharded_norm_args {
  peer_sharded_norm_args() noexcept : fastnorm_peer_sharded_norm_args() {
    struct_size = sizeof(fastnorm_peer_sharded_norm_args);
  }
};

/** fastnorm_peer_sharded_norm; throws fastnorm::error. It needs a workspace: the query has its
 *  size. */
inline void peer_sharded_norm(const context& context, const fastnorm_peer_sharded_norm_args& args,
                              void* workspace, std::size_t workspace_bytes,
                              void* stream = nullptr) {
  check(fastnorm_peer_sharded_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** fastnorm_peer_sharded_norm_prepare; throws fastnorm::error. */
inline void peer_sharded_norm_prepare(const context& context,
                                      const fastnorm_peer_sharded_norm_args& args) {
  check(fastnorm_peer_sharded_norm_prepare(context.get(), &args));
}

/** fastnorm_peer_sharded_norm_query; throws fastnorm::error. */
inline fastnorm_info peer_sharded_norm_query(const context& context,
                                             const fastnorm_peer_sharded_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_peer_sharded_norm_query(context.get(), &args, &info));
  return info;
}

/** All events of a profile buffer on the host; throws fastnorm::error. */
inline std::vector<fastnorm_profile_event> profile_decode(const void* buffer, std::size_t bytes) {
  std::size_t count = 0;
  check(fastnorm_profile_decode(buffer, bytes, nullptr, 0, &count));
  std::vector<fastnorm_profile_event> events(count);
  check(fastnorm_profile_decode(buffer, bytes, events.data(), events.size(), &count));
  return events;
}

/** fastnorm_profile_write_trace; throws fastnorm::error. */
inline void profile_write_trace(const void* buffer, std::size_t bytes, const std::string& path,
                                fastnorm_trace_format format = FASTNORM_TRACE_CHROME_JSON) {
  check(fastnorm_profile_write_trace(buffer, bytes, path.c_str(), format));
}

}  // namespace fastnorm

#endif  // FASTNORM_FASTNORM_HPP_
