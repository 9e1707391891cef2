#include "fastnorm/version.h"

#include <string>

#include "api/api.h"
// A build by other means than Meson has no such file.
#if __has_include("api/commit.h")
#include "api/commit.h"
#else
#define FASTNORM_COMMIT "unknown"
#endif

#define FASTNORM_TEXT_OF(x) #x
#define FASTNORM_TEXT(x) FASTNORM_TEXT_OF(x)

namespace fastnorm {
namespace {

// Version of the arithmetic: orders, constants and roundings.
constexpr int32_t kNumericVersion = 2;

constexpr char kVersionText[] = FASTNORM_TEXT(FASTNORM_VERSION_MAJOR) "." FASTNORM_TEXT(
    FASTNORM_VERSION_MINOR) "." FASTNORM_TEXT(FASTNORM_VERSION_PATCH);

#if defined(__clang__)
constexpr char kCompiler[] = "clang " __clang_version__;
#else
constexpr char kCompiler[] = "gcc " __VERSION__;
#endif

std::string make_build_info() {
  std::string text = std::string("version: ") + kVersionText +
                     "\nnumeric version: " + std::to_string(kNumericVersion) +
                     "\ncommit: " + FASTNORM_COMMIT + "\ncompiler: " + kCompiler + "\n";
  text += cpu_backend().build_info();
  text += cuda_backend().build_info();
  return text;
}

}  // namespace
}  // namespace fastnorm

int32_t fastnorm_version(void) { return FASTNORM_VERSION; }

const char* fastnorm_version_string(void) { return fastnorm::kVersionText; }

int32_t fastnorm_numeric_version(void) { return fastnorm::kNumericVersion; }

const char* fastnorm_build_info(void) {
  try {
    static const std::string text = fastnorm::make_build_info();
    return text.c_str();
  } catch (...) {
    return "";
  }
}
