// What a shell can complete, read from the program's own commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fastnorm::tool {

// An option, or an argument without one: "IN".
struct CompletedOption {
  std::vector<std::string> names;  // "-h", "--help"
  std::string text;
  enum Value { kNone, kAnything, kFile, kWords, kList } value = kNone;  // kList: commas between
  std::vector<std::string> words;
};

struct CompletedCommand {
  std::string path;  // "fastnorm norm_heads run"
  std::string text;
  std::vector<CompletedOption> options;
  std::vector<std::string> commands;  // that may follow
  std::vector<CompletedOption> arguments;
};

// The program and each of its commands, a command before those that follow it.
std::vector<CompletedCommand> completed_commands(const CLI::App& program);

// The scripts, in completion_bash.cpp and its neighbours.
std::string bash_script(const std::vector<CompletedCommand>& commands);
std::string zsh_script(const std::vector<CompletedCommand>& commands);
std::string fish_script(const std::vector<CompletedCommand>& commands);

// The words with blanks between.
std::string spaced(const std::vector<std::string>& words);
// In single quotes, with `escape` for each single quote inside.
std::string quoted(const std::string& text, const char* escape);
// `text` with a backslash before each character of `special`.
std::string escaped(const std::string& text, const char* special);

}  // namespace fastnorm::tool
