// Random descriptions through check and plan of the norm family, for every architecture, by dry
// runs: nothing crashes, nothing is read that was not given, tensor memory is never touched (its
// addresses point nowhere). The entry points agree, what was accepted keeps the rules of the
// table, and what was refused breaks one.
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "bytes.h"
#include "fastnorm/fastnorm.h"
#include "judge.h"
#include "memory.h"
#include "norm_family.h"
#include "target.h"

namespace fastnorm::fuzz {
namespace {

struct Target {
  int32_t device_type;
  fastnorm_context* context;
};

const Target& target(Bytes& bytes) {
  static const Target targets[] = {
      {FASTNORM_DEVICE_CPU, make_context(FASTNORM_DEVICE_CPU, true)},
      {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 80)},
      {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 90)},
      {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 100)},
      {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 120)}};
  return targets[bytes.pick(std::size(targets))];
}

// n: the sizes around which a kernel is chosen, small and long.
int64_t columns_of_row(Bytes& bytes) {
  switch (bytes.pick(4)) {
    case 0:
      return 1 + bytes.byte();
    case 1:
      return 8 * (1 + bytes.take<uint16_t>());
    case 2:
      return (int64_t{1} << bytes.pick(21)) + bytes.pick(3) - 1;
    default:
      return bytes.rarely() ? hard_number(bytes) : 64 * (1 + bytes.byte());
  }
}

Extents random_rows(Bytes& bytes) {
  Extents e;
  e.dtype = row_dtype(bytes);
  e.x.resize(1 + bytes.pick(4));
  for (int64_t& extent : e.x) extent = small_extent(bytes);
  e.x.back() = columns_of_row(bytes);
  // More dimensions, most of them of one index.
  for (uint32_t more = bytes.rarely() ? bytes.pick(5) : 0; more > 0; --more)
    e.x.insert(e.x.begin() + bytes.byte() % static_cast<int64_t>(e.x.size()),
               (bytes.byte() & 3) == 3 ? small_extent(bytes) : 1);
  return e;
}

void require_info(const fastnorm_info& info, int32_t calls) {
  require(info.struct_size == sizeof info, "struct_size was changed");
  require(info.kernel != nullptr, "no kernel name");
  require(info.launches >= 0 && info.launches <= calls, "launches", info.kernel);
  require((info.launches > 0) == (info.kernel[0] != '\0'),
          "a kernel without a launch, or none with");
  if (info.launches == 0) {
    require(info.bytes_read == 0 && info.bytes_written == 0, "bytes without a launch");
    return;
  }
  require(info.bytes_written > 0 && info.bytes_read > 0, "a launch that moves nothing",
          info.kernel);
  require(info.blocks > 0 && info.rows_per_block > 0 && info.threads_per_row > 0, "an empty grid",
          info.kernel);
  const int32_t v = info.vector_bytes;
  require(v >= 1 && v <= 64 && (v & (v - 1)) == 0, "vector_bytes", info.kernel);
}

using List = std::vector<const fastnorm_norm_args*>;

fastnorm_status query(const Target& t, const List& args, bool many, fastnorm_info* info) {
  *info = new_info();
  const fastnorm_status status =
      many ? fastnorm_norm_many_query(t.context, args.data(), static_cast<int32_t>(args.size()),
                                      info)
           : fastnorm_norm_query(t.context, args[0], info);
  require_text(status);
  return status;
}

fastnorm_status run(const Target& t, const List& args, bool many, size_t workspace_bytes) {
  void* workspace = workspace_bytes > 0 ? reinterpret_cast<void*>(uintptr_t{1} << 52) : nullptr;
  const fastnorm_status status =
      many ? fastnorm_norm_many(t.context, args.data(), static_cast<int32_t>(args.size()),
                                workspace, workspace_bytes, nullptr)
           : fastnorm_norm(t.context, args[0], workspace, workspace_bytes, nullptr);
  require_text(status);
  return status;
}

// True if a refusal's reason is in the call's own numbers, dtypes, shapes and devices.
bool is_argument_fault(fastnorm_status status) {
  return status == FASTNORM_ERROR_ARGUMENT || status == FASTNORM_ERROR_SHAPE ||
         status == FASTNORM_ERROR_DTYPE || status == FASTNORM_ERROR_DEVICE;
}

using Drawn = std::vector<std::unique_ptr<DrawnStruct>>;

void judge(const Drawn& drawn, const Target& t, fastnorm_status status) {
  static const NormFamily family;
  static const CallStruct& type = type_of("fastnorm_norm_args");
  std::string fault;
  Memory memory(family);
  for (size_t i = 0; i < drawn.size() && fault.empty(); ++i) {
    const void* const known = drawn[i]->known.data();
    fault = find_fault(family, type, known, t.device_type);
    if (!fault.empty() || status != FASTNORM_OK) continue;
    // Without rows a call touches nothing, its weight neither.
    if (elements_of(*drawn[i]->as_known<fastnorm_norm_args>().x) == 0) continue;
    if (const char* layout = layout_fault(type, known)) fault = layout;
    memory.add(type, known, static_cast<int>(i));
  }
  if (is_argument_fault(status)) require(!fault.empty(), "refused without a reason");
  if (status != FASTNORM_OK) return;
  require(fault.empty(), "accepted", fault);
  require(memory.find_fault().empty(), "accepted", memory.find_fault());
}

void fuzz_norm(Bytes& bytes) {
  static const NormFamily family;
  const Target& t = target(bytes);
  const bool many = (bytes.byte() & 3) == 3;
  const uint32_t count = many ? 1 + bytes.pick(4) : 1;
  Drawn drawn;
  List args;
  Drawer drawer(bytes, family, t.device_type);
  for (uint32_t i = 0; i < count; ++i) {
    const Extents rows = random_rows(bytes);
    drawn.push_back(drawer.draw(type_of("fastnorm_norm_args"), rows));
    args.push_back(drawn.back()->args<fastnorm_norm_args>());
  }
  const CurrentCall now([&] {
    std::string all;
    for (const auto& call : drawn) {
      if (!all.empty()) all += '\n';
      all += call_text("norm", call->known.data());
    }
    return all;
  });

  fastnorm_info info, second, one;
  const fastnorm_status status = query(t, args, many, &info);
  require(query(t, args, many, &second) == status, "two equal queries differ in status");
  if (status == FASTNORM_OK)
    require(std::memcmp(&info, &second, sizeof info) == 0, "two equal queries differ");
  const auto workspace_bytes = static_cast<size_t>(info.workspace_bytes);
  require(run(t, args, many, workspace_bytes) == status, "query and call disagree");
  const fastnorm_status prepared =
      many ? fastnorm_norm_many_prepare(t.context, args.data(), static_cast<int32_t>(count))
           : fastnorm_norm_prepare(t.context, args[0]);
  require(prepared == status, "query and prepare disagree");
  if (count == 1)
    require(query(t, args, !many, &one) == status, "one call and a list of it disagree");
  judge(drawn, t, status);
  if (status != FASTNORM_OK) return;
  require_info(info, static_cast<int32_t>(count));
  if (workspace_bytes > 0) {
    require(run(t, args, many, workspace_bytes - 1) == FASTNORM_ERROR_ARGUMENT,
            "too small a workspace is accepted");
  }
}

// --- contexts and descriptions of devices and kernels ---

void fuzz_context(Bytes& bytes) {
  fastnorm_context_options options{};
  options.flags = FASTNORM_CONTEXT_DRY_RUN | (bytes.rarely() ? bytes.take<uint32_t>() : 0);
  options.num_threads =
      bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(5));
  options.dry_run_capability =
      bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(bytes.pick(140));
  options.reserved = bytes.rarely() ? bytes.take<int32_t>() : 0;
  const size_t size = bytes.rarely() ? bytes.take<uint16_t>() % 256 : sizeof options;
  options.struct_size = size;
  const size_t block_size = size < sizeof(size_t) ? sizeof(size_t) : size;
  const auto block = std::make_unique<uint8_t[]>(block_size);
  std::memcpy(block.get(), &options, block_size < sizeof options ? block_size : sizeof options);
  if (size > sizeof options && bytes.rarely()) block[size - 1] = 1;

  const fastnorm_device device = {bytes.rarely() ? bytes.take<int32_t>() : 1 + (bytes.byte() & 1),
                                  bytes.rarely() ? bytes.take<int32_t>() : 0};
  auto* context = reinterpret_cast<fastnorm_context*>(block.get());  // must be replaced
  const fastnorm_status status = fastnorm_context_create(
      device, reinterpret_cast<const fastnorm_context_options*>(block.get()), &context);
  require_text(status);
  require((status == FASTNORM_OK) == (context != nullptr),
          "a context on failure, or none on success");
  fastnorm_context_destroy(context);
}

void fuzz_descriptions(Bytes& bytes) {
  const int32_t index = bytes.take<int32_t>();
  fastnorm_kernel_info kernel{};
  kernel.struct_size = sizeof kernel;
  for (const int32_t i : {index, index % (fastnorm_kernel_count() + 1)}) {
    const bool inside = i >= 0 && i < fastnorm_kernel_count();
    const fastnorm_status status = fastnorm_kernel_describe(i, &kernel);
    require_text(status);
    require((status == FASTNORM_OK) == inside, "kernel index");
    if (inside)
      require(kernel.name != nullptr && kernel.arch != nullptr, "a kernel without a name");
  }
  fastnorm_device_info device{};
  device.struct_size = bytes.rarely() ? bytes.byte() : sizeof device;
  require_text(fastnorm_device_describe({1 + (bytes.byte() & 3), bytes.byte() & 1}, &device));
  require(fastnorm_status_name(static_cast<fastnorm_status>(bytes.byte())) != nullptr, "no name");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  switch (bytes.byte()) {
    case 254:
      fastnorm::fuzz::fuzz_context(bytes);
      break;
    case 255:
      fastnorm::fuzz::fuzz_descriptions(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_norm(bytes);
      break;
  }
  return 0;
}
