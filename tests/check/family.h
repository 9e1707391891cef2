// The families whose calls are lines of text (support/checked_call.h). A family's file has
// FAMILY_checks(): how a call is planned, and which calls run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"
#include "support/checked_call.h"
#include "support/families.h"

namespace fastnorm::check {

inline constexpr int32_t kChosen = -1;  // the kernel that planning chooses

// A call that is checked and planned for a device.
class Planned {
 public:
  virtual ~Planned() = default;
  virtual fastnorm_status plan(const support::CheckedCall& call, const Device& device,
                               int32_t kernel, Error& error) = 0;
  virtual uint64_t workspace_bytes() const { return 0; }
  // Does nothing where there is nothing to do.
  virtual fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) = 0;
  virtual std::string kernel() const = 0;
};

struct FamilyChecks {
  const char* family;  // the first word of its lines
  std::unique_ptr<Planned> (*planned)();
  // Kernels of a GPU that a call may be run on.
  std::vector<std::string> (*kernels)(const Target& target);
  // Whether a target has kernels of the family.
  bool (*runs_on)(const Target& target);
  // Calls on the devices of targets, whose sums have one order.
  void (*check)(std::span<Target* const> targets, const Options& options, Counts* counts);
};

#define FAMILY(name) FamilyChecks name##_checks();
FASTNORM_PART_FAMILIES(FAMILY)
#undef FAMILY

inline const std::vector<FamilyChecks>& all_checks() {
#define FAMILY(name) name##_checks(),
  static const std::vector<FamilyChecks> all = {FASTNORM_PART_FAMILIES(FAMILY)};
#undef FAMILY
  return all;
}

// What families have in their checks.
template <class Call>
std::unique_ptr<Planned> make_planned() {
  return std::make_unique<Call>();
}
inline bool runs_everywhere(const Target&) { return true; }
inline bool has_gradients(const Target& target) {
  return !target.cuda || !target.devices[0]->table<NormBackwardEntry>().empty();
}
inline std::vector<std::string> no_kernels(const Target&) { return {}; }

}  // namespace fastnorm::check
