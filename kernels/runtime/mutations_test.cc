// SPDX-License-Identifier: Apache-2.0
// Broken models: mutated and truncated files of tests/runtime/corpus are refused or run, and never
// crash. The sanitizer builds of this test see leaks and undefined behaviour; a hang is the test
// runner's time limit.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "base/testing.h"
#include "runtime/exercise.h"

using namespace wia;

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(WIA_CORPUS))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> models;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    models.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return models;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  Bytes operator()(const std::vector<Bytes>& models) {
    Bytes bytes = models[below(models.size())];
    for (size_t n = below(3) ? 1 : 2 + below(3); n > 0; --n) mutate(bytes, models);
    return bytes;
  }

 private:
  size_t below(size_t n) { return n ? random_() % n : 0; }

  void mutate(Bytes& bytes, const std::vector<Bytes>& models) {
    static constexpr uint8_t kEdges[] = {0, 1, 2, 8, 0x10, 0x7f, 0x80, 0xfe, 0xff};
    if (bytes.empty()) return;
    const size_t at = below(bytes.size()), length = std::min(bytes.size() - at, 1 + below(16));
    const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    // Most keep the length, so that the file around them still reads.
    switch (below(16)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.erase(here, here + static_cast<std::ptrdiff_t>(length));
        break;
      case 2: {
        const Bytes piece(here, here + static_cast<std::ptrdiff_t>(length));
        bytes.insert(here, piece.begin(), piece.end());
        break;
      }
      case 3: {
        const Bytes& other = models[below(models.size())];
        const size_t from = below(other.size());
        const size_t n = std::min({other.size() - from, bytes.size() - at, 1 + below(64)});
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), n, here);
        break;
      }
      case 4:
        std::fill_n(here, length, kEdges[below(std::size(kEdges))]);
        break;
      case 5:
      case 6:
      case 7:
      case 8:
        bytes[at] = kEdges[below(std::size(kEdges))];
        break;
      case 9:
      case 10:
        bytes[at] = static_cast<uint8_t>(random_());
        break;
      default:
        bytes[at] ^= static_cast<uint8_t>(1u << below(8));
    }
  }

  std::mt19937 random_;
};

constexpr unsigned kMutations = 6000;

}  // namespace

TEST(the_models_themselves_run) {
  const auto models = corpus();
  CHECK(models.size() >= 9);
  for (const Bytes& model : models) CHECK(exercise_model(model) == Exercised::kRan);
}

TEST(every_truncation_is_refused_or_runs) {
  for (const Bytes& model : corpus())
    for (size_t n = 0; n < model.size(); ++n) (void)exercise_model({model.data(), n});
}

TEST(mutated_models_are_refused_or_run) {
  const auto models = corpus();
  int n_refused = 0, n_loaded = 0, n_ran = 0;
  for (unsigned seed = 0; seed < kMutations; ++seed) {
    switch (exercise_model(Mutator(seed)(models))) {
      case Exercised::kRefused:
        ++n_refused;
        break;
      case Exercised::kLoaded:
        ++n_loaded;
        break;
      case Exercised::kRan:
        ++n_ran;
        break;
    }
  }
  std::cout << n_refused << " refused, " << n_loaded << " loaded, " << n_ran << " ran\n";
  // The mutations are worth something only if some get past each stage.
  CHECK(n_refused > 300 && n_loaded > 30 && n_ran > 300);
}

WIA_TEST_MAIN
