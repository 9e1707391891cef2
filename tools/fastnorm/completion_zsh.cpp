// The completion script of zsh.
#include <algorithm>

#include "completion_table.h"

namespace fastnorm::tool {
namespace {

constexpr const char* kZshQuote = "'\\''";

std::string function_name(std::string path) {
  std::replace(path.begin(), path.end(), ' ', '_');
  return "_" + path;
}

// What follows an option's name in an argument of _arguments.
std::string zsh_value(const CompletedOption& o) {
  const std::string words = escaped(spaced(o.words), ":");
  switch (o.value) {
    case CompletedOption::kNone:
      return "";
    case CompletedOption::kFile:
      return ":file:_files";
    case CompletedOption::kWords:
      return ":word:(" + words + ")";
    case CompletedOption::kList:
      return ":words:_sequence compadd - " + words;
    case CompletedOption::kAnything:
      break;
  }
  return ":value: ";
}

std::string zsh_option(const CompletedOption& o) {
  const std::string text = "[" + escaped(o.text, "[]\\:") + "]" + zsh_value(o);
  std::string all;
  for (const std::string& name : o.names) {
    const bool with_value = o.value != CompletedOption::kNone && name.size() > 2;
    const std::string others = o.names.size() > 1 ? "(" + spaced(o.names) + ")" : "";
    all += " \\\n    " + quoted(others + name + (with_value ? "=" : "") + text, kZshQuote);
  }
  return all;
}

const CompletedCommand& find_path(const std::vector<CompletedCommand>& commands,
                                  const std::string& path) {
  return *std::find_if(commands.begin(), commands.end(),
                       [&](const CompletedCommand& c) { return c.path == path; });
}

std::string zsh_function(const std::vector<CompletedCommand>& commands,
                         const CompletedCommand& command) {
  const bool has_commands = !command.commands.empty();
  std::string text = "\n" + function_name(command.path) + "() {\n";
  if (has_commands) text += "  local curcontext=$curcontext state line\n";
  text += has_commands ? "  _arguments -C" : "  _arguments";
  for (const CompletedOption& o : command.options) text += zsh_option(o);
  for (const CompletedOption& argument : command.arguments) {
    text += " \\\n    " + quoted(":" + zsh_value(argument), kZshQuote);
  }
  if (!has_commands) return text + "\n}\n";
  text += " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n";
  text += "    command)\n      local -a commands=(\n";
  for (const std::string& name : command.commands) {
    const std::string what = find_path(commands, command.path + " " + name).text;
    text += "        " + quoted(name + ":" + escaped(what, ":"), kZshQuote) + "\n";
  }
  text += "      )\n      _describe command commands\n      ;;\n    argument)\n";
  text += "      case $line[1] in\n";
  for (const std::string& name : command.commands) {
    text += "        " + name + ") " + function_name(command.path + " " + name) + " ;;\n";
  }
  return text + "      esac\n      ;;\n  esac\n}\n";
}

}  // namespace

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  std::string text =
      "#compdef fastnorm\n# Completion of fastnorm in zsh. \"fastnorm completion zsh\" prints "
      "it.\n";
  for (const CompletedCommand& command : commands) text += zsh_function(commands, command);
  // As an autoloaded file it is the function's body; sourced, it makes itself known.
  return text + R"(
if [[ $zsh_eval_context[-1] == loadautofunc || $funcstack[1] == _fastnorm ]]; then
  _fastnorm "$@"
else
  compdef _fastnorm fastnorm
fi
)";
}

}  // namespace fastnorm::tool
