// How a command's help looks: examples first, lines that fit a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fastnorm::tool {

// Gives the command this help, which begins with the lines; tests/cli/docs_test.py runs them.
void set_examples(CLI::App& command, const std::vector<std::string>& lines);

// The command's name with those before it, as it is typed: "fastnorm norm_heads run".
std::string full_name(const CLI::App& command);

// The words that an option's value is one of; empty where anything may stand.
std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace fastnorm::tool
