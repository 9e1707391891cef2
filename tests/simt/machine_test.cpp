// What the SIMT machine finds of the order in which a kernel waits for the stream's previous
// kernel, reads and writes, and lets the next one start.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "simt/cuda_words.h"
//
#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/ptx/system.cuh"

namespace {

using namespace fastnorm;

struct Asked {
  bool waits = true, triggers = true;
};

// Two blocks of 64 threads. The weight is constant; x is not.
class Kernel {
 public:
  std::string run(Asked asked, const std::function<void()>& body) {
    const auto input = [](const char* name, const uint32_t& word, bool constant) -> simt::Input {
      const auto begin = reinterpret_cast<uintptr_t>(&word);
      return {name, begin, begin + sizeof word, constant};
    };
    return simt::launch({2,
                         1,
                         64,
                         1,
                         0,
                         simt::Order::kShuffled,
                         asked.waits,
                         asked.triggers,
                         {input("x", x, false), input("weight", weight, true)}},
                        body);
  }
  void load() { ptx::ld_global_u32(reinterpret_cast<const char*>(&x)); }
  void load_weight() { ptx::ld_global_u32(reinterpret_cast<const char*>(&weight)); }
  void store() { ptx::st_global_u32(reinterpret_cast<char*>(&y), 1); }

  uint32_t x = 0, weight = 0, y = 0;
};

void expect_finding(const std::string& found, const char* what) {
  EXPECT_NE(found.find(what), std::string::npos) << found;
}

TEST(SimtMachine, AcceptsAWaitThatComesFirst) {
  Kernel k;
  EXPECT_EQ(k.run({},
                  [&] {
                    k.load_weight();
                    ptx::grid_wait();
                    ptx::grid_trigger();
                    k.load(), k.store();
                  }),
            "");
  EXPECT_EQ(k.run({.waits = false, .triggers = false}, [&] { k.load(), k.store(); }), "");
  // One thread of each block is enough.
  EXPECT_EQ(k.run({},
                  [&] {
                    ptx::grid_wait();
                    if (simt::current->thread.x == 5) ptx::grid_trigger();
                  }),
            "");
}

TEST(SimtMachine, FindsWhatComesAheadOfTheWait) {
  Kernel k;
  const auto behind = [&](const std::function<void()>& first) {
    return k.run({}, [&] {
      first();
      ptx::grid_wait();
      ptx::grid_trigger();
    });
  };
  expect_finding(behind([&] { k.load(); }), "a load ahead of the wait");
  expect_finding(behind([&] { k.store(); }), "a store ahead of the wait");
  expect_finding(behind([&] { ptx::grid_trigger(); }), "a trigger ahead of the wait");
  // The planted race of one thread among others that wait.
  expect_finding(behind([&] {
                   if (simt::current->block.x == 1 && simt::current->thread.x == 63) k.load();
                 }),
                 "(block 1, thread 63)");
}

TEST(SimtMachine, FindsThreadsAndBlocksThatLeaveSomethingOut) {
  Kernel k;
  expect_finding(k.run({},
                       [&] {
                         if (simt::current->block.x == 1) return;  // without work
                         ptx::grid_wait();
                         ptx::grid_trigger();
                       }),
                 "a thread ends that has not waited");
  expect_finding(k.run({},
                       [&] {
                         ptx::grid_wait();
                         if (simt::current->block.x == 0) ptx::grid_trigger();
                       }),
                 "a block ends that has not let the next kernel start (block 1");
  expect_finding(k.run({.triggers = false},
                       [&] {
                         ptx::grid_wait();
                         ptx::grid_trigger();
                       }),
                 "a trigger that the call does not ask for");
}

// Two devices. The first stores a vector in its own memory and one in the other's, and lets the
// other run before it reads back what it stored, after that, and when it has ended.
TEST(SimtMachine, StoresInOwnMemoryArriveLate) {
  struct alignas(16) Words {
    uint32_t word[4] = {};
  };
  Words own[2], others;
  const simt::Grid grid = {1, 1, 1, 1, 0, simt::Order::kForward, false, false, {}};
  std::vector<uint32_t> seen;  // by the second device: both of `own`, others
  const auto first = [&] {
    ptx::st_system_v4(&own[0], make_uint4(1, 1, 1, 1));
    ptx::st_system_v4(&own[1], make_uint4(2, 2, 2, 2));
    ptx::st_system_v4(&others, make_uint4(3, 3, 3, 3));
    simt::yield();
    EXPECT_EQ(ptx::ld_system_u32(&own[0].word[2]), 0u);
    EXPECT_EQ(ptx::ld_system_u32(&own[0].word[2]), 1u);
    simt::yield();
  };
  const auto second = [&] {
    for (int look = 0; look < 3; ++look) {
      seen.insert(seen.end(), {own[0].word[3], own[1].word[3], others.word[3]});
      simt::yield();
    }
  };
  const auto begin = reinterpret_cast<uintptr_t>(own);
  EXPECT_EQ(simt::launch_together({{grid, first, begin, begin + sizeof own}, {grid, second}}), "");
  EXPECT_EQ(seen, (std::vector<uint32_t>{0, 0, 3, 1, 0, 3, 1, 2, 3}));
}

}  // namespace
