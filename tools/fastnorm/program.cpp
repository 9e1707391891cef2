#include "program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "commands.h"
#include "help.h"
#include "library.h"
#include "progress.h"
#include "suggest.h"

namespace fastnorm::tool {
namespace {

enum ExitCode : int { kSuccess, kFailure, kUsage };

// The text may quote names from a file.
void print_error(const std::string& command, std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  std::fflush(stdout);  // what came before stands before
  std::fprintf(stderr, "%s: %s\n", command.c_str(), text.c_str());
}

// Prints why a command failed, on one line.
int failure(const std::string& text) {
  print_error("fastnorm", text);
  return kFailure;
}

int wrong_usage(const CLI::App& command, const std::string& text) {
  const std::string name = full_name(command);
  print_error(name, text);
  std::fprintf(stderr, "\"%s --help\" tells more.\n", name.c_str());
  return kUsage;
}

// A file opened later must not take the number of a stream that the caller closed.
void open_missing_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) {
      // Unusable for its purpose, so that what is lost is noticed.
      [[maybe_unused]] const int opened =
          open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

std::string meant(const std::string& typed, const std::vector<std::string>& words) {
  const std::string word = nearest_word(typed, words);
  return word.empty() ? "" : "; did you mean " + word + "?";
}

std::vector<std::string> command_names(const CLI::App& family) {
  std::vector<std::string> names;
  for (const CLI::App* command : family.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

const CLI::App* find_command(const CLI::App& family, const std::string& name) {
  for (const CLI::App* command : family.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// The command that is meant by the words before the first that names none, and that word's place.
struct Named {
  const CLI::App* command;
  size_t next;
};

Named find_named(const CLI::App& program, const std::vector<std::string>& words) {
  Named found = {&program, 0};
  while (found.next < words.size()) {
    const CLI::App* const command = find_command(*found.command, words[found.next]);
    if (command == nullptr) break;
    found = {command, found.next + 1};
  }
  return found;
}

// A command that has others, and none of them follows: by itself CLI11 says no more than that one
// is missing.
bool lacks_command(const Named& named, const std::vector<std::string>& words) {
  return named.command->get_require_subcommand_min() > 0 &&
         (named.next == words.size() || words[named.next].empty() || words[named.next][0] != '-');
}

int tell_commands(const Named& named, const std::vector<std::string>& words) {
  if (named.next == words.size()) {
    std::fputs(named.command->help().c_str(), stderr);
    return kUsage;
  }
  const std::string& typed = words[named.next];
  const std::vector<std::string> names = command_names(*named.command);
  std::string text = "there is no command " + typed + "; required: one of ";
  for (const std::string& name : names) text += (name == names[0] ? "" : ", ") + name;
  return wrong_usage(*named.command, text + meant(typed, names));
}

// What is wrong, in place of what CLI11 found first: an argument that nothing takes comes before
// another that is missing.
std::string usage_text(const CLI::App& program, const CLI::App& command,
                       const CLI::ParseError& error) {
  std::string extra;
  for (const std::string& argument : program.remaining(true)) {
    const bool is_option = argument.size() > 1 && argument[0] == '-';
    if (extra.empty() || (is_option && extra[0] != '-')) extra = argument;
  }
  if (extra.empty()) return error.what();
  if (extra[0] != '-') return "'" + extra + "' is one argument too many";
  extra = extra.substr(0, extra.find('='));
  std::vector<std::string> names;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    if (!at->get_fallthrough()) break;
  }
  return "there is no option " + extra + meant(extra, names);
}

int run_command(CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App& command = *find_named(program, words).command;
  std::vector<std::string> last_first(words.rbegin(), words.rend());
  try {
    const ProgressLine progress(full_name(command));
    program.parse(last_first);  // runs the command
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return wrong_usage(command, usage_text(program, command, e));
    program.exit(e);  // --help, --version
  } catch (const std::bad_alloc&) {
    return failure("host memory ran out");
  } catch (const std::exception& e) {
    return failure(e.what());
  }
  return kSuccess;
}

}  // namespace

int run_program(int argc, char** argv) {
  open_missing_streams();
  CLI::App program{
      "RMSNorm, LayerNorm, heads with rope and MLA decode of libfastnorm, from the command line.\n"
      "Exit code: 0 success, 1 failure (the reason is on stderr), 2 wrong usage.",
      "fastnorm"};
  program.set_version_flag("--version", fastnorm_version_string(), "print the library's version");
  program.require_subcommand(1);
  set_examples(program, {"fastnorm info", "fastnorm explain --shape 4096x8192 --device sm_90",
                         "fastnorm bench --shape 128x8192 --op rms,add"});
  add_info(program);
  add_run(program);
  add_bench(program);
  add_explain(program);
#define FAMILY(name) add_##name(program);
  FASTNORM_COMMAND_FAMILIES(FAMILY)
#undef FAMILY
  add_peer(program);
  add_selftest(program);
  add_tune(program);
  add_completion(program);

  std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (!words.empty() && words[0] == "help") {  // as others have it
    words.erase(words.begin());
    words.push_back("--help");
  }
  const Named named = find_named(program, words);
  if (lacks_command(named, words)) return tell_commands(named, words);
  const int code = run_command(program, words);
  // Where an earlier write failed, another tells why.
  const bool lost = std::ferror(stdout) != 0;
  if (lost) std::fputc('\n', stdout);
  if (std::fflush(stdout) == 0 && !lost) return code;
  const std::string reason = std::strerror(errno);
  return code == kSuccess ? failure("stdout cannot be written: " + reason) : code;
}

}  // namespace fastnorm::tool
