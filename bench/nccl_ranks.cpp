#include "bench/nccl_ranks.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "fastnorm/dtype.h"
#include "fastnorm/random.h"
#include "support/nccl_functions.h"

namespace bench {
namespace {

constexpr size_t kPeriod = 4093;
constexpr int64_t kMostColumns = 8192;

fastnorm_dtype f32() { return fastnorm_dtype_of(FASTNORM_DTYPE_F32); }

Outcome outcome_of(fastnorm_status status) {
  return {status, status == FASTNORM_OK ? "" : fastnorm_nccl_last_error()};
}

template <typename Draw>
Bytes draw_period(fastnorm_dtype dtype, uint64_t seed, Draw draw) {
  tool::Random random(seed);
  const size_t element = tool::element_bytes(dtype);
  Bytes period(kPeriod * element);
  for (size_t i = 0; i < kPeriod; ++i)
    tool::encode(dtype, draw(random), period.data() + i * element);
  return period;
}

std::string first_difference(const char* name, const Bytes& found, const Bytes& wanted) {
  const bool same =
      found.size() == wanted.size() && std::memcmp(found.data(), wanted.data(), found.size()) == 0;
  if (same) return "";
  const auto at = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end()).first;
  return std::string(name) + " differs from byte " + std::to_string(at - found.begin()) + " of " +
         std::to_string(found.size()) + " on";
}

Bytes part(const Bytes& all, size_t parts, size_t index) {
  const size_t bytes = all.size() / parts;
  const auto begin = all.begin() + static_cast<ptrdiff_t>(index * bytes);
  return {begin, begin + static_cast<ptrdiff_t>(bytes)};
}

}  // namespace

void check_nccl(fastnorm_status status) {
  if (status != FASTNORM_OK) {
    throw tool::LibraryError(std::string(fastnorm_status_name(status)) + ": " +
                             fastnorm_nccl_last_error());
  }
}

// --- ranks

NcclRanks::NcclRanks(const std::string& library, bool cuda, int ranks)
    : nccl_(library),
      functions_(fastnorm::support::nccl_functions_of(nccl_.handle())),
      comms_(static_cast<size_t>(ranks)) {
  int (*init)(void**, int, const int*) = nullptr;
  nccl_.find("ncclCommInitAll", &init);
  nccl_.find("ncclCommDestroy", &destroy_);
  std::vector<int> ids;
  for (int r = 0; r < ranks; ++r) {
    machines_.push_back(std::make_unique<tool::Machine>(
        tool::parse_target(cuda ? "cuda:" + std::to_string(r) : "cpu"), 1));
    const tool::Machine& machine = *machines_.back();
    contexts_.push_back(machine.context());
    devices_.push_back(machine.target().device());
    streams_.push_back(machine.stream());
    ids.push_back(r);
  }
  // On GPUs the library finds the copy that is loaded by now.
  if (!cuda) check_nccl(fastnorm_nccl_set_functions(&functions_));
  nccl_.check(init(comms_.data(), ranks, ids.data()));
}

NcclRanks::~NcclRanks() {
  for (void* comm : comms_) destroy_(comm);
}

int NcclRanks::version() const {
  int32_t version = 0;
  check_nccl(fastnorm_nccl_version(&version));
  return version;
}

void NcclRanks::grouped(const std::function<int(size_t)>& each) const {
  nccl_.check(functions_.group_start());
  int result = 0;
  for (size_t r = 0; r < count() && result == 0; ++r) result = each(r);
  const int ended = functions_.group_end();
  nccl_.check(result);
  nccl_.check(ended);
}

void NcclRanks::synchronize() const {
  for (const auto& machine : machines_) machine->synchronize();
}

std::vector<Outcome> NcclRanks::in_threads(
    const std::function<fastnorm_status(size_t)>& each) const {
  std::vector<Outcome> outcomes(count());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < count(); ++r)
    threads.emplace_back([&, r] { outcomes[r] = outcome_of(each(r)); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// --- handles

fastnorm_nccl_options nccl_options(fastnorm_dtype_id dtype, uint32_t flags) {
  fastnorm_nccl_options options = {};
  options.struct_size = sizeof options;
  options.dtype = dtype;
  options.max_columns = kMostColumns;
  options.flags = flags;
  return options;
}

NcclHandles::NcclHandles(const NcclRanks& ranks, const fastnorm_nccl_options& options,
                         bool together,
                         const std::function<void(size_t, fastnorm_nccl_options&)>& change)
    : handles_(ranks.count()) {
  if (together) {
    created_ = {outcome_of(fastnorm_nccl_create_all(
        ranks.contexts(), ranks.devices(), ranks.comms(), &options, ranks.streams(),
        static_cast<int32_t>(ranks.count()), handles_.data()))};
    return;
  }
  created_ = ranks.in_threads([&](size_t r) {
    fastnorm_nccl_options own = options;
    if (change) change(r, own);
    return fastnorm_nccl_create(ranks.contexts()[r], ranks.devices()[r], ranks.comms()[r], &own,
                                ranks.streams()[r], &handles_[r]);
  });
}

NcclHandles::~NcclHandles() {
  for (fastnorm_nccl* handle : handles_) fastnorm_nccl_destroy(handle);
}

void NcclHandles::require() const {
  for (const Outcome& outcome : created_) {
    if (outcome.status != FASTNORM_OK) throw tool::LibraryError("creation: " + outcome.text);
  }
}

fastnorm_peer* NcclHandles::peer(size_t rank) const {
  fastnorm_peer* peer = nullptr;
  check_nccl(fastnorm_nccl_peer(handles_[rank], &peer));
  return peer;
}

// --- tensors

std::string CallShape::text() const {
  std::string name = sequence ? "sequence" : "allreduce";
  name += dtype == FASTNORM_DTYPE_F32 ? " f32 " : dtype == FASTNORM_DTYPE_F16 ? " f16 " : " bf16 ";
  name += std::to_string(tokens) + "x" + std::to_string(columns) + (codes ? " fp8" : "");
  return name + (gather ? "" : " not gathered");
}

Numbers::Numbers(fastnorm_dtype_id id, size_t ranks, bool exact) {
  const fastnorm_dtype dtype = fastnorm_dtype_of(id);
  const auto plain = [](tool::Random& random) { return random.uniform(-2, 2); };
  for (size_t r = 0; r < ranks; ++r) {
    x_.push_back(draw_period(dtype, r + 1, [&](tool::Random& random) {
      if (!exact) return plain(random);
      return (static_cast<double>(random.next() % 33) - 16) / 8;
    }));
  }
  residual_ = draw_period(dtype, 100, plain);
  weight_ = draw_period(dtype, 101, [](tool::Random& random) { return random.uniform(0.5, 1.5); });
  sum_ = x_[0];
  const size_t element = tool::element_bytes(dtype);
  for (size_t at = 0; at < sum_.size(); at += element) {
    auto total = static_cast<float>(tool::decode(dtype, x_[0].data() + at));
    for (size_t r = 1; r < ranks; ++r)
      total += static_cast<float>(tool::decode(dtype, x_[r].data() + at));
    tool::encode(dtype, static_cast<double>(total), sum_.data() + at);
  }
}

Bytes Numbers::repeated(const Bytes& period, size_t elements) {
  Bytes all(elements * (period.size() / kPeriod));
  for (size_t at = 0; at < all.size(); at += period.size())
    std::memcpy(all.data() + at, period.data(), std::min(period.size(), all.size() - at));
  return all;
}

Guarded::Guarded(const tool::Machine& machine, size_t bytes)
    : machine_(&machine), bytes_(bytes), block_(machine.allocate(bytes + 2 * kGuard)) {}

void Guarded::upload(const Bytes& content) const {
  machine_->upload(at(), content.data(), content.size());
}

Bytes Guarded::content() const {
  Bytes bytes(bytes_);
  machine_->download(bytes.data(), at(), bytes_);
  return bytes;
}

void Guarded::poison() const {
  if (machine_ == nullptr) return;
  const Bytes poison(bytes_ + 2 * kGuard, kPoison);
  machine_->upload(block_.get(), poison.data(), poison.size());
}

bool Guarded::is_intact() const {
  if (machine_ == nullptr) return true;
  Bytes guards(2 * kGuard);
  machine_->download(guards.data(), block_.get(), kGuard);
  machine_->download(guards.data() + kGuard, at() + bytes_, kGuard);
  return std::all_of(guards.begin(), guards.end(), [](std::byte b) { return b == kPoison; });
}

RankCall::RankCall(const tool::Machine& machine, const CallShape& shape, size_t ranks, size_t rank)
    : machine_(machine),
      shape_(shape),
      ranks_(ranks),
      rank_(rank),
      element_(tool::element_bytes(fastnorm_dtype_of(shape.dtype))),
      own_(shape.sequence ? shape.tokens / static_cast<int64_t>(ranks) : shape.tokens) {
  const fastnorm_dtype dtype = fastnorm_dtype_of(shape.dtype);
  const fastnorm_dtype fp8 = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
  const int64_t t = shape.tokens, n = shape.columns;
  const auto all = static_cast<size_t>(t * n), own = static_cast<size_t>(own_ * n);
  x_ = Guarded(machine, all * element_);
  residual_ = Guarded(machine, own * element_);
  weight_ = Guarded(machine, static_cast<size_t>(n) * element_);
  h_ = Guarded(machine, own * element_);
  sum_ = Guarded(machine, own * element_);
  x_view_ = view(x_.at(), dtype, {t, n});
  residual_view_ = view(residual_.at(), dtype, {own_, n});
  weight_view_ = view(weight_.at(), dtype, {n});
  h_view_ = view(h_.at(), dtype, {own_, n});
  sum_view_ = view(sum_.at(), dtype, {own_, n});
  const size_t first = shape.sequence ? rank * static_cast<size_t>(own_) : 0;
  const size_t first_element = first * static_cast<size_t>(n);
  if (shape.codes) {
    codes_ = Guarded(machine, all);
    scale_ = Guarded(machine, static_cast<size_t>(t) * 4);
    codes_view_ = view(codes_.at(), fp8, {t, n});
    scale_view_ = view(scale_.at(), f32(), {t});
    own_codes_view_ = view(codes_.at() + first_element, fp8, {own_, n});
    own_scale_view_ = view(scale_.at() + first * 4, f32(), {own_});
  } else {
    y_ = Guarded(machine, all * element_);
    y_view_ = view(y_.at(), dtype, {t, n});
    own_y_view_ = view(y_.at() + first_element * element_, dtype, {own_, n});
  }
  set_norm(norm_, quant_);
  allreduce_.struct_size = sizeof allreduce_;
  allreduce_.norm = &norm_;
  sequence_.struct_size = sizeof sequence_;
  sequence_.norm = &norm_;
  sequence_.gather = shape.gather ? 1 : 0;
  set_norm(by_hand_, own_quant_);
  by_hand_.x = sum_view_.get();
  by_hand_.y = own_y_view_.get();
  own_quant_.quantized = own_codes_view_.get();
  own_quant_.scale = own_scale_view_.get();
}

void RankCall::set_norm(fastnorm_norm_args& args, fastnorm_quant& quant) {
  args.struct_size = sizeof args;
  args.kind = FASTNORM_NORM_RMS;
  args.eps = 1e-6f;
  args.x = x_view_.get();
  args.residual = residual_view_.get();
  args.residual_out = h_view_.get();
  args.weight = weight_view_.get();
  args.y = y_view_.get();
  if (!shape_.codes) return;
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_ROW;
  quant.quantized = codes_view_.get();
  quant.scale = scale_view_.get();
  args.quant = &quant;
}

void RankCall::fill(const Numbers& numbers) {
  const size_t all = x_.bytes() / element_;
  for (const Guarded* input : {&x_, &residual_, &weight_}) input->poison();
  x_.upload(numbers.x(rank_, all));
  // This rank's part of what all have.
  const Bytes residual = numbers.residual(all);
  residual_.upload(shape_.sequence ? part(residual, ranks_, rank_) : residual);
  weight_.upload(numbers.weight(static_cast<size_t>(shape_.columns)));
}

void RankCall::poison() const {
  for (const Guarded* output : {&y_, &h_, &codes_, &scale_, &sum_, &workspace_}) output->poison();
}

void RankCall::reserve(fastnorm_nccl* handle) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check_nccl(shape_.sequence ? fastnorm_nccl_sequence_norm_query(handle, &sequence_, &info)
                             : fastnorm_nccl_allreduce_norm_query(handle, &allreduce_, &info));
  if (info.workspace_bytes > workspace_.bytes())
    workspace_ = Guarded(machine_, info.workspace_bytes);
}

void RankCall::run_reference(const Numbers& numbers) {
  fill(numbers);
  x_.upload(numbers.sum(x_.bytes() / element_));
  poison();
  machine_.run(norm_);
}

std::string RankCall::difference(const RankCall& reference) const {
  for (const Guarded* memory :
       {&x_, &residual_, &weight_, &y_, &h_, &codes_, &scale_, &sum_, &workspace_}) {
    if (!memory->is_intact()) return "bytes around a tensor were written";
  }
  struct Output {
    const char* name;
    const Guarded &found, &wanted;
  };
  const Output outputs[] = {{"y", y_, reference.y_},
                            {"codes", codes_, reference.codes_},
                            {"scale", scale_, reference.scale_}};
  for (const Output& output : outputs) {
    if (output.found.bytes() == 0) continue;
    const Bytes found = output.found.content();
    Bytes wanted = output.wanted.content();
    if (shape_.sequence && !shape_.gather) {
      const Bytes own = part(wanted, ranks_, rank_);
      std::fill(wanted.begin(), wanted.end(), Guarded::kPoison);
      std::copy(own.begin(), own.end(),
                wanted.begin() + static_cast<ptrdiff_t>(rank_ * own.size()));
    }
    if (const std::string text = first_difference(output.name, found, wanted); !text.empty())
      return text;
  }
  const Bytes sums = reference.h_.content();
  return first_difference("residual_out", h_.content(),
                          shape_.sequence ? part(sums, ranks_, rank_) : sums);
}

// --- calls of all ranks

RankCalls::RankCalls(const NcclRanks& ranks, const CallShape& shape, const Numbers& numbers)
    : ranks_(ranks), shape_(shape) {
  for (size_t r = 0; r < ranks.count(); ++r) {
    calls_.push_back(std::make_unique<RankCall>(ranks.machine(r), shape, ranks.count(), r));
    calls_.back()->fill(numbers);
  }
  CallShape whole = shape;
  whole.sequence = false;
  reference_ = std::make_unique<RankCall>(ranks.machine(0), whole, 1, 0);
  reference_->run_reference(numbers);
}

void RankCalls::poison() const {
  for (const auto& call : calls_) call->poison();
}

void RankCalls::reserve(const NcclHandles& handles) {
  for (size_t r = 0; r < calls_.size(); ++r) calls_[r]->reserve(handles.at(r));
}

void RankCalls::prepare(const NcclHandles& handles) const {
  for (size_t r = 0; r < calls_.size(); ++r) {
    tool::check(fastnorm_norm_prepare(ranks_.contexts()[r], calls_[r]->norm()));
    if (shape_.sequence || handles.peer(r) == nullptr) continue;
    fastnorm_peer_allreduce_norm_args args = *calls_[r]->allreduce();
    args.peer = handles.peer(r);
    tool::check(fastnorm_peer_allreduce_norm_prepare(ranks_.contexts()[r], &args));
  }
  ranks_.synchronize();
}

fastnorm_status RankCalls::run_together(const NcclHandles& handles) const {
  std::vector<void*> workspaces;
  std::vector<const fastnorm_peer_allreduce_norm_args*> allreduce;
  std::vector<const fastnorm_nccl_sequence_norm_args*> sequence;
  for (const auto& call : calls_) {
    workspaces.push_back(call->workspace());
    allreduce.push_back(call->allreduce());
    sequence.push_back(call->sequence());
  }
  const auto count = static_cast<int32_t>(calls_.size());
  const size_t bytes = calls_[0]->workspace_bytes();
  return shape_.sequence
             ? fastnorm_nccl_sequence_norm_all(handles.all(), sequence.data(), workspaces.data(),
                                               bytes, ranks_.streams(), count)
             : fastnorm_nccl_allreduce_norm_all(handles.all(), allreduce.data(), workspaces.data(),
                                                bytes, ranks_.streams(), count);
}

fastnorm_status RankCalls::run_one(const NcclHandles& handles, size_t rank) const {
  const RankCall& call = *calls_[rank];
  void* const stream = ranks_.streams()[rank];
  return shape_.sequence
             ? fastnorm_nccl_sequence_norm(handles.at(rank), call.sequence(), call.workspace(),
                                           call.workspace_bytes(), stream)
             : fastnorm_nccl_allreduce_norm(handles.at(rank), call.allreduce(), call.workspace(),
                                            call.workspace_bytes(), stream);
}

void RankCalls::run(const NcclHandles& handles, bool together) const {
  if (together) return check_nccl(run_together(handles));
  const auto outcomes = ranks_.in_threads([&](size_t r) { return run_one(handles, r); });
  for (const Outcome& outcome : outcomes) {
    if (outcome.status != FASTNORM_OK) throw tool::LibraryError(outcome.text);
  }
}

void RankCalls::run_by_hand() const {
  const fastnorm_nccl_functions& f = ranks_.functions();
  const int type = tool::nccl_type(fastnorm_dtype_of(shape_.dtype));
  ranks_.grouped([&](size_t r) {
    const RankCall& call = *calls_[r];
    return shape_.sequence
               ? f.reduce_scatter(call.x_at(), call.sum_at(), call.sum_elements(), type,
                                  tool::kNcclSum, ranks_.comms()[r], ranks_.streams()[r])
               : f.all_reduce(call.x_at(), call.sum_at(), call.sum_elements(), type, tool::kNcclSum,
                              ranks_.comms()[r], ranks_.streams()[r]);
  });
  for (size_t r = 0; r < calls_.size(); ++r) {
    tool::check(
        fastnorm_norm(ranks_.contexts()[r], calls_[r]->norm(), nullptr, 0, ranks_.streams()[r]));
  }
  if (!shape_.sequence) return;
  ranks_.grouped([&](size_t r) {
    const fastnorm_tensor& own = *calls_[r]->norm()->y;
    return f.all_gather(own.data, calls_[r]->gathered_at(), calls_[r]->sum_elements(), type,
                        ranks_.comms()[r], ranks_.streams()[r]);
  });
}

std::string RankCalls::difference() const {
  ranks_.synchronize();
  for (size_t r = 0; r < calls_.size(); ++r) {
    if (const std::string text = calls_[r]->difference(*reference_); !text.empty())
      return "rank " + std::to_string(r) + ": " + text;
  }
  return "";
}

}  // namespace bench
