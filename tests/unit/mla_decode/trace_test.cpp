// Profiles: the buffer's words, what is refused, events in time, and the trace.
#include "core/mla_decode/trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace fastnorm::test {
namespace {

// A buffer as the kernel writes it.
class Recording {
 public:
  Recording(uint32_t blocks, uint32_t groups, uint32_t capacity)
      : words_(profile_bytes(uint64_t{blocks} * groups, capacity) / 8, ~uint64_t{0}) {
    header() = {kProfileMagic, kProfileVersion, blocks, groups, capacity, {}};
    for (uint32_t i = 0; i < blocks * groups; ++i) writer(i) = {};
  }
  ProfileHeader& header() { return *reinterpret_cast<ProfileHeader*>(words_.data()); }
  ProfileWriter& writer(uint32_t i) { return reinterpret_cast<ProfileWriter*>(&header() + 1)[i]; }
  void add(uint32_t i, uint64_t cycle, uint32_t id, uint32_t kind, uint32_t value = 0) {
    const uint32_t writers = header().blocks * header().groups;
    uint64_t* events =
        reinterpret_cast<uint64_t*>(reinterpret_cast<ProfileWriter*>(&header() + 1) + writers);
    ProfileWriter& w = writer(i);
    if (w.written == header().capacity) {
      ++w.dropped;
      return;
    }
    events[uint64_t{i} * header().capacity + w.written++] =
        profile_word(static_cast<uint32_t>(cycle), id, kind, value);
  }
  void* data() { return words_.data(); }
  size_t bytes() const { return words_.size() * 8; }

 private:
  std::vector<uint64_t> words_;
};

// Two blocks of three warpgroups; SM 7's clock runs at 2 GHz and SM 9's at 1 GHz.
Recording two_blocks() {
  Recording r(2, 3, 8);
  for (uint32_t i = 0; i < 6; ++i) {
    ProfileWriter& w = r.writer(i);
    w.multiprocessor = i < 3 ? 7 : 9;
    w.start_cycle = i < 3 ? 1000000 : 5000;
    w.start_ns = i < 3 ? 70000 : 70500;
    w.end_cycle = w.start_cycle + (i < 3 ? 2000 : 1000);
    w.end_ns = w.start_ns + 1000;
  }
  r.add(0, 0, FASTNORM_PROFILE_WORK, FASTNORM_PROFILE_BEGIN, 3);
  r.add(0, 100, FASTNORM_PROFILE_QK, FASTNORM_PROFILE_BEGIN, 3);
  r.add(0, 300, FASTNORM_PROFILE_WAIT_KV, FASTNORM_PROFILE_BEGIN, 3);
  r.add(0, 500, FASTNORM_PROFILE_WAIT_KV, FASTNORM_PROFILE_END, 3);
  r.add(0, 1100, FASTNORM_PROFILE_QK, FASTNORM_PROFILE_END, 3);
  r.add(0, 2000, FASTNORM_PROFILE_WORK, FASTNORM_PROFILE_END, 3);
  r.add(1, 600, FASTNORM_PROFILE_PV, FASTNORM_PROFILE_BEGIN, 4);
  r.add(1, 1600, FASTNORM_PROFILE_PV, FASTNORM_PROFILE_END, 4);
  r.add(5, 10, FASTNORM_PROFILE_LOAD_KV, FASTNORM_PROFILE_INSTANT, (1u << 22) - 1);
  return r;
}

TEST(MlaDecodeProfile, WordsHoldWhatTheyWereMadeOf) {
  for (const uint32_t cycle : {0u, 1u, 0x80000000u, 0xffffffffu}) {
    for (const uint32_t id : {0u, 17u, 255u}) {
      for (const uint32_t kind : {0u, 1u, 2u}) {
        for (const uint32_t value : {0u, 1u, (1u << 22) - 1}) {
          const uint64_t word = profile_word(cycle, id, kind, value);
          EXPECT_EQ(profile_cycle(word), cycle);
          EXPECT_EQ(profile_id(word), id);
          EXPECT_EQ(profile_kind(word), kind);
          EXPECT_EQ(profile_value(word), value);
        }
      }
    }
  }
}

TEST(MlaDecodeProfile, EventsAreAlignedInTime) {
  Recording r = two_blocks();
  Profile profile;
  Error error;
  ASSERT_EQ(Profile::open(r.data(), r.bytes(), &profile, error), FASTNORM_OK) << error.text;
  ASSERT_EQ(profile.events(), 9u);
  const std::vector<fastnorm_profile_event> e = profile.decode();
  ASSERT_EQ(e.size(), 9u);
  EXPECT_EQ(e[0].time_ns, 0u);
  EXPECT_EQ(e[4].time_ns, 550u) << "1100 cycles at 2 GHz";
  EXPECT_EQ(e[4].cycle, 1100u);
  EXPECT_EQ(e[5].time_ns, 1000u);
  EXPECT_EQ(e[6].group, 1);
  EXPECT_EQ(e[6].id, FASTNORM_PROFILE_PV);
  EXPECT_EQ(e[8].time_ns, 510u) << "10 cycles at 1 GHz behind a start 500 ns later";
  EXPECT_EQ(e[8].block, 1);
  EXPECT_EQ(e[8].group, 2);
  EXPECT_EQ(e[8].multiprocessor, 9);
  EXPECT_EQ(e[8].kind, FASTNORM_PROFILE_INSTANT);
  EXPECT_EQ(e[8].value, (1 << 22) - 1);
  for (size_t i = 1; i < e.size(); ++i) {
    const bool same = e[i].block == e[i - 1].block && e[i].group == e[i - 1].group;
    EXPECT_TRUE(!same || e[i].time_ns >= e[i - 1].time_ns);
  }
}

TEST(MlaDecodeProfile, ClocksThatWrap) {
  Recording r(1, 1, 4);
  ProfileWriter& w = r.writer(0);
  w.start_cycle = 0xfffffff000000000u;
  w.end_cycle = w.start_cycle + 10'000'000'000u;
  w.end_ns = 5'000'000'000u;
  for (const uint64_t cycle :
       {uint64_t{1}, uint64_t{4'000'000'000}, uint64_t{8'000'000'000}, uint64_t{10'000'000'000}})
    r.add(0, cycle, FASTNORM_PROFILE_WORK, FASTNORM_PROFILE_INSTANT);
  Profile profile;
  Error error;
  ASSERT_EQ(Profile::open(r.data(), r.bytes(), &profile, error), FASTNORM_OK) << error.text;
  const std::vector<fastnorm_profile_event> e = profile.decode();
  EXPECT_EQ(e[1].cycle, 4'000'000'000u);
  EXPECT_EQ(e[2].cycle, 8'000'000'000u);
  EXPECT_EQ(e[3].cycle, 10'000'000'000u);
  EXPECT_EQ(e[3].time_ns, 5'000'000'000u);
}

TEST(MlaDecodeProfile, WhatIsRefused) {
  const struct {
    const char* text;
    void (*spoil)(Recording&);
    size_t less;  // bytes
  } cases[] = {
      {"required: at least 64, the header", [](Recording&) {}, SIZE_MAX},
      {"required: at least 832, for what the header says", [](Recording&) {}, 1},
      {"buffer begins with", [](Recording& r) { r.header().magic ^= 1; }, 0},
      {"version 2; required: 1", [](Recording& r) { r.header().version = 2; }, 0},
      {"has 9 events", [](Recording& r) { r.writer(4).written = 9; }, 0},
      {"warpgroup 1 of thread block 1", [](Recording& r) { r.writer(4).written = 9; }, 0},
      {"an end behind the start", [](Recording& r) { r.writer(2).end_cycle = 0; }, 0},
      {"an end behind the start", [](Recording& r) { r.writer(2).end_ns = 0; }, 0},
      {"at most 268435456", [](Recording& r) { r.header().blocks = 0xffffffff; }, 0},
      {"bytes is", [](Recording& r) { r.header().blocks = 1 << 28; }, 0},
      {"at most", [](Recording& r) { r.header().groups = 9; }, 0},
      {"at most", [](Recording& r) { r.header().capacity = (1 << 20) + 1; }, 0},
  };
  for (const auto& c : cases) {
    Recording r = two_blocks();
    c.spoil(r);
    Profile profile;
    Error error;
    const size_t bytes = c.less == SIZE_MAX ? 63 : r.bytes() - c.less;
    EXPECT_EQ(Profile::open(r.data(), bytes, &profile, error), FASTNORM_ERROR_ARGUMENT) << c.text;
    EXPECT_NE(std::strstr(error.text, c.text), nullptr) << error.text;
  }
  Recording r = two_blocks();
  Profile profile;
  Error error;
  EXPECT_EQ(Profile::open(nullptr, 100, &profile, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_EQ(Profile::open(static_cast<char*>(r.data()) + 4, r.bytes() - 4, &profile, error),
            FASTNORM_ERROR_ARGUMENT);
  EXPECT_EQ(r.bytes(), 64u + 6 * (64 + 8 * 8));
}

TEST(MlaDecodeProfile, DroppedEventsAreCounted) {
  Recording r = two_blocks();
  for (int i = 0; i < 10; ++i) r.add(3, 100, FASTNORM_PROFILE_MERGE, FASTNORM_PROFILE_INSTANT);
  Profile profile;
  Error error;
  ASSERT_EQ(Profile::open(r.data(), r.bytes(), &profile, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(profile.events(), 17u);
  EXPECT_NE(profile.chrome_json().find("\"dropped\":2,"), std::string::npos);
}

TEST(MlaDecodeProfile, Trace) {
  Recording r = two_blocks();
  Profile profile;
  Error error;
  ASSERT_EQ(Profile::open(r.data(), r.bytes(), &profile, error), FASTNORM_OK) << error.text;
  const std::string json = profile.chrome_json();
  for (const char* text :
       {R"({"ph":"M","name":"process_name","pid":0,"args":{"name":"block 0, SM 7"}})",
        R"({"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"load"}})",
        R"({"ph":"B","name":"work","pid":0,"tid":0,"ts":0.000,"args":{"cycle":0,"value":3}})",
        R"({"ph":"b","cat":"tensor","id":"0.0.3","name":"qk","pid":0,"tid":0,"ts":0.050,)"
        R"("args":{"cycle":100,"value":3}})",
        R"({"ph":"e","cat":"tensor","id":"0.1.7","name":"pv","pid":0,"tid":1,"ts":0.800,)"
        R"("args":{"cycle":1600,"value":4}})",
        R"({"ph":"i","s":"t","name":"load kv","pid":1,"tid":2,"ts":0.510,)"
        R"("args":{"cycle":10,"value":4194303}})",
        // Products take cycles 100 to 1600 of a block's 2000. The other block, with one writer that
        // has events, has none in its 1000.
        R"("tensor share":0.5000)",
        // 200 cycles of three writers' 2000 + 2000 + 1000.
        R"("wait kv share":0.0400)", R"("events":9,"dropped":0)"}) {
    EXPECT_NE(json.find(text), std::string::npos) << text << "\n" << json;
  }
  // A thread without events has no track.
  EXPECT_EQ(json.find(R"("pid":1,"tid":0)"), std::string::npos);
}

TEST(MlaDecodeProfile, NamesOfEvents) {
  EXPECT_STREQ(profile_id_name(FASTNORM_PROFILE_WORK), "work");
  EXPECT_STREQ(profile_id_name(FASTNORM_PROFILE_WAIT_PLAN), "wait plan");
  EXPECT_STREQ(profile_id_name(FASTNORM_PROFILE_WAIT_PLAN + 1), "unknown");
  EXPECT_STREQ(profile_id_name(-1), "unknown");
}

}  // namespace
}  // namespace fastnorm::test
