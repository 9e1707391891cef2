// The CPU as a device: description, options, the caller's loop, the floating-point mode.
#include "core/backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <thread>
#include <vector>

#include "cpu/common/fp_mode.h"
#include "cpu/common/machine.h"
#include "cpu/isa.h"
#include "unit/cpu/environment.h"
#include "unit/cpu/odd_modes.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kRows = 600, kColumns = 520;  // several ranges

fastnorm_context_options default_options() {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  return options;
}

std::unique_ptr<Device> make_device(const fastnorm_context_options& options) {
  std::unique_ptr<Device> device;
  Error error;
  EXPECT_EQ(cpu_backend().create(0, options, &device, error), FASTNORM_OK) << error.text;
  return device;
}

// f32 rows with a weight.
struct Data {
  std::vector<float> x = std::vector<float>(kRows * kColumns), y = x,
                     weight = std::vector<float>(kColumns);
  NormDesc desc;

  Data() {
    uint32_t state = 1;
    for (float& f : x) {
      state = state * 1664525 + 1013904223;
      f = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    }
    x[3] = 0x1p-140f;  // subnormal, and so is its square's neighbourhood
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = 1.0f + static_cast<float>(i) / 1024;
    desc.rows = desc.outer[0] = kRows;
    desc.n = kColumns;
    desc.eps = 1e-6f;
    desc.inv_n = 1.0f / static_cast<float>(kColumns);
    desc.x = rows(x);
    desc.y = rows(y);
    desc.weight = {reinterpret_cast<const std::byte*>(weight.data()), 0, {}, Dtype::kF32};
  }

  static RowTensor rows(std::vector<float>& v) {
    RowTensor t;
    t.data = reinterpret_cast<std::byte*>(v.data());
    t.stride_bytes[0] = kColumns * 4;
    t.dtype = Dtype::kF32;
    return t;
  }

  fastnorm_status run(Device& device, Error& error) {
    NormPlan plan;
    const fastnorm_status planned =
        make_plan(desc, device.facts, device.table<NormEntry>(), &plan, error);
    if (planned != FASTNORM_OK) return planned;
    const NormCall call{&desc, &plan};
    return device.run(std::span(&call, 1), nullptr, nullptr, error);
  }
  std::vector<float> run(Device& device) {
    y.assign(y.size(), -1.0f);
    Error error;
    EXPECT_EQ(run(device, error), FASTNORM_OK) << error.text;
    return y;
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST(CpuBackend, OneDevice) {
  EXPECT_EQ(cpu_backend().device_count(), 1);
  std::unique_ptr<Device> device;
  fastnorm_device_info info = {};
  Error error;
  for (const int32_t id : {-1, 1}) {
    EXPECT_EQ(cpu_backend().describe(id, &info, error), FASTNORM_ERROR_DEVICE);
    EXPECT_EQ(cpu_backend().create(id, default_options(), &device, error), FASTNORM_ERROR_DEVICE);
    EXPECT_EQ(std::string(error.text),
              "device.device_id is " + std::to_string(id) + "; required: 0, the CPU is one device");
  }
}

TEST(CpuBackend, Description) {
  fastnorm_device_info info = {};
  Error error;
  const Variable unforced("FASTNORM_CPU_ISA", nullptr);
  ASSERT_EQ(cpu_backend().describe(0, &info, error), FASTNORM_OK) << error.text;
  EXPECT_GT(std::strlen(info.name), 2u);
  EXPECT_GE(info.multiprocessors, 1);
  EXPECT_LE(info.multiprocessors, sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_GE(info.l2_bytes, 128u << 10);
  EXPECT_LE(info.l2_bytes, 64u << 20);
  const Variable forced("FASTNORM_CPU_ISA", "scalar");
  ASSERT_EQ(cpu_backend().describe(0, &info, error), FASTNORM_OK) << error.text;
  EXPECT_STREQ(info.kernel_arch, "scalar");
}

TEST(CpuBackend, KernelSetsAndBuildInfoNameEveryLevel) {
  const auto sets = cpu_backend().kernel_sets();
  const auto built = cpu::built_isas();
  ASSERT_EQ(sets.size(), built.size());
  std::string line = "cpu:";
  for (size_t i = 0; i < sets.size(); ++i) {
    EXPECT_STREQ(sets[i].arch, built[i].name);
    EXPECT_STREQ(sets[i].families[0].family, "norm");
    EXPECT_EQ(sets[i].families[0].names.size(), 36u);
    line += std::string(" ") + built[i].name;
  }
  EXPECT_EQ(cpu_backend().build_info(), line + "\n");
}

TEST(CpuBackend, ABadForcedLevelFailsCreation) {
  const Variable forced("FASTNORM_CPU_ISA", "mmx");
  std::unique_ptr<Device> device;
  Error error;
  EXPECT_EQ(cpu_backend().create(0, default_options(), &device, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_EQ(device, nullptr);
  EXPECT_EQ(std::string(error.text)
                .find("the environment variable FASTNORM_CPU_ISA is \"mmx\"; available: scalar"),
            0u)
      << error.text;
}

TEST(CpuBackend, LogNamesTheLevel) {
  struct Log {
    static void write(void* user, int32_t level, const char* text) {
      *static_cast<std::string*>(user) += std::to_string(level) + " " + text + "\n";
    }
  };
  const Variable forced("FASTNORM_CPU_ISA", "scalar");
  std::string log;
  fastnorm_context_options options = default_options();
  options.log = Log::write;
  options.log_user = &log;
  options.num_threads = 2;
  make_device(options);
  EXPECT_EQ(log.find("2 CPU: kernels scalar, 2 threads, L2 "), 0u) << log;
}

TEST(CpuBackend, FactsOfTheOptions) {
  fastnorm_context_options options = default_options();
  EXPECT_EQ(make_device(options)->facts.threads, 1);
  options.num_threads = 7;
  EXPECT_EQ(make_device(options)->facts.threads, 7);
  EXPECT_EQ(make_device(options)->facts.l2_bytes, cpu::l2_bytes());
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    if (isa.isa > cpu::machine_features().best) continue;
    const Variable forced("FASTNORM_CPU_ISA", isa.name);
    EXPECT_EQ(make_device(options)->facts.vector_bytes, isa.vector_bytes);
  }
}

TEST(CpuBackend, ADryRunTouchesNothing) {
  fastnorm_context_options options = default_options();
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  const auto device = make_device(options);
  Data data;
  for (const float f : data.run(*device)) ASSERT_EQ(f, -1.0f);
}

TEST(CpuBackend, SameBitsOnAnyNumberOfThreads) {
  Data data;
  const std::vector<float> wanted = data.run(*make_device(default_options()));
  for (const int32_t threads : {2, 3, 16}) {
    fastnorm_context_options options = default_options();
    options.num_threads = threads;
    const auto device = make_device(options);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(same(data.run(*device), wanted)) << threads;
  }
}

// ---- The caller's loop.

using Loop =
    std::function<void(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>&)>;

struct LoopDevice {
  explicit LoopDevice(Loop body) : loop(std::move(body)) {
    fastnorm_context_options options = default_options();
    options.parallel_for = [](void* user, int64_t n, int64_t grain, fastnorm_range_fn fn,
                              void* task) {
      auto& self = *static_cast<LoopDevice*>(user);
      ++self.calls;
      self.loop(n, grain, [=](int64_t begin, int64_t end) { fn(task, begin, end); });
    };
    options.parallel_user = this;
    device = make_device(options);
  }

  Loop loop;
  int calls = 0;
  std::unique_ptr<Device> device;
};

TEST(CallersLoop, AnySplitGivesTheSameBits) {
  Data data;
  const std::vector<float> wanted = data.run(*make_device(default_options()));
  const std::pair<const char*, Loop> loops[] = {
      {"one range", [](int64_t n, int64_t, auto& run) { run(0, n); }},
      {"single rows, backwards",
       [](int64_t n, int64_t, auto& run) {
         for (int64_t i = n; i-- > 0;) run(i, i + 1);
       }},
      {"ranges of the grain",
       [](int64_t n, int64_t grain, auto& run) {
         for (int64_t i = 0; i < n; i += grain) run(i, std::min(n, i + grain));
       }},
      {"threads",
       [](int64_t n, int64_t, auto& run) {
         std::thread other([&] { run(0, n / 3); });
         run(n / 3, n);
         other.join();
       }},
  };
  for (const auto& [name, loop] : loops) {
    LoopDevice host(loop);
    EXPECT_TRUE(same(data.run(*host.device), wanted)) << name;
    EXPECT_EQ(host.calls, 1) << name;
  }
}

TEST(CallersLoop, IsTakenBeforeThePool) {
  LoopDevice host([](int64_t n, int64_t, auto& run) { run(0, n); });
  EXPECT_EQ(host.device->facts.threads, cpu::processors());
}

TEST(CallersLoop, ALoopThatDropsOrRepeatsRowsIsAnError) {
  Data data;
  for (const int64_t done : {int64_t{0}, kRows - 1, kRows + 1}) {
    LoopDevice host([&](int64_t n, int64_t, auto& run) {
      if (done > 0) run(0, std::min(n, done));
      if (done > n) run(0, done - n);
    });
    Error error;
    EXPECT_EQ(data.run(*host.device, error), FASTNORM_ERROR_ARGUMENT);
    EXPECT_EQ(std::string(error.text), "options.parallel_for ran " + std::to_string(done) + " of " +
                                           std::to_string(kRows) +
                                           " rows; required: [0, n) exactly once");
  }
}

TEST(CallersLoop, ALoopThatRepeatsAsManyRowsAsItDropsIsAnError) {
  Data data;
  LoopDevice host([](int64_t n, int64_t, auto& run) {
    run(0, n / 2);
    run(n - n / 2 - n % 2, n - n / 2);  // an odd row in the middle
    run(0, n / 2);
  });
  Error error;
  EXPECT_EQ(data.run(*host.device, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("some of them twice and others not"), std::string::npos)
      << error.text;
}

// A loop may keep the sum of the row numbers, and of the differences of their squares.
TEST(CallersLoop, ALoopThatRunsTheMiddleTwiceIsAnError) {
  Data data;
  LoopDevice host([](int64_t n, int64_t, auto& run) {
    run(n / 4, n / 4 + n / 2);
    run(n / 4, n / 4 + n / 2);
    for (int64_t i = 0; i < n % 2; ++i) run(n / 2, n / 2 + 1);
  });
  Error error;
  EXPECT_EQ(data.run(*host.device, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("some of them twice and others not"), std::string::npos)
      << error.text;
}

TEST(CallersLoop, RangesOutsideAreNotRun) {
  Data data;
  LoopDevice host([](int64_t n, int64_t, auto& run) {
    run(-5, 0), run(n, n + 5), run(7, 7), run(9, 3);
    run(0, n);
  });
  EXPECT_TRUE(same(data.run(*host.device), data.run(*make_device(default_options()))));
}

// A call inside a range of another context's call.
TEST(CallersLoop, NestedContexts) {
  fastnorm_context_options options = default_options();
  options.num_threads = 2;
  const auto pooled = make_device(options);
  Data inner;
  const std::vector<float> wanted = inner.run(*make_device(default_options()));
  bool inner_same = false;
  LoopDevice host([&](int64_t n, int64_t, auto& run) {
    inner_same = same(inner.run(*pooled), wanted);
    run(0, n);
  });
  Data outer;
  EXPECT_TRUE(same(outer.run(*host.device), wanted));
  EXPECT_TRUE(inner_same);
}

// ---- The floating-point mode.

TEST(FpMode, BitsDoNotDependOnItAndItIsRestored) {
  Data data;
  // Tiny rows too: if they were flushed, they would be zero.
  for (int64_t i = 0; i < kColumns; ++i) data.x[static_cast<size_t>(5 * kColumns + i)] *= 0x1p-135f;
  data.desc.eps = 0;
  fastnorm_context_options pool_options = default_options();
  pool_options.num_threads = 2;
  const auto device = make_device(default_options());
  const auto pooled = make_device(pool_options);
  const std::vector<float> wanted = data.run(*device);
  const uint64_t before = fp_mode();
  for (const uint64_t odd : kOddModes) {
    for (Device* d : {device.get(), pooled.get()}) {
      data.y.assign(data.y.size(), -1.0f);
      NormPlan plan;
      Error error;
      ASSERT_EQ(make_plan(data.desc, d->facts, d->table<NormEntry>(), &plan, error), FASTNORM_OK);
      const NormCall call{&data.desc, &plan};
      set_fp_mode(odd);
      const uint64_t set = fp_mode();
      const fastnorm_status status = d->run(std::span(&call, 1), nullptr, nullptr, error);
      const uint64_t after = fp_mode();
      set_fp_mode(before);
      EXPECT_EQ(status, FASTNORM_OK);
      EXPECT_EQ(after, set);
      EXPECT_TRUE(same(data.y, wanted)) << std::hex << odd;
    }
  }
}

// The factor of MLA decode's scores is computed in the mode of the specification, too: with scores
// of 1, lse is the factor. The second column of the latent is subnormal, and so is its average.
TEST(FpMode, MlaDecodeDoesNotDependOnIt) {
  float q[kMlaLatent] = {1}, q_pe[kMlaRope] = {}, ckv[kMlaLatent] = {1, 0x1p-130f},
        kpe[kMlaRope] = {}, o[kMlaLatent], lse = 0;
  const int32_t length = 1, page = 0;
  const auto tensor = [](float* data) {
    return MlaDecodeTensor{reinterpret_cast<std::byte*>(data), 0, 0};
  };
  MlaDecodeDesc d;
  d.tokens = d.batch = d.max_s_q = d.pages = 1;
  d.table_columns = 1;
  d.q_nope = tensor(q), d.q_pe = tensor(q_pe), d.ckv = tensor(ckv), d.kpe = tensor(kpe);
  d.o = tensor(o), d.lse = tensor(&lse);
  d.lse_base_2 = true;
  d.kv_len = &length, d.page_table = &page;
  const auto device = make_device(default_options());
  const uint64_t before = fp_mode();
  const MlaDecodePlan plan;
  for (const double scale : {0.1, 0.2, 0.3, 0.5, 0.7}) {
    d.sm_scale = scale;
    const auto wanted = static_cast<float>(scale * std::numbers::log2e);
    for (const uint64_t odd : kOddModes) {
      Error error;
      set_fp_mode(odd);
      const fastnorm_status status = device->run(MlaDecodeCall{&d, &plan}, nullptr, nullptr, error);
      set_fp_mode(before);
      EXPECT_EQ(status, FASTNORM_OK) << error.text;
      EXPECT_EQ(lse, wanted) << scale << ' ' << std::hex << odd;
      EXPECT_EQ(o[1], 0x1p-130f) << scale << ' ' << std::hex << odd;
      o[1] = 7;
    }
  }
}

// The tests above would pass if nothing depended on the mode.
TEST(FpMode, TheModeMatters) {
  const uint64_t before = fp_mode();
  volatile float one = 1.0f, tiny = 0x1p-30f;
  set_fp_mode(kOddModes[0]);
  const volatile float up = one + tiny;
  {
    const cpu::FpMode mode;
    const volatile float nearest = one + tiny;
    const uint64_t inside = fp_mode();
    set_fp_mode(before);
    EXPECT_EQ(nearest, 1.0f);
    EXPECT_EQ(inside & ~kFpFlags & ~uint64_t{0x3f}, before & ~kFpFlags & ~uint64_t{0x3f});
  }
  set_fp_mode(before);
  EXPECT_GT(up, 1.0f);
}

}  // namespace
}  // namespace fastnorm::test
