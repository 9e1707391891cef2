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

void Operands::load(const std::string& name, Operand* operand) const {
  if (name.empty()) return;
  const StoredTensor& stored = file_.at(name);
  const DtypeName* dtype = find_safetensors_dtype(stored.dtype);
  if (dtype == nullptr) {
    throw CommandError(file_.path() + ": tensor '" + name + "' has dtype " + stored.dtype +
                       "; required: " + safetensors_dtype_names());
  }
  operand->name = name;
  place(operand, machine_.allocate(stored.content.size()), dtype->dtype, stored.shape);
  machine_.upload(operand->data, stored.content.data(), stored.content.size());
}

void Operands::place(Operand* operand, Block memory, fastnorm_dtype dtype,
                     std::vector<int64_t> shape) const {
  operand->data = memory.get();
  operand->memory = std::move(memory);
  operand->dtype = dtype;
  operand->bytes = count_elements(shape) * element_bytes(dtype);
  operand->view = TensorView(machine_.target(), operand->data, dtype, std::move(shape));
}

void Operands::make(const std::string& name, Operand* operand, const Operand* in_place_of,
                    fastnorm_dtype dtype, const std::vector<int64_t>& shape) const {
  if (name.empty()) return;
  operand->name = name;
  const size_t bytes = count_elements(shape) * element_bytes(dtype);
  if (in_place_of != nullptr && in_place_of->data != nullptr) {
    operand->data = in_place_of->data;
    operand->dtype = dtype;
    operand->bytes = bytes;
    operand->view = TensorView(machine_.target(), operand->data, dtype, shape);
    return;
  }
  place(operand, machine_.allocate(bytes), dtype, shape);
  const std::vector<std::byte> zeros(bytes);  // amax is combined into what is there
  machine_.upload(operand->data, zeros.data(), bytes);
}

Json Operands::store(const std::string& output, const std::vector<Operand*>& outputs) const {
  std::vector<NewTensor> stored;
  for (Operand* operand : outputs) {
    if (operand->data == nullptr) continue;
    NewTensor t{operand->name, operand->dtype, operand->view.shape(), {}};
    t.content.resize(operand->bytes);
    machine_.download(t.content.data(), operand->data, operand->bytes);
    stored.push_back(std::move(t));
  }
  write_safetensors(output, stored);
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

void tell_run(const RunOptions& options, const Machine& machine, const fastnorm_info& info,
              const Json& stored) {
  if (!options.json) return;
  Json document = to_json(machine, info);
  document["file"] = options.output;
  document["tensors"] = stored;
  print_json(document);
}

}  // namespace fastnorm::tool
