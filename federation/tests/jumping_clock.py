"""A wall clock that a test sets for the processes it starts; their monotonic clock is
unaffected.
"""

import shutil
import subprocess

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

static long shift(void) {
    char text[32] = {0};
    const char *name = getenv("TEST_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    long found = read(file, text, sizeof text - 1) > 0 ? atol(text) : 0;
    close(file);
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}
"""


def jumping_clock(folder):
    """Environment of processes with such a clock, and a function that sets it, in seconds from the
    true time.

    Skips where there is no C compiler.
    """
    if not (compiler := shutil.which("cc")):
        pytest.skip("needs a C compiler, cc, for a clock of our own")
    library, file = folder / "clock.so", folder / "clock"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"],
        input=SOURCE,
        text=True,
        check=True,
    )

    def jump(seconds):
        new = folder / "clock.new"
        new.write_text(f"{seconds}\n")
        new.replace(file)

    jump(0)
    return {"LD_PRELOAD": str(library), "TEST_CLOCK": str(file)}, jump
