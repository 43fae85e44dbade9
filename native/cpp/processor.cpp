// What this processor can do; compiled for any of its family.
#include <nanobind/nanobind.h>

#include <cstring>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Whether the processor has matrix tiles of bf16, and the system lets this process use them: on Linux it has to ask.
bool tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return __builtin_cpu_supports("amx-bf16") && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
  return false;
#endif
}

// Whether the processor and the system know a set of instructions, by its name in GCC.
bool supports([[maybe_unused]] const char* what) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!std::strcmp(what, "x86-64-v3")) return __builtin_cpu_supports("x86-64-v3");
  if (!std::strcmp(what, "x86-64-v4")) return __builtin_cpu_supports("x86-64-v4");
  if (!std::strcmp(what, "avx512bf16")) return __builtin_cpu_supports("avx512bf16");
  if (!std::strcmp(what, "amx")) return tiles();
#endif
  return false;
}

}  // namespace

NB_MODULE(_processor, module) { module.def("supports", &supports, nanobind::arg("what")); }
