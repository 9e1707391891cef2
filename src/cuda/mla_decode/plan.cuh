// The planner: one thread block cuts the requests into parts. It runs on the device, so that
// lengths need not be known on the host. core/mla_decode/plan.h has its host twin.
//
// Requests lie end to end on a line, each as long as its tiles and kMlaRequestCost behind them.
// With split_tiles, pieces are given, and parts end where pieces do. Else the first of these that
// fits in the parts and is no longer than a walk would be:
//   even    each request in equal pieces, one for each part
//   whole   requests of one length: each part has the same number of them
//   walk    a part ends `step` further, or at a request's end at most kMlaRequestCost behind that
#pragma once

#include <climits>

#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

inline constexpr int kPlanThreads = 512;
inline constexpr int kPlanWarps = kPlanThreads / 32;
inline constexpr int kPlanRequests = 4096;  // whose positions fit in shared memory

// Sums of several numbers over the threads before this one, and over all.
struct PlanSums {
  int cost, pieces, splits, units;
};
__device__ __forceinline__ PlanSums operator+(const PlanSums& a, const PlanSums& b) {
  return {a.cost + b.cost, a.pieces + b.pieces, a.splits + b.splits, a.units + b.units};
}
__device__ __forceinline__ PlanSums operator-(const PlanSums& a, const PlanSums& b) {
  return {a.cost - b.cost, a.pieces - b.pieces, a.splits - b.splits, a.units - b.units};
}
__device__ __forceinline__ int shuffled_up(int v, int distance) {
  return __shfl_up_sync(~0u, v, distance);
}

struct PlanShared {
  PlanSums warp_sums[kPlanWarps];
  int position[kMlaMaxParts + 1];    // of the parts' ends on the line
  int request[kMlaMaxParts + 1];     // at them
  int prefix[kPlanRequests + 1];     // positions of requests
  int first_part[kMlaMaxParts + 1];  // even: of each request
  int tried_parts[kMlaTriedLengths];
  int greatest, least;  // tiles of a request
};

// In-block scan. Returns what lies before the thread; `all` gets the total.
__device__ __forceinline__ PlanSums scan_before(PlanShared& shared, PlanSums own, PlanSums& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  PlanSums upto = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const PlanSums left = {shuffled_up(upto.cost, distance), shuffled_up(upto.pieces, distance),
                           shuffled_up(upto.splits, distance), shuffled_up(upto.units, distance)};
    if (lane >= distance) upto = upto + left;
  }
  __syncthreads();  // the previous scan's readers
  if (lane == 31) shared.warp_sums[warp] = upto;
  __syncthreads();
  PlanSums before = {0, 0, 0, 0};
  all = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kPlanWarps; ++w) {
    if (w == warp) before = all;
    all = all + shared.warp_sums[w];
  }
  return before + (upto - own);
}

// Greatest index in [0, count) whose value is at most v; values rise and values[0] <= v.
__device__ __forceinline__ int last_at_most(const int* values, int count, int v) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (values[middle] <= v) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Pieces of a request where they are given.
__device__ __forceinline__ int given_pieces(int tiles, int split_tiles) {
  return tiles <= split_tiles ? 1 : (tiles - 1) / split_tiles + 1;
}

// Writes the requests' positions; with split_tiles also the splits. Returns all sums.
__device__ __forceinline__ PlanSums lay_out(const MlaDecodeParams& p, PlanShared& shared,
                                            int* prefix) {
  PlanSums carry = {0, 0, 0, 0};
  if (threadIdx.x == 0) shared.greatest = 0, shared.least = INT_MAX;
  __syncthreads();
  for (int base = 0; base < p.requests; base += kPlanThreads) {
    const int request = base + static_cast<int>(threadIdx.x);
    PlanSums own = {0, 0, 0, 0};
    int pieces = 1, greatest = 0, least = INT_MAX;
    if (request < p.requests) {
      const int count = tokens_of(p, request).count;
      const int tiles = count > 0 ? tiles_of(length_of(p, request)) : 0;
      greatest = least = tiles;
      if (p.split_tiles != 0) pieces = given_pieces(tiles, p.split_tiles);
      own.cost = tiles + pieces * kMlaRequestCost;
      if (pieces > 1) own = {own.cost, pieces, 1, mla_combine_units(pieces, count * p.heads)};
    }
    greatest = __reduce_max_sync(~0u, greatest);
    least = __reduce_min_sync(~0u, least);
    if (threadIdx.x % 32 == 0) {
      atomicMax(&shared.greatest, greatest);
      atomicMin(&shared.least, least);
    }
    PlanSums all;
    const PlanSums before = carry + scan_before(shared, own, all);
    if (request < p.requests) {
      prefix[request] = before.cost;
      if (pieces > 1) p.splits[before.splits] = {request, before.pieces, pieces, before.units};
    }
    carry = carry + all;
  }
  if (threadIdx.x == 0) prefix[p.requests] = carry.cost;
  __syncthreads();
  return carry;
}

// Tiles of a request, from its positions.
__device__ __forceinline__ int tiles_at(const int* prefix, int request) {
  return prefix[request + 1] - prefix[request] - kMlaRequestCost;
}

// The length of even pieces, or 0: each warp counts the parts that one length takes.
__device__ __forceinline__ int even_length(const MlaDecodeParams& p, PlanShared& shared,
                                           const int* prefix, int total, int step) {
  if (p.requests > p.parts_count) return 0;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int tiles = total - p.requests * kMlaRequestCost;
  const int least = max(kMlaLeastTiles, (tiles + p.parts_count - 1) / p.parts_count);
  static_assert(kMlaTriedLengths == kPlanWarps);
  int parts = 0;
  for (int request = lane; request < p.requests; request += 32) {
    parts += given_pieces(tiles_at(prefix, request), least + warp);
  }
  parts = static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(parts)));
  if (lane == 0) shared.tried_parts[warp] = parts;
  __syncthreads();
  for (int i = 0; i < kMlaTriedLengths; ++i) {
    if (shared.tried_parts[i] > p.parts_count) continue;
    return least + i <= step + kMlaMergeCost ? least + i : 0;
  }
  return 0;
}

__device__ __forceinline__ void cut_evenly(const MlaDecodeParams& p, PlanShared& shared,
                                           const int* prefix, int length) {
  const int request = static_cast<int>(threadIdx.x);
  const bool has_request = request < p.requests;
  const int tiles = has_request ? tiles_at(prefix, request) : 0;
  const int pieces = has_request ? given_pieces(tiles, length) : 0;
  PlanSums all;
  const PlanSums before = scan_before(shared, {0, pieces, 0, 0}, all);
  if (request <= p.requests) shared.first_part[request] = before.pieces;
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x);
  if (part > p.parts_count) return;
  int at = prefix[p.requests];
  if (part < all.pieces) {
    const int of = last_at_most(shared.first_part, p.requests, part);
    const int count = shared.first_part[of + 1] - shared.first_part[of];
    const int size = (tiles_at(prefix, of) + count - 1) / count;
    at = prefix[of] + (part - shared.first_part[of]) * size;
  }
  shared.position[part] = at;
}

// Requests of each part where all are of one length; or 0.
__device__ __forceinline__ int whole_requests(const MlaDecodeParams& p, const PlanShared& shared,
                                              int step) {
  if (p.requests <= p.parts_count || shared.greatest != shared.least) return 0;
  const int count = (p.requests + p.parts_count - 1) / p.parts_count;
  const int64_t load = static_cast<int64_t>(count) * (shared.greatest + kMlaRequestCost);
  return load <= static_cast<int64_t>(step) + 2 * kMlaRequestCost + kMlaMergeCost ? count : 0;
}

// The first warp walks from part to part. A lane looks one step further than the one before it; all
// steps up to the first that a request's end changes are taken at once.
__device__ __forceinline__ void walk_parts(const MlaDecodeParams& p, PlanShared& shared,
                                           const int* prefix, int total, int step) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  int at = 0, part = 0;
  while (part < p.parts_count && at < total) {
    const int64_t plain = at + static_cast<int64_t>(lane + 1) * step;
    const int limit = static_cast<int>(min(plain + kMlaRequestCost, static_cast<int64_t>(total)));
    const int end = prefix[last_at_most(prefix, p.requests + 1, limit)];
    const unsigned led = __ballot_sync(~0u, end >= plain || plain >= total);
    const int last = led != 0 ? __ffs(static_cast<int>(led)) - 1 : 31;
    if (lane <= last && part + lane < p.parts_count) {
      shared.position[part + lane] = at + lane * step;
    }
    const int next =
        static_cast<int>(max(min(plain, static_cast<int64_t>(total)), static_cast<int64_t>(end)));
    at = __shfl_sync(~0u, next, last);
    part += last + 1;
  }
  for (int i = min(part, p.parts_count) + lane; i <= p.parts_count; i += 32) {
    shared.position[i] = total;
  }
}

__device__ __forceinline__ void cut_by_cost(const MlaDecodeParams& p, PlanShared& shared,
                                            const int* prefix, int total) {
  const int step = max(1, (total + p.parts_count - 1) / p.parts_count);
  if (const int length = even_length(p, shared, prefix, total, step); length != 0) {
    cut_evenly(p, shared, prefix, length);
  } else if (const int count = whole_requests(p, shared, step); count != 0) {
    const int part = static_cast<int>(threadIdx.x);
    if (part <= p.parts_count) {
      shared.position[part] = prefix[min(p.requests, part * count)];
    }
  } else {
    walk_parts(p, shared, prefix, total, step);
  }
}

// Each cut falls on the last piece that starts at or before its share of the whole.
__device__ __forceinline__ void cut_at_pieces(const MlaDecodeParams& p, PlanShared& shared,
                                              const int* prefix, int total) {
  const int part = static_cast<int>(threadIdx.x);
  if (part > p.parts_count) return;
  int at = total;
  if (part < p.parts_count) {
    const int share = static_cast<int>(static_cast<int64_t>(total) * part / p.parts_count);
    const int request = last_at_most(prefix, p.requests, share);
    const int step = p.split_tiles + kMlaRequestCost;
    const int pieces = max(1, (prefix[request + 1] - prefix[request] + step - 1) / step);
    at = prefix[request] + min((share - prefix[request]) / step, pieces - 1) * step;
  }
  shared.position[part] = at;
}

// A cut on the line as a request and a tile of it.
struct PlanCut {
  int request, tile;
};
__device__ __forceinline__ PlanCut cut_of(const MlaDecodeParams& p, const PlanShared& shared,
                                          const int* prefix, int part) {
  const int request = shared.request[part];
  if (request == p.requests) return {request, 0};
  const int inside = shared.position[part] - prefix[request];
  if (p.split_tiles == 0) return {request, inside};
  return {request, inside / (p.split_tiles + kMlaRequestCost) * p.split_tiles};
}

__device__ __forceinline__ void find_requests(const MlaDecodeParams& p, PlanShared& shared,
                                              const int* prefix) {
  for (int part = static_cast<int>(threadIdx.x); part <= p.parts_count; part += kPlanThreads) {
    // `total` belongs to no request; where the last requests cost nothing else they are covered.
    shared.request[part] = last_at_most(prefix, p.requests + 1, shared.position[part]);
  }
  __syncthreads();
}

// Pieces of a request: one more than the cuts inside it.
__device__ __forceinline__ int pieces_of(const MlaDecodeParams& p, const PlanShared& shared,
                                         const int* prefix, int request) {
  if (request >= p.requests) return 1;
  const int cuts = p.parts_count + 1;
  const int end = last_at_most(shared.request, cuts, request) + 1;
  // The first cut in the request; part 0 begins with request 0, at its start.
  int begin = request == 0 ? 1 : last_at_most(shared.request, cuts, request - 1) + 1;
  if (begin < end && shared.position[begin] == prefix[request]) ++begin;
  return 1 + end - begin;
}

// Numbers of the pieces and the list of requests of three pieces or more, where parts decide them:
// request r is split if a cut lies inside it. Part w starts its piece, unless an earlier part did.
__device__ __forceinline__ PlanSums list_splits(const MlaDecodeParams& p, PlanShared& shared,
                                                const PlanCut& first, const PlanCut& last,
                                                PlanSums& all) {
  const int part = static_cast<int>(threadIdx.x);
  PlanSums own = {0, 0, 0, 0};
  int pieces = 0;
  const bool starts =
      part < p.parts_count && last.tile > 0 && (first.tile == 0 || first.request != last.request);
  if (part < p.parts_count) {
    own.pieces = (first.tile > 0 && shared.position[part] < shared.position[part + 1]) + starts;
    if (starts) {
      const int ends = last_at_most(shared.request, p.parts_count + 1, last.request);
      pieces = ends - part + 1;
      if (pieces > 2) {
        const int rows = tokens_of(p, last.request).count * p.heads;
        own.splits = 1;
        own.units = mla_combine_units(pieces, rows);
      }
    }
  }
  const PlanSums before = scan_before(shared, own, all);
  if (pieces > 2) {
    const int head = first.tile > 0 && shared.position[part] < shared.position[part + 1];
    p.splits[before.splits] = {last.request, before.pieces + head, pieces, before.units};
  }
  return before;
}

// The number of the first piece at or behind a cut, where pieces are given.
__device__ __forceinline__ int piece_at(const MlaDecodeParams& p, const PlanCut& cut,
                                        const PlanSums& all) {
  int low = 0, high = all.splits;  // the first split whose request is not before the cut's
  while (low < high) {
    const int middle = (low + high) / 2;
    if (p.splits[middle].request < cut.request) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == all.splits) return all.pieces;
  const MlaDecodeSplit split = p.splits[low];
  return split.first_piece + (split.request == cut.request ? cut.tile / p.split_tiles : 0);
}

__global__ void __launch_bounds__(kPlanThreads, 1)
    mla_decode_plan_kernel(const __grid_constant__ MlaDecodeParams p) {
  __shared__ PlanShared shared;
  int* const prefix = p.requests <= kPlanRequests ? shared.prefix : p.scan;
  ptx::grid_wait();
  ptx::grid_trigger();  // for the attention kernel, which waits for the plan
  PlanSums all = lay_out(p, shared, prefix);
  const int total = all.cost;
  if (p.split_tiles == 0) {
    cut_by_cost(p, shared, prefix, total);
  } else {
    cut_at_pieces(p, shared, prefix, total);
  }
  __syncthreads();
  find_requests(p, shared, prefix);

  const int part = static_cast<int>(threadIdx.x);
  PlanCut first = {0, 0}, last = {0, 0};
  if (part < p.parts_count) {
    first = cut_of(p, shared, prefix, part);
    last = cut_of(p, shared, prefix, part + 1);
  }
  int piece = 0;
  int pairs = 0;
  if (p.split_tiles == 0) {
    piece = list_splits(p, shared, first, last, all).pieces;
    if (part < p.parts_count) {
      if (pieces_of(p, shared, prefix, first.request) == 2) pairs |= kMlaFirstIsPair;
      if (pieces_of(p, shared, prefix, last.request) == 2) pairs |= kMlaLastIsPair;
    }
  } else if (part < p.parts_count) {
    piece = piece_at(p, first, all);
  }
  if (part < p.parts_count) {
    const bool works = shared.position[part] < shared.position[part + 1];
    p.parts[part] = {first.request, first.tile, last.request,
                     last.tile,     piece,      works ? length_of(p, first.request) : 0,
                     pairs,         0};
  }
  for (int i = static_cast<int>(threadIdx.x); i < p.pairs_room * p.m_tiles; i += kPlanThreads) {
    p.pairs[i] = {};
  }
  if (part == 0) *p.plan = {all.splits, all.units, all.pieces, 0};
}

}  // namespace fastnorm::cuda::mla
