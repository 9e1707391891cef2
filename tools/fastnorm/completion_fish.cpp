// The completion script of fish.
#include "completion_table.h"

namespace fastnorm::tool {
namespace {

constexpr const char* kFishQuote = "\\'";

std::string fish_text(const std::string& text) { return quoted(escaped(text, "\\"), kFishQuote); }

// The words of an option, and how fish takes its value.
std::string fish_value(const CompletedOption& o) {
  switch (o.value) {
    case CompletedOption::kNone:
      return "";
    case CompletedOption::kFile:
      return " -r -F";
    case CompletedOption::kWords:
      return " -x -a '" + spaced(o.words) + "'";
    case CompletedOption::kList:
      return " -x -a '(__fastnorm_list " + spaced(o.words) + ")'";
    case CompletedOption::kAnything:
      break;
  }
  return " -x";
}

std::string fish_lines(const std::vector<CompletedCommand>& all, const CompletedCommand& command) {
  const std::string start = "complete -c fastnorm -n '__fastnorm_at " + command.path + "'";
  std::string text = "\n";
  for (const std::string& name : command.commands) {
    for (const CompletedCommand& next : all) {
      if (next.path != command.path + " " + name) continue;
      text += start + " -a " + name + " -d " + fish_text(next.text) + "\n";
    }
  }
  if (!command.arguments.empty()) {
    const std::string words = spaced(command.arguments.front().words);
    text += start + (words.empty() ? " -F" : " -a '" + words + "'") + "\n";
  }
  for (const CompletedOption& o : command.options) {
    text += start;
    for (const std::string& name : o.names) {
      const bool is_long = name.size() > 2;
      text += (is_long ? " -l " : " -s ") + name.substr(is_long ? 2 : 1);
    }
    text += fish_value(o) + " -d " + fish_text(o.text) + "\n";
  }
  return text;
}

}  // namespace

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string text = R"(# Completion of fastnorm in fish. "fastnorm completion fish" prints it.
function __fastnorm_at -d 'Whether the words before the cursor name this command'
    set -l path fastnorm
    for word in (commandline -opc)[2..-1]
        switch "$path $word"
            case)";
  for (size_t i = 1; i < commands.size(); ++i) text += " " + quoted(commands[i].path, kFishQuote);
  text += R"(
                set path "$path $word"
        end
    end
    test "$path" = "$argv"
end

function __fastnorm_list -d 'Each word after what is already there, up to the last comma'
    set -l before (string match -r '.*,' -- (string replace -r '^--[^=]*=' '' -- (commandline -ct)))
    printf '%s\n' $before$argv
end

complete -c fastnorm -f
)";
  for (const CompletedCommand& command : commands) text += fish_lines(commands, command);
  return text;
}

}  // namespace fastnorm::tool
