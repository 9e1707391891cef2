// fastnorm info: what the library contains and which devices it sees.
#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "commands.h"
#include "help.h"
#include "json.h"
#include "library.h"

namespace fastnorm::tool {
namespace {

struct InfoOptions {
  bool json = false, kernels = false;
};

std::vector<fastnorm_kernel_info> all_kernels() {
  std::vector<fastnorm_kernel_info> kernels;
  for (int32_t i = 0; i < fastnorm_kernel_count(); ++i) {
    fastnorm_kernel_info info = {};
    info.struct_size = sizeof info;
    check(fastnorm_kernel_describe(i, &info));
    kernels.push_back(info);
  }
  return kernels;
}

std::string version_text(int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// "cpu" or "cuda:N" with what is known of it, or with the reason why it cannot be used.
Json device_json(const Target& target) {
  Json device;
  device["device"] = target.is_cuda() ? "cuda:" + std::to_string(target.device_id) : "cpu";
  try {
    const fastnorm_device_info info = describe_device(target);
    device["name"] = info.name;
    device["kernels"] = info.kernel_arch != nullptr ? info.kernel_arch : "";
    device[target.is_cuda() ? "multiprocessors" : "processors"] = info.multiprocessors;
    device["l2_bytes"] = info.l2_bytes;
    if (target.is_cuda()) {
      device["capability"] =
          std::to_string(info.capability / 10) + "." + std::to_string(info.capability % 10);
      device["memory_bytes"] = info.memory_bytes;
      device["driver_cuda"] = version_text(info.driver_version);
      device["runtime_cuda"] = version_text(info.runtime_version);
    }
  } catch (const LibraryError& e) {
    device["error"] = e.what();
  }
  return device;
}

// Why there is no CUDA device, in the library's words; "" if there is one.
std::string cuda_absence() {
  if (device_count(FASTNORM_DEVICE_CUDA) > 0) return "";
  try {
    make_context({FASTNORM_DEVICE_CUDA, 0, 0}, 0);
  } catch (const LibraryError& e) {
    return e.what();
  }
  return "no device was counted, yet one can be used";
}

// What a read of a file finds; all zero where it ends before.
template <typename Struct>
Struct read_at(std::ifstream& file, uint64_t offset) {
  Struct found = {};
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(&found), sizeof found);
  return file ? found : Struct{};
}

// Bytes of a section of a 64-bit ELF file; 0 where it is not there.
uint64_t section_bytes(const std::string& path, const std::string& section) {
  std::ifstream file(path, std::ios::binary);
  const auto head = read_at<Elf64_Ehdr>(file, 0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) {
    return 0;
  }
  const auto header = [&](uint64_t i) {
    return read_at<Elf64_Shdr>(file, head.e_shoff + i * head.e_shentsize);
  };
  const Elf64_Shdr names = header(head.e_shstrndx);
  for (uint64_t i = 0; i < head.e_shnum; ++i) {
    const Elf64_Shdr at = header(i);
    std::string name(section.size() + 1, '?');
    file.seekg(static_cast<std::streamoff>(names.sh_offset + at.sh_name));
    file.read(name.data(), static_cast<std::streamsize>(name.size()));
    if (file && name.c_str() == section && name.back() == '\0') return at.sh_size;
    file.clear();
  }
  return 0;
}

// The file that the library is in, its size, and how much of it is compressed GPU code of all
// families.
Json library_file() {
  Json found = Json::object();
  Dl_info at = {};
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&fastnorm_version), &at) == 0) return found;
  const auto bytes = std::filesystem::file_size(at.dli_fname, error);
  if (error) return found;
  found["library_bytes"] = bytes;
  found["gpu_code_bytes"] = section_bytes(at.dli_fname, ".nv_fatbin");
  return found;
}

Json collect() {
  Json info;
  info["version"] = fastnorm_version_string();
  info["numeric_version"] = fastnorm_numeric_version();
  info["build"] = Json::object();
  std::istringstream lines(fastnorm_build_info());
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, colon);
    if (key == "version" || key == "numeric version") continue;  // said above
    info["build"][key] = line.substr(colon + 2);
  }
  info["devices"] = Json::array();
  for (const int32_t type : {FASTNORM_DEVICE_CPU, FASTNORM_DEVICE_CUDA}) {
    for (int32_t id = 0; id < device_count(type); ++id) {
      info["devices"].push_back(device_json({type, id, 0}));
    }
  }
  if (const std::string why = cuda_absence(); !why.empty()) info["no_cuda_device"] = why;
  info["kernel_count"] = fastnorm_kernel_count();
  const auto count_one = [](Json& count) { count = count.is_null() ? 1 : count.get<int>() + 1; };
  info["kernels_per_arch"] = Json::object();
  info["families"] = Json::object();
  for (const fastnorm_kernel_info& kernel : all_kernels()) {
    count_one(info["kernels_per_arch"][kernel.arch]);
    count_one(info["families"][kernel.family]["kernels"]);
    count_one(info["families"][kernel.family]["kernels_per_arch"][kernel.arch]);
  }
  info["file"] = library_file();
  return info;
}

Json kernel_list() {
  Json list = Json::array();
  for (const fastnorm_kernel_info& kernel : all_kernels()) {
    list.push_back({{"family", kernel.family}, {"arch", kernel.arch}, {"name", kernel.name}});
  }
  return list;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string size_text(uint64_t bytes) {
  char text[32];
  if (bytes >= uint64_t{1} << 30) {
    std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  } else {
    std::snprintf(text, sizeof text, "%llu KiB", static_cast<unsigned long long>(bytes >> 10));
  }
  return text;
}

void print_device(const Json& device) {
  std::printf("%s\n", text_of(device["device"]).c_str());
  for (const auto& [key, value] : device.items()) {
    if (key == "device") continue;
    std::string label = key, text = text_of(value);
    if (const size_t bytes = key.find("_bytes"); bytes != std::string::npos) {
      label = key.substr(0, bytes);
      text = size_text(value.get<uint64_t>());
    }
    std::printf("  %-18s %s\n", label.c_str(), text.c_str());
  }
}

void print_text(const Json& info, bool kernels) {
  std::printf("libfastnorm %s, numeric version %s\n", text_of(info["version"]).c_str(),
              text_of(info["numeric_version"]).c_str());
  for (const auto& [key, value] : info["build"].items()) {
    std::printf("  %-18s %s\n", key.c_str(), text_of(value).c_str());
  }
  for (const Json& device : info["devices"]) print_device(device);
  if (info.contains("no_cuda_device")) {
    std::printf("no CUDA device: %s\n", text_of(info["no_cuda_device"]).c_str());
  }
  std::printf("%s kernels\n", text_of(info["kernel_count"]).c_str());
  for (const auto& [family, of] : info["families"].items()) {
    std::printf("  %-18s %s\n", family.c_str(), text_of(of["kernels"]).c_str());
    for (const auto& [arch, count] : of["kernels_per_arch"].items()) {
      std::printf("    %-16s %s\n", arch.c_str(), text_of(count).c_str());
    }
  }
  for (const auto& [name, bytes] : info["file"].items()) {
    std::printf("%s %s\n", size_text(bytes.get<uint64_t>()).c_str(),
                name == "library_bytes" ? "the library's file" : "of it GPU code, compressed");
  }
  if (!kernels) return;
  for (const fastnorm_kernel_info& kernel : all_kernels()) {
    std::printf("%s %s %s\n", kernel.family, kernel.arch, kernel.name);
  }
}

void run_info(const InfoOptions& options) {
  Json info = collect();
  if (!options.json) return print_text(info, options.kernels);
  if (options.kernels) info["kernels"] = kernel_list();
  print_json(info);
}

}  // namespace

void add_info(CLI::App& program) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command =
      program.add_subcommand("info", "Version, build, devices and kernels of the library");
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--kernels", options->kernels, "list every kernel, too");
  set_examples(*command, {"fastnorm info", "fastnorm info --kernels --json"});
  command->callback([options] { run_info(*options); });
}

}  // namespace fastnorm::tool
