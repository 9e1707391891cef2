// Profiles on the host: check, decode, write a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/common/error.h"
#include "core/mla_decode/profile.h"
#include "fastnorm/mla_decode.h"

namespace fastnorm {

// A buffer on the host, with checked header, sizes and counters.
class Profile {
 public:
  static fastnorm_status open(const void* buffer, size_t bytes, Profile* profile, Error& error);

  size_t events() const { return events_; }
  // All events, by block, group and time.
  std::vector<fastnorm_profile_event> decode() const;
  // Trace Event Format, with a summary in otherData.
  std::string chrome_json() const;

 private:
  void put_summary(std::string* text) const;
  const ProfileHeader& header() const { return *static_cast<const ProfileHeader*>(buffer_); }
  const ProfileWriter& writer(uint32_t index) const;
  const uint64_t* words(uint32_t index) const;
  uint32_t writers() const { return header().blocks * header().groups; }

  const void* buffer_ = nullptr;
  size_t events_ = 0;
};

// Name of an event, or "unknown".
const char* profile_id_name(int32_t id);

}  // namespace fastnorm
