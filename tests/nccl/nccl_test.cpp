// libfastnorm_nccl over a library that only has NCCL's name: ranks are threads, and memory is the
// host's. Both ways of an all-reduce, sequence parallel, and what goes wrong.
#include "fastnorm/nccl.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "fastnorm/nccl.hpp"
#include "nccl/fake_nccl.h"
#include "support/nccl_functions.h"

namespace {

// FAKE_NCCL: the path of the library that pretends.
void* fake_library() {
  static void* const library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return library;
}
template <typename Function>
Function* fake(const char* name) {
  return reinterpret_cast<Function*>(dlsym(fake_library(), name));
}

fastnorm_nccl_functions functions() { return fastnorm::support::nccl_functions_of(fake_library()); }

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

struct Result {
  fastnorm_status status = FASTNORM_OK;
  std::string text;
};

// 256-byte aligned.
struct Room {
  explicit Room(uint64_t bytes) : memory(bytes + 256) {}
  void* at() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
  }
  std::vector<char> memory;
};

// The result of the call that this thread has just made.
Result result_of(fastnorm_status status) {
  return {status, status == FASTNORM_OK ? "" : fastnorm_nccl_last_error()};
}

// Ranks with a context, a communicator, a handle and a thread each.
class Ranks {
 public:
  // `together`: one thread creates all handles.
  Ranks(int ranks, fastnorm_dtype_id dtype, uint32_t flags, int64_t peer_bytes = 0,
        const std::function<void(int, fastnorm_nccl_options&)>& change = {}, bool together = false)
      : count(ranks),
        comms(static_cast<size_t>(ranks)),
        contexts(comms.size()),
        handles(comms.size()) {
    fake<void(int, int, void**)>("fake_nccl_create")(ranks, 0, comms.data());
    for (fastnorm_context*& context : contexts) {
      EXPECT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &context), FASTNORM_OK);
    }
    const auto options_of = [&](int r) {
      fastnorm_nccl_options options = {};
      options.struct_size = sizeof options;
      options.dtype = dtype;
      options.max_columns = 4096;
      options.flags = flags;
      options.peer_bytes = peer_bytes;
      if (change) change(r, options);
      return options;
    };
    if (together) {
      const fastnorm_nccl_options options = options_of(0);
      const std::vector<fastnorm_device> devices(comms.size(), {FASTNORM_DEVICE_CPU, 0});
      created.push_back(
          result_of(fastnorm_nccl_create_all(contexts.data(), devices.data(), comms.data(),
                                             &options, nullptr, ranks, handles.data())));
      return;
    }
    created = run([&](int r) {
      const fastnorm_nccl_options options = options_of(r);
      const auto at = static_cast<size_t>(r);
      return fastnorm_nccl_create(contexts[at], {FASTNORM_DEVICE_CPU, 0}, comms[at], &options,
                                  nullptr, &handles[at]);
    });
  }
  ~Ranks() {
    for (fastnorm_nccl* handle : handles) fastnorm_nccl_destroy(handle);
    for (fastnorm_context* context : contexts) fastnorm_context_destroy(context);
    fake<void(void* const*, int)>("fake_nccl_destroy")(comms.data(), count);
  }
  Ranks(const Ranks&) = delete;

  std::vector<Result> run(const std::function<fastnorm_status(int)>& body) {
    std::vector<Result> results(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int r = 0; r < count; ++r) {
      threads.emplace_back([&, r] { results[static_cast<size_t>(r)] = result_of(body(r)); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  // The ranks' calls, of a thread each or together.
  template <class Args, typename Query, typename Prepare, typename One, typename All>
  std::vector<Result> call(const std::vector<Args>& args, bool together, Query query,
                           Prepare prepare, One one, All all) {
    std::vector<Room> rooms;
    std::vector<const Args*> pointers;
    uint64_t bytes = 0;
    for (size_t r = 0; r < args.size(); ++r) {
      fastnorm_info info = {};
      info.struct_size = sizeof info;
      EXPECT_EQ(query(handles[r], &args[r], &info), FASTNORM_OK) << fastnorm_nccl_last_error();
      EXPECT_EQ(prepare(handles[r], &args[r]), FASTNORM_OK) << fastnorm_nccl_last_error();
      bytes = info.workspace_bytes;
      rooms.emplace_back(bytes);
      pointers.push_back(&args[r]);
    }
    if (!together) {
      return run([&](int r) {
        const auto at = static_cast<size_t>(r);
        return one(handles[at], &args[at], rooms[at].at(), bytes, nullptr);
      });
    }
    std::vector<void*> spaces;
    for (Room& room : rooms) spaces.push_back(room.at());
    return {result_of(all(handles.data(), pointers.data(), spaces.data(), bytes, nullptr, count))};
  }
  bool all_created() const {
    for (const Result& result : created) {
      EXPECT_EQ(result.status, FASTNORM_OK) << result.text;
      if (result.status != FASTNORM_OK) return false;
    }
    return true;
  }
  bool are_peers(int r) const {
    fastnorm_peer* peer = nullptr;
    EXPECT_EQ(fastnorm_nccl_peer(handles[static_cast<size_t>(r)], &peer), FASTNORM_OK);
    return peer != nullptr;
  }
  int calls(int r, int operation) const {
    return fake<int(void*, int)>("fake_nccl_calls")(comms[static_cast<size_t>(r)], operation);
  }

  const int count;
  std::vector<void*> comms;
  std::vector<fastnorm_context*> contexts;
  std::vector<fastnorm_nccl*> handles;
  std::vector<Result> created;
};

// A compact f32 tensor, or bytes.
class Array {
 public:
  Array() = default;
  Array(std::vector<int64_t> extents, fastnorm_dtype_id dtype = FASTNORM_DTYPE_F32)
      : shape_(std::move(extents)) {
    int64_t elements = 1;
    for (const int64_t extent : shape_) elements *= extent;
    tensor_.dtype = fastnorm_dtype_of(dtype);
    bytes.resize(static_cast<size_t>(elements * tensor_.dtype.bits / 8));
    tensor_.device_type = FASTNORM_DEVICE_CPU;
  }
  const fastnorm_tensor* tensor() {
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.shape = shape_.data();
    tensor_.data = bytes.data();
    return &tensor_;
  }
  void fill(int seed) {
    for (size_t i = 0; i < bytes.size() / 4; ++i) {
      const float value =
          static_cast<float>((static_cast<int>(i) * 37 + seed * 101) % 211 - 105) / 16;
      std::memcpy(bytes.data() + i * 4, &value, 4);
    }
  }

  std::vector<char> bytes;

 private:
  std::vector<int64_t> shape_;
  fastnorm_tensor tensor_ = {};
};

// Sums of f32 tensors in rank order.
Array sum_of(const std::vector<Array>& parts, const std::vector<int64_t>& shape) {
  Array sum(shape);
  for (size_t i = 0; i < sum.bytes.size(); i += 4) {
    float total = 0, value = 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      std::memcpy(&value, parts[r].bytes.data() + i, 4);
      total = r == 0 ? value : total + value;
    }
    std::memcpy(sum.bytes.data() + i, &total, 4);
  }
  return sum;
}

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    const fastnorm_nccl_functions f = functions();
    ASSERT_EQ(fastnorm_nccl_set_functions(&f), FASTNORM_OK) << fastnorm_nccl_last_error();
  }
};

// First, before anything else has loaded the library that pretends.
TEST(NcclFirst, TheLoadedCopyIsFound) {
  int32_t version = 0;
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    EXPECT_EQ(fastnorm_nccl_version(&version), FASTNORM_ERROR_UNSUPPORTED);
    EXPECT_TRUE(has(fastnorm_nccl_last_error(), "libnccl.so.2 is not loaded and cannot be"))
        << fastnorm_nccl_last_error();
    ASSERT_NE(fake_library(), nullptr);
    ASSERT_EQ(fastnorm_nccl_version(&version), FASTNORM_OK) << fastnorm_nccl_last_error();
    EXPECT_EQ(version, 22809);
    // Real functions do not serve the memory of a CPU.
    Ranks ranks(1, FASTNORM_DTYPE_F32, 0);
    EXPECT_EQ(ranks.created[0].status, FASTNORM_ERROR_UNSUPPORTED);
    EXPECT_TRUE(has(ranks.created[0].text, "NCCL is for CUDA")) << ranks.created[0].text;
  } else {
    EXPECT_EQ(fastnorm_nccl_version(&version), FASTNORM_OK);
    EXPECT_GT(version, 2000);
  }
  EXPECT_EQ(fastnorm_nccl_version(nullptr), FASTNORM_ERROR_ARGUMENT);
}

// By peers, by NCCL, and with a limit between the two: the same bits, as sums are exact here.
TEST_F(Nccl, BothWaysOfAnAllReduce) {
  const std::vector<int64_t> shape = {6, 40};
  for (const int count : {2, 3}) {
    for (const bool quantised : {false, true}) {
      // 0: peers. 1: NCCL. 2: peers, but not for so many bytes. 3: NCCL, called by one thread.
      for (const int way : {0, 1, 2, 3}) {
        const bool no_peers = way == 1 || way == 3, together = way == 3;
        Ranks ranks(count, FASTNORM_DTYPE_F32, no_peers ? FASTNORM_NCCL_NO_PEERS : 0,
                    way == 2 ? 6 * 40 * 4 - 1 : 0, {}, together);
        ASSERT_TRUE(ranks.all_created());
        const auto size = static_cast<size_t>(count);
        std::vector<Array> x(size, Array(shape)), y(size, Array(shape)), h(size, Array(shape)),
            codes(size, Array(shape, FASTNORM_DTYPE_F8_E4M3FN)), scale(size, Array({6}));
        Array residual(shape), weight({40});
        residual.fill(9), weight.fill(10);
        std::vector<fastnorm_quant> quants(size);
        const auto set = [&](fastnorm_norm_args& args, size_t i) {
          args.struct_size = sizeof args;
          args.eps = 1e-5f;
          args.weight_offset = 1;
          args.residual = residual.tensor();
          args.residual_out = h[i].tensor();
          args.weight = weight.tensor();
          args.y = y[i].tensor();
          if (!quantised) return;
          fastnorm_quant& quant = quants[i];
          quant = {};
          quant.struct_size = sizeof quant;
          quant.scheme = FASTNORM_QUANT_PER_ROW;
          quant.quantized = codes[i].tensor();
          quant.scale = scale[i].tensor();
          args.quant = &quant;
        };
        for (size_t r = 0; r < size; ++r) x[r].fill(static_cast<int>(r));
        std::vector<fastnorm_peer_allreduce_norm_args> args(size);
        std::vector<fastnorm_norm_args> norms(size);
        for (size_t r = 0; r < size; ++r) {
          set(norms[r], r);
          norms[r].x = x[r].tensor();
          args[r].struct_size = sizeof args[r];
          args[r].norm = &norms[r];
        }
        const auto results =
            ranks.call(args, together, fastnorm_nccl_allreduce_norm_query,
                       fastnorm_nccl_allreduce_norm_prepare, fastnorm_nccl_allreduce_norm,
                       fastnorm_nccl_allreduce_norm_all);
        for (const Result& result : results) ASSERT_EQ(result.status, FASTNORM_OK) << result.text;
        EXPECT_EQ(ranks.are_peers(0), !no_peers);
        EXPECT_EQ(ranks.calls(0, FAKE_ALL_REDUCE), way == 0 ? 0 : 1);
        const std::vector<Array> found_y = y, found_h = h, found_codes = codes, found_scale = scale;
        Array sum = sum_of(x, shape);
        fastnorm_norm_args norm = {};
        set(norm, 0);
        norm.x = sum.tensor();
        ASSERT_EQ(fastnorm_norm(ranks.contexts[0], &norm, nullptr, 0, nullptr), FASTNORM_OK);
        for (size_t r = 0; r < size; ++r) {
          EXPECT_EQ(found_y[r].bytes, y[0].bytes) << "way " << way;
          EXPECT_EQ(found_h[r].bytes, h[0].bytes) << "way " << way;
          EXPECT_EQ(found_codes[r].bytes, codes[0].bytes) << "way " << way;
          EXPECT_EQ(found_scale[r].bytes, scale[0].bytes) << "way " << way;
        }
      }
    }
  }
}

TEST_F(Nccl, SequenceParallel) {
  const std::vector<int64_t> shape = {6, 32}, local = {2, 32};
  for (const int way : {0, 1, 2, 3}) {
    const int gather = way % 2;
    const bool together = way >= 2;
    Ranks ranks(3, FASTNORM_DTYPE_F32, 0, 0, {}, together);
    ASSERT_TRUE(ranks.all_created());
    EXPECT_TRUE(ranks.are_peers(2));
    std::vector<Array> x(3, Array(shape)), y(3, Array(shape)), h(3, Array(local)),
        residual(3, Array(local)), codes(3, Array(shape, FASTNORM_DTYPE_F8_E4M3FN)),
        scale(3, Array({6, 1}, FASTNORM_DTYPE_F8_E8M0FNU));
    Array weight({32}), all_residual(shape);
    weight.fill(3), all_residual.fill(4);
    for (size_t r = 0; r < 3; ++r) {
      x[r].fill(static_cast<int>(r) + 5);
      std::memcpy(residual[r].bytes.data(), all_residual.bytes.data() + r * 256, 256);
      y[r].bytes.assign(y[r].bytes.size(), 0x55);
    }
    const auto set = [&](fastnorm_norm_args& args, fastnorm_quant& quant, size_t i) {
      args.struct_size = sizeof args;
      args.eps = 1e-5f;
      args.weight = weight.tensor();
      args.y = y[i].tensor();
      quant.struct_size = sizeof quant;
      quant.scheme = FASTNORM_QUANT_MXFP8;
      quant.quantized = codes[i].tensor();
      quant.scale = scale[i].tensor();
      args.quant = &quant;
    };
    std::vector<fastnorm_quant> quants(3);
    std::vector<fastnorm_norm_args> norms(3);
    std::vector<fastnorm_nccl_sequence_norm_args> args(3);
    for (size_t r = 0; r < 3; ++r) {
      set(norms[r], quants[r], r);
      norms[r].x = x[r].tensor();
      norms[r].residual = residual[r].tensor();
      norms[r].residual_out = h[r].tensor();
      args[r].struct_size = sizeof args[r];
      args[r].norm = &norms[r];
      args[r].gather = gather;
    }
    const auto results = ranks.call(args, together, fastnorm_nccl_sequence_norm_query,
                                    fastnorm_nccl_sequence_norm_prepare,
                                    fastnorm_nccl_sequence_norm, fastnorm_nccl_sequence_norm_all);
    for (const Result& result : results) ASSERT_EQ(result.status, FASTNORM_OK) << result.text;
    EXPECT_EQ(ranks.calls(1, FAKE_REDUCE_SCATTER), 1);
    EXPECT_EQ(ranks.calls(1, FAKE_ALL_GATHER), 2 + 3 * gather);  // two at creation
    Array sum = sum_of(x, shape), all_y(shape), all_h(shape),
          all_codes(shape, FASTNORM_DTYPE_F8_E4M3FN), all_scale({6, 1}, FASTNORM_DTYPE_F8_E8M0FNU);
    fastnorm_norm_args norm = {};
    fastnorm_quant quant = {};
    set(norm, quant, 0);
    norm.x = sum.tensor();
    norm.residual = all_residual.tensor();
    norm.residual_out = all_h.tensor();
    norm.y = all_y.tensor();
    quant.quantized = all_codes.tensor();
    quant.scale = all_scale.tensor();
    ASSERT_EQ(fastnorm_norm(ranks.contexts[0], &norm, nullptr, 0, nullptr), FASTNORM_OK);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(std::memcmp(h[r].bytes.data(), all_h.bytes.data() + r * 256, 256), 0);
      EXPECT_EQ(std::memcmp(y[r].bytes.data() + r * 256, all_y.bytes.data() + r * 256, 256), 0);
      if (gather == 1) {
        EXPECT_EQ(y[r].bytes, all_y.bytes);
        EXPECT_EQ(codes[r].bytes, all_codes.bytes);
        EXPECT_EQ(scale[r].bytes, all_scale.bytes);
      } else {
        const std::vector<char> others(256, 0x55);
        EXPECT_EQ(std::memcmp(y[r].bytes.data() + (r + 1) % 3 * 256, others.data(), 256), 0);
      }
    }
  }
}

// Where one rank cannot, none are peers; where options differ, nobody gets a handle.
TEST_F(Nccl, RanksAgree) {
  Ranks differ(2, FASTNORM_DTYPE_F32, 0, 0,
               [](int r, fastnorm_nccl_options& o) { o.max_columns = 100 + r; });
  for (const Result& result : differ.created) {
    EXPECT_EQ(result.status, FASTNORM_ERROR_ARGUMENT);
    EXPECT_TRUE(has(result.text, "max_columns")) << result.text;
  }
  for (const fastnorm_nccl* handle : differ.handles) EXPECT_EQ(handle, nullptr);
  Ranks wrong(2, FASTNORM_DTYPE_F32, 0, 0,
              [](int r, fastnorm_nccl_options& o) { o.rings = r == 0 ? 0 : 1000; });
  EXPECT_EQ(wrong.created[0].status, FASTNORM_ERROR_ARGUMENT);
  EXPECT_TRUE(has(wrong.created[0].text, "another rank")) << wrong.created[0].text;
  EXPECT_TRUE(has(wrong.created[1].text, "options.rings is 1000")) << wrong.created[1].text;
  Ranks one(2, FASTNORM_DTYPE_F32, 0, 0, [](int r, fastnorm_nccl_options& o) {
    if (r == 1) o.flags = FASTNORM_NCCL_NO_PEERS;
  });
  ASSERT_TRUE(one.all_created());
  EXPECT_FALSE(one.are_peers(0));
  EXPECT_FALSE(one.are_peers(1));
  Ranks many(9, FASTNORM_DTYPE_F32, 0);
  ASSERT_TRUE(many.all_created());
  EXPECT_FALSE(many.are_peers(8));
  Ranks fixed(2, FASTNORM_DTYPE_F32, FASTNORM_NCCL_NO_PEERS | FASTNORM_NCCL_FIXED_ORDER);
  for (const Result& result : fixed.created)
    EXPECT_EQ(result.status, FASTNORM_ERROR_UNSUPPORTED) << result.text;
}

void expect_refused(fastnorm_status found, fastnorm_status wanted, const char* text) {
  EXPECT_EQ(found, wanted) << fastnorm_nccl_last_error();
  EXPECT_TRUE(has(fastnorm_nccl_last_error(), text)) << fastnorm_nccl_last_error();
}

// What is said of an x of 2^80 elements.
constexpr char kHugeX[] =
    "x.shape[1] is 1099511627776; required: a shape of fewer than 2^63 elements";

TEST_F(Nccl, Refusals) {
  Ranks ranks(2, FASTNORM_DTYPE_F32, FASTNORM_NCCL_NO_PEERS);
  ASSERT_TRUE(ranks.all_created());
  fastnorm_nccl* const handle = ranks.handles[0];
  Array x({4, 8}), y({4, 8}), other({4, 8}, FASTNORM_DTYPE_BF16);
  fastnorm_norm_args of_args = {};
  of_args.struct_size = sizeof of_args;
  of_args.x = x.tensor(), of_args.y = y.tensor();
  fastnorm_peer_allreduce_norm_args args = {};
  args.struct_size = sizeof args;
  args.norm = &of_args;
  Room room(1024);
  const auto run = [&](size_t bytes = 1024) {
    return fastnorm_nccl_allreduce_norm(handle, &args, room.at(), bytes, nullptr);
  };
  expect_refused(run(127), FASTNORM_ERROR_ARGUMENT,
                 "workspace_bytes is 127; required: at least 256");
  args.sum_rounding = FASTNORM_PEER_SUM_EXACT;
  expect_refused(run(), FASTNORM_ERROR_UNSUPPORTED, "sum_rounding is 1");
  args.sum_rounding = FASTNORM_PEER_SUM_ROUNDED;
  of_args.x = other.tensor();
  expect_refused(run(), FASTNORM_ERROR_DTYPE, "norm.x.dtype is");
  fastnorm_tensor apart = *x.tensor();
  const int64_t strides[] = {16, 1};
  apart.strides = strides;
  of_args.x = &apart;
  expect_refused(run(), FASTNORM_ERROR_LAYOUT, "norm.x has strides");
  of_args.x = nullptr;
  expect_refused(run(), FASTNORM_ERROR_ARGUMENT, "norm.x is NULL");
  // 2^80 elements, and none where the other dimensions are as long.
  fastnorm_tensor huge = *x.tensor();
  const int64_t huge_shape[] = {int64_t{1} << 40, int64_t{1} << 40},
                empty_shape[] = {int64_t{1} << 40, 0, int64_t{1} << 40, int64_t{1} << 40, 8},
                no_strides[] = {0, 0, 0, 0, 0};
  huge.shape = huge_shape;
  of_args.x = &huge;
  expect_refused(run(), FASTNORM_ERROR_SHAPE, (std::string("norm.") + kHugeX).c_str());
  fastnorm_tensor empty = *x.tensor();
  empty.shape = empty_shape;
  empty.ndim = 5;
  of_args.x = of_args.y = &empty;
  for (const int64_t* const of : {static_cast<const int64_t*>(nullptr), no_strides}) {
    empty.strides = of;
    EXPECT_EQ(run(), FASTNORM_OK) << fastnorm_nccl_last_error();
  }
  of_args.x = x.tensor(), of_args.y = y.tensor();
  of_args.eps = -1;
  expect_refused(run(), FASTNORM_ERROR_ARGUMENT, "norm.eps is -1");
  of_args.eps = 0;
  of_args.group_size = 4;
  expect_refused(run(), FASTNORM_ERROR_UNSUPPORTED, "norm.group_size is given");
  of_args.group_size = 0;
  of_args.flags = FASTNORM_NORM_ALPHA;
  expect_refused(run(), FASTNORM_ERROR_UNSUPPORTED, "norm.flags is 0x10");
  of_args.flags = 0;
  args.norm = nullptr;
  expect_refused(run(), FASTNORM_ERROR_ARGUMENT, "norm is NULL");
  args.norm = &of_args;
  args.peer = reinterpret_cast<fastnorm_peer*>(&room);
  expect_refused(run(), FASTNORM_ERROR_ARGUMENT, "required: NULL, as the handle has its own");
  args.peer = nullptr;
  args.struct_size = sizeof args + 8;
  expect_refused(run(), FASTNORM_ERROR_UNSUPPORTED, "args.struct_size");
  args.struct_size = sizeof args;
  expect_refused(fastnorm_nccl_allreduce_norm(nullptr, &args, nullptr, 0, nullptr),
                 FASTNORM_ERROR_ARGUMENT, "handle is NULL");
  // NCCL's own words. It never meets the other rank.
  fake<void(void*, int)>("fake_nccl_fail")(ranks.comms[0], FAKE_ALL_REDUCE);
  expect_refused(run(), FASTNORM_ERROR_DEVICE, "ncclAllReduce: invalid argument (4)");
}

TEST_F(Nccl, RefusalsOfSequences) {
  Ranks ranks(2, FASTNORM_DTYPE_F32, FASTNORM_NCCL_NO_PEERS);
  ASSERT_TRUE(ranks.all_created());
  Array x({4, 8}), y({4, 8});
  Room room(1024);
  fastnorm_norm_args norm = {};
  norm.struct_size = sizeof norm;
  norm.x = x.tensor(), norm.y = y.tensor();
  fastnorm_nccl_sequence_norm_args sequence = {};
  sequence.struct_size = sizeof sequence;
  const auto run_sequence = [&] {
    return fastnorm_nccl_sequence_norm(ranks.handles[0], &sequence, room.at(), 1024, nullptr);
  };
  expect_refused(run_sequence(), FASTNORM_ERROR_ARGUMENT, "args.norm is NULL");
  sequence.norm = &norm;
  sequence.gather = 2;
  expect_refused(run_sequence(), FASTNORM_ERROR_ARGUMENT, "args.gather is 2");
  sequence.gather = 1;
  Array odd({3, 8});
  norm.x = odd.tensor();
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE,
                 "3 tokens; required: at least 2, and a multiple");
  norm.x = x.tensor();
  norm.y = odd.tensor();
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE, "y has 3 tokens; required: 4");
  fastnorm_tensor huge = *x.tensor();
  const int64_t huge_shape[] = {int64_t{1} << 40, int64_t{1} << 40};
  huge.shape = huge_shape;
  norm.x = &huge;
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE, kHugeX);
  norm.x = x.tensor();
  const int64_t huge_rows[] = {4, int64_t{1} << 40, int64_t{1} << 40}, negative_rows[] = {4, -8};
  huge.ndim = 3;
  huge.shape = huge_rows;
  norm.y = &huge;
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE,
                 "y.shape[2] is 1099511627776; required: a shape of fewer than 2^63 elements");
  huge.ndim = 2;
  huge.shape = negative_rows;
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE, "y.shape[1] is -8; required: >= 0");
  norm.y = y.tensor();
  norm.residual = y.tensor();  // of all tokens
  expect_refused(run_sequence(), FASTNORM_ERROR_SHAPE, "residual");
  norm.residual = nullptr;
  Array amax({1});
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  quant.amax = amax.tensor();
  norm.quant = &quant;
  expect_refused(run_sequence(), FASTNORM_ERROR_UNSUPPORTED, "quant.amax is given");
}

// Several ranks of one thread: what is refused names the rank, and nothing is sent.
TEST_F(Nccl, RefusalsTogether) {
  Ranks ranks(2, FASTNORM_DTYPE_F32, FASTNORM_NCCL_NO_PEERS, 0, {}, true);
  ASSERT_TRUE(ranks.all_created());
  Array x({4, 8}), y({4, 8}), less({2, 8});
  std::vector<fastnorm_peer_allreduce_norm_args> args(2);
  std::vector<fastnorm_norm_args> norms(2);
  for (size_t i = 0; i < 2; ++i) {
    norms[i].struct_size = sizeof norms[i], norms[i].x = x.tensor(), norms[i].y = y.tensor();
    args[i].struct_size = sizeof args[i], args[i].norm = &norms[i];
  }
  const fastnorm_peer_allreduce_norm_args* const pointers[] = {&args[0], &args[1]};
  Room room(1024), second(1024);
  void* const spaces[] = {room.at(), second.at()};
  const auto run = [&](int32_t count = 2) {
    return fastnorm_nccl_allreduce_norm_all(ranks.handles.data(), pointers, spaces, 1024, nullptr,
                                            count);
  };
  const auto expect = [&](fastnorm_status found, fastnorm_status wanted, const char* text) {
    EXPECT_EQ(found, wanted);
    EXPECT_TRUE(has(fastnorm_nccl_last_error(), text)) << fastnorm_nccl_last_error();
  };
  expect(run(0), FASTNORM_ERROR_ARGUMENT, "count is 0; required: >= 1");
  norms[1].eps = -1;
  expect(run(), FASTNORM_ERROR_ARGUMENT, "args[1]: ");
  norms[1].eps = 0;
  norms[1].x = less.tensor(), norms[1].y = less.tensor();
  expect(run(), FASTNORM_ERROR_SHAPE, "args[1].norm.x has another size than args[0].norm.x");
  expect(fastnorm_nccl_allreduce_norm_all(nullptr, pointers, spaces, 1024, nullptr, 2),
         FASTNORM_ERROR_ARGUMENT, "handles is NULL");
  expect(fastnorm_nccl_allreduce_norm_all(ranks.handles.data(), nullptr, spaces, 1024, nullptr, 2),
         FASTNORM_ERROR_ARGUMENT, "args is NULL");
  EXPECT_EQ(ranks.calls(0, FAKE_ALL_REDUCE), 0);

  fastnorm_nccl_options options = {};
  options.struct_size = sizeof options;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = 16;
  const fastnorm_device devices[] = {{FASTNORM_DEVICE_CPU, 0}, {FASTNORM_DEVICE_CPU, 0}};
  void* const comms[] = {ranks.comms[0], nullptr};
  fastnorm_nccl* handles[2] = {};
  const auto create = [&](fastnorm_context* const* contexts, int32_t count) {
    return fastnorm_nccl_create_all(contexts, devices, comms, &options, nullptr, count, handles);
  };
  expect(create(ranks.contexts.data(), 2), FASTNORM_ERROR_ARGUMENT, "rank[1]: comm is NULL");
  expect(create(ranks.contexts.data(), 0), FASTNORM_ERROR_ARGUMENT, "count is 0");
  expect(create(nullptr, 2), FASTNORM_ERROR_ARGUMENT, "contexts is NULL");
  EXPECT_EQ(handles[0], nullptr);

  // Peers on a CPU meet, which one thread cannot.
  Ranks peers(2, FASTNORM_DTYPE_F32, 0, 0, {}, true);
  ASSERT_TRUE(peers.all_created());
  norms[1].x = x.tensor(), norms[1].y = y.tensor();
  expect(fastnorm_nccl_allreduce_norm_all(peers.handles.data(), pointers, spaces, 1024, nullptr, 2),
         FASTNORM_ERROR_UNSUPPORTED, "2 ranks are peers on a CPU");
}

// The C++ layer: handles of one thread and of a thread each, their calls, and errors.
TEST_F(Nccl, Cpp) {
  void* comms[2] = {};
  fake<void(int, int, void**)>("fake_nccl_create")(2, 0, comms);
  EXPECT_EQ(fastnorm::nccl_version(), 22809);
  const fastnorm::context context(fastnorm::cpu());
  fastnorm::nccl_options options;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = 16;
  const auto ranks_of = [&](void* second) -> std::vector<fastnorm::nccl_rank> {
    return {{context.get(), fastnorm::cpu(), comms[0], nullptr},
            {context.get(), fastnorm::cpu(), second, nullptr}};
  };
  try {
    fastnorm::nccl_create_all(ranks_of(nullptr), options);
    ADD_FAILURE() << "a communicator that is missing";
  } catch (const fastnorm::error& e) {
    EXPECT_EQ(e.status(), FASTNORM_ERROR_ARGUMENT);
    EXPECT_STREQ(e.what(),
                 "FASTNORM_ERROR_ARGUMENT: rank[1]: comm is NULL; required: an ncclComm_t");
    EXPECT_EQ(e.device_error(), 0);
  }
  const auto filled = [](int seed, std::vector<int64_t> shape) {
    Array array(std::move(shape));
    array.fill(seed);
    return array;
  };
  std::vector<Array> x = {filled(1, {4, 8}), filled(2, {4, 8})}, y(2, Array({4, 8}));
  Array sum = sum_of(x, {4, 8}), wanted({4, 8});
  fastnorm::norm_args norm;
  norm.x = sum.tensor(), norm.y = wanted.tensor();
  fastnorm::norm(context, norm);
  std::vector<fastnorm::peer_allreduce_norm_args> args(2);
  std::vector<fastnorm::norm_args> norms(2);
  std::vector<fastnorm::nccl_sequence_norm_args> sequence(2);
  for (size_t r = 0; r < 2; ++r) {
    norms[r].x = x[r].tensor();
    norms[r].y = y[r].tensor();
    args[r].norm = &norms[r];
    sequence[r].norm = &norms[r];
    sequence[r].gather = 1;
  }
  const auto take = [&](const char* what) {
    for (Array& own : y) {
      EXPECT_EQ(own.bytes, wanted.bytes) << what;
      own.bytes.assign(own.bytes.size(), 0x55);
    }
  };
  std::vector<Room> rooms = {Room(1024), Room(1024)};
  const auto on_all = [&](const std::function<void(size_t)>& body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
  };

  // A thread each, and peers.
  std::vector<fastnorm::nccl> ranks(2);
  on_all([&](size_t r) {
    fastnorm::nccl made(context, fastnorm::cpu(), comms[r], options);
    ranks[r] = std::move(made);
    EXPECT_FALSE(made);
    EXPECT_NE(ranks[r].peer(), nullptr);
    const fastnorm_info info = ranks[r].allreduce_norm_query(args[r]);
    ASSERT_LE(info.workspace_bytes, 1024);
    ranks[r].allreduce_norm_prepare(args[r]);
    ranks[r].allreduce_norm(args[r], rooms[r].at(), info.workspace_bytes);
  });
  take("a thread each");
  on_all([&](size_t r) {
    const fastnorm_info info = ranks[r].sequence_norm_query(sequence[r]);
    EXPECT_EQ(info.workspace_bytes, 256);
    ranks[r].sequence_norm_prepare(sequence[r]);
    ranks[r].sequence_norm(sequence[r], rooms[r].at(), info.workspace_bytes);
  });
  take("sequence parallel");

  // One thread, and NCCL.
  options.flags = FASTNORM_NCCL_NO_PEERS;
  ranks = fastnorm::nccl_create_all(ranks_of(comms[1]), options);
  ASSERT_EQ(ranks.size(), 2);
  EXPECT_EQ(ranks[0].peer(), nullptr);
  fastnorm::nccl_allreduce_norm_all({{ranks[0].get(), &args[0], rooms[0].at(), nullptr},
                                     {ranks[1].get(), &args[1], rooms[1].at(), nullptr}},
                                    256);
  take("one thread");
  fastnorm::nccl_sequence_norm_all({{ranks[0].get(), &sequence[0], rooms[0].at(), nullptr},
                                    {ranks[1].get(), &sequence[1], rooms[1].at(), nullptr}},
                                   256);
  take("sequence parallel of one thread");

  // A failure of NCCL's, and one of libfastnorm's.
  const auto refused = [&](const char* text) {
    try {
      ranks[0].allreduce_norm(args[0], rooms[0].at(), 256);
      ADD_FAILURE() << "no error: " << text;
    } catch (const fastnorm::error& e) {
      EXPECT_TRUE(has(e.what(), text)) << e.what();
    }
  };
  fake<void(void*, int)>("fake_nccl_fail")(comms[0], FAKE_ALL_REDUCE);
  refused("FASTNORM_ERROR_DEVICE: ncclAllReduce: invalid argument (4)");
  norms[0].eps = -1;
  refused("FASTNORM_ERROR_ARGUMENT: norm.eps is -1");
  fastnorm_nccl_functions none = {};
  none.struct_size = sizeof none;
  EXPECT_THROW(fastnorm::nccl_set_functions(&none), fastnorm::error);
  ranks.clear();
  fake<void(void* const*, int)>("fake_nccl_destroy")(comms, 2);
}

TEST(NcclFunctions, MustBeThere) {
  fastnorm_nccl_functions f = functions();
  f.all_gather = nullptr;
  EXPECT_EQ(fastnorm_nccl_set_functions(&f), FASTNORM_ERROR_ARGUMENT);
  EXPECT_TRUE(has(fastnorm_nccl_last_error(), "functions.all_gather is NULL"))
      << fastnorm_nccl_last_error();
  f = functions();
  f.struct_size = 8;
  EXPECT_EQ(fastnorm_nccl_set_functions(&f), FASTNORM_ERROR_ARGUMENT);
  EXPECT_EQ(fastnorm_nccl_set_functions(nullptr), FASTNORM_OK);
}

// An exception has a text of its own, whatever failed before.
TEST(NcclFunctions, MayThrow) {
  int32_t version = 0;
  fastnorm_nccl_functions f = functions();
  const auto expect = [&](fastnorm_status wanted, const char* text) {
    EXPECT_EQ(fastnorm_nccl_version(nullptr), FASTNORM_ERROR_ARGUMENT);
    ASSERT_EQ(fastnorm_nccl_set_functions(&f), FASTNORM_OK) << fastnorm_nccl_last_error();
    EXPECT_EQ(fastnorm_nccl_version(&version), wanted);
    EXPECT_STREQ(fastnorm_nccl_last_error(), text);
  };
  f.get_version = [](int*) -> int { throw std::bad_alloc(); };
  expect(FASTNORM_ERROR_OUT_OF_MEMORY, "host memory ran out");
  f.get_version = [](int*) -> int { throw 1; };
  expect(FASTNORM_ERROR_INTERNAL, "an exception reached the API");
  EXPECT_EQ(fastnorm_nccl_set_functions(nullptr), FASTNORM_OK);
}

}  // namespace
