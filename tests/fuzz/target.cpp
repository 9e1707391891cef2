#include "target.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "support/call_text.h"

namespace fastnorm::fuzz {
namespace {

std::function<std::string()> current_text;

bool is_status(fastnorm_status status) {
#define FASTNORM_FUZZ_CASE(name, value, text) \
  if (status == FASTNORM_##name) return true;
  FASTNORM_STATUS_MAP(FASTNORM_FUZZ_CASE)
#undef FASTNORM_FUZZ_CASE
  return false;
}

}  // namespace

void fail(const char* what, const std::string& detail) {
  std::fprintf(stderr, "fuzz: %s%s%s (last error: %s)\n", what, detail.empty() ? "" : ": ",
               detail.c_str(), fastnorm_last_error());
  if (current_text) std::fprintf(stderr, "%s\n", current_text().c_str());
  std::abort();
}

void require(bool ok, const char* what, const std::string& detail) {
  if (!ok) fail(what, detail);
}

void require_text(fastnorm_status status) {
  require(is_status(status), "unknown status");
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  const char* const text = fastnorm_last_error();
  require(std::strlen(text) > 10, "a failure without a text");
  require(std::strchr(text, '\n') == nullptr, "a text of more than one line");
}

fastnorm_context* make_context(int32_t device_type, bool dry, int32_t capability) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.flags = dry ? FASTNORM_CONTEXT_DRY_RUN : 0;
  options.num_threads = dry ? 0 : 2;
  if (device_type == FASTNORM_DEVICE_CUDA)
    options.dry_run_capability = capability != 0 ? capability : 90;
  fastnorm_context* context = nullptr;
  const fastnorm_status status = fastnorm_context_create({device_type, 0}, &options, &context);
  require(status == FASTNORM_OK && context != nullptr, "no context");
  return context;
}

fastnorm_info new_info() {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  return info;
}

std::string call_text(const char* family, const void* args, const void* const* parts,
                      int32_t count) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  return support::Call(*support::find_family(family), args, parts, count, cpu).text();
}

CurrentCall::CurrentCall(std::function<std::string()> text) { current_text = std::move(text); }
CurrentCall::~CurrentCall() { current_text = nullptr; }

}  // namespace fastnorm::fuzz
