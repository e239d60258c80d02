// SPDX-License-Identifier: Apache-2.0
// The smallest test harness: TEST(name) { CHECK(...); CHECK_EQ(a, b); } and one line WIA_TEST_MAIN.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace wia::testing {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Small integers as numbers, the rest as it is.
template <class T>
auto shown(const T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    return +value;
  else
    return value;
}

template <class... Parts>
[[noreturn]] void fail_at(const char* file, int line, const Parts&... parts) {
  std::ostringstream text;
  text << file << ":" << line << ": ";
  (text << ... << parts);
  throw Failure(text.str());
}

// Runs every case (or the one named in argv); 0 when all passed and at least one ran.
inline int run_all(int argc, char** argv) {
  int n_run = 0, n_failed = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && std::string(argv[1]) != test.name) continue;
    ++n_run;
    try {
      test.body();
    } catch (const std::exception& e) {
      ++n_failed;
      std::cerr << "FAILED " << test.name << ": " << e.what() << "\n";
    }
  }
  std::cout << n_run - n_failed << " of " << n_run << " cases passed\n";
  return n_run == 0 || n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace wia::testing

#define TEST(name)                                                     \
  static void test_##name();                                           \
  static ::wia::testing::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) ::wia::testing::fail_at(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (0)
#define CHECK_EQ(a, b)                                                                      \
  do {                                                                                      \
    const auto check_a = (a);                                                               \
    const auto check_b = (b);                                                               \
    if (!(check_a == check_b))                                                              \
      ::wia::testing::fail_at(__FILE__, __LINE__, #a " = ", ::wia::testing::shown(check_a), \
                              ", " #b " = ", ::wia::testing::shown(check_b));               \
  } while (0)
#define CHECK_THROWS(expression, text)                                                     \
  do {                                                                                     \
    std::string check_what = "no exception";                                               \
    try {                                                                                  \
      (void)(expression);                                                                  \
    } catch (const std::exception& e) {                                                    \
      check_what = e.what();                                                               \
    }                                                                                      \
    if (check_what.find(text) == std::string::npos)                                        \
      ::wia::testing::fail_at(__FILE__, __LINE__, #expression " gave '", check_what, "'"); \
  } while (0)
#define WIA_TEST_MAIN \
  int main(int argc, char** argv) { return ::wia::testing::run_all(argc, argv); }
