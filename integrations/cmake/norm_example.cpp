// RMSNorm of two rows. Prints the library's version and the rows.

#include <cstdint>
#include <cstdio>
#include <fastnorm/fastnorm.hpp>
#include <vector>

int main() {
  const std::int64_t rows = 2, n = 4;
  std::vector<float> x_data = {1, 1, 1, 1, 1, -1, 3, -3}, w_data = {1, 2, 3, 4}, y_data(8);
  const fastnorm::context cpu(fastnorm::cpu());
  fastnorm::tensor x(x_data.data(), {rows, n}), w(w_data.data(), {n}), y(y_data.data(), {rows, n});
  fastnorm::norm_args args;
  args.x = x.get(), args.weight = w.get(), args.y = y.get();
  fastnorm::norm(cpu, args);
  std::printf("libfastnorm %s\n", fastnorm_version_string());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::printf("%s%.4f", i == 0 ? "" : " ", static_cast<double>(y_data[row * n + i]));
    }
    std::printf("\n");
  }
}
