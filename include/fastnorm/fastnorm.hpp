/** @file fastnorm.hpp
 *  libfastnorm for C++11 and later, with contexts that destroy themselves, views of tensors, and
 *  errors as exceptions. This is a header-only layer over the C ABI that needs only the standard
 *  library.
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
#include <type_traits>
#include <utility>
#include <vector>

#include "fastnorm.h"

namespace fastnorm {

/** The exception that a failed call throws. what() is the library's text, which names the argument,
 *  its value and what is required. */
class error : public std::runtime_error {
 public:
  /** From the status of a call, with the text of fastnorm_last_error(). */
  explicit error(fastnorm_status status)
      : error(status, fastnorm_last_error(), fastnorm_last_device_error()) {}
  /** For another library next to libfastnorm that has error texts of its own: an error with the
   *  text that this library passes. */
  error(fastnorm_status status, const std::string& text, std::int32_t device_error)
      : std::runtime_error(std::string(fastnorm_status_name(status)) + ": " + text),
        status_(status),
        device_error_(device_error) {}

  /** The status that the call returned. */
  fastnorm_status status() const noexcept { return status_; }
  /** The error code of the CUDA runtime that caused the failure, or 0 if there is none. */
  std::int32_t device_error() const noexcept { return device_error_; }

 private:
  fastnorm_status status_;
  std::int32_t device_error_;
};

/** Throws fastnorm::error unless the status is FASTNORM_OK. */
inline void check(fastnorm_status status) {
  if (status != FASTNORM_OK) throw error(status);
}

/** The CPU as a device. */
inline fastnorm_device cpu() noexcept { return {FASTNORM_DEVICE_CPU, 0}; }
/** The CUDA device with this ordinal. */
inline fastnorm_device cuda(std::int32_t id) noexcept { return {FASTNORM_DEVICE_CUDA, id}; }

/** Number of devices of a type. Without a CUDA driver there are 0 CUDA devices. Throws
 *  fastnorm::error. */
inline std::int32_t device_count(std::int32_t device_type) {
  std::int32_t count = 0;
  check(fastnorm_device_count(device_type, &count));
  return count;
}

/** Properties of a device. Throws fastnorm::error if there is no such device. */
inline fastnorm_device_info device_describe(fastnorm_device device) {
  fastnorm_device_info info = fastnorm_device_info();
  info.struct_size = sizeof info;
  check(fastnorm_device_describe(device, &info));
  return info;
}

/** Options of a context with their struct_size set. Fill in the fields that differ from the
 *  defaults. */
struct context_options : fastnorm_context_options {
  context_options() noexcept : fastnorm_context_options() {
    struct_size = sizeof(fastnorm_context_options);
  }
};

/** Owns a context. It can be moved but not copied, and converts to false if it is empty. Calls may
 *  come from any thread, but none may run while the context is destroyed. */
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

/** A view of memory that holds its own shape and strides, of a rank from 1 to 8. It does not own
 *  the memory that it views, and a copy is an independent view of the same memory. The shape, and
 *  the memory that it views, and a copy is an independent view of the same memory. The shape, and
 *  the strides in elements, can be given as a list in braces, as a pointer with a rank, or as any
 *  object with a size() whose data() returns a pointer to std::int64_t, such as std::vector,
 *  std::array or std::span.
 *  The last stride must be 1, unless the last extent is 1. The constructors throw
 *  std::invalid_argument, whose text names what is wrong, if the rank is outside 1 to 8 or if there
 *  are not as many strides as extents. */
class tensor {
  // Enables a constructor for what std::int64_t can be read from.
  template <typename Extents>
  using if_extents =
      typename std::enable_if<std::is_convertible<decltype(std::declval<const Extents&>().data()),
                                                  const std::int64_t*>::value &&
                              std::is_convertible<decltype(std::declval<const Extents&>().size()),
                                                  std::size_t>::value>::type;

 public:
  static constexpr std::int32_t max_rank = 8;

  /** A compact, row-major tensor. */
  tensor(const void* data, fastnorm_dtype_id dtype, std::initializer_list<std::int64_t> shape,
         fastnorm_device device = cpu())
      : tensor(data, dtype, shape.begin(), shape.size(), nullptr, device) {}
  template <typename Extents, typename = if_extents<Extents>>
  tensor(const void* data, fastnorm_dtype_id dtype, const Extents& shape,
         fastnorm_device device = cpu())
      : tensor(data, dtype, shape.data(), shape.size(), nullptr, device) {}

  /** A tensor with strides. If the list of strides is empty, the tensor is compact. */
  tensor(const void* data, fastnorm_dtype_id dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> strides, fastnorm_device device)
      : tensor(data, dtype, shape.begin(), shape.size(),
               as_many(strides.begin(), strides.size(), shape.size()), device) {}
  template <typename Extents, typename Strides, typename = if_extents<Extents>,
            typename = if_extents<Strides>>
  tensor(const void* data, fastnorm_dtype_id dtype, const Extents& shape, const Strides& strides,
         fastnorm_device device)
      : tensor(data, dtype, shape.data(), shape.size(),
               as_many(strides.data(), strides.size(), shape.size()), device) {}

  /** A tensor of `rank` extents and as many strides, which are copied. It is compact if strides is
   *  NULL. */
  tensor(const void* data, fastnorm_dtype_id dtype, const std::int64_t* shape, std::size_t rank,
         const std::int64_t* strides = nullptr, fastnorm_device device = cpu())
      : view_(), shape_(), strides_() {
    if (rank < 1 || rank > max_rank) {
      throw std::invalid_argument("fastnorm::tensor: the rank is " + std::to_string(rank) +
                                  "; required: 1 to 8");
    }
    if (shape == nullptr) {
      throw std::invalid_argument(
          "fastnorm::tensor: shape is NULL; required: " + std::to_string(rank) + " extents");
    }
    view_.data = const_cast<void*>(data);
    view_.device_type = device.device_type;
    view_.device_id = device.device_id;
    view_.ndim = static_cast<std::int32_t>(rank);
    view_.dtype = fastnorm_dtype_of(dtype);
    for (std::size_t i = 0; i < rank; ++i) shape_[i] = shape[i];
    view_.shape = shape_;
    if (strides == nullptr) return;
    for (std::size_t i = 0; i < rank; ++i) strides_[i] = strides[i];
    view_.strides = strides_;
  }

  /** A compact tensor of f32 in host memory. */
  tensor(const float* data, std::initializer_list<std::int64_t> shape)
      : tensor(data, FASTNORM_DTYPE_F32, shape) {}
  template <typename Extents, typename = if_extents<Extents>>
  tensor(const float* data, const Extents& shape) : tensor(data, FASTNORM_DTYPE_F32, shape) {}

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

  /** The C struct, which is valid as long as this object. It cannot be taken of a temporary, which
   *  would be gone before the call. */
  const fastnorm_tensor* get() const& noexcept { return &view_; }
  const fastnorm_tensor* get() const&& = delete;

 private:
  // The strides, or NULL where there are none.
  static const std::int64_t* as_many(const std::int64_t* strides, std::size_t count,
                                     std::size_t rank) {
    if (count == 0) return nullptr;
    if (count != rank) {
      throw std::invalid_argument("fastnorm::tensor: there are " + std::to_string(count) +
                                  " strides; required: " + std::to_string(rank) +
                                  ", one for each extent, or none");
    }
    return strides;
  }

  fastnorm_tensor view_;  // points at the arrays below
  std::int64_t shape_[max_rank];
  std::int64_t strides_[max_rank];
};

/** fastnorm_quant with its struct_size set: how results are quantised. The defaults are those of
 *  fastnorm_quant. */
struct quant : fastnorm_quant {
  quant() noexcept : fastnorm_quant() { struct_size = sizeof(fastnorm_quant); }
};

/** fastnorm_norm_args with its struct_size set, and the same defaults. */
struct norm_args : fastnorm_norm_args {
  norm_args() noexcept : fastnorm_norm_args() { struct_size = sizeof(fastnorm_norm_args); }
};

/** Calls fastnorm_norm. Throws fastnorm::error if the call fails. */
inline void norm(const context& context, const fastnorm_norm_args& args, void* stream = nullptr,
                 void* workspace = nullptr, std::size_t workspace_bytes = 0) {
  check(fastnorm_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** Calls fastnorm_norm_prepare. Throws fastnorm::error if the call fails. */
inline void norm_prepare(const context& context, const fastnorm_norm_args& args) {
  check(fastnorm_norm_prepare(context.get(), &args));
}

/** Calls fastnorm_norm_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_query(const context& context, const fastnorm_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context.get(), &args, &info));
  return info;
}

/** Calls fastnorm_norm_many with the arguments of up to 8 norms (norm_args). Two norms that follow
 *  each other take one launch if they share a kernel. Throws fastnorm::error if the call fails. */
inline void norm_many(const context& context, std::initializer_list<const fastnorm_norm_args*> args,
                      void* stream = nullptr, void* workspace = nullptr,
                      std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_many(context.get(), args.begin(), static_cast<std::int32_t>(args.size()),
                           workspace, workspace_bytes, stream));
}

/** Calls fastnorm_norm_many_prepare. Throws fastnorm::error if the call fails. */
inline void norm_many_prepare(const context& context,
                              std::initializer_list<const fastnorm_norm_args*> args) {
  check(fastnorm_norm_many_prepare(context.get(), args.begin(),
                                   static_cast<std::int32_t>(args.size())));
}

/** Calls fastnorm_norm_many_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_many_query(const context& context,
                                     std::initializer_list<const fastnorm_norm_args*> args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_many_query(context.get(), args.begin(),
                                 static_cast<std::int32_t>(args.size()), &info));
  return info;
}

/** fastnorm_norm_backward_args with its struct_size set, and the same defaults. */
struct norm_backward_args : fastnorm_norm_backward_args {
  norm_backward_args() noexcept : fastnorm_norm_backward_args() {
    struct_size = sizeof(fastnorm_norm_backward_args);
  }
};

/** Calls fastnorm_norm_backward. dweight and dbias need a workspace, whose size norm_backward_query
 *  returns. Throws fastnorm::error if the call fails. */
inline void norm_backward(const context& context, const fastnorm_norm_backward_args& args,
                          void* stream = nullptr, void* workspace = nullptr,
                          std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_backward(context.get(), &args, workspace, workspace_bytes, stream));
}

/** Calls fastnorm_norm_backward_prepare. Throws fastnorm::error if the call fails. */
inline void norm_backward_prepare(const context& context, const fastnorm_norm_backward_args& args) {
  check(fastnorm_norm_backward_prepare(context.get(), &args));
}

/** Calls fastnorm_norm_backward_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_backward_query(const context& context,
                                         const fastnorm_norm_backward_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_query(context.get(), &args, &info));
  return info;
}

/** Calls fastnorm_norm_backward_many with the arguments of up to 8 backward passes
 *  (norm_backward_args). Throws fastnorm::error if the call fails. */
inline void norm_backward_many(const context& context,
                               std::initializer_list<const fastnorm_norm_backward_args*> args,
                               void* stream = nullptr, void* workspace = nullptr,
                               std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_backward_many(context.get(), args.begin(),
                                    static_cast<std::int32_t>(args.size()), workspace,
                                    workspace_bytes, stream));
}

/** Calls fastnorm_norm_backward_many_prepare. Throws fastnorm::error if the call fails. */
inline void norm_backward_many_prepare(
    const context& context, std::initializer_list<const fastnorm_norm_backward_args*> args) {
  check(fastnorm_norm_backward_many_prepare(context.get(), args.begin(),
                                            static_cast<std::int32_t>(args.size())));
}

/** Calls fastnorm_norm_backward_many_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_backward_many_query(
    const context& context, std::initializer_list<const fastnorm_norm_backward_args*> args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_many_query(context.get(), args.begin(),
                                          static_cast<std::int32_t>(args.size()), &info));
  return info;
}

/** fastnorm_mla_decode_args with its struct_size set, and the same defaults. sm_scale has no
 *  default and must be set. */
struct mla_decode_args : fastnorm_mla_decode_args {
  mla_decode_args() noexcept : fastnorm_mla_decode_args() {
    struct_size = sizeof(fastnorm_mla_decode_args);
  }
};

/** Calls fastnorm_mla_decode. Throws fastnorm::error if the call fails. */
inline void mla_decode(const context& context, const fastnorm_mla_decode_args& args,
                       void* stream = nullptr, void* workspace = nullptr,
                       std::size_t workspace_bytes = 0) {
  check(fastnorm_mla_decode(context.get(), &args, workspace, workspace_bytes, stream));
}

/** Calls fastnorm_mla_decode_prepare. Throws fastnorm::error if the call fails. */
inline void mla_decode_prepare(const context& context, const fastnorm_mla_decode_args& args) {
  check(fastnorm_mla_decode_prepare(context.get(), &args));
}

/** Calls fastnorm_mla_decode_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info mla_decode_query(const context& context,
                                      const fastnorm_mla_decode_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_mla_decode_query(context.get(), &args, &info));
  return info;
}

/** fastnorm_norm_heads_args with its struct_size set, and the same defaults. */
struct norm_heads_args : fastnorm_norm_heads_args {
  norm_heads_args() noexcept : fastnorm_norm_heads_args() {
    struct_size = sizeof(fastnorm_norm_heads_args);
  }
};

/** fastnorm_norm_heads_part with its struct_size set, and the same defaults. */
struct norm_heads_part : fastnorm_norm_heads_part {
  norm_heads_part() noexcept : fastnorm_norm_heads_part() {
    struct_size = sizeof(fastnorm_norm_heads_part);
  }
};

/** Calls fastnorm_norm_heads with up to 8 parts. Throws fastnorm::error if the call fails. */
inline void norm_heads(const context& context, const fastnorm_norm_heads_args& args,
                       std::initializer_list<const fastnorm_norm_heads_part*> parts,
                       void* stream = nullptr, void* workspace = nullptr,
                       std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_heads(context.get(), &args, parts.begin(),
                            static_cast<std::int32_t>(parts.size()), workspace, workspace_bytes,
                            stream));
}

/** Calls fastnorm_norm_heads_prepare. Throws fastnorm::error if the call fails. */
inline void norm_heads_prepare(const context& context, const fastnorm_norm_heads_args& args,
                               std::initializer_list<const fastnorm_norm_heads_part*> parts) {
  check(fastnorm_norm_heads_prepare(context.get(), &args, parts.begin(),
                                    static_cast<std::int32_t>(parts.size())));
}

/** Calls fastnorm_norm_heads_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_heads_query(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_part*> parts) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_query(context.get(), &args, parts.begin(),
                                  static_cast<std::int32_t>(parts.size()), &info));
  return info;
}

/** fastnorm_norm_heads_backward_part with its struct_size set, and the same defaults. */
struct norm_heads_backward_part : fastnorm_norm_heads_backward_part {
  norm_heads_backward_part() noexcept : fastnorm_norm_heads_backward_part() {
    struct_size = sizeof(fastnorm_norm_heads_backward_part);
  }
};

/** Calls fastnorm_norm_heads_backward with up to 8 parts. dweight, dbias and ACROSS_HEADS need a
 *  workspace, whose size norm_heads_backward_query returns. Throws fastnorm::error if the call
 *  fails. */
inline void norm_heads_backward(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts, void* stream = nullptr,
    void* workspace = nullptr, std::size_t workspace_bytes = 0) {
  check(fastnorm_norm_heads_backward(context.get(), &args, parts.begin(),
                                     static_cast<std::int32_t>(parts.size()), workspace,
                                     workspace_bytes, stream));
}

/** Calls fastnorm_norm_heads_backward_prepare. Throws fastnorm::error if the call fails. */
inline void norm_heads_backward_prepare(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts) {
  check(fastnorm_norm_heads_backward_prepare(context.get(), &args, parts.begin(),
                                             static_cast<std::int32_t>(parts.size())));
}

/** Calls fastnorm_norm_heads_backward_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info norm_heads_backward_query(
    const context& context, const fastnorm_norm_heads_args& args,
    std::initializer_list<const fastnorm_norm_heads_backward_part*> parts) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_backward_query(context.get(), &args, parts.begin(),
                                           static_cast<std::int32_t>(parts.size()), &info));
  return info;
}

/** fastnorm_peer_options with its struct_size set. rank, ranks, dtype and max_columns have no
 *  default and must be set. */
struct peer_options : fastnorm_peer_options {
  peer_options() noexcept : fastnorm_peer_options() { struct_size = sizeof(fastnorm_peer_options); }
};

/** The bytes that one rank exports. The other ranks need them to reach the buffer of that rank. */
struct peer_blob {
  unsigned char bytes[FASTNORM_PEER_BLOB_BYTES];
};

/** Owns a fastnorm_peer, which is one rank's end of a group. It can be moved but not copied, and
 *  converts to false if it is empty. Its context must outlive it. */
class peer {
 public:
  peer() noexcept = default;
  /** With a buffer of its own; connect() takes the blobs of all ranks. */
  peer(const context& context, const fastnorm_peer_options& options) {
    check(fastnorm_peer_create(context.get(), &options, &handle_));
  }
  /** Over buffers of all ranks that the caller provides, so that no blobs are needed. */
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

  /** The blob that the other ranks need to reach this one. */
  peer_blob blob() const {
    peer_blob made;
    check(fastnorm_peer_export(handle_, made.bytes, sizeof made.bytes));
    return made;
  }
  /** Connects with all ranks. `blobs` has the blobs of all ranks in rank order. */
  void connect(const std::vector<peer_blob>& blobs) {
    check(fastnorm_peer_import(handle_, blobs.data(), blobs.size() * sizeof(peer_blob)));
  }
  /** Whether the peer was stopped, and by which rank. */
  fastnorm_peer_state state() const {
    fastnorm_peer_state found = fastnorm_peer_state();
    found.struct_size = sizeof found;
    check(fastnorm_peer_status(handle_, &found));
    return found;
  }
  /** Makes a stopped group usable again. Every rank must call it, between two barriers of the
   *  caller. */
  void reset() { check(fastnorm_peer_reset(handle_)); }

 private:
  fastnorm_peer* handle_ = nullptr;
};

/** Size in bytes of a rank's buffer. Throws fastnorm::error if the call fails. */
inline std::uint64_t peer_buffer_bytes(const context& context,
                                       const fastnorm_peer_options& options) {
  std::uint64_t bytes = 0;
  check(fastnorm_peer_buffer_bytes(context.get(), &options, &bytes));
  return bytes;
}

/** fastnorm_peer_allreduce_norm_args with its struct_size set, and the same defaults. */
struct peer_allreduce_norm_args : fastnorm_peer_allreduce_norm_args {
  peer_allreduce_norm_args() noexcept : fastnorm_peer_allreduce_norm_args() {
    struct_size = sizeof(fastnorm_peer_allreduce_norm_args);
  }
};

/** Calls fastnorm_peer_allreduce_norm. The call needs a workspace, whose size
 *  peer_allreduce_norm_query returns. Throws fastnorm::error if the call fails. */
inline void peer_allreduce_norm(const context& context,
                                const fastnorm_peer_allreduce_norm_args& args, void* workspace,
                                std::size_t workspace_bytes, void* stream = nullptr) {
  check(fastnorm_peer_allreduce_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** Calls fastnorm_peer_allreduce_norm_prepare. Throws fastnorm::error if the call fails. */
inline void peer_allreduce_norm_prepare(const context& context,
                                        const fastnorm_peer_allreduce_norm_args& args) {
  check(fastnorm_peer_allreduce_norm_prepare(context.get(), &args));
}

/** Calls fastnorm_peer_allreduce_norm_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info peer_allreduce_norm_query(const context& context,
                                               const fastnorm_peer_allreduce_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_peer_allreduce_norm_query(context.get(), &args, &info));
  return info;
}

/** fastnorm_peer_sharded_norm_args with its struct_size set, and the same defaults. */
struct peer_sharded_norm_args : fastnorm_peer_sharded_norm_args {
  peer_sharded_norm_args() noexcept : fastnorm_peer_sharded_norm_args() {
    struct_size = sizeof(fastnorm_peer_sharded_norm_args);
  }
};

/** Calls fastnorm_peer_sharded_norm. The call needs a workspace, whose size peer_sharded_norm_query
 *  returns. Throws fastnorm::error if the call fails. */
inline void peer_sharded_norm(const context& context, const fastnorm_peer_sharded_norm_args& args,
                              void* workspace, std::size_t workspace_bytes,
                              void* stream = nullptr) {
  check(fastnorm_peer_sharded_norm(context.get(), &args, workspace, workspace_bytes, stream));
}

/** Calls fastnorm_peer_sharded_norm_prepare. Throws fastnorm::error if the call fails. */
inline void peer_sharded_norm_prepare(const context& context,
                                      const fastnorm_peer_sharded_norm_args& args) {
  check(fastnorm_peer_sharded_norm_prepare(context.get(), &args));
}

/** Calls fastnorm_peer_sharded_norm_query. Throws fastnorm::error if the call fails. */
inline fastnorm_info peer_sharded_norm_query(const context& context,
                                             const fastnorm_peer_sharded_norm_args& args) {
  fastnorm_info info = fastnorm_info();
  info.struct_size = sizeof info;
  check(fastnorm_peer_sharded_norm_query(context.get(), &args, &info));
  return info;
}

/** Returns all events of a profile buffer that was copied to the host. Throws fastnorm::error if
 *  the call fails. */
inline std::vector<fastnorm_profile_event> profile_decode(const void* buffer, std::size_t bytes) {
  std::size_t count = 0;
  check(fastnorm_profile_decode(buffer, bytes, nullptr, 0, &count));
  std::vector<fastnorm_profile_event> events(count);
  check(fastnorm_profile_decode(buffer, bytes, events.data(), events.size(), &count));
  return events;
}

/** Calls fastnorm_profile_write_trace. Throws fastnorm::error if the call fails. */
inline void profile_write_trace(const void* buffer, std::size_t bytes, const std::string& path,
                                fastnorm_trace_format format = FASTNORM_TRACE_CHROME_JSON) {
  check(fastnorm_profile_write_trace(buffer, bytes, path.c_str(), format));
}

}  // namespace fastnorm

#endif  // FASTNORM_FASTNORM_HPP_
