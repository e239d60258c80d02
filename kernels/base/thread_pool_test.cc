// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/testing.h"

using wia::ThreadPool;

TEST(every_index_is_covered_exactly_once) {
  for (size_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& count) { return count == 1; }));
      }
    }
  }
}

TEST(pieces_are_at_least_the_grain) {
  ThreadPool pool(4);
  std::atomic<int> short_pieces{0};
  pool.parallel_for(1003, 100,
                    [&](int64_t begin, int64_t end) { short_pieces += end - begin < 100; });
  CHECK(short_pieces <= 1);  // the last
}

TEST(one_thread_runs_all_in_the_caller) {
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  pool.parallel_for(1000, 1, [&](int64_t, int64_t) {
    ++calls;
    CHECK(std::this_thread::get_id() == caller);
  });
  CHECK_EQ(calls, 1);
}

TEST(a_loop_inside_a_loop_is_run_by_its_caller) {
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  pool.parallel_for(50, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pool.parallel_for(10, 1, [&](int64_t b, int64_t e) { total += e - b; });
  });
  CHECK_EQ(total.load(), 500);
}

TEST(many_short_loops_lose_nothing) {
  ThreadPool pool(4);
  std::vector<int> values(256);
  for (int round = 0; round < 5000; ++round) {
    pool.parallel_for(256, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += 1;
    });
  }
  CHECK_EQ(std::accumulate(values.begin(), values.end(), 0), 256 * 5000);
}

TEST(callers_on_several_threads_all_finish) {
  ThreadPool pool(2);
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) { total += end - begin; });
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK_EQ(total.load(), 4 * 200 * 100);
}

TEST(an_idle_pool_uses_no_cpu) {
  ThreadPool pool(4);
  pool.parallel_for(100, 1, [](int64_t, int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they go to sleep
  const std::clock_t before = std::clock();                    // of the whole process
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double used_ms = 1000.0 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(used_ms < 20);
}

TEST(more_threads_than_any_machine_has_is_an_error) {
  CHECK_THROWS(ThreadPool(0), "threads must be 1 to 1024, not 0");
  CHECK_THROWS(ThreadPool(100000), "threads must be 1 to 1024, not 100000");
}

WIA_TEST_MAIN
