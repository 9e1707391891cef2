#include "cpu/common/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace fastnorm::cpu {
namespace {

struct Closer {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// The first line of a file, without its newline; "" if there is none.
std::string first_line(const std::string& path) {
  const File file(std::fopen(path.c_str(), "re"));
  char line[256] = "";
  if (file == nullptr || std::fgets(line, sizeof line, file.get()) == nullptr) return "";
  line[std::strcspn(line, "\n")] = '\0';
  return line;
}

// The value of the first "key : value" line of /proc/cpuinfo.
std::string cpuinfo(const char* key) {
  const File file(std::fopen("/proc/cpuinfo", "re"));
  char line[512];
  while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr) {
    const char* colon = std::strchr(line, ':');
    if (std::strncmp(line, key, std::strlen(key)) != 0 || colon == nullptr) continue;
    std::string value = colon + 1;
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t\n") + 1);
    return value;
  }
  return "";
}

std::string read_model_name() {
  std::string name = cpuinfo("model name");
  if (!name.empty()) return name;
  // On AArch64 the list has only numbers.
  const std::string implementer = cpuinfo("CPU implementer"), part = cpuinfo("CPU part");
  if (!implementer.empty()) return "CPU of implementer " + implementer + ", part " + part;
  return "unknown CPU";
}

// The number of bytes in a text such as "1024K".
int64_t size_of(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  return *end == 'K' ? value << 10 : *end == 'M' ? value << 20 : value;
}

int64_t read_l2_bytes() {
  constexpr int kMostCaches = 8;
  for (int i = 0; i < kMostCaches; ++i) {
    const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i);
    if (first_line(cache + "/level") == "2") return size_of(first_line(cache + "/size"));
  }
  return sysconf(_SC_LEVEL2_CACHE_SIZE);
}

}  // namespace

const char* model_name() {
  static const std::string name = read_model_name();
  return name.c_str();
}

int64_t l2_bytes() {
  constexpr int64_t kUnknown = int64_t{1} << 20;
  static const int64_t bytes = [] {
    const int64_t read = read_l2_bytes();
    return read > 0 ? std::clamp<int64_t>(read, 128 << 10, 64 << 20) : kUnknown;
  }();
  return bytes;
}

int32_t processors() {
  // The set must hold every processor of the system. If it is too small, the call fails with
  // EINVAL.
  for (int most = 1024; most <= (1 << 20); most *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 1;
}

}  // namespace fastnorm::cpu
