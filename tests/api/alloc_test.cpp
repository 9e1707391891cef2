// A call allocates nothing, and a failed allocation is reported. This program replaces the C
// library's malloc by one that counts and can fail.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/made_call.h"

namespace {

using fastnorm::support::CallFunctions;
using fastnorm::support::GivenCall;
using fastnorm::test::all_families;
using fastnorm::test::Family;
using fastnorm::test::MadeCall;

// In the thread that tests; other threads are not counted.
thread_local int watched;
volatile long calls;
volatile long left = -1;  // allocations that still succeed; -1 = all

bool count_call() {
  if (watched == 0) return true;
  calls = calls + 1;
  if (left < 0) return true;
  if (left == 0) {
    errno = ENOMEM;
    return false;
  }
  left = left - 1;
  return true;
}

}  // namespace

extern "C" {

// glibc's own functions, behind the public names.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);

void* malloc(size_t bytes) { return count_call() ? __libc_malloc(bytes) : nullptr; }
void* calloc(size_t count, size_t bytes) {
  return count_call() ? __libc_calloc(count, bytes) : nullptr;
}
void* realloc(void* memory, size_t bytes) {
  return count_call() ? __libc_realloc(memory, bytes) : nullptr;
}
void* memalign(size_t alignment, size_t bytes) {
  return count_call() ? __libc_memalign(alignment, bytes) : nullptr;
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
void free(void* memory) {
  if (watched != 0 && memory != nullptr) calls = calls + 1;
  __libc_free(memory);
}
}

namespace {

// Outside of watched calls, because printf allocates.
void expect(bool ok, const std::string& what) {
  if (!ok) std::printf("%ld calls to the allocator\n", calls);
  check(ok ? 1 : 0, what.c_str(), "alloc_test", 0);
}

// Runs a call that is made for `context`, and one of its family with a wrong argument. Preparing a
// call may allocate, and so may the first call of a pool, which starts its threads.
void expect_nothing(fastnorm_context* context, const MadeCall& call, const MadeCall& wrong,
                    bool pool, const std::string& what) {
  const CallFunctions& functions = *call.family.functions;
  const GivenCall given = call.given(), refused = wrong.given();
  fastnorm_info info = empty_info();
  fastnorm_status status = call.prepare(context);
  if (status == FASTNORM_OK && pool) status = call.run(context);
  calls = 0;
  watched = 1;
  for (int i = 0; i < 20 && status == FASTNORM_OK; ++i) {
    status = functions.run(context, given, call.workspace, call.bytes, nullptr);
    if (status == FASTNORM_OK) status = functions.query(context, given, &info);
    if (status == FASTNORM_OK) status = functions.prepare(context, given);
  }
  const fastnorm_status bad = functions.run(context, refused, call.workspace, call.bytes, nullptr);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(bad == FASTNORM_ERROR_ARGUMENT, what);
  expect(calls == 0, what);
}

// Query heads and key heads of one tensor in one call.
void many(fastnorm_context* context, bool gpu, const std::string& what) {
  const Family& norm = *std::find_if(all_families().begin(), all_families().end(),
                                     [](const Family& f) { return f.name == std::string("norm"); });
  const char* const device = gpu ? "device=cuda:0" : "";
  const MadeCall query(norm, "norm x,y=f32[64,3,1024] x,y.strides=[4096,1024,1]", device);
  const MadeCall key(norm, "norm x,y=f32[64,1,1024] x,y.strides=[4096,1024,1]", device);
  const auto args = [](const MadeCall& call) {
    return static_cast<const fastnorm_norm_args*>(call.given().args);
  };
  const fastnorm_norm_args* const list[] = {args(query), args(key)};
  fastnorm_status status = fastnorm_norm_many_prepare(context, list, 2);
  if (status == FASTNORM_OK) status = fastnorm_norm_many(context, list, 2, nullptr, 0, nullptr);
  calls = 0;
  watched = 1;
  for (int i = 0; i < 20 && status == FASTNORM_OK; ++i)
    status = fastnorm_norm_many(context, list, 2, nullptr, 0, nullptr);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(calls == 0, what);
}

// All lines of all families on a context for one kind of device.
void hot_paths(const fastnorm_context_options& options, bool gpu, const std::string& what) {
  fastnorm_context* context = nullptr;
  const fastnorm_device device = {gpu ? FASTNORM_DEVICE_CUDA : FASTNORM_DEVICE_CPU, 0};
  expect(fastnorm_context_create(device, &options, &context) == FASTNORM_OK, what);
  const bool pool = options.num_threads > 1;
  const std::string on = gpu ? "device=cuda:0 " : "";
  for (const Family& family : all_families()) {
    const family_lines& lines = *family.lines;
    const std::string first = gpu && lines.gpu != nullptr ? lines.gpu : lines.call;
    std::vector<std::string> all = {first};
    // They are of the same dtypes, which a GPU may not have.
    const bool others = !gpu || lines.gpu == nullptr;
    for (const char* const* other = lines.others; others && *other != nullptr; ++other)
      all.emplace_back(*other);
    const MadeCall wrong(family, lines.wrong, on);
    for (const std::string& line : all) {
      MadeCall call(family, line, on);
      fastnorm_info info = empty_info();
      if (gpu && family.functions->query(context, call.given(), &info) == FASTNORM_OK)
        call.reserve(info.workspace_bytes);
      expect_nothing(context, call, wrong, pool, what + ": " + line);
    }
  }
  many(context, gpu, what + ": several norms");
  fastnorm_context_destroy(context);
}

// Fails the first allocation, then the second, .. until a context is created.
void out_of_memory() {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context_options options = empty_options();
  options.num_threads = 3;
  for (long n = 0; n < 1000; ++n) {
    fastnorm_context* context = nullptr;
    left = n;
    watched = 1;
    const fastnorm_status status = fastnorm_context_create(cpu, &options, &context);
    watched = 0;
    left = -1;
    if (status == FASTNORM_OK) {
      expect(context != nullptr && n > 0, "creating a context allocates");
      fastnorm_context_destroy(context);
      return;
    }
    expect(status == FASTNORM_ERROR_OUT_OF_MEMORY && context == nullptr,
           "a failed allocation is FASTNORM_ERROR_OUT_OF_MEMORY");
    expect(fastnorm_last_error()[0] != '\0', "and has a text");
  }
  expect(false, "no number of allocations is enough");
}

}  // namespace

int main() {
  watched = 1;  // the counting itself must work
  std::free(std::malloc(1));
  watched = 0;
  expect(calls == 2, "malloc and free are counted");
  fastnorm_context_options options = empty_options();
  hot_paths(options, false, "one thread allocates nothing");
  options.num_threads = 3;
  hot_paths(options, false, "three threads allocate nothing");
  options = empty_options();
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  hot_paths(options, true, "planning for a GPU allocates nothing");
  out_of_memory();
  return finish();
}
