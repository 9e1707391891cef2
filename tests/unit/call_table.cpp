#include "unit/call_table.h"

#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>

#include "fastnorm/fastnorm.h"
#include "support/call_functions.h"

namespace fastnorm::test {

using support::Call;

namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t at = 0;;) {
    const size_t end = line.find('|', at);
    cells.push_back(trimmed(line.substr(at, end - at)));
    if (end == line.npos) return cells;
    at = end + 1;
  }
}

fastnorm_status status_of(const std::string& word) {
  if (word == "OK") return FASTNORM_OK;
  for (int status = 1; status < 100; ++status) {
    const std::string name = fastnorm_status_name(static_cast<fastnorm_status>(status));
    if (name == "FASTNORM_ERROR_" + word) return static_cast<fastnorm_status>(status);
  }
  throw std::runtime_error("`" + word + "` is no status");
}

void add_base(CallTable* table, const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == text.npos) throw std::runtime_error("a base without a colon");
  const std::string name = trimmed(text.substr(5, colon - 5));
  const std::string call = trimmed(text.substr(colon + 1));
  const auto other = table->bases.find(call.substr(0, call.find(' ')));
  Call base;
  if (other == table->bases.end()) {
    base = Call(call);
  } else {
    base = other->second;
    base.change(call.substr(other->first.size()));
  }
  if (!table->bases.emplace(name, std::move(base)).second)
    throw std::runtime_error("`" + name + "` is there twice");
}

void add_line(CallTable* table, const std::string& text, const std::string& where,
              std::set<std::string>* names) {
  const std::vector<std::string> cells = cells_of(text);
  if (cells.size() < 4) throw std::runtime_error("less than 4 cells");
  const std::string file = where.substr(0, where.find('.'));
  CallLine line = {file, where, cells[0], cells[1], cells[2], status_of(cells[3]), {}};
  line.texts.assign(cells.begin() + 4, cells.end());
  if (line.texts.empty() != (line.status == FASTNORM_OK))
    throw std::runtime_error("texts are of errors, and every error has one");
  const auto base = table->bases.find(line.base);
  if (base == table->bases.end()) throw std::runtime_error("no base `" + line.base + "`");
  Call call = base->second;
  call.change(line.changes);
  if (!names->insert(line.base + " | " + line.name).second)
    throw std::runtime_error("`" + line.name + "` is there twice");
  table->lines.push_back(std::move(line));
}

// Rank 0 of three peers of bf16 with at most 64 columns.
class ConnectedPeer {
 public:
  ConnectedPeer() {
    require(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &context));
    fastnorm_peer_options options = {};
    options.struct_size = sizeof options;
    options.ranks = 3;
    options.dtype = FASTNORM_DTYPE_BF16;
    options.max_columns = 64;
    char blobs[3][FASTNORM_PEER_BLOB_BYTES];
    for (; options.rank < 3; ++options.rank) {
      require(fastnorm_peer_create(context, &options, &peers[options.rank]));
      require(fastnorm_peer_export(peers[options.rank], blobs[options.rank], sizeof blobs[0]));
    }
    require(fastnorm_peer_import(peers[0], blobs, sizeof blobs));
  }
  ~ConnectedPeer() {
    for (fastnorm_peer* peer : peers) fastnorm_peer_destroy(peer);
    fastnorm_context_destroy(context);
  }
  ConnectedPeer(const ConnectedPeer&) = delete;
  ConnectedPeer& operator=(const ConnectedPeer&) = delete;

  fastnorm_context* context = nullptr;
  fastnorm_peer* peers[3] = {};

 private:
  static void require(fastnorm_status status) {
    if (status != FASTNORM_OK) throw std::runtime_error(fastnorm_last_error());
  }
};

// All three functions of a call of peers. They say the same of one that is wrong.
fastnorm_status check_peer_call(Call& call, Error& error) {
  static const ConnectedPeer connected;
  const void* peer = nullptr;
  std::memcpy(&peer, call.scalar("peer"), sizeof peer);
  if (peer != nullptr) call.set_pointer("peer", connected.peers[0]);
  const support::CallFunctions& functions = *support::find_functions(call.family().name);
  const support::GivenCall given = {call.args<void>(), nullptr, 0};
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  const fastnorm_status status = functions.query(connected.context, given, &info);
  if (status == FASTNORM_OK) return status;
  error.set(status, "%s", fastnorm_last_error());
  alignas(256) static char workspace[4096];
  const auto same = [&](fastnorm_status other) {
    if (other != status || std::string(error.text) != fastnorm_last_error())
      throw std::runtime_error(std::string("other functions say: ") + fastnorm_last_error());
  };
  same(functions.prepare(connected.context, given));
  same(functions.run(connected.context, given, workspace, sizeof workspace, nullptr));
  return status;
}

// The check of each family but peers, by the family's name.
std::map<std::string, CheckedFamily::Check>& checks() {
  static std::map<std::string, CheckedFamily::Check> all;
  return all;
}

}  // namespace

CallTable read_call_table(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  CallTable table;
  std::set<std::string> names;
  std::string line, base;
  for (int number = 1, of_base = 0;; ++number) {
    const bool more = static_cast<bool>(std::getline(file, line));
    const std::string where = path.substr(path.rfind('/') + 1) + ":" + std::to_string(number);
    try {
      if (more && !base.empty() && line.starts_with(' ')) {
        base += " " + trimmed(line);
        continue;
      }
      if (!base.empty()) add_base(&table, base);
      base.clear();
      if (!more) return table;
      if (line.empty() || line.starts_with('#')) continue;
      if (line.starts_with("base ")) {
        base = line;
        of_base = number;
      } else {
        add_line(&table, line, where, &names);
      }
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(path + ":" + std::to_string(base.empty() ? number : of_base) + ": " +
                               error.what());
    }
  }
}

const CallTable& call_table(const std::string& name) {
  static std::map<std::string, CallTable> tables;
  const auto known = tables.find(name);
  if (known != tables.end()) return known->second;
  return tables.emplace(name, read_call_table(UNIT_TEST_DATA "/calls/" + name + ".txt"))
      .first->second;
}

Call call_of(const std::string& table, const std::string& base, const std::string& changes) {
  Call call = call_table(table).bases.at(base);
  call.change(changes);
  return call;
}

CheckedFamily::CheckedFamily(const char* name, const Check& check) {
  checks().emplace(name, check);
}

fastnorm_status check_call(Call& call, Error& error) {
  const std::string family = call.family().name;
  if (family.starts_with("peer_")) return check_peer_call(call, error);
  const auto found = checks().find(family);
  if (found == checks().end()) throw std::runtime_error("no check of " + family);
  return found->second(call, {call.device().device_type, call.device().device_id}, error);
}

}  // namespace fastnorm::test
