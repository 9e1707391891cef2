#include "check/mla_decode_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "ref/data.h"

namespace fastnorm::check {
namespace {

using ref::Type;

// Lengths of about `mean`, and at least `least`.
int32_t spread_length(ref::Random& random, int32_t mean, int32_t least) {
  const double u = static_cast<double>(random.below(1 << 20)) / (1 << 20);
  const double v = static_cast<double>(random.below(1 << 20)) / (1 << 20);
  const double normal = std::sqrt(-2 * std::log(u + 1e-9)) * std::cos(6.283185307179586 * v);
  return std::max(least, static_cast<int32_t>(mean + normal * mean / 2));
}

// Odd numbers of new tokens, as in FlashInfer's tests.
constexpr int32_t kOddTokens[] = {1, 3, 5, 7, 9, 11, 13, 15, 17};

// FlashInfer: batches with three lengths each, page 1, f16, LSE in base 2.
void add_ragged_lengths(std::vector<MlaCase>* cases) {
  for (const int32_t batch : {1, 3, 5, 7})
    for (const int32_t short_len : {0, 1, 3, 11})
      for (const int32_t middle : {17, 33, 79, 114})
        for (const int32_t long_len : {514, 2743, 8736})
          for (const int32_t s_q : kOddTokens)
            for (const int32_t heads : {16, 64})
              for (const bool causal : {false, true}) {
                MlaCase c;
                c.group = "lengths";
                c.dtype = Type::kF16;
                for (int32_t b = 0; b < batch; ++b) {
                  for (const int32_t length : {short_len, middle, long_len})
                    c.requests.push_back({length, s_q});
                }
                c.heads = heads;
                c.page = 1;
                c.causal = causal;
                c.base_2 = true;
                c.csr = true;
                c.ragged = true;
                c.fused_cache = false;
                cases->push_back(c);
              }
}

// FlashInfer: equal lengths, pages of 1 and 16.
void add_pages(std::vector<MlaCase>* cases) {
  for (const int32_t batch : {1, 3, 5, 7, 157})
    for (const int32_t length : {0, 17, 33, 96, 97, 114, 514, 1024})
      for (const int32_t s_q : kOddTokens)
        for (const int32_t page : {1, 16})
          for (const bool causal : {false, true}) {
            MlaCase c;
            c.group = "pages";
            c.dtype = Type::kF16;
            c.requests.assign(static_cast<size_t>(batch), {length, s_q});
            c.page = page;
            c.causal = causal;
            c.base_2 = true;
            c.csr = true;
            c.ragged = true;
            c.fused_cache = false;
            cases->push_back(c);
          }
}

// FlashInfer: NaN after the last token. Every case here has that; these have its shapes.
void add_tails(std::vector<MlaCase>* cases) {
  for (const int32_t batch : {1, 2, 3, 4, 5, 6, 7, 157})
    for (const int32_t length : {17, 33, 75, 197})
      for (const int32_t s_q : {3, 7, 17})
        for (const int32_t page : {16, 32}) {
          MlaCase c;
          c.group = "tails";
          c.dtype = s_q == 7 ? Type::kBF16 : Type::kF16;
          c.requests.assign(static_cast<size_t>(batch), {length, s_q});
          c.page = page;
          c.csr = true;
          c.ragged = true;
          c.fused_cache = false;
          cases->push_back(c);
        }
}

// FlashMLA: block tables with pages of 64 in a fused cache.
void add_dense(std::vector<MlaCase>* cases) {
  ref::Random random(0x64656e7365);
  for (const int32_t batch : {1, 2, 6, 64})
    for (const int32_t s_q : {1, 2, 4})
      for (const int32_t mean : {20, 140, 4096})
        for (const int32_t heads : {1, 3, 9, 63, 64, 126, 128})
          for (const bool spread : {false, true})
            for (const bool causal : {false, true}) {
              MlaCase c;
              c.group = "dense";
              c.dtype = heads == 63 || heads == 126 ? Type::kF16 : Type::kBF16;
              for (int32_t b = 0; b < batch; ++b)
                c.requests.push_back({spread ? spread_length(random, mean, s_q) : mean, s_q});
              c.heads = heads;
              c.causal = causal;
              c.fused_query = true;
              cases->push_back(c);
            }
  // Half of the requests have no cache.
  for (const int32_t s_q : {1, 2})
    for (const int32_t mean : {140, 1024})
      for (const int32_t heads : {1, 16, 64, 128})
        for (const bool causal : {false, true}) {
          MlaCase c;
          c.group = "zero";
          for (int32_t b = 0; b < 128; ++b)
            c.requests.push_back({b % 2 == 0 ? 0 : spread_length(random, mean, s_q), s_q});
          c.heads = heads;
          c.causal = causal;
          c.fused_query = true;
          cases->push_back(c);
        }
}

// Random values of everything that a caller may vary: `count` cases.
void add_random(bool cuda, int count, std::vector<MlaCase>* cases) {
  ref::Random random(0x72616e646f6d);
  constexpr int32_t kPages[] = {1, 2, 3, 4, 7, 8, 16, 24, 32, 48, 64, 80, 96, 127, 128, 192, 256};
  constexpr int32_t kHeads[] = {1, 2, 5, 8, 9, 16, 17, 32, 40, 64, 100, 128, 130};
  constexpr int32_t kMeans[] = {1, 8, 60, 64, 65, 127, 128, 130, 300, 700};
  constexpr double kScales[] = {1.0 / 24, 0.07216878364870322, 1.0, 1e-3};
  for (int i = 0; i < count; ++i) {
    MlaCase c;
    c.group = "random";
    c.dtype = !cuda && random.one_in(3) ? Type::kF32 : random.one_in(2) ? Type::kBF16 : Type::kF16;
    c.heads = random.of(kHeads);
    c.page = random.of(kPages);
    c.causal = random.one_in(2);
    c.base_2 = random.one_in(2);
    c.csr = random.one_in(2);
    c.ragged = random.one_in(2);
    c.fused_cache = random.one_in(2);
    c.fused_query = random.one_in(2);
    c.padded = random.one_in(3);
    c.odd = !cuda && random.one_in(3);
    c.lse = !random.one_in(5);
    c.lse_by_head = random.one_in(3);
    c.split_tokens = random.one_in(3) ? static_cast<int32_t>(64 * (1 + random.below(4))) : 0;
    c.sm_scale = random.of(kScales);
    c.q_scale = random.one_in(4) ? 8 : 1;
    c.spare_rows = c.ragged && random.one_in(3) ? static_cast<int32_t>(1 + random.below(5)) : 0;
    const int64_t batch = 1 + random.below(random.one_in(4) ? 40 : 6);
    const int32_t mean = random.of(kMeans);
    const auto s_q = static_cast<int32_t>(1 + random.below(5));
    for (int64_t b = 0; b < batch; ++b) {
      MlaRequest r = {random.one_in(6) ? 0 : spread_length(random, mean, 0), s_q};
      if (c.ragged) r.s_q = static_cast<int32_t>(random.below(6));
      if (random.one_in(8))
        r.kv_len = static_cast<int32_t>(random.below(r.s_q + 1));  // s_q > kv_len
      c.requests.push_back(r);
    }
    cases->push_back(c);
  }
}

// Lengths near multiples of a tile, for each page size.
void add_edges(bool cuda, std::vector<MlaCase>* cases) {
  for (int32_t page = 1; page <= 128; page += cuda || page < 17 ? 1 : 7) {
    MlaCase c;
    c.group = "edges";
    c.dtype = page % 2 == 0 ? Type::kBF16 : Type::kF16;
    for (const int32_t length : {1, 63, 64, 65, 127, 128, 129, 191, 192, 193})
      c.requests.push_back({length, 2});
    c.heads = cuda ? 33 : 3;
    c.page = page;
    c.causal = page % 3 == 0;
    c.csr = page % 5 == 0;
    cases->push_back(c);
  }
}

// Few long requests, which are split into many pieces.
void add_long(bool cuda, std::vector<MlaCase>* cases) {
  for (const int32_t batch : {1, 2, 4})
    for (const int32_t heads : {16, 128})
      for (const int32_t split : {0, 64, 512})
        for (const Type dtype : {Type::kBF16, Type::kF16}) {
          MlaCase c;
          c.group = "long";
          c.dtype = dtype;
          for (int32_t b = 0; b < batch; ++b)
            c.requests.push_back({(cuda ? 20000 : 2000) / (b * b + 1) + b, 4});
          c.heads = cuda ? heads : heads / 8;
          c.causal = true;
          c.split_tokens = split;
          cases->push_back(c);
        }
}

// Few query rows: those of the smallest tiles and one more, pages that boxes fit and one that none
// does; whole requests, pairs and many pieces.
void add_few(bool cuda, std::vector<MlaCase>* cases) {
  int32_t number = 0;
  for (const int32_t heads : {1, 3, 8, 16, 17, 32, 33})
    for (const int32_t page : {16, 32, 48, 64, 128})
      for (const int32_t split : {0, 64, 192})
        for (const int32_t s_q : {1, 2}) {
          MlaCase c;
          c.group = "few";
          c.dtype = ++number % 2 == 0 ? Type::kBF16 : Type::kF16;
          for (const int32_t length : {1, 64, 130, 0, 193, cuda ? 3000 : 300})
            c.requests.push_back({length, s_q});
          c.heads = heads;
          c.page = page;
          c.causal = number % 3 == 0;
          c.csr = number % 5 == 0;
          c.ragged = s_q == 2 && number % 4 == 0;
          c.fused_cache = number % 7 != 0;
          c.fused_query = number % 11 != 0;
          c.padded = number % 3 == 1;
          c.lse = number % 13 != 0;
          c.split_tokens = split;
          cases->push_back(c);
        }
}

// Caches of FP8 rows, dense: `count` cases for each format.
void add_fp8(bool cuda, int count, std::vector<MlaCase>* cases) {
  ref::Random random(0x667038);
  constexpr int32_t kPages[] = {1, 2, 3, 16, 33, 64, 128};
  constexpr int32_t kHeads[] = {1, 3, 16, 17, 32, 64, 128};
  constexpr int32_t kMeans[] = {1, 15, 40, 65, 130, 300};
  constexpr int32_t kCudaMeans[] = {1, 40, 65, 130, 700, 2000};
  for (const ref::MlaFormat format :
       {ref::MlaFormat::k656, ref::MlaFormat::k576, ref::MlaFormat::k584}) {
    for (int i = 0; i < count; ++i) {
      MlaCase c;
      c.group = "fp8";
      c.format = format;
      c.dtype = i % 3 == 0 ? Type::kBF16 : random.of(ref::kTypes);
      if (cuda && c.dtype == Type::kF32) c.dtype = Type::kF16;
      c.scales = random.one_in(2) ? MlaScales::kAny : MlaScales::kPowersOfTwo;
      c.sinks = random.one_in(3)   ? MlaSinks::kExtreme
                : random.one_in(2) ? MlaSinks::kNormal
                                   : MlaSinks::kNone;
      c.heads = random.of(kHeads);
      c.page = random.of(kPages);
      c.causal = random.one_in(2);
      c.csr = random.one_in(2);
      c.ragged = random.one_in(2);
      c.fused_query = random.one_in(2);
      c.padded = random.one_in(3);
      c.odd = random.one_in(3) && !cuda;
      c.base_2 = random.one_in(3);
      const int64_t batch = 1 + random.below(4);
      const int32_t mean = random.of(cuda ? kCudaMeans : kMeans);
      const auto s_q = static_cast<int32_t>(1 + random.below(4));
      for (int64_t b = 0; b < batch; ++b) {
        MlaRequest r = {random.one_in(6) ? 0 : spread_length(random, mean, 0), s_q};
        if (c.ragged) r.s_q = static_cast<int32_t>(random.below(5));
        c.requests.push_back(r);
      }
      cases->push_back(c);
    }
  }
}

MlaSelection random_selection(bool cuda, ref::Random& random) {
  constexpr int32_t kTopk[] = {0, 1, 7, 16, 17, 64, 100, 128};
  constexpr int32_t kCudaTopk[] = {0, 1, 17, 64, 65, 128, 700, 2048};
  constexpr int32_t kPages[] = {1, 2, 3, 16, 64, 128};
  constexpr MlaSelection::Lengths kLengths[] = {MlaSelection::Lengths::kNone,
                                                MlaSelection::Lengths::kOfRequest,
                                                MlaSelection::Lengths::kOfToken};
  const int32_t topk = random.of(cuda ? kCudaTopk : kTopk), page = random.of(kPages);
  const auto pages = static_cast<int32_t>(random.one_in(12) ? 0 : 1 + random.below(300 / page + 2));
  return {topk, pages, page, random.of(kLengths)};
}

// Rows that each new token selects, of rows of T and of bytes.
void add_sparse(bool cuda, int count, std::vector<MlaCase>* cases) {
  ref::Random random(0x737061727365);
  constexpr int32_t kHeads[] = {1, 2, 16, 19, 32, 64, 128};
  for (const ref::MlaFormat format :
       {ref::MlaFormat::kNone, ref::MlaFormat::k656, ref::MlaFormat::k584, ref::MlaFormat::k576}) {
    for (int i = 0; i < count; ++i) {
      MlaCase c;
      c.group = "sparse";
      c.format = format;
      c.dtype = i % 3 == 0 ? Type::kBF16 : random.of(ref::kTypes);
      if (cuda && c.dtype == Type::kF32) c.dtype = Type::kF16;
      c.scales = random.one_in(2) ? MlaScales::kAny : MlaScales::kPowersOfTwo;
      c.sinks = random.one_in(3)   ? MlaSinks::kExtreme
                : random.one_in(2) ? MlaSinks::kNormal
                                   : MlaSinks::kNone;
      c.heads = random.of(kHeads);
      c.fused_cache = random.one_in(2);
      c.fused_query = random.one_in(2);
      c.padded = random.one_in(3);
      c.odd = random.one_in(3) && !cuda;
      c.base_2 = random.one_in(3);
      c.lse = !random.one_in(5);
      c.selected = random_selection(cuda, random);
      if (random.one_in(2)) c.extra = random_selection(cuda, random);
      const auto s_q = static_cast<int32_t>(1 + random.below(4));
      c.requests.assign(static_cast<size_t>(1 + random.below(cuda ? 40 : 4)), {0, s_q});
      if (cuda && random.one_in(4)) c.split_tokens = 64 << random.below(3);
      cases->push_back(c);
    }
  }
}

// Only one case in this many of a group runs: emulators and sanitizers are slow.
int64_t one_in(std::string_view group, bool cuda, bool reduced) {
  if (group == "pages" || group == "lengths") return reduced ? 160 : cuda ? 1 : 40;
  return group == "dense" && reduced && !cuda ? 8 : 1;
}

}  // namespace

std::string MlaCase::text() const {
  std::string lengths;
  for (size_t b = 0; b < requests.size() && b < 4; ++b) {
    lengths += (b == 0 ? "" : ",") + std::to_string(requests[b].kv_len) + "/" +
               std::to_string(requests[b].s_q);
  }
  if (requests.size() > 4) lengths += ",..";
  std::string text = std::string("mla_decode ") + group + " " + ref::name_of(dtype) + " B " +
                     std::to_string(requests.size()) + " (" + lengths + ") H " +
                     std::to_string(heads) + " page " + std::to_string(page);
  const auto flag = [&](bool on, const char* name) {
    if (on) text += std::string(" ") + name;
  };
  constexpr const char* kFormats[] = {"", "656", "576", "584"};
  flag(fp8(), kFormats[static_cast<int>(format)]);
  flag(fp8() && scales == MlaScales::kAny, "any-scale");
  flag(sinks == MlaSinks::kNormal, "sink");
  flag(sinks == MlaSinks::kExtreme, "extreme-sink");
  for (const MlaSelection* s : {&selected, &extra}) {
    constexpr const char* kLengths[] = {"", " by request", " by token"};
    if (!s->given()) continue;
    text += std::string(s == &selected ? " topk " : " extra topk ") + std::to_string(s->topk) +
            kLengths[static_cast<int>(s->lengths)] + " of " + std::to_string(s->pages) + "x" +
            std::to_string(s->page);
  }
  flag(causal, "causal");
  flag(base_2, "base2");
  flag(csr, "csr");
  flag(ragged, "ragged");
  flag(fused_cache, "fused-cache");
  flag(fused_query, "fused-query");
  flag(padded, "padded");
  flag(odd, "odd");
  flag(!lse, "no-lse");
  flag(lse_by_head, "lse-by-head");
  if (split_tokens != 0) text += " split " + std::to_string(split_tokens);
  return text;
}

int64_t MlaCase::tokens() const {
  return std::accumulate(requests.begin(), requests.end(), int64_t{0},
                         [](int64_t sum, const MlaRequest& r) { return sum + r.s_q; });
}

int64_t MlaCase::macs() const {
  int64_t pairs = 0;
  const int64_t selects = std::max(selected.topk, 0) + std::max(extra.topk, 0);
  for (const MlaRequest& r : requests) pairs += (sparse() ? selects : int64_t{r.kv_len}) * r.s_q;
  return pairs * heads * 1088;
}

std::vector<MlaCase> make_mla_cases(bool cuda, const Options& options) {
  std::vector<MlaCase> all;
  add_edges(cuda, &all);
  add_random(cuda, cuda ? 1500 : 150, &all);
  add_long(cuda, &all);
  add_tails(&all);
  add_dense(&all);
  add_pages(&all);
  add_ragged_lengths(&all);
  add_fp8(cuda, 60, &all);
  add_sparse(cuda, 60, &all);
  add_few(cuda, &all);
  // A CPU runs the small cases, and a part of the large matrices.
  const int64_t most = options.reduced ? 3'000'000 : cuda ? INT64_MAX : 10'000'000;
  std::vector<MlaCase> cases;
  const char* group = "";
  int64_t of_group = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    MlaCase& c = all[i];
    c.seed = i + 1;
    if (c.macs() > most) continue;
    if (group != c.group) of_group = 0;
    group = c.group;
    const int64_t step = options.every * one_in(group, cuda, options.reduced);
    if (of_group++ % step == options.from * one_in(group, cuda, options.reduced))
      cases.push_back(c);
  }
  return cases;
}

}  // namespace fastnorm::check
