// Reading and writing of safetensors files: an 8-byte little-endian length, a JSON header of that
// many bytes that gives each tensor's dtype, shape and place, then the bytes of the tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtype.h"

namespace fastnorm::tool {

// A tensor of an open file.
struct StoredTensor {
  std::string dtype;                   // as the header names it: "BF16"
  std::vector<int64_t> shape;          // empty = a scalar
  std::span<const std::byte> content;  // lies in the file
};

// A file, mapped read-only for as long as this object lives. Everything the header says is checked
// on opening; a file that is not valid throws CommandError with its path and what is wrong.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  // Throws CommandError, naming the tensors that are there.
  const StoredTensor& at(const std::string& name) const;
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

 private:
  void map_file();
  void parse();

  std::string path_;
  std::span<const std::byte> bytes_;
  std::map<std::string, StoredTensor> tensors_;
};

// A tensor to be written.
struct NewTensor {
  std::string name;
  fastnorm_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> content;
};

// Writes a file in one step: under a temporary name beside `path`, then renamed, so that `path` is
// never half a file. Throws CommandError.
void write_safetensors(const std::string& path, const std::vector<NewTensor>& tensors);

}  // namespace fastnorm::tool
