// What all fuzz targets have: contexts, and how a finding ends the program. It prints the call as a
// line, which support/call_text.h reads again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {

// Prints what is wrong, and the current call; ends the program.
[[noreturn]] void fail(const char* what, const std::string& detail = "");
void require(bool ok, const char* what, const std::string& detail = "");

// What every failure owes the caller. A fuzzer's calls meet no defect of the library.
void require_text(fastnorm_status status);

// GPUs are those of dry runs; a capability of 0 is 90.
fastnorm_context* make_context(int32_t device_type, bool dry, int32_t capability = 0);

fastnorm_info new_info();

std::string call_text(const char* family, const void* args, const void* const* parts = nullptr,
                      int32_t count = 0);

// While one lives, a finding prints its call.
class CurrentCall {
 public:
  explicit CurrentCall(std::function<std::string()> text);
  ~CurrentCall();
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;
};

}  // namespace fastnorm::fuzz
