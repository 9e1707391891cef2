#include "nccl/functions.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>

namespace fastnorm::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

struct State {
  std::mutex mutex;
  bool found = false, given = false;
  fastnorm_nccl_functions functions = {};
};
State& state() {
  static State all;
  return all;
}

template <typename Function>
fastnorm_status find(void* library, const char* name, Function* function) {
  void* const address = dlsym(library, name);
  NCCL_REQUIRE(address != nullptr, FASTNORM_ERROR_UNSUPPORTED,
               "%s has no %s; required: NCCL 2.4 or later", kLibrary, name);
  *function = reinterpret_cast<Function>(address);
  return FASTNORM_OK;
}

fastnorm_status load(fastnorm_nccl_functions* f) {
  // The copy that the process has, such as PyTorch's: a communicator belongs to one copy.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return fail(FASTNORM_ERROR_UNSUPPORTED,
                "%s is not loaded and cannot be: %s; nearest: fastnorm_nccl_set_functions, or "
                "peers without NCCL",
                kLibrary, why != nullptr ? why : "no reason");
  }
  *f = {};
  f->struct_size = sizeof *f;
  NCCL_TRY(find(library, "ncclGetVersion", &f->get_version));
  NCCL_TRY(find(library, "ncclCommCount", &f->comm_count));
  NCCL_TRY(find(library, "ncclCommUserRank", &f->comm_user_rank));
  NCCL_TRY(find(library, "ncclCommCuDevice", &f->comm_cu_device));
  NCCL_TRY(find(library, "ncclAllReduce", &f->all_reduce));
  NCCL_TRY(find(library, "ncclReduceScatter", &f->reduce_scatter));
  NCCL_TRY(find(library, "ncclAllGather", &f->all_gather));
  NCCL_TRY(find(library, "ncclGroupStart", &f->group_start));
  NCCL_TRY(find(library, "ncclGroupEnd", &f->group_end));
  return find(library, "ncclGetErrorString", &f->get_error_string);
}

}  // namespace

fastnorm_status set_functions(const fastnorm_nccl_functions* functions) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (functions == nullptr) {
    s.found = s.given = false;
    return FASTNORM_OK;
  }
  NCCL_REQUIRE(functions->struct_size >= sizeof s.functions, FASTNORM_ERROR_ARGUMENT,
               "functions.struct_size is %zu; required: at least %zu", functions->struct_size,
               sizeof s.functions);
  const fastnorm_nccl_functions& f = *functions;
  const struct {
    const char* name;
    bool set;
  } all[] = {{"get_version", f.get_version != nullptr},
             {"comm_count", f.comm_count != nullptr},
             {"comm_user_rank", f.comm_user_rank != nullptr},
             {"comm_cu_device", f.comm_cu_device != nullptr},
             {"all_reduce", f.all_reduce != nullptr},
             {"reduce_scatter", f.reduce_scatter != nullptr},
             {"all_gather", f.all_gather != nullptr},
             {"group_start", f.group_start != nullptr},
             {"group_end", f.group_end != nullptr},
             {"get_error_string", f.get_error_string != nullptr}};
  for (const auto& function : all) {
    NCCL_REQUIRE(function.set, FASTNORM_ERROR_ARGUMENT,
                 "functions.%s is NULL; required: a function", function.name);
  }
  s.functions = f;
  s.found = s.given = true;
  return FASTNORM_OK;
}

fastnorm_status find_functions(fastnorm_nccl_functions* functions, bool* given) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.found) NCCL_TRY(load(&s.functions));
  s.found = true;
  *functions = s.functions;
  *given = s.given;
  return FASTNORM_OK;
}

fastnorm_status check(const fastnorm_nccl_functions& functions, const char* name, int result) {
  if (result == 0) return FASTNORM_OK;
  const char* const text = functions.get_error_string(result);
  return fail(FASTNORM_ERROR_DEVICE, "%s: %s (%d)", name, text != nullptr ? text : "no text",
              result);
}

}  // namespace fastnorm::nccl
