// Ranks of one process with NCCL's communicators: what a call needs on each, and what it must give.
#pragma once

#include <fastnorm/nccl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fastnorm/machine.h"
#include "fastnorm/nccl_library.h"

namespace bench {

namespace tool = fastnorm::tool;
using Bytes = std::vector<std::byte>;

// Throws the text of a failed call of libfastnorm_nccl.
void check_nccl(fastnorm_status status);

// What became of one rank's call.
struct Outcome {
  fastnorm_status status = FASTNORM_OK;
  std::string text;
};

// All ranks: GPUs 0, 1, .., or as many CPU contexts.
class NcclRanks {
 public:
  // `library`: of NCCL. A CPU takes one that works on host memory.
  NcclRanks(const std::string& library, bool cuda, int ranks);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;

  size_t count() const { return machines_.size(); }
  bool cuda() const { return machines_[0]->target().is_cuda(); }
  const tool::Machine& machine(size_t rank) const { return *machines_[rank]; }
  fastnorm_context* const* contexts() const { return contexts_.data(); }
  const fastnorm_device* devices() const { return devices_.data(); }
  void* const* comms() const { return comms_.data(); }
  void* const* streams() const { return streams_.data(); }
  int version() const;

  const fastnorm_nccl_functions& functions() const { return functions_; }
  // NCCL starts each(rank) of all ranks together.
  void grouped(const std::function<int(size_t)>& each) const;
  void synchronize() const;
  // Runs each(rank) in threads of their own.
  std::vector<Outcome> in_threads(const std::function<fastnorm_status(size_t)>& each) const;

 private:
  tool::NcclLibrary nccl_;
  fastnorm_nccl_functions functions_;
  int (*destroy_)(void*);
  std::vector<std::unique_ptr<tool::Machine>> machines_;
  std::vector<fastnorm_context*> contexts_;
  std::vector<fastnorm_device> devices_;
  std::vector<void*> comms_, streams_;
};

// A handle of each rank, or none where creation fails.
class NcclHandles {
 public:
  // `together`: one thread creates all; else each rank has one, and change(rank, options) may give
  // it options of its own.
  NcclHandles(const NcclRanks& ranks, const fastnorm_nccl_options& options, bool together,
              const std::function<void(size_t, fastnorm_nccl_options&)>& change = {});
  ~NcclHandles();
  NcclHandles(const NcclHandles&) = delete;

  const std::vector<Outcome>& created() const { return created_; }
  // Throws unless all ranks have one.
  void require() const;
  fastnorm_nccl* const* all() const { return handles_.data(); }
  fastnorm_nccl* at(size_t rank) const { return handles_[rank]; }
  // NULL where the ranks are no peers.
  fastnorm_peer* peer(size_t rank) const;

 private:
  std::vector<fastnorm_nccl*> handles_;
  std::vector<Outcome> created_;
};

struct CallShape {
  bool sequence = false;
  fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16;
  int64_t tokens = 0, columns = 0;
  bool codes = false;  // of fp8, with a scale a row, in place of y
  bool gather = true;

  std::string text() const;
};

// Numbers of the ranks' tensors: they repeat after a prime number of elements, so that their sum is
// as cheap.
class Numbers {
 public:
  // `exact`: sums of up to 8 ranks are exact in all dtypes, in whatever order.
  Numbers(fastnorm_dtype_id dtype, size_t ranks, bool exact);

  Bytes x(size_t rank, size_t elements) const { return repeated(x_[rank], elements); }
  // The sum over all ranks in their order, in single precision, rounded once.
  Bytes sum(size_t elements) const { return repeated(sum_, elements); }
  Bytes residual(size_t elements) const { return repeated(residual_, elements); }
  Bytes weight(size_t elements) const { return repeated(weight_, elements); }

 private:
  static Bytes repeated(const Bytes& period, size_t elements_of);

  std::vector<Bytes> x_;
  Bytes sum_, residual_, weight_;
};

// Memory between guards.
class Guarded {
 public:
  Guarded() = default;
  Guarded(const tool::Machine& machine, size_t bytes);

  // NULL where there is none.
  std::byte* at() const { return machine_ == nullptr ? nullptr : block_.get() + kGuard; }
  size_t bytes() const { return bytes_; }
  void upload(const Bytes& content) const;
  Bytes content() const;
  // All bytes, those of the guards too, become known ones.
  void poison() const;
  bool is_intact() const;

  static constexpr std::byte kPoison{0xa5};

 private:
  static constexpr size_t kGuard = 256;

  const tool::Machine* machine_ = nullptr;
  size_t bytes_ = 0;
  tool::Block block_;
};

// Tensors and arguments of one rank's call.
class RankCall {
 public:
  RankCall(const tool::Machine& machine, const CallShape& shape, size_t ranks, size_t rank);
  RankCall(const RankCall&) = delete;

  void fill(const Numbers& numbers);
  // Overwrites outputs and workspace.
  void poison() const;

  const fastnorm_peer_allreduce_norm_args* allreduce() const { return &allreduce_; }
  const fastnorm_nccl_sequence_norm_args* sequence() const { return &sequence_; }
  // Room for what `handle` needs.
  void reserve(fastnorm_nccl* handle);
  void* workspace() const { return workspace_.at(); }
  size_t workspace_bytes() const { return workspace_.bytes(); }

  // The call by hand: NCCL's sum goes to sum_at(), then norm() follows. Sequence parallel: then y
  // is gathered.
  const void* x_at() const { return x_.at(); }
  void* sum_at() const { return sum_.at(); }
  size_t sum_elements() const { return static_cast<size_t>(own_ * shape_.columns); }
  const fastnorm_norm_args* norm() const { return &by_hand_; }
  void* gathered_at() const { return y_.at(); }

  // One device's norm of the sum in rank order.
  void run_reference(const Numbers& numbers);

  // "" where outputs are those of the reference, this rank's part where nothing is gathered, and
  // nothing else was written.
  std::string difference(const RankCall& reference) const;

 private:
  tool::TensorView view(std::byte* data, fastnorm_dtype dtype, std::vector<int64_t> extents) const {
    return {machine_.target(), data, dtype, std::move(extents)};
  }
  void set_norm(fastnorm_norm_args& args, fastnorm_quant& quant);

  const tool::Machine& machine_;
  const CallShape shape_;
  const size_t ranks_, rank_, element_;
  const int64_t own_;  // tokens that this rank normalises
  Guarded x_, residual_, weight_, y_, h_, codes_, scale_, sum_, workspace_;
  tool::TensorView x_view_, residual_view_, weight_view_, y_view_, h_view_, codes_view_,
      scale_view_, sum_view_, own_y_view_, own_codes_view_, own_scale_view_;
  fastnorm_peer_allreduce_norm_args allreduce_ = {};
  fastnorm_norm_args norm_ = {}, by_hand_ = {};
  fastnorm_quant quant_ = {}, own_quant_ = {};
  fastnorm_nccl_sequence_norm_args sequence_ = {};
};

// The calls of all ranks, which have room for what the handles need.
class RankCalls {
 public:
  RankCalls(const NcclRanks& ranks, const CallShape& shape, const Numbers& numbers);

  RankCall& at(size_t rank) const { return *calls_[rank]; }
  void poison() const;
  void reserve(const NcclHandles& handles);
  // Loads kernels: those of peers, and the norm.
  void prepare(const NcclHandles& handles) const;
  // One call of each rank, enqueued: by one thread, or by a thread a rank. A CPU's peers need
  // threads.
  void run(const NcclHandles& handles, bool together) const;
  fastnorm_status run_together(const NcclHandles& handles) const;
  fastnorm_status run_one(const NcclHandles& handles, size_t rank) const;
  // NCCL's functions and fastnorm_norm.
  void run_by_hand() const;
  // The first rank's difference from one device's norm.
  std::string difference() const;

 private:
  const NcclRanks& ranks_;
  const CallShape shape_;
  std::vector<std::unique_ptr<RankCall>> calls_;
  std::unique_ptr<RankCall> reference_;
};

fastnorm_nccl_options nccl_options(fastnorm_dtype_id dtype, uint32_t flags = 0);

}  // namespace bench
