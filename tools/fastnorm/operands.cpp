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

void Operands::store(const std::string& output, const std::vector<Operand*>& outputs) const {
  std::vector<NewTensor> stored;
  for (Operand* operand : outputs) {
    if (operand->data == nullptr) continue;
    NewTensor t{operand->name, operand->dtype, operand->view.shape(), {}};
    t.content.resize(operand->bytes);
    machine_.download(t.content.data(), operand->data, operand->bytes);
    stored.push_back(std::move(t));
  }
  write_safetensors(output, stored);
}

}  // namespace fastnorm::tool
