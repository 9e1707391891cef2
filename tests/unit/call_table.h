// Calls of a table, and what the library says of them. Files are in tests/unit/calls.
//
//   base NAME: CALL                           a call that is right
//   base NAME: BASE CHANGES                   another base with changes
//   BASE | NAME | CHANGES | STATUS | TEXT ..  the base with changes is refused with a status,
//                                             ARGUMENT for FASTNORM_ERROR_ARGUMENT. The message has
//                                             each of the texts. OK: it is right
//
// Lines that begin with blanks continue a base. support/call_text.h says how a call is written.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/common/check.h"
#include "core/common/error.h"
#include "support/call_text.h"

namespace fastnorm::test {

struct CallLine {
  std::string table;  // the file's name without its end
  std::string where;  // file and line
  std::string base, name, changes;
  fastnorm_status status = FASTNORM_OK;
  std::vector<std::string> texts;
};

struct CallTable {
  std::map<std::string, support::Call> bases;
  std::vector<CallLine> lines;
};

// Throws std::runtime_error, which begins with file and line.
CallTable read_call_table(const std::string& path);

// One of tests/unit/calls, by the file's name without its end. It is read once.
const CallTable& call_table(const std::string& name);

// A base of it with changes.
support::Call call_of(const std::string& table, const std::string& base,
                      const std::string& changes = "");

// The library's check of a call.
fastnorm_status check_call(support::Call& call, Error& error);

// Lets check_call() check the calls of a family. A family has one in its check_test.cpp:
// const CheckedFamily kFamily("norm", check_norm).
class CheckedFamily {
 public:
  using Check = std::function<fastnorm_status(support::Call&, CheckedDevice, Error&)>;

  template <class Args, class Desc>
  CheckedFamily(const char* name,
                fastnorm_status (*check)(const Args*, CheckedDevice, Desc*, Error&))
      : CheckedFamily(name, [check](support::Call& call, CheckedDevice device, Error& error) {
          const auto desc = std::make_unique<Desc>();
          return check(call.args<Args>(), device, desc.get(), error);
        }) {}
  template <class Args, class Part, class Desc>
  CheckedFamily(const char* name, fastnorm_status (*check)(const Args*, const Part* const*, int32_t,
                                                           CheckedDevice, Desc*, Error&))
      : CheckedFamily(name, [check](support::Call& call, CheckedDevice device, Error& error) {
          const auto desc = std::make_unique<Desc>();
          return check(call.args<Args>(), call.parts<Part>(), call.count(), device, desc.get(),
                       error);
        }) {}

 private:
  CheckedFamily(const char* name, const Check& check);
};

}  // namespace fastnorm::test
