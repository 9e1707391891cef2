// The line between the library and its backends: what a backend offers, and what one of its devices
// does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "core/common/error.h"
#include "core/mla_decode/desc.h"
#include "core/mla_decode/plan.h"
#include "core/norm/desc.h"
#include "core/norm/plan.h"
#include "core/norm/stages.h"
#include "core/norm_backward/desc.h"
#include "core/norm_backward/plan.h"
#include "core/norm_heads/desc.h"
#include "core/norm_heads/plan.h"
#include "core/norm_heads_backward/plan.h"
#include "core/peer/link.h"
#include "core/peer/plan.h"
#include "fastnorm/context.h"

namespace fastnorm {

// A described and planned call that launches something.
struct MlaDecodeCall {
  const MlaDecodeDesc* desc;
  const MlaDecodePlan* plan;
};

// What an entry point asks a device to run. A new family adds its call here, and its kernels below.
using AnyCall = std::variant<std::span<const NormCall>, std::span<const NormBackwardCall>,
                             NormHeadsCall, NormHeadsBackwardCall, MlaDecodeCall>;

// The kernels of a device, in the order that plans number. Devices of one architecture have the
// same tables. A CPU's families other than the norm have one kernel for each call, and no table.
using KernelTables =
    std::tuple<std::span<const NormEntry>, std::span<const NormBackwardEntry>,
               std::span<const NormHeadsEntry>, std::span<const NormHeadsBackwardEntry>,
               std::span<const PeerEntry>>;

// One device of a backend, owned by a context. Functions are thread-safe.
class Device {
 public:
  Device(const DeviceFacts& device_facts, const KernelTables& kernel_tables)
      : facts(device_facts), tables(kernel_tables) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // The kernels of a family, by the type of its entries.
  template <class Entry>
  std::span<const Entry> table() const {
    return std::get<std::span<const Entry>>(tables);
  }
  // The line of data that describes the kernel of a call; "" if there is none.
  virtual const char* variant_text(const NormCall&) const { return ""; }

  // Loads the kernels of a call that was planned for this device.
  virtual fastnorm_status prepare(const AnyCall& call, Error& error) = 0;
  // Runs it. `workspace` is the call's.
  virtual fastnorm_status run(const AnyCall& call, void* workspace, void* stream, Error& error) = 0;

  // Whether peers of this device can be created.
  virtual fastnorm_status check_peers(Error& error) const {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no peers for the device; nearest: a CPU context, or an "
                     "all-reduce of the caller's and fastnorm_norm");
  }
  // One rank's end. `buffers`: one for each of desc.ranks ranks, or null to allocate its own.
  virtual fastnorm_status create_peer(const PeerDesc&, void* const* /*buffers*/,
                                      std::unique_ptr<PeerLink>*, Error& error) {
    return check_peers(error);
  }
  // A dry run touches no memory of the caller.
  virtual bool is_dry_run() const { return false; }

  const DeviceFacts facts;
  const KernelTables tables;
};

// The names of a family's kernels.
struct FamilyNames {
  const char* family;  // as fastnorm_kernel_describe() has it
  std::vector<const char*> names;
};

// The names of a table, whose entries may begin with the family's name.
template <class Entry>
FamilyNames names_of(const char* family, std::span<const Entry> table) {
  const std::string prefix = std::string(family) + ' ';
  FamilyNames result = {family, {}};
  for (const Entry& entry : table) {
    const bool has_prefix = std::string_view(entry.name).starts_with(prefix);
    result.names.push_back(entry.name + (has_prefix ? prefix.size() : 0));
  }
  return result;
}

// The kernels of one architecture or instruction set that this build contains.
struct KernelSet {
  const char* arch;  // "sm_90", "avx512"
  std::vector<FamilyNames> families;
};

struct Backend {
  int32_t (*device_count)();
  fastnorm_status (*describe)(int32_t device_id, fastnorm_device_info* info, Error& error);
  // options has every field; unknown ones are already refused.
  fastnorm_status (*create)(int32_t device_id, const fastnorm_context_options& options,
                            std::unique_ptr<Device>* device, Error& error);
  std::span<const KernelSet> (*kernel_sets)();
  const char* (*build_info)();  // "key: value" lines, static
};

const Backend& cpu_backend();
const Backend& cuda_backend();  // also in stubs.cpp, for builds without CUDA

}  // namespace fastnorm
