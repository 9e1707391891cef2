#include "api/call.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <sstream>
#include <string>

#include "support/call_text.h"

namespace {

using fastnorm::support::Call;

std::list<Call>& calls() {
  static std::list<Call> all;
  return all;
}

void* args_of(Call& call) { return const_cast<void*>(call.args<void>()); }

Call& call_with(const void* args) {
  for (Call& call : calls()) {
    if (args_of(call) == args) return call;
  }
  throw std::runtime_error("no call_of() has made these args");
}

// Each tensor of the line, PATH=DTYPE[..] or PATH,PATH=DTYPE[..], gets the next address.
void give_memory(Call& call, const std::string& line, va_list memory) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == word.npos || word.find('[', equals) == word.npos || word[equals + 1] == '[')
      continue;
    std::istringstream paths(word.substr(0, equals));
    for (std::string path; std::getline(paths, path, ',');) {
      const auto address = reinterpret_cast<uint64_t>(va_arg(memory, void*));
      call.tensor(path)->address = {"", address};
    }
  }
}

// `body` may throw what a wrong line does, which ends the program.
template <class Body>
void* read(const char* line, const Body& body) {
  try {
    return args_of(body());
  } catch (const std::exception& error) {
    std::printf("FAIL %s: %s\n", line, error.what());
    std::abort();
  }
}

}  // namespace

void* dry_call_of(const char* line) {
  return read(line, [&]() -> Call& { return calls().emplace_back(line); });
}

void* call_of(const char* line, ...) {
  va_list memory;
  va_start(memory, line);
  void* const args = read(line, [&]() -> Call& {
    Call& call = calls().emplace_back(line);
    give_memory(call, line, memory);
    return call;
  });
  va_end(memory);
  return args;
}

void change(void* args, const char* line, ...) {
  va_list memory;
  va_start(memory, line);
  read(line, [&]() -> Call& {
    Call& call = call_with(args);
    call.change(line);
    give_memory(call, line, memory);
    return call;
  });
  va_end(memory);
}

int is_known_family(const char* name) {
  const auto& all = fastnorm::support::families();
  return std::any_of(all.begin(), all.end(), [&](const auto& family) {
    const std::string of = family.name;
    return of == name || (std::string("peer") == name && of.starts_with("peer_"));
  });
}

const char* words(const char* format, ...) {
  static thread_local char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

const void* parts_of(const void* args) {
  const void* parts = nullptr;
  read("parts_of", [&]() -> Call& {
    Call& call = call_with(args);
    parts = call.parts<void>();
    return call;
  });
  return parts;
}
