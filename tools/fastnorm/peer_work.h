// What a rank of `fastnorm peer bench` runs: its tensors, its call, and what the call must give.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "machine.h"

namespace fastnorm::tool {

struct PeerOptions {
  std::vector<std::string> devices = {"cpu"};
  int32_t ranks = 0;  // 0 = as many as there are devices, or 2
  int64_t rows = 32, columns = 4096, columns2 = 0, weights = 1;
  std::string dtype = "bf16", algorithm = "auto", quantise = "none";
  bool sharded = false, layer = false, no_residual = false, exact = false, pdl = false,
       processes = false, json = false, nccl = false;
  int32_t rings = 0, calls = 50, repeats = 9, replays = 100, late_ms = 0;
  int64_t one_shot_bytes = 0, wait_ms = 10000;
  bool missing = false;
  std::string output;
};

// What "bench" and "explain" of peers share: the call and the peer.
void add_peer_options(CLI::App& command, PeerOptions& options);
// Throws CLI::ValidationError where options exclude each other.
void check_peer_options(const PeerOptions& options);
fastnorm_peer_options peer_options(const PeerOptions& options, int ranks, int rank);
uint32_t peer_call_flags(const PeerOptions& options);
// Shapes of an all-reduce: x, its rows alone, and the weight.
struct PeerShapes {
  std::vector<int64_t> x, rows, weight;
};
PeerShapes peer_shapes(const PeerOptions& options);

// Heads of a part of peer_sharded_norm.
struct PeerHeads {
  int64_t count, columns;
};
PeerHeads peer_heads(int64_t columns);

// `fastnorm peer explain`.
void add_peer_explain(CLI::App& family);

// NCCL's all-reduce of one rank. NCCL is found at run time.
class PeerNccl {
 public:
  static constexpr size_t kIdBytes = 128;
  struct Id {
    unsigned char bytes[kIdBytes];
  };

  // Throws CommandError where there is no libnccl.so.2.
  static Id make_id();

  // All ranks call it.
  PeerNccl(const Id& id, int ranks, int rank, int device);
  ~PeerNccl();
  PeerNccl(const PeerNccl&) = delete;

  // Sums of `count` elements, enqueued.
  void all_reduce(const void* from, void* to, size_t count, fastnorm_dtype dtype, void* stream);

 private:
  void* communicator_ = nullptr;
};

class PeerWork {
 public:
  PeerWork(const PeerOptions& options, const Machine& machine, int ranks, int rank);
  virtual ~PeerWork() = default;
  PeerWork(const PeerWork&) = delete;

  virtual void set_peer(fastnorm_peer* peer) = 0;
  virtual void query(fastnorm_info* info) = 0;
  virtual fastnorm_status prepare() = 0;
  virtual fastnorm_status call(void* workspace, size_t bytes) = 0;
  // The call by NCCL: the library's kernels and ncclAllReduce. A place of its own for what travels.
  virtual void nccl_call(PeerNccl& nccl, void* stream) = 0;
  // The call's outputs, and what they must be: by this device without other ranks.
  virtual std::vector<std::byte> result() const = 0;
  virtual std::vector<std::byte> expected() = 0;
  // Whether all ranks have the same results.
  virtual bool alike() const = 0;

 protected:
  struct Part {
    int64_t columns = 0;
    size_t bytes = 0;
  };

  // Numbers that both a device and this program round alike: rows of a rank.
  std::vector<std::byte> data_of(int seed, const Part& part) const;
  std::vector<std::byte> weights_of(const Part& part, int64_t rows = 1) const;
  Part part_of(int64_t columns) const;
  Block place(const std::vector<std::byte>& content, size_t bytes) const;
  fastnorm_norm_kind kind() const;

  const PeerOptions& o_;
  const Machine& machine_;
  const int ranks_, rank_;
  const fastnorm_dtype dtype_;
  const size_t element_;
};

// An all-reduce and one norm, or a sharded norm: as the options say.
std::unique_ptr<PeerWork> make_peer_work(const PeerOptions& options, const Machine& machine,
                                         int ranks, int rank);

}  // namespace fastnorm::tool
