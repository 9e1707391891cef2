#include "json.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "library.h"
#include "progress.h"

namespace fastnorm::tool {

// A device's name is whatever its maker wrote: bytes that are not UTF-8 are replaced, not refused.
static std::string dumped(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_json(const Json& document) {
  clear_progress();
  std::fputs(dumped(document).c_str(), stdout);
}

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::binary | std::ios::app))
    throw CommandError(path + ": cannot be written: " + std::strerror(errno));
}

void write_json(const std::string& path, const Json& document) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << dumped(document) << std::flush;
  if (!file) throw CommandError(path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace fastnorm::tool
