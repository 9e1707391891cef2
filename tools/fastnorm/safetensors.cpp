#include "safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "library.h"

namespace fastnorm::tool {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as other readers of the format

[[noreturn]] void fail(const std::string& path, const std::string& text) {
  throw CommandError(path + ": " + text);
}

std::string system_error() { return std::strerror(errno); }

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

uint64_t read_length(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  return length;
}

// Parses the header. The library's parser keeps the last of two equal keys, which would hide a
// tensor: they are counted as they come.
json parse_header(const std::string& path, std::span<const std::byte> text) {
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  const auto* begin = reinterpret_cast<const char*>(text.data());
  json header;
  try {
    header = json::parse(begin, begin + text.size(), watch);
  } catch (const json::parse_error& e) {
    // Its own text quotes the file, which may hold anything.
    fail(path, "the header is not JSON, from its byte " + std::to_string(e.byte) + " on");
  }
  if (!repeated.empty()) fail(path, "the header names '" + repeated + "' twice");
  if (!header.is_object()) fail(path, "the header is not a JSON object");
  return header;
}

// Reads a list of non-negative integers below 2^63.
std::vector<int64_t> int_list(const std::string& path, const std::string& what, const json& value) {
  if (!value.is_array()) fail(path, what + " is not a list");
  std::vector<int64_t> list;
  for (const json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) {
      fail(path, what + " holds " + item.dump() + "; required: integers of 0 to 2^63 - 1");
    }
    list.push_back(item.get<int64_t>());
  }
  return list;
}

const json& member(const std::string& path, const std::string& name, const json& entry,
                   const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end()) fail(path, "tensor '" + name + "' has no '" + key + "'");
  return *found;
}

// Number of bytes that dtype and shape call for; false if the dtype is not known here.
bool expected_bytes(const std::string& path, const std::string& name, const StoredTensor& t,
                    uint64_t* bytes) {
  const DtypeName* dtype = find_safetensors_dtype(t.dtype);
  if (dtype == nullptr) return false;
  *bytes = element_bytes(dtype->dtype);
  for (const int64_t extent : t.shape) {
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(extent), bytes)) {
      fail(path, "the shape of tensor '" + name + "' has more bytes than 64 bits can count");
    }
  }
  return true;
}

struct Place {
  uint64_t begin, end;
  std::string name;
};

StoredTensor parse_tensor(const std::string& path, const std::string& name, const json& entry,
                          std::span<const std::byte> data, Place* place) {
  if (!entry.is_object()) fail(path, "tensor '" + name + "' is not described by an object");
  const json& dtype = member(path, name, entry, "dtype");
  if (!dtype.is_string()) fail(path, "the dtype of tensor '" + name + "' is not a string");
  StoredTensor t;
  t.dtype = dtype.get<std::string>();
  t.shape =
      int_list(path, "the shape of tensor '" + name + "'", member(path, name, entry, "shape"));
  const std::vector<int64_t> offsets = int_list(path, "data_offsets of tensor '" + name + "'",
                                                member(path, name, entry, "data_offsets"));
  if (offsets.size() != 2) fail(path, "data_offsets of tensor '" + name + "' are not two numbers");
  *place = {static_cast<uint64_t>(offsets[0]), static_cast<uint64_t>(offsets[1]), name};
  if (place->begin > place->end || place->end > data.size()) {
    fail(path, "tensor '" + name + "' lies at [" + std::to_string(place->begin) + ", " +
                   std::to_string(place->end) + "), the data have " + std::to_string(data.size()) +
                   " bytes");
  }
  t.content = data.subspan(place->begin, place->end - place->begin);
  uint64_t bytes = 0;
  if (expected_bytes(path, name, t, &bytes) && bytes != t.content.size()) {
    fail(path, "tensor '" + name + "' has " + std::to_string(t.content.size()) +
                   " bytes, its dtype and shape call for " + std::to_string(bytes));
  }
  return t;
}

// Tensors lie one after the other, without holes, to the end.
void check_places(const std::string& path, std::vector<Place> places, uint64_t data_bytes) {
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Place& p : places) {
    if (p.begin < end) fail(path, "tensor '" + p.name + "' overlaps the one before it");
    if (p.begin > end) {
      fail(path, std::to_string(p.begin - end) + " bytes before tensor '" + p.name +
                     "' belong to no tensor");
    }
    end = p.end;
  }
  if (end != data_bytes) {
    fail(path, std::to_string(data_bytes - end) + " bytes at the end belong to no tensor");
  }
}

std::string header_of(const std::vector<NewTensor>& tensors) {
  json header = json::object();
  uint64_t begin = 0;
  for (const NewTensor& t : tensors) {
    const uint64_t end = begin + t.content.size();
    header[t.name] = {{"dtype", std::string(find_dtype(t.dtype)->safetensors)},
                      {"shape", t.shape},
                      {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  // Padding with blanks, so that the data begin at a multiple of 8.
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

void write_all(const std::string& path, int fd, const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "cannot be written: " + system_error());
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void write_tensors(const std::string& path, int fd, const std::vector<NewTensor>& tensors) {
  const std::string header = header_of(tensors);
  uint8_t length[kLengthBytes];
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<uint8_t>(static_cast<uint64_t>(header.size()) >> (8 * i));
  }
  write_all(path, fd, length, sizeof length);
  write_all(path, fd, header.data(), header.size());
  for (const NewTensor& t : tensors) write_all(path, fd, t.content.data(), t.content.size());
  if (fsync(fd) != 0) fail(path, "cannot be written: " + system_error());
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  map_file();
  try {
    parse();
  } catch (...) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void SafetensorsFile::map_file() {
  const Descriptor file{open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path_, "cannot be opened: " + system_error());
  struct stat status = {};
  if (fstat(file.fd, &status) != 0) fail(path_, "cannot be read: " + system_error());
  if (!S_ISREG(status.st_mode)) fail(path_, "is not a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < kLengthBytes) {
    fail(path_, "has " + std::to_string(size) + " bytes; a safetensors file has at least 8");
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail(path_, "cannot be mapped: " + system_error());
  bytes_ = {static_cast<const std::byte*>(address), size};
}

void SafetensorsFile::parse() {
  const uint64_t header_bytes = read_length(bytes_);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes_.size() - kLengthBytes) {
    fail(path_, "the header should have " + std::to_string(header_bytes) + " bytes, the file has " +
                    std::to_string(bytes_.size()) + " (is it a safetensors file?)");
  }
  const json header = parse_header(path_, bytes_.subspan(kLengthBytes, header_bytes));
  const std::span<const std::byte> data = bytes_.subspan(kLengthBytes + header_bytes);
  std::vector<Place> places;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Place place;
    tensors_[name] = parse_tensor(path_, name, entry, data, &place);
    places.push_back(place);
  }
  check_places(path_, std::move(places), data.size());
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::string names;
  for (const auto& [other, tensor] : tensors_) names += (names.empty() ? "" : ", ") + other;
  fail(path_, "has no tensor '" + name + "'; it has: " + (names.empty() ? "none" : names));
}

void write_safetensors(const std::string& path, const std::vector<NewTensor>& tensors) {
  constexpr mode_t kNew = 0666;
  struct stat there = {};
  const bool exists = stat(path.c_str(), &there) == 0;
  if (exists ? !S_ISREG(there.st_mode) : std::filesystem::is_symlink(path))
    fail(path, "is not a regular file; required: one, or a name that does not exist");
  // Behind links.
  const std::string target = exists ? std::filesystem::canonical(path).string() : path,
                    temporary = target + ".tmp" + std::to_string(getpid());
  try {
    const Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNew)};
    if (file.fd < 0) fail(path, "cannot be written: " + system_error());
    if (exists && fchmod(file.fd, there.st_mode & 07777) != 0)
      fail(path, "cannot be written with its mode: " + system_error());
    write_tensors(path, file.fd, tensors);
    if (std::rename(temporary.c_str(), target.c_str()) != 0) {
      fail(path, "cannot be replaced: " + system_error());
    }
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace fastnorm::tool
