// Random descriptions through check and plan of the norm family, for every architecture, by dry
// runs: nothing crashes, nothing is read that was not given, tensor memory is never touched (its
// addresses point nowhere). The entry points agree, and what was accepted keeps the rules of the
// headers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "bytes.h"
#include "fastnorm/fastnorm.h"
#include "oracle.h"
#include "random_call.h"

namespace fastnorm::fuzz {
namespace {

using Calls = std::vector<std::unique_ptr<RandomCall>>;
const Calls* current_calls = nullptr;  // what a failure prints

[[noreturn]] void fail(const char* what, const char* detail) {
  std::fprintf(stderr, "norm_fuzz: %s: %s (last error: %s)\n", what, detail, fastnorm_last_error());
  if (current_calls != nullptr) {
    for (const auto& call : *current_calls) call->print();
  }
  std::abort();
}

void require(bool ok, const char* what, const char* detail = "") {
  if (!ok) fail(what, detail);
}

bool is_status(fastnorm_status status) {
#define FASTNORM_FUZZ_CASE(name, value, text) \
  if (status == FASTNORM_##name) return true;
  FASTNORM_STATUS_MAP(FASTNORM_FUZZ_CASE)
#undef FASTNORM_FUZZ_CASE
  return false;
}

// What every failure owes the caller. A dry run has no defect, no memory trouble of its own.
void require_status(fastnorm_status status) {
  require(is_status(status), "unknown status");
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  const char* text = fastnorm_last_error();
  require(std::strlen(text) > 10, "a failure without a text");
  require(std::strchr(text, '\n') == nullptr, "a text of more than one line", text);
}

// --- contexts ---

struct Target {
  int32_t device_type;
  int32_t capability;
  fastnorm_context* context;
};

fastnorm_context* dry_context(int32_t device_type, int32_t capability) {
  fastnorm_context_options options{};
  options.struct_size = sizeof options;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = capability;
  fastnorm_context* context = nullptr;
  const fastnorm_status status = fastnorm_context_create({device_type, 0}, &options, &context);
  require(status == FASTNORM_OK && context != nullptr, "no dry-run context");
  return context;
}

// For quantised outputs mostly the CPU: the rules do not depend on the device.
const Target& target(Bytes& bytes, bool quantised) {
  static const Target targets[] = {
      {FASTNORM_DEVICE_CPU, 0, dry_context(FASTNORM_DEVICE_CPU, 0)},
      {FASTNORM_DEVICE_CUDA, 80, dry_context(FASTNORM_DEVICE_CUDA, 80)},
      {FASTNORM_DEVICE_CUDA, 90, dry_context(FASTNORM_DEVICE_CUDA, 90)},
      {FASTNORM_DEVICE_CUDA, 100, dry_context(FASTNORM_DEVICE_CUDA, 100)},
      {FASTNORM_DEVICE_CUDA, 120, dry_context(FASTNORM_DEVICE_CUDA, 120)}};
  const uint32_t any = bytes.pick(std::size(targets));
  return targets[quantised && (bytes.byte() & 7) != 7 ? 0 : any];
}

// --- one norm or several ---

fastnorm_info new_info() {
  fastnorm_info info{};
  info.struct_size = sizeof info;
  return info;
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

struct Outcome {
  fastnorm_status status;
  fastnorm_info info;
};

Outcome query(const Target& t, const std::vector<const fastnorm_norm_args*>& args, bool many) {
  Outcome out{FASTNORM_OK, new_info()};
  out.status = many ? fastnorm_norm_many_query(t.context, args.data(),
                                               static_cast<int32_t>(args.size()), &out.info)
                    : fastnorm_norm_query(t.context, args[0], &out.info);
  require_status(out.status);
  return out;
}

fastnorm_status run(const Target& t, const std::vector<const fastnorm_norm_args*>& args, bool many,
                    size_t workspace_bytes) {
  void* workspace = workspace_bytes > 0 ? reinterpret_cast<void*>(uintptr_t{1} << 45) : nullptr;
  const fastnorm_status status =
      many ? fastnorm_norm_many(t.context, args.data(), static_cast<int32_t>(args.size()),
                                workspace, workspace_bytes, nullptr)
           : fastnorm_norm(t.context, args[0], workspace, workspace_bytes, nullptr);
  require_status(status);
  return status;
}

void require_same_info(const fastnorm_info& a, const fastnorm_info& b) {
  require(std::memcmp(&a, &b, sizeof a) == 0, "two equal queries differ", a.kernel);
}

// True if a refusal's reason is in the call's own numbers, dtypes, shapes and devices.
bool is_argument_fault(fastnorm_status status) {
  return status == FASTNORM_ERROR_ARGUMENT || status == FASTNORM_ERROR_SHAPE ||
         status == FASTNORM_ERROR_DTYPE || status == FASTNORM_ERROR_DEVICE;
}

void fuzz_norm(Bytes& bytes, bool quantised) {
  const Target& t = target(bytes, quantised);
  const bool many = (bytes.byte() & 3) == 3;
  const uint32_t count = many ? 1 + bytes.pick(4) : 1;
  Calls calls;
  current_calls = &calls;
  std::vector<const fastnorm_norm_args*> args;
  for (uint32_t i = 0; i < count; ++i) {
    calls.push_back(std::make_unique<RandomCall>(bytes, t.device_type, quantised));
    args.push_back(calls.back()->args());
  }

  const Outcome first = query(t, args, many), second = query(t, args, many);
  require(first.status == second.status, "two equal queries differ in status");
  if (first.status == FASTNORM_OK) require_same_info(first.info, second.info);
  const size_t workspace_bytes = static_cast<size_t>(first.info.workspace_bytes);
  require(run(t, args, many, workspace_bytes) == first.status, "query and call disagree");
  const fastnorm_status prepared =
      many ? fastnorm_norm_many_prepare(t.context, args.data(), static_cast<int32_t>(count))
           : fastnorm_norm_prepare(t.context, args[0]);
  require(prepared == first.status, "query and prepare disagree");
  if (count == 1) {
    require(query(t, args, !many).status == first.status, "one call and a list of it disagree");
  }
  std::vector<fastnorm_norm_args> known;
  for (const auto& call : calls) known.push_back(call->known());
  if (is_argument_fault(first.status)) {
    bool found = false;
    for (const auto& call : known) found |= find_argument_fault(call, t.device_type) != nullptr;
    require(found, "refused without a reason");
  }
  if (first.status != FASTNORM_OK) return;

  require_info(first.info, static_cast<int32_t>(count));
  if (const char* fault = find_fault(known, t.device_type)) fail("accepted", fault);
  if (workspace_bytes > 0) {
    require(run(t, args, many, workspace_bytes - 1) == FASTNORM_ERROR_ARGUMENT,
            "too small a workspace is accepted");
  }
  current_calls = nullptr;
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
  require_status(status);
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
    require_status(status);
    require((status == FASTNORM_OK) == inside, "kernel index");
    if (inside)
      require(kernel.name != nullptr && kernel.arch != nullptr, "a kernel without a name");
  }
  fastnorm_device_info device{};
  device.struct_size = bytes.rarely() ? bytes.byte() : sizeof device;
  require_status(fastnorm_device_describe({1 + (bytes.byte() & 3), bytes.byte() & 1}, &device));
  require(fastnorm_status_name(static_cast<fastnorm_status>(bytes.byte())) != nullptr, "no name");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  const uint8_t subject = bytes.byte();
  switch (subject) {
    case 254:
      fastnorm::fuzz::fuzz_context(bytes);
      break;
    case 255:
      fastnorm::fuzz::fuzz_descriptions(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_norm(bytes, (subject & 0xe0) == 0xa0);
      break;
  }
  return 0;
}
