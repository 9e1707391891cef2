// fastnorm completion: a script that teaches a shell the commands and options.
#include <cstdio>
#include <memory>

#include "commands.h"
#include "completion_table.h"
#include "help.h"
#include "json.h"
#include "norm_options.h"

namespace fastnorm::tool {
namespace {

CompletedOption completed_option(const CLI::Option& option) {
  CompletedOption completed;
  for (const std::string& name : option.get_snames()) completed.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) completed.names.push_back("--" + name);
  if (completed.names.empty()) completed.names.push_back(option.get_name());
  completed.text = option.get_description();
  if (option.get_items_expected_max() == 0) return completed;  // a flag
  const std::string type = option.get_type_name();
  completed.words = choices_of(option);
  if (type == kDevice) completed.words = {"cpu", "cuda:0"};
  if (type == kGpu) completed.words = {"cuda:0"};
  if (type == kPlannedDevice) {
    completed.words = {"cpu", "cuda:0", "sm_80", "sm_90", "sm_100f", "sm_120f"};
  }
  if (!completed.words.empty()) {
    completed.value =
        option.get_delimiter() == ',' ? CompletedOption::kList : CompletedOption::kWords;
  } else {
    completed.value = type == "FILE" ? CompletedOption::kFile : CompletedOption::kAnything;
  }
  return completed;
}

void add_options_of(const CLI::App& command, CompletedCommand* completed) {
  for (const CLI::Option* option : command.get_options()) {
    const CompletedOption added = completed_option(*option);
    const auto there = [&](const CompletedOption& o) { return o.names == added.names; };
    auto& all = option->nonpositional() ? completed->options : completed->arguments;
    if (std::none_of(all.begin(), all.end(), there)) all.push_back(added);
  }
}

void add_command(const CLI::App& command, std::vector<CompletedCommand>* commands) {
  CompletedCommand completed = {full_name(command), command.get_description(), {}, {}, {}};
  add_options_of(command, &completed);
  if (command.get_fallthrough()) add_options_of(*command.get_parent(), &completed);
  const auto following = command.get_subcommands([](const CLI::App* next) {
    return !next->get_name().empty();  // a group of options has none
  });
  for (const CLI::App* next : following) completed.commands.push_back(next->get_name());
  commands->push_back(completed);
  for (const CLI::App* next : following) add_command(*next, commands);
}

Json to_json(const std::vector<CompletedCommand>& commands) {
  constexpr const char* kValues[] = {"none", "anything", "file", "word", "words"};
  Json list = Json::array();
  const auto told = [&](const std::vector<CompletedOption>& options) {
    Json entries = Json::array();
    for (const CompletedOption& o : options) {
      entries.push_back(
          {{"names", o.names}, {"text", o.text}, {"value", kValues[o.value]}, {"words", o.words}});
    }
    return entries;
  };
  for (const CompletedCommand& command : commands) {
    list.push_back({{"command", command.path},
                    {"text", command.text},
                    {"commands", command.commands},
                    {"arguments", told(command.arguments)},
                    {"options", told(command.options)}});
  }
  return list;
}

}  // namespace

std::vector<CompletedCommand> completed_commands(const CLI::App& program) {
  std::vector<CompletedCommand> commands;
  add_command(program, &commands);
  return commands;
}

std::string spaced(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string quoted(const std::string& text, const char* escape) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string(escape) : std::string(1, c);
  return result + "'";
}

std::string escaped(const std::string& text, const char* special) {
  std::string result;
  for (const char c : text) {
    if (std::string(special).find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

void add_completion(CLI::App& program) {
  struct Options {
    std::string shell;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "completion", "Print a script that completes commands and options in a shell");
  command->footer(
      "An installation has the scripts where the shells look for them. For a program that is not\n"
      "installed, \"source <(fastnorm completion bash)\" does, or \"fastnorm completion fish |\n"
      "source\".");
  command->add_option("SHELL", options->shell, "whose script")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->add_flag("--json", options->json, "print the commands and their options as JSON");
  set_examples(*command, {"fastnorm completion bash", "fastnorm completion --json"});
  command->callback([options, &program] {
    const std::vector<CompletedCommand> commands = completed_commands(program);
    if (options->json) return print_json(to_json(commands));
    if (options->shell.empty()) {
      throw CLI::ValidationError("SHELL is missing; required: bash, zsh or fish");
    }
    const std::string script = options->shell == "bash"  ? bash_script(commands)
                               : options->shell == "zsh" ? zsh_script(commands)
                                                         : fish_script(commands);
    std::fputs(script.c_str(), stdout);
  });
}

}  // namespace fastnorm::tool
