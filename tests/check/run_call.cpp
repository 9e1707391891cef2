#include "check/run_call.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "check/family.h"
#include "check/placed_call.h"

namespace fastnorm::check {
namespace {

using support::CheckedCall;

const FamilyChecks& checks_of(std::string_view family) {
  const auto& all = all_checks();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const FamilyChecks& f) { return f.family == family; });
  if (found == all.end()) throw std::runtime_error("no checks of " + std::string(family));
  return *found;
}

}  // namespace

std::vector<std::string> kernels_for(std::string_view family, const Target& target) {
  return checks_of(family).kernels(target);
}

std::vector<int32_t> able_kernels(CheckedCall& call, Target& target,
                                  const std::vector<int32_t>& wanted) {
  if (wanted.empty()) return {};
  const PlacedCall placed(call, target);
  const auto planned = checks_of(call.family().name).planned();
  std::vector<int32_t> able;
  for (const int32_t kernel : wanted) {
    Error error;
    if (planned->plan(call, *target.devices[0], kernel, error) == FASTNORM_OK)
      able.push_back(kernel);
  }
  return able;
}

std::string run_call(CheckedCall& call, Target& target, int32_t kernel) {
  if (!call.out_of_bounds().empty()) return call.difference();
  const auto planned = checks_of(call.family().name).planned();
  auto placed = std::make_unique<PlacedCall>(call, target);
  uint64_t room = 0;
  for (const std::unique_ptr<Device>& device : target.devices) {
    Error error;
    const auto plan = [&] { return planned->plan(call, *device, kernel, error) == FASTNORM_OK; };
    if (!plan()) return std::string("refused: ") + error.text;
    if (device == target.devices[0] && planned->workspace_bytes() != 0) {
      room = planned->workspace_bytes();
      placed = std::make_unique<PlacedCall>(call, target, room);
      if (!plan()) return std::string("refused: ") + error.text;
    }
    if (planned->workspace_bytes() != room) return "devices need other workspaces";
    placed->upload();
    if (planned->run(*device, placed->workspace(), target.memory->stream(0), error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
    std::string finding = placed->download();
    if (finding.empty()) finding = call.difference();
    placed->restore();
    const std::string name = planned->kernel();
    if (!finding.empty()) return name.empty() ? finding : name + ": " + finding;
  }
  return "";
}

void report_call(const CheckedCall& call, const char* name, const Target& target, int32_t kernel,
                 const std::string& finding, Counts* counts) {
  finding.empty() ? ++counts->passed : ++counts->failed;
  if (finding.empty()) return;
  std::string forced;
  if (kernel != kChosen)
    forced =
        " --kernel '" + kernels_for(call.family().name, target)[static_cast<size_t>(kernel)] + "'";
  std::printf("FAIL %s %s: %s\n  fastnorm_check %s%s --call '%s'\n", target.name.c_str(), name,
              finding.c_str(), target.options.c_str(), forced.c_str(), call.line().c_str());
}

void replay(Target& target, const Options& options, Counts* counts) {
  // The target is where the call runs, whatever the line says.
  std::string line;
  for (size_t at = 0; at < options.call.size();) {
    const size_t end = std::min(options.call.find(' ', at), options.call.size());
    const std::string word = options.call.substr(at, end - at);
    if (!word.starts_with("device=")) line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  if (target.cuda) line.insert(std::min(line.find(' '), line.size()), " device=cuda:0");
  CheckedCall call(line);
  int32_t kernel = kChosen;
  if (!options.kernel.empty()) {
    const std::vector<std::string> names = kernels_for(call.family().name, target);
    const auto found = std::find(names.begin(), names.end(), options.kernel);
    if (found == names.end())
      throw support::CallTextError(target.name + " has no kernel `" + options.kernel + "`");
    kernel = static_cast<int32_t>(found - names.begin());
  }
  call.expect_results(target.order);
  report_call(call, call.family().name, target, kernel, run_call(call, target, kernel), counts);
}

}  // namespace fastnorm::check
