#include "tuning.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <map>
#include <utility>

namespace fastnorm::tool {

std::string kind_of(const std::string& kernel) {
  std::string kind = kernel.substr(0, kernel.rfind(' ') + 1);
  for (const auto& [word, usual] :
       {std::pair(" wide ", " vector "), std::pair(" f32 ", " once "),
        std::pair(" kept ", " once "), std::pair(" bare ", " "), std::pair(" bare-cs ", " "),
        std::pair(" bare-sm ", " "), std::pair(" bare-8 ", " "), std::pair(" rounded ", " "),
        std::pair(" rounded-cs ", " ")}) {
    const size_t at = kind.find(word);
    if (at != std::string::npos) kind.replace(at, std::strlen(word), usual);
  }
  return kind;
}

namespace {

bool same_series(const BenchCase& a, const BenchCase& b) {
  return a.op == b.op && a.dtype == b.dtype && a.n == b.n;
}

}  // namespace

MemoryFile::MemoryFile(const std::string& text)
    : descriptor_(memfd_create("fastnorm tuning", MFD_CLOEXEC)) {
  if (descriptor_ >= 0 &&
      write(descriptor_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return;
  }
  if (descriptor_ >= 0) close(descriptor_);
  throw CommandError("a tuning file cannot be made in memory");
}

MemoryFile::~MemoryFile() { close(descriptor_); }

std::string tuning_head(const std::string& arch) {
  return "fastnorm tuning 1\nlibrary " + std::string(fastnorm_version_string()) + "\narch " + arch +
         "\n";
}

std::string tuning_rule(const std::string& rows, const BenchCase& c, const std::string& kernel) {
  // Kernels that keep their columns are the same for those of either dtype, those that make scales for rows and blocks.
  const bool f32 = c.has_f32_columns() && kernel.find(" kept ") != std::string::npos,
             blocks = c.has_block_scales();
  return (f32      ? "norm-f32 "
          : blocks ? "norm-blocks "
                   : "norm ") +
         rows + " " + std::to_string(c.n) + " " + kernel + "\n";
}

Planner::Planner(const std::string& kernel_arch)
    : target_(parse_target(kernel_arch)),
      arch_(kernel_arch),
      own_context_(make_context(target_, 0)),
      context_(own_context_.get()),
      context_target_(target_) {}

Planner::Planner(const std::string& kernel_arch, fastnorm_context* context, const Target& target)
    : target_(parse_target(kernel_arch)),
      arch_(kernel_arch),
      context_(context),
      context_target_(target) {}

std::string kernel_of(fastnorm_context* context, const Target& target, const BenchCase& c) {
  // Far apart, and never looked at.
  const auto at = [](uintptr_t i) { return reinterpret_cast<std::byte*>(i << 56); };
  CaseCall call(target, c, at(1), size_t{1} << 54, at(3), size_t{1} << 54);
  const fastnorm_norm_args args = call.args();
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context, &args, &info));
  return info.kernel;
}

std::string Planner::choice(const BenchCase& c) const {
  return kernel_of(context_, context_target_, c);
}

std::vector<std::string> Planner::kernels(const BenchCase& c) const {
  std::vector<std::string> found = {choice(c)};
  const std::string kind = kind_of(found[0]);
  fastnorm_kernel_info kernel = {};
  kernel.struct_size = sizeof kernel;
  for (int32_t i = 0; i < fastnorm_kernel_count(); ++i) {
    check(fastnorm_kernel_describe(i, &kernel));
    if (kernel.arch != arch_ || kind_of(kernel.name) != kind || kernel.name == found[0]) continue;
    // The library knows which rows a kernel holds: a file that names it for others is refused.
    const MemoryFile file(tuning_head(arch_) + tuning_rule(std::to_string(c.rows), c, kernel.name));
    const std::string path = file.path();
    const fastnorm_context_options options = context_options(target_, 0, path);
    fastnorm_context* context = nullptr;
    if (fastnorm_context_create(target_.device(), &options, &context) != FASTNORM_OK) continue;
    const ContextPtr owned(context);
    if (kernel_of(context, target_, c) == kernel.name) found.push_back(kernel.name);
  }
  return found;
}

Finding find_best(const Planner& planner, const BenchCase& c, double gain, const Measure& measure) {
  const std::vector<std::string> kernels = planner.kernels(c);
  const auto time_of = [&](const std::string& kernel) {
    return measure(kernel).value_or(std::numeric_limits<double>::infinity());
  };
  Finding finding = {c, kernels[0], kernels[0], time_of(kernels[0]), 0};
  finding.best_us = finding.choice_us;
  for (size_t i = 1; i < kernels.size(); ++i) {
    const double us = time_of(kernels[i]);
    if (us < finding.best_us) finding.best = kernels[i], finding.best_us = us;
  }
  const auto faster = [&] { return finding.best_us < finding.choice_us * (1 - gain); };
  if (finding.best != finding.choice && faster()) {
    // The best of several is partly luck.
    finding.choice_us = time_of(finding.choice);
    finding.best_us = time_of(finding.best);
  }
  if (!faster()) finding.best = finding.choice, finding.best_us = finding.choice_us;
  return finding;
}

std::string tuning_rules(const std::vector<Finding>& findings) {
  std::string text;
  std::map<std::string, std::string> owners;  // operations by the rows and kernels of their rules
  for (size_t i = 0; i < findings.size();) {
    const bool first = i == 0 || !same_series(findings[i - 1].c, findings[i].c);
    const int64_t least = first ? 1 : findings[i - 1].c.rows + 1;
    const Finding& finding = findings[i];
    // As many neighbours as have the same answer.
    size_t last = i;
    while (last + 1 < findings.size() && same_series(finding.c, findings[last + 1].c) &&
           findings[last + 1].best == finding.best && findings[last + 1].choice == finding.choice) {
      ++last;
    }
    const bool ends = last + 1 == findings.size() || !same_series(finding.c, findings[last + 1].c);
    const std::string most = ends ? "" : std::to_string(findings[last].c.rows);
    if (finding.best != finding.choice) {
      const std::string rule =
          tuning_rule(std::to_string(least) + "-" + most, finding.c, finding.best);
      const std::string kernels = tuning_rule("", finding.c, finding.best);
      const auto owner = owners.emplace(kernels.substr(0, kernels.rfind(' ')), finding.c.op).first;
      if (owner->second == finding.c.op) text += rule;
    }
    i = last + 1;
  }
  return text;
}

}  // namespace fastnorm::tool
