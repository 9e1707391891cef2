/* What each family promises of its calls: which arguments its three functions refuse, that queries,
 * preparations and refused calls write nothing, that results do not depend on threads, and how
 * structs grow. The calls are the lines of api_test.h. */
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api/made_call.h"

namespace {

using fastnorm::support::GivenCall;
using fastnorm::test::all_families;
using fastnorm::test::Family;
using Made = fastnorm::test::MadeCall;

void queries(fastnorm_context* context, const Family& family) {
  const Made call(family);
  fastnorm_info info = empty_info();
  CHECK_OK(family.functions->query(context, call.given(), &info));
  CHECK(info.launches >= 1 && info.blocks >= 1);
  CHECK(info.bytes_read != 0 && info.bytes_written != 0);
  fastnorm_kernel_info kernel = {};
  kernel.struct_size = sizeof kernel;
  int listed = 0;
  for (int32_t i = 0; i < fastnorm_kernel_count(); ++i) {
    CHECK_OK(fastnorm_kernel_describe(i, &kernel));
    listed +=
        std::strcmp(kernel.family, family.name) == 0 && std::strcmp(kernel.name, info.kernel) == 0;
  }
  CHECK(listed >= 1);
  CHECK_OK(call.prepare(context));
  CHECK_STATUS(family.functions->query(context, call.given(), nullptr), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("info is NULL");
  info.struct_size = 8;
  CHECK_STATUS(family.functions->query(context, call.given(), &info), FASTNORM_ERROR_ARGUMENT);
  CHECK(call.untouched());
}

// Without rows there is nothing to do, and the rest is checked all the same.
void nothing(fastnorm_context* context, const Family& family) {
  const Made call(family, family.lines->empty, "");
  fastnorm_info info = empty_info();
  CHECK_OK(family.functions->query(context, call.given(), &info));
  CHECK(info.launches == 0 && info.blocks == 0 && info.bytes_written == 0);
  CHECK(info.kernel != nullptr && info.kernel[0] == '\0');
  CHECK_OK(call.prepare(context));
  CHECK_OK(call.run(context));
  CHECK(call.untouched());
}

// All three functions refuse these, and nothing is written.
void refusals(fastnorm_context* context, const Family& family) {
  const Made call(family);
  CHECK_STATUS(call.run(nullptr), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("context is NULL");
  CHECK_STATUS(call.prepare(nullptr), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(call.query(nullptr), FASTNORM_ERROR_ARGUMENT);
  GivenCall none = call.given();
  none.args = nullptr;
  CHECK_STATUS(family.functions->run(context, none, call.workspace, call.bytes, nullptr),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args is NULL");
  int stream = 0;
  CHECK_STATUS(family.functions->run(context, call.given(), call.workspace, call.bytes, &stream),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("stream is");
  if (call.bytes != 0) {
    CHECK_STATUS(
        family.functions->run(context, call.given(), call.workspace, call.bytes - 1, nullptr),
        FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("workspace_bytes is");
    CHECK_STATUS(family.functions->run(context, call.given(), nullptr, call.bytes, nullptr),
                 FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("256-byte aligned");
    CHECK_STATUS(
        family.functions->run(context, call.given(), static_cast<char*>(call.workspace) + 64,
                              call.bytes, nullptr),
        FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("256-byte aligned");
  }
  const Made flagged(family, "flags=0x40000000");
  for (const fastnorm_status status :
       {flagged.query(context), flagged.prepare(context), flagged.run(context)}) {
    CHECK_STATUS(status, FASTNORM_ERROR_UNSUPPORTED);
    CHECK_TEXT("flags is 0x40000000");
  }
  CHECK(call.untouched() && flagged.untouched());
}

// Structs of newer callers are longer; what the library does not know must be 0.
void growth(fastnorm_context* context, const Family& family) {
  const Made call(family);
  const size_t size = *static_cast<const size_t*>(call.given().args);
  std::vector<size_t> longer(size / sizeof(size_t) + 5);
  std::memcpy(longer.data(), call.given().args, size);
  longer[0] = longer.size() * sizeof(size_t);
  GivenCall given = call.given();
  given.args = longer.data();
  CHECK_OK(family.functions->run(context, given, call.workspace, call.bytes, nullptr));
  const Made expected(family);
  CHECK_OK(expected.run(context));
  CHECK(call.equals(expected));
  longer.back() = 1;
  CHECK_STATUS(family.functions->run(context, given, call.workspace, call.bytes, nullptr),
               FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("args.struct_size");
  longer[0] = 0;
  CHECK_STATUS(family.functions->run(context, given, call.workspace, call.bytes, nullptr),
               FASTNORM_ERROR_ARGUMENT);
}

// Plans and checks alone: of a GPU without one, and of the CPU.
void dry_runs(const Family& family) {
  for (const bool gpu : {false, true}) {
    const family_lines& lines = *family.lines;
    Made call(family, gpu && lines.gpu != nullptr ? lines.gpu : lines.call,
              gpu ? "device=cuda:0" : "");
    fastnorm_context_options options = empty_options();
    options.flags = FASTNORM_CONTEXT_DRY_RUN;
    options.dry_run_capability = gpu ? 90 : 0;
    fastnorm_context* context = nullptr;
    const fastnorm_device device = {gpu ? FASTNORM_DEVICE_CUDA : FASTNORM_DEVICE_CPU, 0};
    if (!CHECK_OK(fastnorm_context_create(device, &options, &context))) continue;
    fastnorm_info info = empty_info();
    CHECK_OK(family.functions->query(context, call.given(), &info));
    CHECK(info.launches >= 1);
    if (gpu) call.reserve(info.workspace_bytes);
    CHECK_OK(call.prepare(context));
    CHECK_OK(call.run(context));
    CHECK(call.untouched());
    fastnorm_context_destroy(context);
  }
}

// ---- Threads.

void whole(void* user, int64_t n, int64_t, fastnorm_range_fn fn, void* task) {
  ++*static_cast<int*>(user);
  fn(task, 0, n);
}

void backwards(void* user, int64_t n, int64_t, fastnorm_range_fn fn, void* task) {
  ++*static_cast<int*>(user);
  for (int64_t i = n; i-- > 0;) fn(task, i, i + 1);
}

void by_grain(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  ++*static_cast<int*>(user);
  for (int64_t i = 0; i < n; i += grain) fn(task, i, i + grain < n ? i + grain : n);
}

void on_threads(void* user, int64_t n, int64_t, fastnorm_range_fn fn, void* task) {
  ++*static_cast<int*>(user);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 3; ++i)
    threads.emplace_back([=] { fn(task, n * i / 3, n * (i + 1) / 3); });
  for (std::thread& thread : threads) thread.join();
}

void skips_the_last(void*, int64_t n, int64_t, fastnorm_range_fn fn, void* task) {
  fn(task, 0, n - 1);
}

void same_bits(fastnorm_context* context, const Made& expected, const std::string& more = "") {
  const Made call(expected.family, more);
  CHECK_OK(call.run(context));
  CHECK(call.equals(expected));
}

// Callers that share a context.
void many_callers(fastnorm_context* context, const Made& expected) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 3; ++round) same_bits(context, expected);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void threads(fastnorm_context* serial, const Family& family) {
  const Made expected(family);
  CHECK_OK(expected.run(serial));
  CHECK(!expected.untouched());
  many_callers(serial, expected);
  fastnorm_context_options options = empty_options();
  for (int32_t count = 2; count <= 5; ++count) {
    options.num_threads = count;
    fastnorm_context* const context = cpu_context(&options);
    same_bits(context, expected);
    if (count % 3 == 2) many_callers(context, expected);
    fastnorm_context_destroy(context);
  }
  options = empty_options();
  for (const fastnorm_parallel_for_fn loop : {whole, backwards, by_grain, on_threads}) {
    int calls = 0, own = 0;
    options.parallel_for = loop;
    options.parallel_user = &calls;
    fastnorm_context* const context = cpu_context(&options);
    same_bits(context, expected);
    CHECK(calls >= 1);
    const int before = calls;
    // A call's user is in place of the context's.
    same_bits(context, expected,
              "parallel_user=" + std::to_string(reinterpret_cast<uintptr_t>(&own)));
    CHECK(calls == before && own == before);
    fastnorm_context_destroy(context);
  }
}

// Loops that break their contract.
void wrong_loops(const Family& family) {
  const Made call(family);
  fastnorm_context_options options = empty_options();
  options.parallel_for = skips_the_last;
  fastnorm_context* context = cpu_context(&options);
  CHECK_STATUS(call.run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT((std::string(family.lines->units) + "; required: [0, n) exactly once").c_str());
  fastnorm_context_destroy(context);
  options.parallel_for = throwing_loop;
  context = cpu_context(&options);
  CHECK_STATUS(call.run(context), FASTNORM_ERROR_INTERNAL);
  CHECK(fastnorm_last_error()[0] != '\0');
  fastnorm_context_destroy(context);
}

}  // namespace

void test_families(void) {
  fastnorm_context* const context = cpu_context(nullptr);
  for (const Family& family : all_families()) {
    try {
      queries(context, family);
      nothing(context, family);
      refusals(context, family);
      growth(context, family);
      dry_runs(family);
      threads(context, family);
      wrong_loops(family);
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", family.lines->call, error.what());
      CHECK(!"a line is not a call");
    }
  }
  fastnorm_context_destroy(context);
}
