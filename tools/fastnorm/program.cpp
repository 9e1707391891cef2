#include "program.h"

#include <cstdio>
#include <new>
#include <string>

#include "commands.h"
#include "library.h"

namespace fastnorm::tool {

// Prints why a command failed, on one line: the text may quote names from a file.
static int failure(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  std::fflush(stdout);  // what came before stands before
  std::fprintf(stderr, "fastnorm: %s\n", text.c_str());
  return 1;
}

int run_program(int argc, char** argv) {
  constexpr int kUsage = 2;
  CLI::App program{
      "RMSNorm, LayerNorm, heads with rope and MLA decode of libfastnorm, from the command line.\n"
      "Exit code: 0 success, 1 failure (the reason is on stderr), 2 wrong usage.",
      "fastnorm"};
  program.set_version_flag("--version", fastnorm_version_string(), "print the library's version");
  program.require_subcommand(1);
  program.get_formatter()->column_width(36);
  add_info(program);
  add_run(program);
  add_bench(program);
  add_explain(program);
  add_mla_decode(program);
  add_norm_heads(program);
  add_peer(program);
  add_norm_heads_backward(program);
  add_selftest(program);
  add_tune(program);
  // By itself CLI11 says of a command that there is not that one is missing.
  if (argc > 1 && argv[1][0] != '-') {
    std::string names;
    bool known = false;
    for (const CLI::App* command : program.get_subcommands({})) {
      names += (names.empty() ? "" : ", ") + command->get_name();
      known = known || command->get_name() == argv[1];
    }
    if (!known) {
      failure(std::string("there is no command ") + argv[1] + "; required: one of " + names);
      return kUsage;
    }
  }
  try {
    program.parse(argc, argv);  // runs the subcommand
  } catch (const CLI::ParseError& e) {
    const bool asked_for = e.get_exit_code() == 0;  // --help, --version
    program.exit(e);
    return asked_for ? 0 : kUsage;
  } catch (const std::bad_alloc&) {
    return failure("host memory ran out");
  } catch (const std::exception& e) {
    return failure(e.what());
  }
  return 0;
}

}  // namespace fastnorm::tool
