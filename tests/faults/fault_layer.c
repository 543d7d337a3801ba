/* Fails, or ends the process, at the n-th change of the disk below a directory. Loaded with LD_PRELOAD; Linux.

   Every change is a point: a file created, written, synced, renamed or removed, a directory made or removed. Points are
   counted from faults_arm() on. What happens at the chosen point, and after it, is its kind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILLED, INTERRUPTED, TERMINATED, STOPPED, FAILS_ONCE, FULL, READ_ONLY };
enum { MOST = 1 << 16 };

static char below[PATH_MAX];
static volatile int armed, kind, tripped;
static volatile long target, seen;
static char changes[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void faults_arm(const char *directory, int what, long point) {
  strncpy(below, directory, sizeof below - 1);
  kind = what;
  target = point;
  seen = 0;
  tripped = 0;
  memset(changes, 0, sizeof changes);
  armed = 1;
}

const char *faults_disarm(void) {
  armed = 0;
  return changes;
}

static int is_below(int directory, const char *path) {
  char full[PATH_MAX], link[64];
  if (!armed) return 0;
  if (path != NULL && path[0] == '/') return strncmp(path, below, strlen(below)) == 0;
  if (directory == AT_FDCWD) {
    if (getcwd(full, sizeof full) == NULL) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, full, sizeof full - 1);
    if (length < 0) return 0;
    full[length] = 0;
  }
  return strncmp(full, below, strlen(below)) == 0;
}

/* Returns the error that a change ends with, 0 if it may happen; *now is set at the chosen point itself. */
static int fault(char change, int *now) {
  int grows = strchr("cwfrm", change) != NULL;
  pthread_mutex_lock(&lock);
  if (seen < MOST - 1) changes[seen] = change;
  seen++;
  *now = seen == target;
  if (*now) tripped = 1;
  pthread_mutex_unlock(&lock);
  if (*now && kind == KILLED && change != 'w') kill(getpid(), SIGKILL);
  if (*now && kind == INTERRUPTED) kill(getpid(), SIGINT);
  if (*now && kind == TERMINATED) kill(getpid(), SIGTERM);
  if (*now && kind == STOPPED) kill(getpid(), SIGSTOP);
  if (*now && kind == FAILS_ONCE) return EIO;
  if (tripped && kind == FULL && grows && !(*now && change == 'w')) return ENOSPC;
  if (tripped && kind == READ_ONLY) return EROFS;
  return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CHECK(change, directory, path) \
  int now = 0, problem = is_below(directory, path) ? fault(change, &now) : 0; \
  if (problem) { errno = problem; return -1; }

/* The chosen write is torn: half of it reaches the file. */
#define TORN(half) \
  if (now && (kind == KILLED || kind == FULL)) { \
    ssize_t done = (half); \
    if (kind == KILLED) kill(getpid(), SIGKILL); \
    return done; \
  }

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
    if (flags & (O_CREAT | O_TRUNC)) { CHECK('c', AT_FDCWD, path) (void)now; } \
    return real(path, flags, mode); \
  }
#define OPENAT(name) \
  int name(int directory, const char *path, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
    if (flags & (O_CREAT | O_TRUNC)) { CHECK('c', directory, path) (void)now; } \
    return real(directory, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
  REAL(write);
  CHECK('w', file, NULL)
  TORN(real(file, data, size / 2))
  return real(file, data, size);
}

#define PWRITE(name, offset_type) \
  ssize_t name(int file, const void *data, size_t size, offset_type at) { \
    REAL(name); \
    CHECK('w', file, NULL) \
    TORN(real(file, data, size / 2, at)) \
    return real(file, data, size, at); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int count) {
  REAL(writev);
  CHECK('w', file, NULL)
  TORN(count > 1 ? real(file, parts, count / 2) : 0)
  return real(file, parts, count);
}

ssize_t sendfile(int file, int from, off_t *at, size_t size) {
  REAL(sendfile);
  CHECK('w', file, NULL)
  TORN(real(file, from, at, size / 2))
  return real(file, from, at, size);
}

ssize_t sendfile64(int file, int from, off64_t *at, size_t size) {
  REAL(sendfile64);
  CHECK('w', file, NULL)
  TORN(real(file, from, at, size / 2))
  return real(file, from, at, size);
}

#define SIMPLE(change, name, parameters, directory, path, call) \
  int name parameters { \
    REAL(name); \
    CHECK(change, directory, path) (void)now; \
    return real call; \
  }
SIMPLE('f', fsync, (int file), file, NULL, (file))
SIMPLE('f', fdatasync, (int file), file, NULL, (file))
SIMPLE('t', ftruncate, (int file, off_t size), file, NULL, (file, size))
SIMPLE('t', ftruncate64, (int file, off64_t size), file, NULL, (file, size))
SIMPLE('r', rename, (const char *from, const char *to), AT_FDCWD, to, (from, to))
SIMPLE('r', renameat, (int a, const char *from, int b, const char *to), b, to, (a, from, b, to))
SIMPLE('u', unlink, (const char *path), AT_FDCWD, path, (path))
SIMPLE('u', unlinkat, (int directory, const char *path, int flags), directory, path, (directory, path, flags))
SIMPLE('u', rmdir, (const char *path), AT_FDCWD, path, (path))
SIMPLE('m', mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
SIMPLE('m', mkdirat, (int directory, const char *path, mode_t mode), directory, path, (directory, path, mode))
