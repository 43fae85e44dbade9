// What this processor can do; compiled for any of its family.
#include <nanobind/nanobind.h>

#include <cstring>

namespace {

// Whether the processor and the system know a set of instructions, by its name in GCC.
bool supports([[maybe_unused]] const char* what) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!std::strcmp(what, "x86-64-v3")) return __builtin_cpu_supports("x86-64-v3");
  if (!std::strcmp(what, "x86-64-v4")) return __builtin_cpu_supports("x86-64-v4");
  if (!std::strcmp(what, "avx512bf16")) return __builtin_cpu_supports("avx512bf16");
#endif
  return false;
}

}  // namespace

NB_MODULE(_processor, module) { module.def("supports", &supports, nanobind::arg("what")); }
