#include "nccl_library.h"

#include <dlfcn.h>

#include "library.h"

namespace fastnorm::tool {
namespace {

enum NcclType : int { kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };

}  // namespace

int nccl_type(fastnorm_dtype dtype) {
  if (dtype.bits != 16) return kFloat32;
  return dtype.code == fastnorm_dtype_of(FASTNORM_DTYPE_BF16).code ? kBfloat16 : kFloat16;
}

SharedLibrary::SharedLibrary(const std::string& path)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw CommandError("--nccl needs " + path + ": " + dlerror());
}

NcclLibrary::NcclLibrary(const std::string& path) : SharedLibrary(path) {
  find("ncclGetErrorString", &text_);
}

void NcclLibrary::check(int result) const {
  if (result != 0) throw CommandError(std::string("NCCL: ") + text_(result));
}

void* SharedLibrary::address_of(const char* name) const {
  void* const address = dlsym(handle_, name);
  if (address == nullptr) throw CommandError(std::string("there is no ") + name);
  return address;
}

}  // namespace fastnorm::tool
