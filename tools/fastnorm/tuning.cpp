#include "tuning.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "dtype.h"

namespace fastnorm::tool {

std::string kind_of(const std::string& kernel) {
  std::string kind = kernel.substr(0, kernel.rfind(' ') + 1);
  for (const auto& [word, usual] :
       {std::pair(" f32 ", " once "), std::pair(" bare ", " "), std::pair(" bare-cs ", " "),
        std::pair(" bare-sm ", " "), std::pair(" rounded ", " "), std::pair(" rounded-cs ", " ")}) {
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
  return "fastnorm tuning 2\nlibrary " + std::string(fastnorm_version_string()) + "\narch " + arch +
         "\n";
}

namespace {

// The length of a case's rows in the unit of its lines: vectors, or elements of a backward pass.
int64_t line_length(const BenchCase& c) {
  constexpr int64_t kVectorBytes = 16;
  const auto size = static_cast<int64_t>(element_bytes(find_dtype(c.dtype)->dtype));
  return c.is_backward() ? c.n : (c.n * size + kVectorBytes - 1) / kVectorBytes;
}

// A kernel's name in parts: "bf16 add rms once store vector bare 256x4x2".
struct KernelName {
  explicit KernelName(const std::string& name) {
    std::istringstream words(name);
    std::vector<std::string> all;
    for (std::string word; words >> word;) all.push_back(word);
    dtype = all[0], source = all[1], stat = all[2], weights = all[3], sink = all[4],
    access = all[5];
    if (all.size() > 7) beside = all[6];
    std::istringstream tile(all.back());
    std::getline(tile, threads, 'x');
    std::getline(tile, vectors, 'x');
    if (!std::getline(tile, blocks, 'x')) blocks = "1";
  }

  std::string dtype, source, stat, weights, sink, access, beside, threads, vectors, blocks;
};

// The parts of a name of a backward pass: "norm_backward bf16 rms add persistent 256x2 2x3", or "..
// layer rows 256" of the general form.
struct BackwardName {
  explicit BackwardName(const std::string& name) {
    std::istringstream words(name);
    std::string tile, steps;
    words >> family >> dtype >> stat >> form;
    adds = form == "add";
    if (adds) words >> form;
    words >> tile >> steps;
    std::istringstream numbers(tile + "x" + steps);
    for (std::string number; std::getline(numbers, number, 'x');)
      if (!number.empty()) all.push_back(number);
  }

  bool is_backward() const { return family == "norm_backward"; }
  bool is_general() const { return form == "rows"; }
  std::string job(const BenchCase& c) const {
    return is_general() ? "any" : form == "persistent" ? "many" : c.has_sums() ? "few" : "alone";
  }
  // threads, vectors, blocks, lanes, stages
  std::string tile() const {
    if (is_general()) {
      // The row is streamed, and a block has four warps or more.
      const int threads = std::stoi(all[0]);
      return all[0] + ", 0, 1, " + std::to_string(std::max(1, 128 / threads)) + ", 0";
    }
    std::vector<std::string> numbers = all;
    if (numbers.size() == 4) numbers.insert(numbers.begin() + 2, "1");
    std::string text;
    for (const std::string& number : numbers) text += (text.empty() ? "" : ", ") + number;
    return text;
  }

  std::string family, dtype, stat, form;
  bool adds = false;
  std::vector<std::string> all;  // numbers
};

// True if a kernel may serve a backward case. The library says whether it does.
bool may_serve(const BenchCase& c, const std::string& kernel) {
  const BackwardName name(kernel);
  return name.is_backward() && name.dtype == c.dtype &&
         name.stat == (c.is_layer() ? "layer" : "rms") &&
         (name.is_general() || name.form == "few" ||
          (name.form == "persistent" && name.adds == c.adds()));
}

std::string backward_kind(const BenchCase& c, const std::string& kernel) {
  const BackwardName name(kernel);
  return "KIND(" + name.job(c) + ", " + name.dtype + ", " + name.stat + ", " +
         (c.adds() ? "add" : "plain") + ")";
}

// The library's notation for calls like a case that run on a kernel.
std::string tuning_kind(const BenchCase& c, const std::string& kernel_name) {
  if (c.is_backward()) return backward_kind(c, kernel_name);
  const KernelName kernel(kernel_name);
  const bool any = kernel.access == "any", f32 = kernel.dtype == "f32",
             quant = kernel.sink == "quant";
  const std::string weights = any                           ? "any_weights"
                              : c.has_f32_weights() && !f32 ? "f32_weights"
                                                            : "own_dtype";
  const std::string output = kernel.sink == "store"         ? "y"
                             : !quant                       ? "per_tensor"
                             : c.has_block_scales() && !any ? "per_block"
                                                            : "per_row";
  const std::string reach = any                            ? "any_address"
                            : kernel.access != "unaligned" ? "aligned"
                                                           : "unaligned";
  return std::string("KIND(") + (f32 ? "f32" : "b16") + ", " + kernel.source + ", " + kernel.stat +
         ", " + weights + ", " + output + ", " + reach + ", " + (any ? "full" : "lean") + ", rows)";
}

std::string flavour_of(const KernelName& kernel) {
  for (const auto& [beside, flavour] :
       {std::pair("bare", "cached"), std::pair("bare-cs", "streaming"),
        std::pair("rounded", "cached"), std::pair("rounded-cs", "streaming"),
        std::pair("bare-sm", "shared")}) {
    if (kernel.beside == beside) return flavour;
  }
  return "full";
}

}  // namespace

std::string tuning_rule(int64_t least_rows, int64_t most_rows, const BenchCase& c,
                        const std::string& kernel_name) {
  const std::string n = std::to_string(c.n),
                    most = most_rows == kAllRows ? "kAll" : std::to_string(most_rows),
                    begin = tuning_kind(c, kernel_name) + "\nROWS(" + n + ", " + n + ", " +
                            std::to_string(least_rows) + ", " + most + ", ";
  if (c.is_backward()) return begin + BackwardName(kernel_name).tile() + ")\n";
  const KernelName kernel(kernel_name);
  const std::string vectors = kernel.vectors == "stream" ? "kStreamed"
                              : kernel.beside.empty()    ? kernel.vectors
                                                         : "kFit";
  return begin + kernel.threads + ", " + vectors + ", " + kernel.blocks + ", " +
         flavour_of(kernel) + ")\n";
}

std::string kind_words(const BenchCase& c, const std::string& kernel) {
  std::string words = tuning_kind(c, kernel);
  words = words.substr(words.find('(') + 1);
  words.pop_back();
  std::erase(words, ',');
  return words;
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
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  CaseCall call(target, c, at(1), size_t{1} << 54, at(3), size_t{1} << 54);
  check(c.is_backward() ? fastnorm_norm_backward_query(
                              context, &call.args<fastnorm_norm_backward_args>(), &info)
                        : fastnorm_norm_query(context, &call.args<fastnorm_norm_args>(), &info));
  return info.kernel;
}

std::string Planner::choice(const BenchCase& c) const {
  return kernel_of(context_, context_target_, c);
}

std::vector<std::string> Planner::kernels(const BenchCase& c) const {
  std::vector<std::string> found = {choice(c)};
  const std::string kind = c.is_backward() ? "" : kind_of(found[0]);
  const auto is_like = [&](const std::string& name) {
    return c.is_backward() ? may_serve(c, name) : kind_of(name) == kind;
  };
  fastnorm_kernel_info kernel = {};
  kernel.struct_size = sizeof kernel;
  for (int32_t i = 0; i < fastnorm_kernel_count(); ++i) {
    check(fastnorm_kernel_describe(i, &kernel));
    // A call's kernel has its family's name too, but for the first family's.
    const std::string family = kernel.family,
                      name = family == "norm" ? kernel.name : family + " " + kernel.name;
    if (kernel.arch != arch_ || name == found[0] || !is_like(name)) continue;
    // The library knows which rows a kernel holds: a file that names it for others is refused.
    const MemoryFile file(tuning_head(arch_) + tuning_rule(c.rows, c.rows, c, name));
    const std::string path = file.path();
    const fastnorm_context_options options = context_options(target_, 0, path);
    fastnorm_context* context = nullptr;
    if (fastnorm_context_create(target_.device(), &options, &context) != FASTNORM_OK) continue;
    const ContextPtr owned(context);
    if (kernel_of(context, target_, c) == name) found.push_back(name);
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
  std::map<std::string, std::string> owners;  // operations by the kind and length of their rules
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
    const int64_t most = ends ? kAllRows : findings[last].c.rows;
    if (finding.best != finding.choice) {
      const std::string owned =
          tuning_kind(finding.c, finding.best) + " " + std::to_string(line_length(finding.c));
      const std::string op =
          finding.c.op + " " + finding.c.dtype + " " + std::to_string(finding.c.n);
      if (owners.emplace(owned, op).first->second == op)
        text += tuning_rule(least, most, finding.c, finding.best);
    }
    i = last + 1;
  }
  return text;
}

}  // namespace fastnorm::tool
