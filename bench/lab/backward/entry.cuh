// A line of a list: a kernel of the numbers that its tile has.
#pragma once

#include "bench/lab/backward/long_rows.cuh"
#include "bench/lab/backward/short_rows.cuh"

namespace lab {

template <Norm kNorm, int kThreads, int kVectors, int kLanes>
Entry short_rows() {
  return {kNorm,
          {kThreads, kVectors, kLanes, 1, Input::kRegisters, 1, false, false, false},
          short_rows_kernel<kNorm, kThreads, kVectors, kThreads * kLanes, 1>};
}

// The next step's rows in registers.
template <Norm kNorm, int kThreads, int kVectors, int kLanes, int kUnroll = 1,
          bool kStreamingStores = false>
Entry registers() {
  return {
      kNorm,
      {kThreads, kVectors, kLanes, kUnroll, Input::kRegisters, 1, false, false, kStreamingStores},
      long_rows_kernel<kNorm, kThreads, kVectors, kLanes, kUnroll, Input::kRegisters, 1, false,
                       false, kStreamingStores>};
}

template <Norm kNorm, int kThreads, int kVectors, int kLanes, int kStages, bool kRereads = false,
          bool kOneWarpFolds = false, Input kInput = Input::kRing>
Entry ring() {
  return {kNorm,
          {kThreads, kVectors, kLanes, 1, kInput, kStages, kRereads, kOneWarpFolds, false},
          long_rows_kernel<kNorm, kThreads, kVectors, kLanes, 1, kInput, kStages, kRereads,
                           kOneWarpFolds, false>};
}

template <Norm kNorm, int kThreads, int kVectors, int kLanes, int kStages>
Entry bulk_ring() {
  return ring<kNorm, kThreads, kVectors, kLanes, kStages, false, false, Input::kBulkRing>();
}

}  // namespace lab
