// The subcommands. Each adds itself, its options and what it does to the program; it throws
// LibraryError, CommandError or support::DevmemError where it fails.
#pragma once

#include <CLI/CLI.hpp>

#include "support/families.h"

namespace fastnorm::tool {

void add_info(CLI::App& program);
void add_run(CLI::App& program);
void add_bench(CLI::App& program);
void add_explain(CLI::App& program);
void add_peer(CLI::App& program);
void add_selftest(CLI::App& program);
// Comes last: it looks at the options of all others.
void add_completion(CLI::App& program);
void add_tune(CLI::App& program);

// The commands of families that have one of their own.
#define FAMILY(name) void add_##name(CLI::App& program);
FASTNORM_COMMAND_FAMILIES(FAMILY)
#undef FAMILY

}  // namespace fastnorm::tool
