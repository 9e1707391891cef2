#include "peer_work.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "commands.h"
#include "dtype.h"
#include "random.h"

namespace fastnorm::tool {
namespace {

constexpr float kEps = 1e-6f;

fastnorm_dtype f32() { return fastnorm_dtype_of(FASTNORM_DTYPE_F32); }

class AllreduceWork final : public PeerWork {
 public:
  AllreduceWork(const PeerOptions& options, const Machine& machine, int ranks, int rank)
      : PeerWork(options, machine, ranks, rank),
        part_(part_of(o_.columns)),
        shapes_(peer_shapes(o_)),
        elements_(static_cast<size_t>(o_.rows * o_.columns)) {
    x_ = place(data_of(rank_, part_), part_.bytes);
    residual_ = place(data_of(100, part_), part_.bytes);
    weight_ = place(weights_of(part_, o_.weights), 0);
    y_ = machine_.allocate(part_.bytes), h_ = machine_.allocate(part_.bytes);
    codes_ = machine_.allocate(elements_);
    constexpr float kScale = 0.0625f;
    const std::vector<float> scales(static_cast<size_t>(o_.rows), kScale);
    scale_ = machine_.allocate(scales.size() * 4);
    machine_.upload(scale_.get(), scales.data(), scales.size() * 4);
    if (o_.nccl) sum_ = machine_.allocate(part_.bytes);
    views_[0] = view(x_), views_[1] = view(residual_), views_[2] = view(y_), views_[3] = view(h_);
    views_[4] = TensorView(machine_.target(), weight_.get(), dtype_, shapes_.weight);
    views_[5] = TensorView(machine_.target(), codes_.get(),
                           fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN), shapes_.x);
    views_[6] = TensorView(machine_.target(), scale_.get(), f32(),
                           o_.quantise == "per-row" ? shapes_.rows : std::vector<int64_t>{1});
    if (o_.nccl) views_[7] = view(sum_);
    set_norm();
    args_.struct_size = sizeof args_;
    args_.norm = &of_peers_;
    if (o_.exact) args_.sum_rounding = FASTNORM_PEER_SUM_EXACT;
  }

  void set_peer(fastnorm_peer* peer) override { args_.peer = peer; }
  void query(fastnorm_info* info) override {
    check(fastnorm_peer_allreduce_norm_query(machine_.context(), &args_, info));
  }
  fastnorm_status prepare() override {
    return fastnorm_peer_allreduce_norm_prepare(machine_.context(), &args_);
  }
  fastnorm_status call(void* workspace, size_t bytes) override {
    return fastnorm_peer_allreduce_norm(machine_.context(), &args_, workspace, bytes,
                                        machine_.stream());
  }
  void nccl_call(PeerNccl& nccl, void* stream) override {
    nccl.all_reduce(x_.get(), sum_.get(), elements_, dtype_, stream);
    check(fastnorm_norm(machine_.context(), &norm_, nullptr, 0, stream));
  }

  std::vector<std::byte> result() const override {
    std::vector<std::byte> all(2 * part_.bytes + elements_);
    machine_.download(all.data(), y_.get(), part_.bytes);
    if (!o_.no_residual) machine_.download(all.data() + part_.bytes, h_.get(), part_.bytes);
    if (has_codes()) machine_.download(all.data() + 2 * part_.bytes, codes_.get(), elements_);
    return all;
  }
  // A sum in rank order on the host, and one norm on the device.
  std::vector<std::byte> expected() override {
    std::vector<std::vector<std::byte>> parts;
    for (int r = 0; r < ranks_; ++r) parts.push_back(data_of(r, part_));
    std::vector<float> sums(elements_);
    for (size_t i = 0; i < elements_; ++i) {
      const auto of = [&](const std::vector<std::byte>& part) {
        return static_cast<float>(decode(dtype_, part.data() + i * element_));
      };
      sums[i] = of(parts[0]);
      for (size_t r = 1; r < parts.size(); ++r) sums[i] += of(parts[r]);
    }
    fastnorm_norm_args norm = norm_;
    norm.flags = 0;
    o_.exact ? run_exact(norm, &sums) : run_rounded(norm, sums);
    return result();
  }
  bool alike() const override { return true; }

 private:
  bool has_codes() const { return o_.quantise != "none"; }

  void run_rounded(fastnorm_norm_args norm, const std::vector<float>& sums) {
    std::vector<std::byte> rounded(part_.bytes);
    for (size_t i = 0; i < elements_; ++i)
      encode(dtype_, static_cast<double>(sums[i]), rounded.data() + i * element_);
    const Block of_sum = place(rounded, part_.bytes);
    TensorView x = view(of_sum);
    norm.x = x.get();
    machine_.run(norm);
  }

  // x is -0, which changes no bit of the sums: they are the residual, in f32.
  void run_exact(fastnorm_norm_args norm, std::vector<float>* sums) {
    if (!o_.no_residual) {
      const std::vector<std::byte> residual = data_of(100, part_);
      for (size_t i = 0; i < elements_; ++i)
        (*sums)[i] += static_cast<float>(decode(dtype_, residual.data() + i * element_));
    }
    std::vector<std::byte> zeros(part_.bytes);
    for (size_t at = 0; at < part_.bytes; at += element_) encode(dtype_, -0.0, zeros.data() + at);
    const Block of_zeros = place(zeros, part_.bytes), of_sum = machine_.allocate(elements_ * 4);
    machine_.upload(of_sum.get(), sums->data(), elements_ * 4);
    TensorView x = view(of_zeros), residual(machine_.target(), of_sum.get(), f32(), shapes_.x);
    norm.x = x.get(), norm.residual = residual.get();
    machine_.run(norm);
  }

  TensorView view(const Block& block) const {
    return {machine_.target(), block.get(), dtype_, shapes_.x};
  }
  void set_norm() {
    fastnorm_norm_args& args = of_peers_;
    args.struct_size = sizeof args;
    args.kind = kind();
    args.flags = peer_call_flags(o_);
    args.eps = kEps;
    args.weight = views_[4].get();
    args.y = views_[2].get();
    if (!o_.no_residual) args.residual = views_[1].get(), args.residual_out = views_[3].get();
    quant_.struct_size = sizeof quant_;
    quant_.scheme = o_.quantise == "per-row" ? FASTNORM_QUANT_PER_ROW : FASTNORM_QUANT_PER_TENSOR;
    quant_.quantized = views_[5].get();
    quant_.scale = views_[6].get();
    if (has_codes()) args.quant = &quant_;
    norm_ = args;
    args.x = views_[0].get();
    norm_.x = views_[7].get();
  }

  const Part part_;
  const PeerShapes shapes_;
  const size_t elements_;
  Block x_, residual_, weight_, y_, h_, codes_, scale_, sum_;
  TensorView views_[8];
  fastnorm_peer_allreduce_norm_args args_ = {};
  fastnorm_norm_args of_peers_ = {};  // of args_
  fastnorm_norm_args norm_ = {};      // of the sum that NCCL makes
  fastnorm_quant quant_ = {};         // of both
};

class ShardedWork final : public PeerWork {
 public:
  ShardedWork(const PeerOptions& options, const Machine& machine, int ranks, int rank)
      : PeerWork(options, machine, ranks, rank),
        words_(o_.layer ? 2 : 1),
        count_(o_.columns2 == 0 ? 1 : 2),
        tokens_(static_cast<size_t>(o_.rows)) {
    for (int p = 0; p < count_; ++p) {
      Of& of = of_[p];
      of.part = part_of(p == 0 ? o_.columns : o_.columns2);
      of.x = place(data_of(rank_ + 16 * p, of.part), of.part.bytes);
      of.weight = place(weights_of(of.part), 0);
      of.y = machine_.allocate(of.part.bytes);
      // Sums of all parts lie beside each other: one all-reduce has them.
      if (p == 0) sums_ = machine_.allocate(static_cast<size_t>(count_ * words_) * tokens_ * 4);
      of.sums = sums_.get() + static_cast<size_t>(p * words_) * tokens_ * 4;
      of.mean = machine_.allocate(tokens_ * 4);
      of.rstd = machine_.allocate(tokens_ * 4);
      of.x_view = rows(of.x.get(), of.part);
      of.y_view = rows(of.y.get(), of.part);
      of.weight_view =
          TensorView(machine_.target(), of.weight.get(), dtype_,
                     {peer_heads(of.part.columns).count, peer_heads(of.part.columns).columns});
      of.sums_view =
          TensorView(machine_.target(), of.sums, f32(),
                     o_.layer ? std::vector<int64_t>{o_.rows, 2} : std::vector<int64_t>{o_.rows});
      of.mean_view = TensorView(machine_.target(), of.mean.get(), f32(), {o_.rows});
      of.rstd_view = TensorView(machine_.target(), of.rstd.get(), f32(), {o_.rows});
      // What NCCL gives stands in for rstd: one launch less than a caller needs.
      of.sum_as_rstd = TensorView(machine_.target(), of.sums, f32(), {o_.rows}, {words_});
    }
    args_.struct_size = sizeof args_;
    args_.kind = kind();
    args_.eps = kEps;
    args_.flags = peer_call_flags(o_);
    args_.x = of_[0].x_view.get(), args_.y = of_[0].y_view.get();
    args_.weight = of_[0].weight_view.get();
    if (count_ == 2) {
      args_.x2 = of_[1].x_view.get(), args_.y2 = of_[1].y_view.get();
      args_.weight2 = of_[1].weight_view.get();
    }
  }

  void set_peer(fastnorm_peer* peer) override { args_.peer = peer; }
  void query(fastnorm_info* info) override {
    check(fastnorm_peer_sharded_norm_query(machine_.context(), &args_, info));
  }
  fastnorm_status prepare() override {
    return fastnorm_peer_sharded_norm_prepare(machine_.context(), &args_);
  }
  fastnorm_status call(void* workspace, size_t bytes) override {
    return fastnorm_peer_sharded_norm(machine_.context(), &args_, workspace, bytes,
                                      machine_.stream());
  }
  void nccl_call(PeerNccl& nccl, void* stream) override {
    run_sums(stream);
    nccl.all_reduce(sums_.get(), sums_.get(), static_cast<size_t>(count_ * words_) * tokens_, f32(),
                    stream);
    run_apply(true, stream);
  }

  std::vector<std::byte> result() const override {
    std::vector<std::byte> all(of_[0].part.bytes + of_[1].part.bytes);
    size_t at = 0;
    for (int p = 0; p < count_; ++p) {
      machine_.download(all.data() + at, of_[p].y.get(), of_[p].part.bytes);
      at += of_[p].part.bytes;
    }
    return all;
  }

  // Every rank's sums by this device, merged on the host, and then y by this device.
  std::vector<std::byte> expected() override {
    for (int p = 0; p < count_; ++p) {
      Of& of = of_[p];
      std::vector<float> sums, mean(tokens_), rstd(tokens_);
      for (int r = 0; r < ranks_; ++r) {
        upload(of, data_of(r + 16 * p, of.part));
        run_sums(machine_.stream());
        machine_.synchronize();
        const size_t before = sums.size();
        sums.resize(before + tokens_ * static_cast<size_t>(words_));
        machine_.download(sums.data() + before, of.sums, (sums.size() - before) * 4);
      }
      for (size_t token = 0; token < tokens_; ++token)
        merge(of, sums, token, &mean[token], &rstd[token]);
      upload(of, data_of(rank_ + 16 * p, of.part));
      machine_.upload(of.mean.get(), mean.data(), tokens_ * 4);
      machine_.upload(of.rstd.get(), rstd.data(), tokens_ * 4);
    }
    run_apply(false, machine_.stream());
    machine_.synchronize();
    return result();
  }
  bool alike() const override { return false; }

 private:
  struct Of {
    Part part;
    Block x, y, weight, mean, rstd;
    std::byte* sums;
    TensorView x_view, y_view, weight_view, sums_view, mean_view, rstd_view, sum_as_rstd;
  };

  TensorView rows(std::byte* data, const Part& part) const {
    const PeerHeads heads = peer_heads(part.columns);
    return {machine_.target(), data, dtype_, {o_.rows, heads.count, heads.columns}};
  }
  void upload(const Of& of, const std::vector<std::byte>& data) const {
    machine_.upload(of.x.get(), data.data(), data.size());
  }

  fastnorm_norm_heads_part part_of_norm(Of& of) const {
    fastnorm_norm_heads_part part = {};
    part.struct_size = sizeof part;
    part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS;
    part.kind = kind();
    part.x = of.x_view.get();
    return part;
  }
  void run_parts(const fastnorm_norm_heads_part (&parts)[2], void* stream) const {
    fastnorm_norm_heads_args shared = {};
    shared.struct_size = sizeof shared;
    const fastnorm_norm_heads_part* const of[2] = {&parts[0], &parts[1]};
    check(fastnorm_norm_heads(machine_.context(), &shared, of, count_, nullptr, 0, stream));
  }
  void run_sums(void* stream) {
    fastnorm_norm_heads_part parts[2];
    for (int p = 0; p < count_; ++p) {
      parts[p] = part_of_norm(of_[p]);
      parts[p].sumsq = of_[p].sums_view.get();
    }
    run_parts(parts, stream);
  }
  void run_apply(bool sums_stand_in, void* stream) {
    fastnorm_norm_heads_part parts[2];
    for (int p = 0; p < count_; ++p) {
      Of& of = of_[p];
      parts[p] = part_of_norm(of);
      parts[p].weight = of.weight_view.get();
      parts[p].y = of.y_view.get();
      parts[p].rstd_in = sums_stand_in ? of.sum_as_rstd.get() : of.rstd_view.get();
      if (o_.layer) parts[p].mean_in = of.mean_view.get();
    }
    run_parts(parts, stream);
  }

  // The formula at the top of fastnorm/peer.h. `sums`: [ranks][tokens][words].
  void merge(const Of& of, const std::vector<float>& sums, size_t token, float* mean,
             float* rstd) const {
    const auto n = static_cast<double>(of.part.columns);
    const auto word = [&](int rank, int number) {
      return sums[(static_cast<size_t>(rank) * tokens_ + token) * static_cast<size_t>(words_) +
                  static_cast<size_t>(number)];
    };
    float squares = word(0, words_ - 1), m = o_.layer ? word(0, 0) : 0.0f;
    for (int r = 1; r < ranks_; ++r) {
      if (!o_.layer) {
        squares += word(r, 0);
        continue;
      }
      const float d = word(r, 0) - m;
      m += d * static_cast<float>(1.0 / (r + 1));
      squares = squares + word(r, 1) + d * d * static_cast<float>(n * r / (r + 1));
    }
    const float variance = squares * static_cast<float>(1.0 / (n * ranks_)) + kEps;
    *mean = m;
    *rstd = 1.0f / std::sqrt(variance);
  }

  const int words_, count_;
  const size_t tokens_;
  Of of_[2];
  Block sums_;
  fastnorm_peer_sharded_norm_args args_ = {};
};

}  // namespace

PeerWork::PeerWork(const PeerOptions& options, const Machine& machine, int ranks, int rank)
    : o_(options),
      machine_(machine),
      ranks_(ranks),
      rank_(rank),
      dtype_(find_dtype(options.dtype)->dtype),
      element_(element_bytes(dtype_)) {}

std::vector<std::byte> PeerWork::data_of(int seed, const Part& part) const {
  std::vector<std::byte> data(part.bytes);
  Random random(static_cast<uint64_t>(seed) + 1);
  for (size_t at = 0; at < data.size(); at += element_)
    encode(dtype_, random.uniform(-2, 2), data.data() + at);
  return data;
}
std::vector<std::byte> PeerWork::weights_of(const Part& part, int64_t rows) const {
  std::vector<std::byte> data(static_cast<size_t>(rows * part.columns) * element_);
  Random random(77);
  for (size_t at = 0; at < data.size(); at += element_)
    encode(dtype_, random.uniform(0.5, 1.5), data.data() + at);
  return data;
}
PeerWork::Part PeerWork::part_of(int64_t columns) const {
  return {columns, static_cast<size_t>(o_.rows * columns) * element_};
}
Block PeerWork::place(const std::vector<std::byte>& content, size_t bytes) const {
  Block block = machine_.allocate(std::max(content.size(), bytes));
  machine_.upload(block.get(), content.data(), content.size());
  return block;
}
fastnorm_norm_kind PeerWork::kind() const {
  return o_.layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
}

std::unique_ptr<PeerWork> make_peer_work(const PeerOptions& options, const Machine& machine,
                                         int ranks, int rank) {
  if (options.sharded) return std::make_unique<ShardedWork>(options, machine, ranks, rank);
  return std::make_unique<AllreduceWork>(options, machine, ranks, rank);
}

}  // namespace fastnorm::tool
