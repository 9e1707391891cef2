// Ranks of one process: a context, a peer and a thread for each.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fastnorm/fastnorm.h"

namespace fastnorm::test {

struct RankResult {
  fastnorm_status status;
  std::string text;
};

// Memory of a workspace.
class Room {
 public:
  void* at(uint64_t bytes) {
    memory_.resize(bytes + 256);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return bytes == 0 ? nullptr : reinterpret_cast<void*>((address + 255) / 256 * 256);
  }

 private:
  std::vector<char> memory_;
};

// A compact tensor with its bytes.
class Array {
 public:
  Array() = default;
  Array(fastnorm_dtype_id dtype, std::vector<int64_t> extents) : shape(std::move(extents)) {
    tensor_ = {};
    tensor_.device_type = FASTNORM_DEVICE_CPU;
    tensor_.dtype = fastnorm_dtype_of(dtype);
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    bytes.resize(static_cast<size_t>(elements * tensor_.dtype.bits * tensor_.dtype.lanes / 8));
  }
  const fastnorm_tensor* tensor() {
    if (shape.empty()) return nullptr;
    tensor_.ndim = static_cast<int32_t>(shape.size());
    tensor_.shape = shape.data();
    tensor_.strides = strides.empty() ? nullptr : strides.data();
    tensor_.data = bytes.data();
    return &tensor_;
  }

  std::vector<int64_t> shape, strides;
  std::vector<char> bytes;

 private:
  fastnorm_tensor tensor_;
};

inline fastnorm_peer_options peer_options(int32_t ranks, fastnorm_dtype_id dtype,
                                          int64_t max_columns) {
  fastnorm_peer_options options = {};
  options.struct_size = sizeof options;
  options.ranks = ranks;
  options.dtype = dtype;
  options.max_columns = max_columns;
  return options;
}

class World {
 public:
  // Options are those of all ranks; `pointers`: buffers of the caller's.
  explicit World(fastnorm_peer_options options, bool pointers = false) : ranks(options.ranks) {
    for (int32_t r = 0; r < ranks; ++r) {
      fastnorm_context* context = nullptr;
      EXPECT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &context), FASTNORM_OK);
      contexts.push_back(context);
    }
    uint64_t bytes = 0;
    EXPECT_EQ(fastnorm_peer_buffer_bytes(contexts[0], &options, &bytes), FASTNORM_OK);
    buffers_.resize(static_cast<size_t>(ranks));
    std::vector<void*> addresses;
    for (Room& buffer : buffers_) addresses.push_back(pointers ? buffer.at(bytes) : nullptr);
    for (int32_t r = 0; r < ranks; ++r) {
      options.rank = r;
      fastnorm_peer* peer = nullptr;
      const fastnorm_status status =
          pointers ? fastnorm_peer_create_from_pointers(contexts[static_cast<size_t>(r)], &options,
                                                        addresses.data(), ranks, &peer)
                   : fastnorm_peer_create(contexts[static_cast<size_t>(r)], &options, &peer);
      EXPECT_EQ(status, FASTNORM_OK) << fastnorm_last_error();
      peers.push_back(peer);
    }
    if (pointers) return;
    std::vector<char> blobs(static_cast<size_t>(ranks) * FASTNORM_PEER_BLOB_BYTES);
    for (int32_t r = 0; r < ranks; ++r) {
      EXPECT_EQ(fastnorm_peer_export(peers[static_cast<size_t>(r)],
                                     blobs.data() + r * FASTNORM_PEER_BLOB_BYTES,
                                     FASTNORM_PEER_BLOB_BYTES),
                FASTNORM_OK);
    }
    for (fastnorm_peer* peer : peers) {
      EXPECT_EQ(fastnorm_peer_import(peer, blobs.data(), blobs.size()), FASTNORM_OK)
          << fastnorm_last_error();
    }
  }
  ~World() {
    for (fastnorm_peer* peer : peers) fastnorm_peer_destroy(peer);
    for (fastnorm_context* context : contexts) fastnorm_context_destroy(context);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Runs body(rank) on a thread for each rank of which `present` is true, and waits for all.
  std::vector<RankResult> run(const std::function<fastnorm_status(int32_t)>& body,
                              uint32_t present = ~0u) {
    std::vector<RankResult> results(static_cast<size_t>(ranks), {FASTNORM_OK, ""});
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < ranks; ++r) {
      if ((present >> r & 1) == 0) continue;
      threads.emplace_back([&, r] {
        RankResult& result = results[static_cast<size_t>(r)];
        result.status = body(r);
        if (result.status != FASTNORM_OK) result.text = fastnorm_last_error();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  fastnorm_peer_state state(int32_t rank) const {
    fastnorm_peer_state state = {};
    state.struct_size = sizeof state;
    EXPECT_EQ(fastnorm_peer_status(peers[static_cast<size_t>(rank)], &state), FASTNORM_OK);
    return state;
  }
  void reset() {
    for (fastnorm_peer* peer : peers) EXPECT_EQ(fastnorm_peer_reset(peer), FASTNORM_OK);
  }

  const int32_t ranks;
  std::vector<fastnorm_context*> contexts;
  std::vector<fastnorm_peer*> peers;

 private:
  std::vector<Room> buffers_;
};

// A whole call of one rank: query, workspace, run.
inline fastnorm_status call_allreduce(fastnorm_context* context,
                                      const fastnorm_peer_allreduce_norm_args& args) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  const fastnorm_status status = fastnorm_peer_allreduce_norm_query(context, &args, &info);
  if (status != FASTNORM_OK) return status;
  Room room;
  return fastnorm_peer_allreduce_norm(context, &args, room.at(info.workspace_bytes),
                                      info.workspace_bytes, nullptr);
}
inline fastnorm_status call_sharded(fastnorm_context* context,
                                    const fastnorm_peer_sharded_norm_args& args) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  const fastnorm_status status = fastnorm_peer_sharded_norm_query(context, &args, &info);
  if (status != FASTNORM_OK) return status;
  Room room;
  return fastnorm_peer_sharded_norm(context, &args, room.at(info.workspace_bytes),
                                    info.workspace_bytes, nullptr);
}

}  // namespace fastnorm::test
