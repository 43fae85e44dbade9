/* Counts the calls that change files under one folder, and lets one of them fail: a write after half of its bytes,
   any other before it does anything. Loaded by LD_PRELOAD; io_faults.py has the rest. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct state { long calls, at, until; char root[PATH_MAX], call[PATH_MAX + 64]; };
static struct state *s; /* shared with forked processes */

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

void faults_arm(const char *root, long at, long until) {
  if (!s) s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  s->calls = 0, s->at = at, s->until = until, s->call[0] = 0;
  snprintf(s->root, sizeof s->root, "%s", root);
}
long faults_calls(void) { return s ? s->calls : 0; }
const char *faults_call(void) { return s ? s->call : ""; }

static void path_of(int folder, const char *name, char *path) {
  char link[64], base[PATH_MAX] = "";
  if (name && name[0] == '/') { snprintf(path, PATH_MAX, "%s", name); return; }
  if (folder == AT_FDCWD) { if (!getcwd(base, sizeof base)) base[0] = 0; }
  else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, base, sizeof base - 1);
    base[n < 0 ? 0 : n] = 0;
  }
  if (name) { strncat(base, "/", PATH_MAX - strlen(base) - 1); strncat(base, name, PATH_MAX - strlen(base) - 1); }
  memcpy(path, base, PATH_MAX);
}

static int fails(const char *call, int folder, const char *name) {
  char path[PATH_MAX];
  if (!s || !s->root[0]) return 0;
  int before = errno;
  path_of(folder, name, path);
  errno = before;
  if (strncmp(path, s->root, strlen(s->root))) return 0;
  long n = __sync_add_and_fetch(&s->calls, 1);
  if (n < s->at || n > s->until) return 0;
  if (n == s->at) snprintf(s->call, sizeof s->call, "%s %s", call, path + strlen(s->root));
  errno = n % 2 ? ENOSPC : EIO;
  return 1;
}

#define OPENS(name, first, at, args) \
  int name(first const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails("open", at, path)) return -1; \
    return REAL(name) args; }
OPENS(open, , AT_FDCWD, (path, flags, mode))
OPENS(open64, , AT_FDCWD, (path, flags, mode))
#define FOLDER int folder,
OPENS(openat, FOLDER, folder, (folder, path, flags, mode))
OPENS(openat64, FOLDER, folder, (folder, path, flags, mode))

ssize_t write(int fd, const void *data, size_t n) {
  if (fails("write", fd, 0)) { int e = errno; if (n > 1) REAL(write)(fd, data, n / 2); errno = e; return -1; }
  return REAL(write)(fd, data, n);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t to) { return fails("write", fd, 0) ? -1 : REAL(pwrite64)(fd, data, n, to); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t to) { return fails("write", fd, 0) ? -1 : REAL(pwrite)(fd, data, n, to); }
ssize_t writev(int fd, const struct iovec *v, int n) { return fails("write", fd, 0) ? -1 : REAL(writev)(fd, v, n); }
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t n, unsigned f) { return fails("write", out, 0) ? -1 : REAL(copy_file_range)(in, a, out, b, n, f); }
ssize_t sendfile(int out, int in, off_t *a, size_t n) { return fails("write", out, 0) ? -1 : REAL(sendfile)(out, in, a, n); }
ssize_t sendfile64(int out, int in, off64_t *a, size_t n) { return fails("write", out, 0) ? -1 : REAL(sendfile64)(out, in, a, n); }
int fsync(int fd) { return fails("fsync", fd, 0) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails("fsync", fd, 0) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { return fails("truncate", fd, 0) ? -1 : REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { return fails("truncate", fd, 0) ? -1 : REAL(ftruncate64)(fd, n); }
int posix_fallocate(int fd, off_t a, off_t n) { return fails("allocate", fd, 0) ? errno : REAL(posix_fallocate)(fd, a, n); }
int rename(const char *a, const char *b) { return fails("rename", AT_FDCWD, b) ? -1 : REAL(rename)(a, b); }
int renameat(int i, const char *a, int j, const char *b) { return fails("rename", j, b) ? -1 : REAL(renameat)(i, a, j, b); }
int link(const char *a, const char *b) { return fails("link", AT_FDCWD, b) ? -1 : REAL(link)(a, b); }
int symlink(const char *a, const char *b) { return fails("link", AT_FDCWD, b) ? -1 : REAL(symlink)(a, b); }
int unlink(const char *a) { return fails("unlink", AT_FDCWD, a) ? -1 : REAL(unlink)(a); }
int unlinkat(int i, const char *a, int f) { return fails("unlink", i, a) ? -1 : REAL(unlinkat)(i, a, f); }
int rmdir(const char *a) { return fails("rmdir", AT_FDCWD, a) ? -1 : REAL(rmdir)(a); }
int mkdir(const char *a, mode_t m) { return fails("mkdir", AT_FDCWD, a) ? -1 : REAL(mkdir)(a, m); }
int mkdirat(int i, const char *a, mode_t m) { return fails("mkdir", i, a) ? -1 : REAL(mkdirat)(i, a, m); }
int chmod(const char *a, mode_t m) { return fails("chmod", AT_FDCWD, a) ? -1 : REAL(chmod)(a, m); }
int fchmod(int fd, mode_t m) { return fails("chmod", fd, 0) ? -1 : REAL(fchmod)(fd, m); }
