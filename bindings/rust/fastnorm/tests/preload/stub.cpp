// Loaded before libfastnorm by test.py, for faults that no caller can bring about: memory that
// cannot be had, a loop that throws, calls that need a workspace, a library of another version.
#include <dlfcn.h>
#include <errno.h>
#include <fastnorm/fastnorm.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

namespace {

thread_local bool fail_next_malloc = false;
thread_local std::size_t needed_workspace = 0;

// The library's own function behind one of this file's.
template <typename Function>
Function* original(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define ORIGINAL(name) original(&name, #name)

// Whether it is large enough, and where the headers promise it to be.
bool takes_workspace(void* workspace, std::size_t bytes) {
  return needed_workspace == 0 || (workspace != nullptr && bytes >= needed_workspace &&
                                   reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0);
}

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t bytes);

// The next allocation of the calling thread fails.
FASTNORM_API void fastnorm_stub_fail_next_malloc() { fail_next_malloc = true; }

FASTNORM_API void* malloc(std::size_t bytes) {
  if (!fail_next_malloc) return __libc_malloc(bytes);
  fail_next_malloc = false;
  errno = ENOMEM;
  return nullptr;
}

// Calls of this thread need a workspace of so many bytes; 0 = as the library has it.
FASTNORM_API void fastnorm_stub_need_workspace(std::size_t bytes) { needed_workspace = bytes; }

fastnorm_status fastnorm_norm_query(fastnorm_context* context, const fastnorm_norm_args* args,
                                    fastnorm_info* info) {
  const fastnorm_status status = ORIGINAL(fastnorm_norm_query)(context, args, info);
  if (status == FASTNORM_OK && needed_workspace > 0) info->workspace_bytes = needed_workspace;
  return status;
}

fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                         const fastnorm_norm_args* const* args, int32_t count,
                                         fastnorm_info* info) {
  const fastnorm_status status = ORIGINAL(fastnorm_norm_many_query)(context, args, count, info);
  if (status == FASTNORM_OK && needed_workspace > 0) info->workspace_bytes = needed_workspace;
  return status;
}

fastnorm_status fastnorm_norm(fastnorm_context* context, const fastnorm_norm_args* args,
                              void* workspace, size_t bytes, void* stream) {
  if (!takes_workspace(workspace, bytes)) return FASTNORM_ERROR_ARGUMENT;
  return ORIGINAL(fastnorm_norm)(context, args, nullptr, 0, stream);
}

fastnorm_status fastnorm_norm_many(fastnorm_context* context, const fastnorm_norm_args* const* args,
                                   int32_t count, void* workspace, size_t bytes, void* stream) {
  if (!takes_workspace(workspace, bytes)) return FASTNORM_ERROR_ARGUMENT;
  return ORIGINAL(fastnorm_norm_many)(context, args, count, nullptr, 0, stream);
}

// A parallel loop that breaks its contract.
FASTNORM_API void fastnorm_stub_throwing_loop(void*, int64_t, int64_t, fastnorm_range_fn, void*) {
  throw std::runtime_error("thrown by the test's loop");
}

// The version in FASTNORM_STUB_VERSION, or the library's own.
int32_t fastnorm_version(void) {
  const char* text = std::getenv("FASTNORM_STUB_VERSION");
  return text != nullptr ? std::atoi(text) : ORIGINAL(fastnorm_version)();
}
}
