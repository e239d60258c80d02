// SPDX-License-Identifier: Apache-2.0
// Times of operators and session runs of a context.
#include <chrono>
#include <fstream>

#include "capi/objects.h"

namespace wia::capi {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void write_json(const Context& context) {
  std::ofstream file(context.profile_file);
  file << "{\"version\": 1, \"entries\": [";
  const char* separator = "";
  for (const auto& [name, entry] : context.profile) {
    file << separator << "{\"name\": \"" << name << "\", \"count\": " << entry.first
         << ", \"total_ns\": " << entry.second << "}";
    separator = ", ";
  }
  file << "]}\n";
  file.flush();
  if (!file.good())
    fail(WIA_ERROR_RUNTIME_ERROR, "cannot write the profile to '" + context.profile_file + "'");
}

}  // namespace

Timed::Timed(Context& context, const char* name)
    : context_(context), name_(name), start_ns_(now_ns()) {}

Timed::~Timed() {
  const uint64_t spent = now_ns() - start_ns_;
  const std::lock_guard lock(context_.profile_mutex);
  if (!context_.profiling) return;
  try {
    auto& [count, total_ns] = context_.profile[name_];
    ++count;
    total_ns += spent;
  } catch (const std::bad_alloc&) {
    // The operator has done its work; one missing time is no reason to fail it.
  }
}

}  // namespace wia::capi

using namespace wia;
using namespace wia::capi;

extern "C" wia_status_t wia_start_profiling(wia_context_t ctx, const wia_profiling_config_t* config,
                                            const char* output_file) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    if (config && !config->profiling_enabled) return;
    if (config && config->mode != WIA_PROFILE_INSTRUMENTATION)
      fail(WIA_ERROR_NOT_SUPPORTED,
           "profiling by sampling or hardware counters; use WIA_PROFILE_INSTRUMENTATION");
    const std::lock_guard lock(context->profile_mutex);
    context->profile_entries.clear();
    context->profile.clear();
    context->profile_file = output_file ? output_file : "";
    context->profiling = true;
  });
}

extern "C" wia_status_t wia_stop_profiling(wia_context_t ctx) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    const std::lock_guard lock(context->profile_mutex);
    require(context->profiling, "the context is not profiling");
    context->profiling = false;
    if (!context->profile_file.empty()) write_json(*context);
  });
}

extern "C" wia_status_t wia_get_profile_results(wia_context_t ctx, wia_profile_results_t* results) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(results != nullptr, "results must not be NULL");
    const std::lock_guard lock(context->profile_mutex);
    context->profile_entries.clear();
    for (const auto& [name, entry] : context->profile)
      context->profile_entries.push_back({name.c_str(), entry.first, entry.second});
    results->entries = context->profile_entries.data();
    results->count = static_cast<int>(context->profile_entries.size());
  });
}
