#include "dtype.h"
#include "run.h"

namespace fastnorm::tool {
namespace {

size_t count_elements(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

}  // namespace

Operands::Operands(const RunOptions& options, const char* family)
    : options_(options),
      machine_(parse_target(options.device), options.threads, options.tuning),
      file_(options.input),
      call_(family) {}

void Operands::load_inputs() {
  for (const auto& [option, name] : options_.names.all()) {
    const std::string path = path_of(family(), option);
    if (path.empty() || name.empty()) continue;
    const bool given_scale = option == "--scale";  // of PER_TENSOR, an output otherwise
    if (given_scale || !call_.is_output(path)) load(path, name);
  }
}

void Operands::load(const std::string& path, const std::string& name) {
  if (name.empty()) return;
  const StoredTensor& stored = file_.at(name);
  const DtypeName* dtype = find_safetensors_dtype(stored.dtype);
  if (dtype == nullptr) {
    throw CommandError(file_.path() + ": tensor '" + name + "' has dtype " + stored.dtype +
                       "; required: " + safetensors_dtype_names());
  }
  Operand& operand = operands_[path];
  operand.name = name;
  place(&operand, machine_.allocate(stored.content.size()), dtype->dtype, stored.shape);
  machine_.upload(operand.data, stored.content.data(), stored.content.size());
}

void Operands::place(Operand* operand, Block memory, fastnorm_dtype dtype,
                     std::vector<int64_t> shape) {
  operand->data = memory.get();
  operand->memory = std::move(memory);
  operand->dtype = dtype;
  operand->bytes = count_elements(shape) * element_bytes(dtype);
  operand->shape = std::move(shape);
}

void Operands::make(const std::string& path, const std::string& name, const Operand* in_place_of,
                    fastnorm_dtype dtype, const std::vector<int64_t>& shape) {
  if (name.empty()) return;
  Operand& operand = operands_[path];
  operand.name = name;
  if (in_place_of != nullptr) {
    place(&operand, Block(), dtype, shape);
    operand.data = in_place_of->data;
    return;
  }
  const std::vector<std::byte> zeros(count_elements(shape) * element_bytes(dtype));
  place(&operand, machine_.allocate(zeros.size()), dtype, shape);
  machine_.upload(operand.data, zeros.data(), zeros.size());  // amax is combined into what is there
}

const Operand* Operands::find(const std::string& path) const {
  const auto found = operands_.find(path);
  return found == operands_.end() ? nullptr : &found->second;
}

void Operands::prepare(uint32_t flags) {
  const Target& target = machine_.target();
  flags |= options_.norm.fields().flags() | options_.stages.flags(family());
  call_.change("device=" + std::to_string(target.device_type) + ":" +
               std::to_string(target.device_id) + options_.norm.fields().words(family()) +
               options_.stages.words(family()) + " flags=" + std::to_string(flags));
  for (const auto& [path, operand] : operands_) {
    if (!path.starts_with("old_"))
      call_.give(path, call_tensor(reinterpret_cast<uintptr_t>(operand.data), operand.dtype,
                                   operand.shape));
  }
}

Json Operands::store(const std::vector<std::string>& outputs) const {
  std::vector<NewTensor> stored;
  for (const std::string& path : outputs) {
    const Operand* const operand = find(path);
    if (operand == nullptr) continue;
    NewTensor t{operand->name, operand->dtype, operand->shape, {}};
    t.content.resize(operand->bytes);
    machine_.download(t.content.data(), operand->data, operand->bytes);
    stored.push_back(std::move(t));
  }
  write_safetensors(options_.output, stored);
  Json tensors = Json::array();
  for (const NewTensor& t : stored) tensors.push_back(to_json(t));
  return tensors;
}

Json to_json(const NewTensor& tensor) {
  return {
      {"name", tensor.name}, {"dtype", find_dtype(tensor.dtype)->name}, {"shape", tensor.shape}};
}

Json to_json(const Machine& machine, const fastnorm_info& info) {
  const fastnorm_device_info device = describe_device(machine.target());
  return {{"library", fastnorm_version_string()},
          {"device", device.name},
          {"kernels", device.kernel_arch},
          {"threads", machine.threads()},
          {"kernel", info.kernel},
          {"launches", info.launches},
          {"workspace_bytes", info.workspace_bytes},
          {"bytes_read", info.bytes_read},
          {"bytes_written", info.bytes_written}};
}

void Operands::tell(const fastnorm_info& info, const Json& stored) const {
  if (!options_.json) return;
  Json document = to_json(machine_, info);
  document["file"] = options_.output;
  document["tensors"] = stored;
  print_json(document);
}

}  // namespace fastnorm::tool
