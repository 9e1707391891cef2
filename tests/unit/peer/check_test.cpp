// What peers refuse beside calls/peer.txt; blobs, the buffer's layout and the choice of the
// algorithm.
#include "core/peer/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/norm/desc.h"
#include "core/peer/blob.h"
#include "core/peer/choice.h"
#include "core/peer/layout.h"
#include "core/peer/plan.h"
#include "cuda/families.h"
#include "unit/peer/world.h"

namespace fastnorm::test {
namespace {

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

void expect_error(fastnorm_status found, fastnorm_status wanted,
                  std::initializer_list<const char*> texts, const char* name) {
  EXPECT_EQ(found, wanted) << name << ": " << fastnorm_last_error();
  for (const char* text : texts) {
    EXPECT_NE(std::string(fastnorm_last_error()).find(text), std::string::npos)
        << name << ": \"" << fastnorm_last_error() << "\" has no \"" << text << "\"";
  }
}

fastnorm_context* cpu() {
  static fastnorm_context* const context = [] {
    fastnorm_context* made = nullptr;
    EXPECT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &made), FASTNORM_OK);
    return made;
  }();
  return context;
}

PeerDesc desc_of(int32_t ranks, Dtype dtype, int64_t max_columns) {
  PeerDesc desc;
  desc.ranks = ranks;
  desc.dtype = dtype;
  desc.max_columns = max_columns;
  desc.rings = 8;
  return desc;
}

struct BadOptions {
  const char* name;
  fastnorm_status status;
  std::initializer_list<const char*> texts;
  void (*spoil)(fastnorm_peer_options&);
};

const BadOptions kBadOptions[] = {
    {"size",
     FASTNORM_ERROR_ARGUMENT,
     {"options.struct_size is 55", "at least 56"},
     [](auto& o) { o.struct_size = 55; }},
    {"ranks 1",
     FASTNORM_ERROR_ARGUMENT,
     {"options.ranks is 1", "2 to 8"},
     [](auto& o) { o.ranks = 1; }},
    {"ranks 9",
     FASTNORM_ERROR_ARGUMENT,
     {"options.ranks is 9", "2 to 8"},
     [](auto& o) { o.ranks = 9; }},
    {"rank -1",
     FASTNORM_ERROR_ARGUMENT,
     {"options.rank is -1", "0 to 2"},
     [](auto& o) { o.rank = -1; }},
    {"rank 3",
     FASTNORM_ERROR_ARGUMENT,
     {"options.rank is 3", "0 to 2"},
     [](auto& o) { o.rank = 3; }},
    {"no dtype",
     FASTNORM_ERROR_DTYPE,
     {"options.dtype is 0x00000000", "F32, F16 or BF16"},
     [](auto& o) { set(o.dtype, 0); }},
    {"i8",
     FASTNORM_ERROR_DTYPE,
     {"options.dtype is 0x00010800"},
     [](auto& o) { o.dtype = FASTNORM_DTYPE_I8; }},
    {"algorithm",
     FASTNORM_ERROR_ARGUMENT,
     {"options.algorithm is 3", "0 to 2"},
     [](auto& o) { set(o.algorithm, 3); }},
    {"no columns",
     FASTNORM_ERROR_ARGUMENT,
     {"options.max_columns is 0", "1 to 65536"},
     [](auto& o) { o.max_columns = 0; }},
    {"columns",
     FASTNORM_ERROR_ARGUMENT,
     {"options.max_columns is 65537"},
     [](auto& o) { o.max_columns = 65537; }},
    {"one_shot_bytes",
     FASTNORM_ERROR_ARGUMENT,
     {"options.one_shot_bytes is -1", ">= 0"},
     [](auto& o) { o.one_shot_bytes = -1; }},
    {"wait 999",
     FASTNORM_ERROR_ARGUMENT,
     {"options.wait_ns is 999", "1000 to 1000000000000"},
     [](auto& o) { o.wait_ns = 999; }},
    {"wait -1",
     FASTNORM_ERROR_ARGUMENT,
     {"options.wait_ns is -1"},
     [](auto& o) { o.wait_ns = -1; }},
    {"rings",
     FASTNORM_ERROR_ARGUMENT,
     {"options.rings is 257", "0 to 256"},
     [](auto& o) { o.rings = 257; }},
    {"rings -1", FASTNORM_ERROR_ARGUMENT, {"options.rings is -1"}, [](auto& o) { o.rings = -1; }},
    {"reserved",
     FASTNORM_ERROR_ARGUMENT,
     {"options.reserved is 1"},
     [](auto& o) { o.reserved = 1; }},
};

fastnorm_peer_options good_options() {
  fastnorm_peer_options options = peer_options(3, FASTNORM_DTYPE_BF16, 64);
  options.rank = 1;
  return options;
}

TEST(PeerCheck, RefusesOptions) {
  fastnorm_peer* peer = nullptr;
  uint64_t bytes = 0;
  for (const BadOptions& bad : kBadOptions) {
    fastnorm_peer_options options = good_options();
    bad.spoil(options);
    peer = reinterpret_cast<fastnorm_peer*>(&options);
    expect_error(fastnorm_peer_create(cpu(), &options, &peer), bad.status, bad.texts, bad.name);
    EXPECT_EQ(peer, nullptr) << bad.name;
    expect_error(fastnorm_peer_buffer_bytes(cpu(), &options, &bytes), bad.status, bad.texts,
                 bad.name);
  }
  fastnorm_peer_options options = good_options();
  expect_error(fastnorm_peer_create(cpu(), nullptr, &peer), FASTNORM_ERROR_ARGUMENT,
               {"options is NULL"}, "no options");
  expect_error(fastnorm_peer_create(nullptr, &options, &peer), FASTNORM_ERROR_ARGUMENT,
               {"context is NULL"}, "no context");
  expect_error(fastnorm_peer_create(cpu(), &options, nullptr), FASTNORM_ERROR_ARGUMENT,
               {"peer is NULL"}, "no peer");
  expect_error(fastnorm_peer_buffer_bytes(cpu(), &options, nullptr), FASTNORM_ERROR_ARGUMENT,
               {"bytes is NULL"}, "no bytes");
  struct Longer {
    fastnorm_peer_options options;
    int64_t tail;
  } longer = {options, 1};
  longer.options.struct_size = sizeof longer;
  expect_error(fastnorm_peer_create(cpu(), &longer.options, &peer), FASTNORM_ERROR_UNSUPPORTED,
               {"options.struct_size is 64"}, "a later version's field");
}

// A dry context of a GPU: blobs, calls and their plans, without one.
TEST(PeerCheck, DryCuda) {
  fastnorm_context_options dry = {};
  dry.struct_size = sizeof dry;
  dry.flags = FASTNORM_CONTEXT_DRY_RUN;
  dry.dry_run_capability = 90;
  fastnorm_context* context = nullptr;
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, &dry, &context), FASTNORM_OK);
  fastnorm_peer_options options = good_options();
  uint64_t bytes = 0, cpu_bytes = 0;
  ASSERT_EQ(fastnorm_peer_buffer_bytes(context, &options, &bytes), FASTNORM_OK);
  ASSERT_EQ(fastnorm_peer_buffer_bytes(cpu(), &options, &cpu_bytes), FASTNORM_OK);
  EXPECT_EQ(bytes, 16 * cpu_bytes);  // 128 rings for 8
  std::vector<fastnorm_peer*> peers(static_cast<size_t>(options.ranks));
  std::vector<PeerBlob> blobs(peers.size());
  for (size_t r = 0; r < peers.size(); ++r) {
    options.rank = static_cast<int32_t>(r);
    ASSERT_EQ(fastnorm_peer_create(context, &options, &peers[r]), FASTNORM_OK);
    ASSERT_EQ(fastnorm_peer_export(peers[r], &blobs[r], sizeof blobs[r]), FASTNORM_OK);
    EXPECT_EQ(blobs[r].rings, 128);
  }
  EXPECT_EQ(fastnorm_peer_import(peers[0], blobs.data(), blobs.size() * sizeof blobs[0]),
            FASTNORM_OK)
      << fastnorm_last_error();
  fastnorm_peer_state state = {};
  state.struct_size = sizeof state;
  ASSERT_EQ(fastnorm_peer_status(peers[0], &state), FASTNORM_OK);
  EXPECT_EQ(state.connected, 1);
  EXPECT_EQ(state.rank, -1);
  EXPECT_EQ(fastnorm_peer_reset(peers[0]), FASTNORM_OK);
  for (fastnorm_peer* peer : peers) fastnorm_peer_destroy(peer);
  fastnorm_context_destroy(context);
}

TEST(PeerCheck, RefusesBuffers) {
  const fastnorm_peer_options options = good_options();
  uint64_t bytes = 0;
  ASSERT_EQ(fastnorm_peer_buffer_bytes(cpu(), &options, &bytes), FASTNORM_OK);
  Room room;
  char* const base = static_cast<char*>(room.at(3 * bytes + 256));
  fastnorm_peer* peer = nullptr;
  const auto create = [&](std::vector<void*> buffers, int32_t count) {
    return fastnorm_peer_create_from_pointers(cpu(), &options, buffers.data(), count, &peer);
  };
  std::vector<void*> good = {base, base + bytes, base + 2 * bytes};
  expect_error(create(good, 2), FASTNORM_ERROR_ARGUMENT, {"count is 2", "options.ranks, 3"},
               "count");
  expect_error(create({base, nullptr, base}, 3), FASTNORM_ERROR_ARGUMENT, {"buffers[1] is NULL"},
               "NULL");
  expect_error(create({base, base + bytes, base + 2 * bytes + 128}, 3), FASTNORM_ERROR_LAYOUT,
               {"buffers[2] is 0x", "256-byte aligned"}, "aligned");
  expect_error(create({base, base + 2 * bytes, base + bytes - 256 + 512 - 512}, 3),
               FASTNORM_ERROR_LAYOUT, {"buffers[0] is 0x", "bytes between"}, "overlap");
  expect_error(fastnorm_peer_create_from_pointers(cpu(), &options, nullptr, 3, &peer),
               FASTNORM_ERROR_ARGUMENT, {"buffers is NULL"}, "no buffers");
  ASSERT_EQ(create(good, 3), FASTNORM_OK) << fastnorm_last_error();
  char blob[FASTNORM_PEER_BLOB_BYTES];
  expect_error(fastnorm_peer_export(peer, blob, sizeof blob), FASTNORM_ERROR_ARGUMENT,
               {"fastnorm_peer_create_from_pointers"}, "export");
  fastnorm_peer_destroy(peer);
}

// Peers of three ranks, not connected, and their blobs.
struct Group {
  Group() {
    for (int32_t r = 0; r < 3; ++r) {
      fastnorm_peer_options options = good_options();
      options.rank = r;
      EXPECT_EQ(fastnorm_peer_create(cpu(), &options, &peer[r]), FASTNORM_OK);
      EXPECT_EQ(fastnorm_peer_export(peer[r], &blob[r], sizeof blob[r]), FASTNORM_OK);
    }
  }
  ~Group() {
    for (fastnorm_peer* p : peer) fastnorm_peer_destroy(p);
  }
  fastnorm_status import(int32_t rank) {
    return fastnorm_peer_import(peer[rank], blob, sizeof blob);
  }

  fastnorm_peer* peer[3] = {};
  PeerBlob blob[3];
};

struct BadBlob {
  const char* name;
  fastnorm_status status;
  std::initializer_list<const char*> texts;
  void (*spoil)(PeerBlob&);  // of rank 2; sealed again afterwards
};

const BadBlob kBadBlobs[] = {
    {"magic",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] begins with 0x00000000"},
     [](PeerBlob& b) { b.magic = 0; }},
    {"version",
     FASTNORM_ERROR_UNSUPPORTED,
     {"blobs[2] has version 1", "this library has 2"},
     [](PeerBlob& b) { b.version = 1; }},
    {"device",
     FASTNORM_ERROR_UNSUPPORTED,
     {"blobs[2] has device_type 2"},
     [](PeerBlob& b) { b.device_type = 2; }},
    {"rank",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has rank 1", "required: 2"},
     [](PeerBlob& b) { b.rank = 1; }},
    {"ranks",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has ranks 4", "required: 3"},
     [](PeerBlob& b) { b.ranks = 4; }},
    {"dtype",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has dtype f16", "required: bf16"},
     [](PeerBlob& b) { b.dtype = FASTNORM_DTYPE_F16; }},
    {"algorithm",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has algorithm 2", "required: 0"},
     [](PeerBlob& b) { b.algorithm = 2; }},
    {"columns",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has max_columns 65", "required: 64"},
     [](PeerBlob& b) { b.max_columns = 65; }},
    {"threshold",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has one_shot_bytes 9"},
     [](PeerBlob& b) { b.one_shot_bytes = 9; }},
    {"rings",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has rings 4", "required: 8"},
     [](PeerBlob& b) { b.rings = 4; }},
    {"digest",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] has the digest 0x"},
     [](PeerBlob& b) { ++b.digest; }},
    {"process",
     FASTNORM_ERROR_UNSUPPORTED,
     {"blobs[2] is of process 7"},
     [](PeerBlob& b) {
       const uint64_t process = 7;
       std::memcpy(b.place + 8, &process, 8);
     }},
    {"buffer",
     FASTNORM_ERROR_ARGUMENT,
     {"blobs[2] is of a peer that was destroyed"},
     [](PeerBlob& b) {
       const uint64_t buffer = 1 << 30;
       std::memcpy(b.place + 16, &buffer, 8);
     }},
};

TEST(PeerCheck, RefusesBlobs) {
  for (const BadBlob& bad : kBadBlobs) {
    Group group;
    bad.spoil(group.blob[2]);
    seal_peer_blob(&group.blob[2]);
    expect_error(group.import(0), bad.status, bad.texts, bad.name);
    fastnorm_peer_state state = {};
    state.struct_size = sizeof state;
    ASSERT_EQ(fastnorm_peer_status(group.peer[0], &state), FASTNORM_OK);
    EXPECT_EQ(state.connected, 0) << bad.name;
  }
  Group group;
  for (size_t byte = 8; byte < sizeof(PeerBlob); byte += 5) {  // every change is found
    auto* const bytes = reinterpret_cast<unsigned char*>(&group.blob[1]);
    bytes[byte] ^= 4;
    EXPECT_EQ(group.import(0), FASTNORM_ERROR_ARGUMENT) << byte;
    EXPECT_NE(std::string(fastnorm_last_error()).find("checksum"), std::string::npos) << byte;
    bytes[byte] ^= 4;
  }
  expect_error(fastnorm_peer_import(group.peer[0], nullptr, sizeof group.blob),
               FASTNORM_ERROR_ARGUMENT, {"blobs is NULL", "384 bytes"}, "NULL");
  expect_error(fastnorm_peer_import(group.peer[0], group.blob, 256), FASTNORM_ERROR_ARGUMENT,
               {"bytes is 256", "384, 3 blobs"}, "size");
  expect_error(fastnorm_peer_import(nullptr, group.blob, 384), FASTNORM_ERROR_ARGUMENT,
               {"peer is NULL"}, "no peer");
  Group others;
  others.blob[1] = group.blob[1];
  expect_error(others.import(1), FASTNORM_ERROR_ARGUMENT, {"blobs[1] is of another peer of rank 1"},
               "another group");
  EXPECT_EQ(group.import(0), FASTNORM_OK) << fastnorm_last_error();
  expect_error(group.import(0), FASTNORM_ERROR_ARGUMENT, {"connected already"}, "twice");
  char small[FASTNORM_PEER_BLOB_BYTES];
  expect_error(fastnorm_peer_export(group.peer[0], small, 127), FASTNORM_ERROR_ARGUMENT,
               {"bytes is 127", "128"}, "small");
  expect_error(fastnorm_peer_export(group.peer[0], nullptr, 128), FASTNORM_ERROR_ARGUMENT,
               {"blob is NULL"}, "no blob");
  expect_error(fastnorm_peer_export(nullptr, small, 128), FASTNORM_ERROR_ARGUMENT, {"peer is NULL"},
               "no peer");
  expect_error(fastnorm_peer_reset(nullptr), FASTNORM_ERROR_ARGUMENT, {"peer is NULL"}, "reset");
  expect_error(fastnorm_peer_status(group.peer[0], nullptr), FASTNORM_ERROR_ARGUMENT,
               {"state is NULL"}, "state");
  fastnorm_peer_state state = {};
  state.struct_size = 31;
  expect_error(fastnorm_peer_status(group.peer[0], &state), FASTNORM_ERROR_ARGUMENT,
               {"state.struct_size is 31", "at least 32"}, "state's size");
  expect_error(fastnorm_peer_status(nullptr, &state), FASTNORM_ERROR_ARGUMENT, {"peer is NULL"},
               "status");
}

// A call that is right, of a peer that is connected.
struct AllreduceCall {
  AllreduceCall()
      : x(FASTNORM_DTYPE_BF16, {2, 64}),
        y(FASTNORM_DTYPE_BF16, {2, 64}),
        residual(FASTNORM_DTYPE_F32, {2, 64}) {
    args.struct_size = sizeof args;
    args.norm = &norm;
    norm.struct_size = sizeof norm;
    norm.x = x.tensor();
    norm.y = y.tensor();
  }
  Array x, y, residual;
  fastnorm_norm_args norm = {};
  fastnorm_peer_allreduce_norm_args args = {};
};

TEST(PeerCheck, RefusesAllreduces) {
  Group group;
  ASSERT_EQ(group.import(0), FASTNORM_OK);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  Room room;
  AllreduceCall call;
  call.args.peer = group.peer[0];
  char* const workspace = static_cast<char*>(room.at(4096));
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(cpu(), &call.args, &info), FASTNORM_OK);
  EXPECT_EQ(info.workspace_bytes, 256u);
  EXPECT_EQ(info.launches, 1);
  call.args.sum_rounding = FASTNORM_PEER_SUM_EXACT;
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(cpu(), &call.args, &info), FASTNORM_OK);
  EXPECT_EQ(info.workspace_bytes, 512u + 256u);
  call.norm.residual = call.residual.tensor();
  call.norm.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(cpu(), &call.args, &info), FASTNORM_OK);
  EXPECT_EQ(info.workspace_bytes, 512u + 256u + 512u);
  const auto run = [&](void* memory, size_t bytes, void* stream) {
    return fastnorm_peer_allreduce_norm(cpu(), &call.args, memory, bytes, stream);
  };
  expect_error(run(workspace, 1279, nullptr), FASTNORM_ERROR_ARGUMENT,
               {"workspace_bytes is 1279", "at least 1280"}, "small");
  expect_error(run(workspace + 128, 2048, nullptr), FASTNORM_ERROR_ARGUMENT,
               {"workspace is 0x", "256-byte aligned"}, "aligned");
  expect_error(run(nullptr, 2048, nullptr), FASTNORM_ERROR_ARGUMENT, {"workspace is (nil)"},
               "NULL");
  expect_error(run(workspace, 2048, &call), FASTNORM_ERROR_ARGUMENT, {"stream is 0x"}, "stream");
  expect_error(fastnorm_peer_allreduce_norm(nullptr, &call.args, nullptr, 0, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"context is NULL"}, "context");
  expect_error(fastnorm_peer_allreduce_norm(cpu(), nullptr, nullptr, 0, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"args is NULL"}, "args");
  expect_error(fastnorm_peer_allreduce_norm_query(cpu(), &call.args, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"info is NULL"}, "info");
  // The workspace may be no tensor's memory.
  const_cast<fastnorm_tensor*>(call.norm.x)->data = workspace + 512;
  expect_error(run(workspace, 2048, nullptr), FASTNORM_ERROR_LAYOUT,
               {"workspace is 0x", "norm.x lies from 0x", "no byte in common"},
               "x in the workspace");
  call.norm.x = call.x.tensor();
  for (const auto rounding : {FASTNORM_PEER_SUM_ROUNDED, FASTNORM_PEER_SUM_EXACT}) {
    call.args.sum_rounding = rounding;
    const_cast<fastnorm_tensor*>(call.norm.residual)->data = workspace + 64;
    expect_error(run(workspace, 2048, nullptr), FASTNORM_ERROR_LAYOUT,
                 {"workspace is 0x", "norm.residual lies from 0x", "no byte in common"},
                 "residual in the workspace");
    call.norm.residual = call.residual.tensor();
  }
  const_cast<fastnorm_tensor*>(call.norm.y)->data = workspace + 256;
  expect_error(run(workspace, 2048, nullptr), FASTNORM_ERROR_LAYOUT, {"workspace"},
               "y in the workspace");
  call.norm.y = call.y.tensor();
  // Peers that are not connected, and those of another context.
  call.args.peer = group.peer[1];
  expect_error(run(workspace, 2048, nullptr), FASTNORM_ERROR_ARGUMENT,
               {"peer is not connected", "fastnorm_peer_import"}, "not connected");
  fastnorm_context* other = nullptr;
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &other), FASTNORM_OK);
  expect_error(fastnorm_peer_allreduce_norm(other, &call.args, workspace, 2048, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"peer is of the context 0x", "own context"}, "context");
  fastnorm_context_destroy(other);
}

// Every field behind quant is one that an all-reduce does not have. Any bit of it is refused, and
// the text has the path of the field.
TEST(PeerCheck, RefusesFieldsOfOtherNorms) {
  Group group;
  ASSERT_EQ(group.import(0), FASTNORM_OK);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  constexpr size_t kFirst = offsetof(fastnorm_norm_args, gate);
  for (size_t at = kFirst; at < sizeof(fastnorm_norm_args); ++at) {
    AllreduceCall call;
    call.args.peer = group.peer[0];
    reinterpret_cast<unsigned char*>(&call.norm)[at] = 1;
    expect_error(
        fastnorm_peer_allreduce_norm_query(cpu(), &call.args, &info), FASTNORM_ERROR_UNSUPPORTED,
        {"norm.", " is given, which an all-reduce does not have"}, std::to_string(at).c_str());
  }
}

struct ShardedCall {
  ShardedCall()
      : x(FASTNORM_DTYPE_BF16, {2, 3, 8}),
        y(FASTNORM_DTYPE_BF16, {2, 3, 8}),
        x2(FASTNORM_DTYPE_BF16, {2, 16}),
        y2(FASTNORM_DTYPE_BF16, {2, 16}) {
    args.struct_size = sizeof args;
    args.x = x.tensor();
    args.y = y.tensor();
    args.x2 = x2.tensor();
    args.y2 = y2.tensor();
  }
  Array x, y, x2, y2;
  fastnorm_peer_sharded_norm_args args = {};
};

TEST(PeerCheck, RefusesShardedNorms) {
  Group group;
  ASSERT_EQ(group.import(0), FASTNORM_OK);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  Room room;
  void* const workspace = room.at(4096);
  ShardedCall call;
  call.args.peer = group.peer[0];
  ASSERT_EQ(fastnorm_peer_sharded_norm_query(cpu(), &call.args, &info), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_EQ(info.workspace_bytes, 4 * 256u);
  EXPECT_EQ(info.launches, 1);
  call.args.kind = FASTNORM_NORM_LAYER;
  ASSERT_EQ(fastnorm_peer_sharded_norm_query(cpu(), &call.args, &info), FASTNORM_OK);
  EXPECT_EQ(info.workspace_bytes, 6 * 256u);
  expect_error(fastnorm_peer_sharded_norm(cpu(), &call.args, workspace, 1535, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"workspace_bytes is 1535", "at least 1536"}, "small");
  call.args.peer = group.peer[1];
  expect_error(fastnorm_peer_sharded_norm(cpu(), &call.args, workspace, 4096, nullptr),
               FASTNORM_ERROR_ARGUMENT, {"peer is not connected"}, "not connected");
}

// What ranks must agree on is in the digest; what is their own is not.
TEST(PeerBlobs, DigestOfWhatRanksShare) {
  const PeerDesc desc = desc_of(4, Dtype::kBF16, 4096);
  const auto changed = [&](auto change) {
    PeerDesc other = desc;
    change(other);
    return peer_digest(other) != peer_digest(desc);
  };
  EXPECT_FALSE(changed([](PeerDesc& d) { d.rank = 3; }));
  EXPECT_FALSE(changed([](PeerDesc& d) { d.wait_ns = 5; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.ranks = 5; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.dtype = Dtype::kF16; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.max_columns = 4097; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.algorithm = FASTNORM_PEER_ONE_SHOT; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.one_shot_bytes = 1; }));
  EXPECT_TRUE(changed([](PeerDesc& d) { d.rings = 9; }));
}

TEST(PeerLayouts, MessagesLieApart) {
  for (const int32_t ranks : {2, 3, 8}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      PeerDesc desc = desc_of(ranks, dtype, 12);
      desc.one_shot_bytes = 100;  // so that both algorithms are used
      desc.rings = 3;
      const PeerLayout layout = peer_layout(desc);
      std::vector<char> taken(layout.words);
      for (int c = 0; c < kPeerChannels; ++c) {
        const uint64_t words = layout.message_words[c];
        // Rows and the vectors in them begin on lines of the cache.
        const uint64_t line = c == kPeerStatistics ? 8 : 32;
        EXPECT_EQ(words % line, 0u);
        EXPECT_EQ(layout.header(c), words - 4);
        // Rows are filled up to vectors of 16 bytes. An exact sum has a word for each element.
        const uint64_t row = dtype == Dtype::kF32 ? 12 : c == kPeerTotal ? 16 : 8;
        EXPECT_GE(words, 4 + (c == kPeerStatistics ? 4 : row));
        for (int source = 0; source < ranks; ++source) {
          for (int ring = 0; ring < 3; ++ring) {
            for (uint32_t slot = 0; slot < kPeerSlots; ++slot) {
              const uint64_t at = layout.message(c, source, ring, slot);
              EXPECT_EQ(layout.message(c, source, ring, slot + 5 * kPeerSlots), at);
              EXPECT_EQ(at % line, 0u);
              ASSERT_LE(at + words, layout.words);
              for (uint64_t i = 0; i < words; ++i) EXPECT_EQ(taken[at + i]++, 0);
            }
          }
        }
      }
    }
  }
  // Channels that no call uses are not there: nothing may look at them.
  PeerDesc pair = desc_of(2, Dtype::kF32, 64);
  EXPECT_EQ(peer_layout(pair).first_word[kPeerTotal], peer_layout(pair).first_word[kPeerShare]);
  EXPECT_EQ(peer_layout(pair).first_word[kPeerStatistics],
            peer_layout(pair).first_word[kPeerShare]);
  EXPECT_FALSE(peer_layout(pair).has(kPeerShare) || peer_layout(pair).has(kPeerTotal));
  EXPECT_TRUE(peer_layout(pair).has(kPeerOneShot) && peer_layout(pair).has(kPeerStatistics));
  pair.algorithm = FASTNORM_PEER_TWO_SHOT;
  EXPECT_FALSE(peer_layout(pair).has(kPeerOneShot));
  EXPECT_EQ(peer_layout(pair).first_word[kPeerShare], 0u);
  // As large as it gets; nothing overflows.
  PeerDesc largest = desc_of(8, Dtype::kF32, kMostPeerColumns);
  largest.rings = kMostPeerRings;
  const uint64_t messages = uint64_t{8} * 256 * 4;
  EXPECT_EQ(peer_layout(largest).bytes(), messages * 4 * (3 * (65536 + 32) + 8));
}

TEST(PeerChoices, BySizeAndRanks) {
  struct Golden {
    int32_t ranks;
    Dtype dtype;
    int64_t rows, columns;
    bool two_shot;
  };
  const Golden goldens[] = {
      {2, Dtype::kBF16, INT32_MAX, 65536, false}, {3, Dtype::kBF16, 128, 4096, false},
      {3, Dtype::kBF16, 129, 4096, true},         {4, Dtype::kBF16, 1, 8192, false},
      {4, Dtype::kBF16, 64, 4096, false},         {4, Dtype::kBF16, 65, 4096, true},
      {4, Dtype::kF32, 33, 4096, true},           {8, Dtype::kF16, 32, 8192, false},
      {8, Dtype::kF16, 33, 8192, true},           {5, Dtype::kF32, 1, 1, false},
  };
  for (const Golden& g : goldens) {
    PeerDesc desc = desc_of(g.ranks, g.dtype, 65536);
    EXPECT_EQ(peer_is_two_shot(desc, g.rows, g.columns), g.two_shot)
        << g.ranks << " ranks, " << g.rows << "x" << g.columns;
    desc.algorithm = FASTNORM_PEER_TWO_SHOT;
    EXPECT_TRUE(peer_is_two_shot(desc, g.rows, g.columns));
    desc.algorithm = FASTNORM_PEER_ONE_SHOT;
    EXPECT_FALSE(peer_is_two_shot(desc, g.rows, g.columns));
  }
  PeerDesc desc = desc_of(2, Dtype::kF32, 64);
  desc.one_shot_bytes = 1024;
  EXPECT_FALSE(peer_is_two_shot(desc, 4, 64));
  EXPECT_TRUE(peer_is_two_shot(desc, 5, 64));
}

// The kernels of calls: what a table of data says.
TEST(PeerPlans, KernelsOfCalls) {
  struct Golden {
    int32_t ranks;
    Dtype dtype;
    int64_t rows, columns;
    NormKey key;
    bool exact;
    const char* kernel;
    int32_t rings;
  };
  NormKey rms, layer, codes, f32_weight, unaligned;
  layer.stat = Stat::kLayer;
  codes.sink = Sink::kStatic;
  f32_weight.affine = Affine::kF32;
  unaligned.access = Access::kUnaligned;
  constexpr Dtype kF32 = Dtype::kF32, kF16 = Dtype::kF16, kBF16 = Dtype::kBF16;
  const Golden goldens[] = {
      {2, kBF16, 1, 2048, rms, false, "peer bf16 one-shot rms store 256x1 by 1", 1},
      {2, kBF16, 1, 4096, rms, false, "peer bf16 one-shot rms store 512x1 by 1", 1},
      {2, kF16, 4096, 8192, rms, false, "peer f16 one-shot rms store 512x2 by 1", 128},
      {2, kF32, 200, 4096, rms, false, "peer f32 one-shot rms store 512x2 by 1", 128},
      {2, kBF16, 7, 4096, codes, false, "peer bf16 one-shot rms quant 512x1 by 1", 7},
      {2, kBF16, 7, 128, layer, false, "peer bf16 one-shot layer store 512x2 by 1", 7},
      {2, kBF16, 7, 8200, rms, false, "peer bf16 sum", 7},
      {2, kBF16, 7, 4096, rms, true, "peer bf16 sum", 7},
      {2, kBF16, 7, 4096, f32_weight, false, "peer bf16 sum", 7},
      {2, kBF16, 7, 4096, unaligned, false, "peer bf16 sum", 7},
      {4, kBF16, 8, 4096, rms, false, "peer bf16 one-shot rms store 512x1 by 4", 8},
      {4, kBF16, 1024, 4096, rms, false, "peer bf16 two-shot rms store 512x1 by 4", 128},
      {8, kBF16, 100, 8192, rms, false, "peer bf16 two-shot rms store 512x2 by 3", 13},
      {8, kBF16, 100, 8192, codes, false, "peer bf16 two-shot rms quant 512x2 by 3", 13},
      {3, kF32, 4096, 4096, layer, false, "peer f32 two-shot layer store 512x2 by 3", 128},
      {3, kF32, 4096, 4100, layer, false, "peer f32 sum two-shot", 128},
  };
  for (const Golden& g : goldens) {
    PeerDesc desc = desc_of(g.ranks, g.dtype, 65536);
    desc.rings = 128;
    NormDesc norm;
    norm.rows = g.rows;
    norm.n = g.columns;
    norm.dtype = g.dtype;
    const PeerPlan plan =
        plan_peer_sum(desc, norm, g.key, g.exact, cuda::table_of<cuda::PeerFamily>(cuda::kSm90), 8);
    ASSERT_NE(plan.entry, nullptr) << g.kernel;
    EXPECT_STREQ(plan.entry->name, g.kernel);
    EXPECT_EQ(plan.rings, g.rings) << g.kernel;
    EXPECT_EQ(plan.entry,
              &cuda::table_of<cuda::PeerFamily>(cuda::kSm90)[static_cast<size_t>(plan.index)]);
    EXPECT_EQ(peer_variant_of(plan.entry->order).threads, plan.entry->variant.threads);
  }
  const PeerPlan statistics =
      plan_peer_statistics(desc_of(2, kBF16, 64), 5, cuda::table_of<cuda::PeerFamily>(cuda::kSm90));
  EXPECT_STREQ(statistics.entry->name, "peer statistics");
  EXPECT_EQ(statistics.rings, 5);
}

// The lean kernels of calls, by the lines of data: clusters need a ring for each row.
TEST(PeerPlans, LeanKernelsOfCalls) {
  struct Golden {
    int32_t ranks;
    Dtype dtype;
    int64_t rows, columns;
    bool codes;
    int32_t cluster_blocks;
    const char* kernel;
    int32_t rings;
  };
  constexpr Dtype kF32 = Dtype::kF32, kF16 = Dtype::kF16, kBF16 = Dtype::kBF16;
  const Golden goldens[] = {
      {2, kBF16, 1, 4096, false, 8, "peer bf16 one-shot rms store 128x1x8 by 1 lean", 1},
      {2, kBF16, 8, 4096, false, 8, "peer bf16 one-shot rms store 128x1x4 by 1 lean", 8},
      {2, kBF16, 8, 4096, false, 1, "peer bf16 one-shot rms store 512x1 by 1 lean", 8},
      {2, kBF16, 33, 4096, false, 8, "peer bf16 one-shot rms store 512x1 by 1 lean", 33},
      {2, kBF16, 300, 4096, false, 8, "peer bf16 one-shot rms store 512x1 by 1 lean", 256},
      {2, kF16, 64, 8192, false, 8, "peer f16 one-shot rms store 128x1x8 by 1 lean", 64},
      {2, kF16, 64, 8192, false, 4, "peer f16 one-shot rms store 512x2 by 1 lean", 64},
      {2, kF16, 65, 8192, false, 8, "peer f16 one-shot rms store 512x2 by 1 lean", 65},
      {2, kBF16, 100, 2048, false, 8, "peer bf16 one-shot rms store 256x1 by 1 lean", 100},
      {2, kBF16, 1, 4096, true, 8, "peer bf16 one-shot rms static 128x1x8 by 1 lean", 1},
      {2, kBF16, 300, 8192, true, 8, "peer bf16 one-shot rms static 512x2 by 1 lean", 256},
      {4, kBF16, 8, 4096, false, 8, "peer bf16 one-shot rms store 128x1x4 by 7 lean", 8},
      {4, kBF16, 8, 4096, true, 8, "peer bf16 one-shot rms quant 512x1 by 4", 8},
      {4, kBF16, 300, 4096, false, 8, "peer bf16 two-shot rms store 512x1 by 4 lean", 75},
      {2, kF32, 1, 1024, false, 8, "peer f32 one-shot rms store 256x1 by 1", 1},
  };
  const std::byte weight{};
  for (const Golden& g : goldens) {
    PeerDesc desc = desc_of(g.ranks, g.dtype, 65536);
    desc.rings = 256;
    NormDesc norm;
    norm.rows = g.rows;
    norm.n = g.columns;
    norm.dtype = g.dtype;
    norm.weight.data = &weight;
    norm.weight.dtype = g.dtype;
    NormKey key;
    if (g.codes) {
      norm.quant.scheme = FASTNORM_QUANT_PER_TENSOR;
      norm.quant.dtype = Dtype::kF8E4M3;
      key.sink = Sink::kQuant;
    }
    PeerPlan plan = plan_peer_sum(desc, norm, key, false,
                                  cuda::table_of<cuda::PeerFamily>(cuda::kSm90), g.cluster_blocks);
    ASSERT_NE(plan.entry, nullptr) << g.kernel;
    EXPECT_STREQ(plan.entry->name, g.kernel);
    EXPECT_EQ(plan.rings, g.rings) << g.kernel;
    EXPECT_EQ(peer_variant_of(plan.entry->order).blocks, plan.entry->variant.blocks);
    // A ring that has two rows has no cluster.
    desc.rings = 1;
    norm.rows = 2;
    plan = plan_peer_sum(desc, norm, key, false, cuda::table_of<cuda::PeerFamily>(cuda::kSm90),
                         g.cluster_blocks);
    EXPECT_FALSE(plan.entry->variant.is_cluster()) << g.kernel;
    // What lean kernels leave out.
    norm.rounding = FASTNORM_ROUND_NORMALIZED;
    plan = plan_peer_sum(desc, norm, key, false, cuda::table_of<cuda::PeerFamily>(cuda::kSm90),
                         g.cluster_blocks);
    EXPECT_FALSE(plan.entry->variant.lean) << g.kernel;
  }
}

// One kernel for few tokens of aligned heads: the least tile that has the longest part.
TEST(PeerPlans, ShardedNormInOneKernel) {
  constexpr Dtype kF32 = Dtype::kF32, kF16 = Dtype::kF16, kBF16 = Dtype::kBF16;
  struct Golden {
    Dtype dtype;
    int64_t tokens, columns, second;  // 0: one part
    const char* kernel;               // nullptr: none
    int32_t rings;
  };
  const Golden goldens[] = {
      {kBF16, 1, 2048, 0, "peer bf16 sharded 256x1", 1},
      {kBF16, 256, 512, 2048, "peer bf16 sharded 256x1", 128},
      {kBF16, 257, 512, 0, nullptr, 0},
      {kF16, 7, 2056, 0, "peer f16 sharded 512x1", 7},
      {kF16, 7, 64, 4096, "peer f16 sharded 512x1", 7},
      {kBF16, 130, 4104, 512, "peer bf16 sharded 512x2", 128},
      {kF32, 3, 4096, 1024, "peer f32 sharded 512x2", 3},
      {kF32, 3, 4100, 0, nullptr, 0},
      {kBF16, 3, 8200, 0, nullptr, 0},
      {kBF16, 3, 2044, 0, nullptr, 0},
  };
  for (const Golden& g : goldens) {
    PeerDesc desc = desc_of(2, kF32, 64);  // the peer's dtype is not that of x
    desc.rings = 128;
    NormHeadsDesc apply;
    apply.tokens = g.tokens;
    apply.dtype = g.dtype;
    apply.count = g.second == 0 ? 1 : 2;
    for (int i = 0; i < apply.count; ++i) {
      const int64_t columns = i == 0 ? g.columns : g.second;
      NormHeadsPart& part = apply.parts[i];
      part.norm.dtype = g.dtype;
      part.heads = columns % 64 == 0 ? columns / 64 : 1;
      part.norm.n = columns / part.heads;
      part.head_stride = part.norm.n * dtype_bytes(g.dtype);
      part.token_stride = columns * dtype_bytes(g.dtype);
      part.across_heads = part.normalise = true;
    }
    const PeerPlan plan =
        plan_peer_sharded(desc, apply, cuda::table_of<cuda::PeerFamily>(cuda::kSm90));
    EXPECT_EQ(plan.is_sharded(), g.kernel != nullptr) << g.columns;
    if (g.kernel == nullptr) continue;
    ASSERT_NE(plan.entry, nullptr) << g.kernel;
    EXPECT_STREQ(plan.entry->name, g.kernel);
    EXPECT_EQ(plan.rings, g.rings) << g.kernel;
    EXPECT_EQ(plan.entry,
              &cuda::table_of<cuda::PeerFamily>(cuda::kSm90)[static_cast<size_t>(plan.index)]);
    // A head that begins between two vectors.
    apply.parts[0].head_stride += dtype_bytes(g.dtype);
    EXPECT_EQ(plan_peer_sharded(desc, apply, cuda::table_of<cuda::PeerFamily>(cuda::kSm90)).entry,
              nullptr);
  }
}

TEST(PeerWords, NoSentWordLooksEmpty) {
  EXPECT_EQ(peer_sent(0xffffffff), 0xfffffffeu);
  EXPECT_EQ(peer_sent(0xfffffffe), 0xfffffffeu);
  EXPECT_EQ(peer_sent(0x80000000), 0x80000000u);  // -0 stays -0
  EXPECT_EQ(peer_sent(0x80008000), 0x80008000u);
  EXPECT_EQ(peer_sent(0), 0u);
}

}  // namespace
}  // namespace fastnorm::test
