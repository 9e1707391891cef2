// NCCL, which commands and benchmarks find at run time.
#pragma once

#include <fastnorm/tensor.h>

#include <string>

namespace fastnorm::tool {

// A value of ncclRedOp_t.
inline constexpr int kNcclSum = 0;
// The ncclDataType_t of rows. All versions share it.
int nccl_type(fastnorm_dtype dtype);

// A library that is opened at run time and stays loaded.
class SharedLibrary {
 public:
  // Throws CommandError where there is none.
  explicit SharedLibrary(const std::string& path);

  void* handle() const { return handle_; }
  // Throws CommandError where there is no such function.
  template <typename Function>
  void find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_;
};

// Results of NCCL's functions are ncclResult_t.
class NcclLibrary : public SharedLibrary {
 public:
  // By default what the loader finds.
  explicit NcclLibrary(const std::string& path = "libnccl.so.2");

  // Throws CommandError with NCCL's words unless `result` is a success.
  void check(int result) const;

 private:
  const char* (*text_)(int);
};

}  // namespace fastnorm::tool
