#include "fastnorm/context.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "api/api.h"
#include "fastnorm/version.h"

namespace fastnorm {
namespace {

constexpr int32_t kMaxThreads = 1024;

fastnorm_status backend_of(int32_t device_type, const char* name, const Backend** backend,
                           Error& error) {
  FASTNORM_REQUIRE(device_type == FASTNORM_DEVICE_CPU || device_type == FASTNORM_DEVICE_CUDA,
                   FASTNORM_ERROR_ARGUMENT,
                   "%s is %d; required: FASTNORM_DEVICE_CPU (1) or FASTNORM_DEVICE_CUDA (2)", name,
                   device_type);
  *backend = device_type == FASTNORM_DEVICE_CPU ? &cpu_backend() : &cuda_backend();
  return FASTNORM_OK;
}

fastnorm_status check_options(const fastnorm_context_options& options, int32_t device_type,
                              Error& error) {
  FASTNORM_REQUIRE(options.num_threads >= 0 && options.num_threads <= kMaxThreads,
                   FASTNORM_ERROR_ARGUMENT, "options.num_threads is %d; required: 0 to %d",
                   options.num_threads, kMaxThreads);
  constexpr uint32_t kFlags = FASTNORM_CONTEXT_DRY_RUN | FASTNORM_CONTEXT_NO_PDL;
  FASTNORM_REQUIRE((options.flags & ~kFlags) == 0, FASTNORM_ERROR_ARGUMENT,
                   "options.flags is 0x%x; required: 0, FASTNORM_CONTEXT_DRY_RUN (1), "
                   "FASTNORM_CONTEXT_NO_PDL (2) or both",
                   options.flags);
  FASTNORM_REQUIRE(options.reserved == 0, FASTNORM_ERROR_ARGUMENT,
                   "options.reserved is %d; required: 0", options.reserved);
  const bool dry_cuda =
      (options.flags & FASTNORM_CONTEXT_DRY_RUN) != 0 && device_type == FASTNORM_DEVICE_CUDA;
  FASTNORM_REQUIRE(
      dry_cuda || options.dry_run_capability == 0, FASTNORM_ERROR_ARGUMENT,
      "options.dry_run_capability is %d; required: 0 but for a dry run of a CUDA device",
      options.dry_run_capability);
  FASTNORM_REQUIRE(options.tuning_file == nullptr || device_type == FASTNORM_DEVICE_CUDA,
                   FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file is \"%.200s\" and the device a CPU; required: NULL",
                   options.tuning_file);
  return FASTNORM_OK;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

fastnorm_status read_tuning_file(const char* path, std::string* text, Error& error) {
  constexpr size_t kMostBytes = size_t{1} << 20;  // far more than `fastnorm tune` writes
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path, "rbe"));
  text->resize(kMostBytes + 1);
  size_t bytes = 0;
  if (file != nullptr) bytes = std::fread(text->data(), 1, text->size(), file.get());
  FASTNORM_REQUIRE(file != nullptr && std::ferror(file.get()) == 0, FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file is \"%.200s\", which cannot be read (%s); required: a file "
                   "that \"fastnorm tune\" wrote",
                   path, std::strerror(errno));
  FASTNORM_REQUIRE(bytes <= kMostBytes, FASTNORM_ERROR_ARGUMENT,
                   "options.tuning_file is \"%.200s\", which is longer than %zu bytes; required: a "
                   "file that \"fastnorm tune\" wrote",
                   path, kMostBytes);
  text->resize(bytes);
  return FASTNORM_OK;
}

fastnorm_status load_tuning(const fastnorm_context_options& options, fastnorm_context* context,
                            Error& error) {
  if (options.tuning_file == nullptr) return FASTNORM_OK;
  std::string text;
  FASTNORM_TRY(read_tuning_file(options.tuning_file, &text, error));
  auto tuning = std::make_unique<Tuning>();
  const Device& device = *context->device;
  FASTNORM_TRY(read_tuning(text, fastnorm_version_string(),
                           {device.table<NormEntry>(), device.table<NormBackwardEntry>()},
                           device.facts, tuning.get(), error));
  if (options.log != nullptr) {
    char line[320];
    std::snprintf(line, sizeof line, "tuning: %zu rules of %.200s", tuning->size(),
                  options.tuning_file);
    options.log(options.log_user, FASTNORM_LOG_INFO, line);
  }
  context->tuning = std::move(tuning);
  return FASTNORM_OK;
}

fastnorm_status create(fastnorm_device device, const fastnorm_context_options* options,
                       fastnorm_context** context, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a pointer to receive the context");
  *context = nullptr;
  const Backend* backend = nullptr;
  FASTNORM_TRY(backend_of(device.device_type, "device.device_type", &backend, error));
  fastnorm_context_options defaults = {};
  defaults.struct_size = sizeof defaults;
  fastnorm_context_options local;
  const fastnorm_context_options* ours = &defaults;
  if (options != nullptr) {
    FASTNORM_TRY(accept_struct(options, kFirstOptions, "options", &local, &ours, error));
  }
  FASTNORM_TRY(check_options(*ours, device.device_type, error));
  auto made = std::make_unique<fastnorm_context>();
  FASTNORM_TRY(backend->create(device.device_id, *ours, &made->device, error));
  made->norm_index = std::make_unique<const NormIndex>(made->device->table<NormEntry>());
  FASTNORM_TRY(load_tuning(*ours, made.get(), error));
  *context = made.release();
  return FASTNORM_OK;
}

fastnorm_status describe_device(fastnorm_device device, fastnorm_device_info* info, Error& error) {
  FASTNORM_REQUIRE(info != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "info is NULL; required: a fastnorm_device_info");
  FASTNORM_REQUIRE(info->struct_size >= kFirstDeviceInfo, FASTNORM_ERROR_ARGUMENT,
                   "info.struct_size is %zu; required: at least %zu", info->struct_size,
                   kFirstDeviceInfo);
  const Backend* backend = nullptr;
  FASTNORM_TRY(backend_of(device.device_type, "device.device_type", &backend, error));
  fastnorm_device_info found = {};
  FASTNORM_TRY(backend->describe(device.device_id, &found, error));
  give_struct(found, info);
  return FASTNORM_OK;
}

// Calls fn(family, arch, name) for each kernel of the build until it returns true: first those of
// the norm.
template <typename Fn>
void for_each_kernel(Fn fn) {
  for (const bool norm : {true, false}) {
    for (const Backend* backend : {&cpu_backend(), &cuda_backend()}) {
      for (const KernelSet& set : backend->kernel_sets()) {
        for (const FamilyNames& family : set.families) {
          if ((std::string_view(family.family) == "norm") != norm) continue;
          for (const char* name : family.names) {
            if (fn(family.family, set.arch, name)) return;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastnorm

fastnorm_status fastnorm_device_count(int32_t device_type, int32_t* count) {
  return fastnorm::guarded([&](fastnorm::Error& error) {
    FASTNORM_REQUIRE(count != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "count is NULL; required: a pointer to receive the number");
    const fastnorm::Backend* backend = nullptr;
    FASTNORM_TRY(fastnorm::backend_of(device_type, "device_type", &backend, error));
    *count = backend->device_count();
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_device_describe(fastnorm_device device, fastnorm_device_info* info) {
  return fastnorm::guarded(
      [&](fastnorm::Error& error) { return fastnorm::describe_device(device, info, error); });
}

fastnorm_status fastnorm_context_create(fastnorm_device device,
                                        const fastnorm_context_options* options,
                                        fastnorm_context** context) {
  return fastnorm::guarded(
      [&](fastnorm::Error& error) { return fastnorm::create(device, options, context, error); });
}

void fastnorm_context_destroy(fastnorm_context* context) { delete context; }

int32_t fastnorm_kernel_count(void) {
  int32_t count = 0;
  const fastnorm_status status = fastnorm::guarded([&](fastnorm::Error&) {
    fastnorm::for_each_kernel([&](const char*, const char*, const char*) {
      ++count;
      return false;
    });
    return FASTNORM_OK;
  });
  return status == FASTNORM_OK ? count : 0;
}

fastnorm_status fastnorm_kernel_describe(int32_t index, fastnorm_kernel_info* info) {
  return fastnorm::guarded([&](fastnorm::Error& error) {
    FASTNORM_REQUIRE(info != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "info is NULL; required: a fastnorm_kernel_info");
    FASTNORM_REQUIRE(info->struct_size >= fastnorm::kFirstKernelInfo, FASTNORM_ERROR_ARGUMENT,
                     "info.struct_size is %zu; required: at least %zu", info->struct_size,
                     fastnorm::kFirstKernelInfo);
    int64_t left = index;
    fastnorm_kernel_info described = {};
    bool found = false;
    fastnorm::for_each_kernel([&](const char* family, const char* arch, const char* name) {
      if (left-- != 0) return false;
      described.family = family;
      described.arch = arch;
      described.name = name;
      return found = true;
    });
    FASTNORM_REQUIRE(found, FASTNORM_ERROR_ARGUMENT, "index is %d; required: 0 to %d", index,
                     fastnorm_kernel_count() - 1);
    fastnorm::give_struct(described, info);
    return FASTNORM_OK;
  });
}
