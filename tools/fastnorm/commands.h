// The subcommands. Each adds itself, its options and what it does to the program; it throws
// LibraryError, CommandError or support::DevmemError where it fails.
#pragma once

#include <CLI/CLI.hpp>

namespace fastnorm::tool {

void add_info(CLI::App& program);
void add_run(CLI::App& program);
void add_bench(CLI::App& program);
void add_mla_decode(CLI::App& program);
void add_norm_heads(CLI::App& program);
void add_norm_heads_backward(CLI::App& program);
void add_explain(CLI::App& program);
void add_peer(CLI::App& program);
void add_selftest(CLI::App& program);
// Comes last: it looks at the options of all others.
void add_completion(CLI::App& program);
void add_tune(CLI::App& program);

}  // namespace fastnorm::tool
