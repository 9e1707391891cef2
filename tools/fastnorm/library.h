// The library as the commands see it: failures as exceptions, contexts that destroy themselves, and
// names of devices.
#pragma once

#include <fastnorm/fastnorm.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace fastnorm::tool {

// A call of the library failed; what() is its text with the status' name.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The command cannot be carried out as given: a file, a name in it, a missing device.
struct CommandError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(fastnorm_status status);

// What --device names: "cpu", "cuda:N", or "sm_90" for planning without a GPU.
struct Target {
  int32_t device_type = FASTNORM_DEVICE_CPU;
  int32_t device_id = 0;
  int32_t dry_run_capability = 0;  // not 0: only planning, for a GPU that need not be there

  fastnorm_device device() const { return {device_type, device_id}; }
  bool is_cuda() const { return device_type == FASTNORM_DEVICE_CUDA; }
};

// "" if `text` names a target, else what is wrong with it; for the argument parser.
std::string check_target(const std::string& text);
// As check_target, but refuses "sm_90": memory is needed.
std::string check_device(const std::string& text);
Target parse_target(const std::string& text);

struct ContextDestroyer {
  void operator()(fastnorm_context* context) const { fastnorm_context_destroy(context); }
};
using ContextPtr = std::unique_ptr<fastnorm_context, ContextDestroyer>;

// threads: of the CPU; 0 and 1 = the calling thread alone. tuning_file: of a GPU; empty = none,
// else to outlive the options.
fastnorm_context_options context_options(const Target& target, int32_t threads,
                                         const std::string& tuning_file);
ContextPtr make_context(const Target& target, int32_t threads, const std::string& tuning_file = "");

fastnorm_device_info describe_device(const Target& target);
int32_t device_count(int32_t device_type);

}  // namespace fastnorm::tool
