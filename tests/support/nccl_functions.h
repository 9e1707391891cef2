// The functions of a library that is NCCL, or pretends to be it.
#pragma once

#include <dlfcn.h>

#include <cstring>

#include "fastnorm/nccl.h"

namespace fastnorm::support {

// A function that is missing is null, which fastnorm_nccl_set_functions refuses.
inline fastnorm_nccl_functions nccl_functions_of(void* library) {
  fastnorm_nccl_functions f = {};
  f.struct_size = sizeof f;
  const auto find = [&](const char* name, auto* function) {
    void* const address = dlsym(library, name);
    std::memcpy(function, &address, sizeof address);
  };
  find("ncclGetVersion", &f.get_version);
  find("ncclCommCount", &f.comm_count);
  find("ncclCommUserRank", &f.comm_user_rank);
  find("ncclCommCuDevice", &f.comm_cu_device);
  find("ncclAllReduce", &f.all_reduce);
  find("ncclReduceScatter", &f.reduce_scatter);
  find("ncclAllGather", &f.all_gather);
  find("ncclGroupStart", &f.group_start);
  find("ncclGroupEnd", &f.group_end);
  find("ncclGetErrorString", &f.get_error_string);
  return f;
}

}  // namespace fastnorm::support
