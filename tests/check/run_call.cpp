#include "check/run_call.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "check/placed_call.h"
#include "core/norm_backward_batch.h"
#include "core/norm_check.h"
#include "core/norm_heads_check.h"
#include "core/norm_plan.h"
#include "core/pdl.h"

namespace fastnorm::check {
namespace {

using support::CheckedCall;

// A call that is checked and planned for a device.
class Planned {
 public:
  virtual ~Planned() = default;
  virtual fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t kernel,
                               Error& error) = 0;
  virtual uint64_t workspace_bytes() const { return 0; }
  // Does nothing where there is nothing to do.
  virtual fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) = 0;
  virtual std::string kernel() const = 0;
};

class PlannedNorm final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t kernel,
                       Error& error) override {
    const DeviceFacts& facts = device.facts;
    const fastnorm_status status = check_norm(&call.args<fastnorm_norm_args>(),
                                              {facts.device_type, facts.device_id}, &desc_, error);
    if (status != FASTNORM_OK) return status;
    desc_.flags = with_pdl(desc_.flags, facts.pdl);
    return kernel == kChosen ? make_plan(desc_, facts, device.norm_table(), &plan_, error)
                             : plan_stages_for(desc_, facts, kernel, &plan_, error);
  }
  fastnorm_status run(Device& device, std::byte*, void* stream, Error& error) override {
    const NormCall call = {&desc_, &plan_};
    return plan_.entry == nullptr ? FASTNORM_OK
                                  : device.run_norm({&call, 1}, nullptr, stream, error);
  }
  std::string kernel() const override { return plan_.entry == nullptr ? "" : plan_.entry->name; }

 private:
  NormDesc desc_;
  NormPlan plan_;
};

class PlannedHeads final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t kernel,
                       Error& error) override {
    const DeviceFacts& facts = device.facts;
    const fastnorm_status status = check_norm_heads(
        &call.args<fastnorm_norm_heads_args>(), call.parts<fastnorm_norm_heads_part>(),
        call.count(), {facts.device_type, facts.device_id}, &desc_, error);
    if (status != FASTNORM_OK) return status;
    desc_.pdl = with_pdl(desc_.pdl, facts.pdl);
    const auto table = device.norm_heads_table();
    return kernel == kChosen ? plan_norm_heads(desc_, facts, table, &plan_, error)
                             : plan_norm_heads_for(desc_, facts, table, kernel, &plan_, error);
  }
  fastnorm_status run(Device& device, std::byte*, void* stream, Error& error) override {
    return plan_.launches == 0 ? FASTNORM_OK : device.run_norm_heads(desc_, plan_, stream, error);
  }
  std::string kernel() const override { return plan_.kernel; }

 private:
  NormHeadsDesc desc_;
  NormHeadsPlan plan_;
};

fastnorm_status run_parts(Device& device, const NormBackwardBatch& batch, std::byte* workspace,
                          void* stream, Error& error) {
  for (const NormBackwardCall& part : batch.planned()) {
    const fastnorm_status status = device.run_norm_backward(
        part.desc, part.plan, workspace + part.workspace_offset, stream, error);
    if (status != FASTNORM_OK) return status;
  }
  return FASTNORM_OK;
}

class PlannedHeadsBackward final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t,
                       Error& error) override {
    batch_.emplace();
    return plan_norm_heads_backward(device, &call.args<fastnorm_norm_heads_args>(),
                                    call.parts<fastnorm_norm_heads_backward_part>(), call.count(),
                                    &*batch_, error);
  }
  uint64_t workspace_bytes() const override { return batch_->workspace_bytes; }
  fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) override {
    if (batch_->together.launches != 0)
      return device.run_norm_heads_backward(heads_gradients(*batch_), batch_->together, workspace,
                                            stream, error);
    return run_parts(device, *batch_, workspace, stream, error);
  }
  std::string kernel() const override {
    return batch_->together.launches != 0 ? batch_->together.kernel : "";
  }

 private:
  std::optional<NormBackwardBatch> batch_;
};

class PlannedBackward final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t,
                       Error& error) override {
    batch_.emplace();
    return plan_norm_backward_one(device, &call.args<fastnorm_norm_backward_args>(), &*batch_,
                                  error);
  }
  uint64_t workspace_bytes() const override { return batch_->workspace_bytes; }
  fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) override {
    return run_parts(device, *batch_, workspace, stream, error);
  }
  std::string kernel() const override { return ""; }

 private:
  std::optional<NormBackwardBatch> batch_;
};

std::unique_ptr<Planned> make_planned(std::string_view family) {
  if (family == "norm_backward") return std::make_unique<PlannedBackward>();
  if (family == "norm") return std::make_unique<PlannedNorm>();
  if (family == "norm_heads") return std::make_unique<PlannedHeads>();
  return std::make_unique<PlannedHeadsBackward>();
}

}  // namespace

std::vector<std::string> kernels_for(std::string_view family, const Target& target) {
  std::vector<std::string> names;
  const Device& device = *target.devices[0];
  if (family == "norm_heads") {
    for (const NormHeadsEntry& entry : device.norm_heads_table()) names.emplace_back(entry.name);
  }
  if (family == "norm" && target.cuda) {
    const StagesKernelList& list = *device.facts.arch->stages;
    for (int32_t i = 0; i < list.count; ++i) names.emplace_back(list.entries[i].norm.name);
  }
  return names;
}

std::vector<int32_t> able_kernels(CheckedCall& call, Target& target,
                                  const std::vector<int32_t>& wanted) {
  if (wanted.empty()) return {};
  const PlacedCall placed(call, target);
  const auto planned = make_planned(call.family().name);
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
  const auto planned = make_planned(call.family().name);
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
