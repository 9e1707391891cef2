// What is tested: one instruction set or GPU, with devices to run its kernels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check/memory.h"
#include "core/backend.h"
#include "ref/norm_spec.h"

namespace fastnorm::check {

struct Target {
  std::string name;     // "cpu avx512"
  std::string options;  // of the program, that select it alone
  bool cuda = false;    // kernels of the CUDA backend
  bool host_memory = false;
  ref::Order order = ref::Order::kCpu;
  // One device under different conditions, one for each run. On CPUs: alone, with threads,
  // with the caller's loop.
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<Memory> memory;
  bool (*has_kernel)(int32_t index) =
      nullptr;  // whether an entry of the table has a kernel; null: all have

  bool has(size_t index) const {
    return has_kernel == nullptr || has_kernel(static_cast<int32_t>(index));
  }
  bool has_all() const {
    bool all = true;
    for (size_t i = 0; i < devices[0]->table<NormEntry>().size(); ++i) all = all && has(i);
    return all;
  }
};

// A wrong order of sums, which a comparison must find.
constexpr ref::Order wrong_order(ref::Order right) {
  return right == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
}

// The CPU with an instruction set. Without devices, and with `why`, if the machine lacks it.
Target make_cpu_target(const char* isa, std::string* why);
// late: the memory is that of make_late_cuda_memory().
Target make_cuda_target(int ordinal, bool late, bool races, std::string* why);
// The CUDA kernels on a SIMT machine in software. Its runs differ in the order of threads.
Target make_simt_target(std::string* why);

}  // namespace fastnorm::check
