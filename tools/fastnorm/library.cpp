#include "library.h"

#include <charconv>

namespace fastnorm::tool {
namespace {

// Digits to a number; -1 if `text` is not a number of at most six digits.
int32_t parse_number(const std::string& text) {
  int32_t value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool whole = error == std::errc() && stop == end && text.size() <= 6 && text[0] != '-';
  return whole ? value : -1;
}

// Returns whether `text` is one of the forms; fills in *target then.
bool parse(const std::string& text, Target* target) {
  *target = {};
  if (text == "cpu") return true;
  target->device_type = FASTNORM_DEVICE_CUDA;
  if (text == "cuda") return true;
  if (text.starts_with("cuda:")) {
    target->device_id = parse_number(text.substr(5));
    return target->device_id >= 0;
  }
  if (!text.starts_with("sm_")) return false;
  // "sm_100f" is how the compiler names the family of 10.x.
  std::string digits = text.substr(3);
  if (digits.ends_with('f') || digits.ends_with('a')) digits.pop_back();
  target->dry_run_capability = parse_number(digits);
  return target->dry_run_capability > 0;
}

}  // namespace

void check(fastnorm_status status) {
  if (status == FASTNORM_OK) return;
  throw LibraryError(std::string(fastnorm_status_name(status)) + ": " + fastnorm_last_error());
}

std::string check_target(const std::string& text) {
  Target target;
  return parse(text, &target) ? "" : "'" + text + "' is not cpu, cuda:N or sm_NN (such as sm_90)";
}

std::string check_device(const std::string& text) {
  Target target;
  const bool ok = parse(text, &target) && target.dry_run_capability == 0;
  return ok ? "" : "'" + text + "' is not cpu or cuda:N";
}

Target parse_target(const std::string& text) {
  Target target;
  if (!parse(text, &target)) throw CommandError("--device: " + check_target(text));
  return target;
}

fastnorm_context_options context_options(const Target& target, int32_t threads,
                                         const std::string& tuning_file) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.num_threads = threads;
  if (target.dry_run_capability != 0) {
    options.flags = FASTNORM_CONTEXT_DRY_RUN;
    options.dry_run_capability = target.dry_run_capability;
  }
  if (!tuning_file.empty()) options.tuning_file = tuning_file.c_str();
  return options;
}

ContextPtr make_context(const Target& target, int32_t threads, const std::string& tuning_file) {
  const fastnorm_context_options options = context_options(target, threads, tuning_file);
  fastnorm_context* context = nullptr;
  check(fastnorm_context_create(target.device(), &options, &context));
  return ContextPtr(context);
}

fastnorm_device_info describe_device(const Target& target) {
  fastnorm_device_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_device_describe(target.device(), &info));
  return info;
}

int32_t device_count(int32_t device_type) {
  int32_t count = 0;
  check(fastnorm_device_count(device_type, &count));
  return count;
}

}  // namespace fastnorm::tool
