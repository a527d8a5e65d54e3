/* Sits between a process and the kernel (LD_PRELOAD): records what is done to the files of one folder, and makes the
 * n-th such call fail, fall short, or be the last one. Python's calls and libhdf5's own are seen alike.
 *
 * A record of the log is `struct record`, then `name` bytes of a path, then `data` bytes of what was written, or of
 * the path that was renamed to. Paths are relative to the folder.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum op { CREATE = 1, WRITE, FSYNC, FSYNC_FOLDER, TRUNCATE, RENAME, UNLINK };
enum act { NOTHING, FAIL, SHORT, DIE, DIE_TORN };

struct record { uint32_t op, name; uint64_t inode, offset, data; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static int log_fd = -1, act = NOTHING, error_number, lasting;
static long calls, target = -1;
static char *names[4096];

/* ---- what the bench calls */

void fault_watch(const char *path, const char *log) {
    snprintf(folder, sizeof folder, "%s", path);
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = *log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    calls = 0;
    target = -1;
}

void fault_arm(long n, int what, int number, int goes_on) {
    calls = 0;
    target = n;
    act = what;
    error_number = number;
    lasting = goes_on;
}

long fault_calls(void) { return calls; }

/* ---- deciding and recording */

static const char *inside(const char *path) {
    static __thread char whole[2 * PATH_MAX];
    size_t n = strlen(folder);
    if (!n || !path) return NULL;
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return NULL;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    if (strncmp(path, folder, n)) return NULL;
    return path[n] == '/' ? path + n + 1 : path[n] ? NULL : ".";
}

static const char *name_of(int fd) { return fd >= 0 && fd < 4096 ? names[fd] : NULL; }

/* What to do with this call: NOTHING special, FAIL with errno, or SHORT. DIE does not return. */
static int decide(enum op op, int torn_allowed) {
    long n = calls++;
    if (target < 0 || n < target || (n > target && !lasting)) return NOTHING;
    if (n > target && error_number == ENOSPC && op != CREATE && op != WRITE) return NOTHING; /* needs no room */
    if (act == FAIL) { errno = error_number; return FAIL; }
    if (act == SHORT && op == WRITE) return SHORT;
    if (act == DIE_TORN && torn_allowed) return DIE_TORN;
    if (act == DIE || act == DIE_TORN) { kill(getpid(), SIGKILL); for (;;) pause(); }
    return NOTHING;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : (uint64_t)found.st_ino;
}

static void note(enum op op, const char *name, uint64_t inode, uint64_t offset, const void *data, size_t size) {
    struct record head = {op, (uint32_t)strlen(name), inode, offset, size};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)name, head.name}, {(void *)data, size}};
    if (log_fd < 0) return;
    pthread_mutex_lock(&lock);
    syscall(SYS_writev, log_fd, parts, 3);
    pthread_mutex_unlock(&lock);
}

/* ---- open and close */

static int opened(int at, const char *path, int flags, mode_t mode) {
    const char *name = at == AT_FDCWD || (path && path[0] == '/') ? inside(path) : NULL;
    struct stat found;
    int fresh = name && (flags & O_CREAT) && stat(path, &found) != 0, cut = name && (flags & O_TRUNC) && !fresh;
    if ((fresh || cut) && decide(fresh ? CREATE : TRUNCATE, 0) == FAIL) return -1;
    int fd = (int)syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode);
    if (fd >= 0 && fd < 4096) {
        free(names[fd]);
        names[fd] = name ? strdup(name) : NULL;
    }
    if (fd >= 0 && fresh) note(CREATE, name, inode_of(fd), 0, NULL, 0);
    if (fd >= 0 && cut) note(TRUNCATE, name, inode_of(fd), 0, NULL, 0);
    return fd;
}

#define MODE(flags, last) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list more; va_start(more, last); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, flags) return opened(at, path, flags, mode); }

int close(int fd) {
    if (name_of(fd)) { free(names[fd]); names[fd] = NULL; }
    return (int)syscall(SYS_close, fd);
}

/* ---- writes: all end here */

static ssize_t put(int fd, const struct iovec *parts, int count, off_t offset, int positional) {
    const char *name = name_of(fd);
    size_t size = 0, done = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (!name)
        return positional ? syscall(SYS_pwritev, fd, parts, count, offset, 0) : syscall(SYS_writev, fd, parts, count);
    if (!positional) offset = lseek(fd, 0, SEEK_CUR);
    int what = decide(WRITE, 1);
    if (what == FAIL) return -1;
    char *all = malloc(size + 1);
    for (int i = 0; i < count; i++) {
        memcpy(all + done, parts[i].iov_base, parts[i].iov_len);
        done += parts[i].iov_len;
    }
    if ((what == SHORT || what == DIE_TORN) && size > 1) size /= 2;
    ssize_t put = positional ? syscall(SYS_pwrite64, fd, all, size, offset) : syscall(SYS_write, fd, all, size);
    if (what == DIE_TORN) { kill(getpid(), SIGKILL); for (;;) pause(); }
    int kept = errno;
    if (put > 0) note(WRITE, name, inode_of(fd), (uint64_t)offset, all, (size_t)put);
    free(all);
    errno = kept;
    return put;
}

#define ONE(data, size) struct iovec part = {(void *)(data), (size)}
ssize_t write(int fd, const void *data, size_t size) { ONE(data, size); return put(fd, &part, 1, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { ONE(data, size); return put(fd, &part, 1, at, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { ONE(data, size); return put(fd, &part, 1, at, 1); }
ssize_t writev(int fd, const struct iovec *parts, int n) { return put(fd, parts, n, 0, 0); }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { return put(fd, parts, n, at, 1); }
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off_t at) { return put(fd, parts, n, at, 1); }
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags) { (void)flags; return put(fd, parts, n, at, 1); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off_t at, int flags) { (void)flags; return put(fd, parts, n, at, 1); }

/* ---- the rest */

static int synced(int fd, long number) {
    const char *name = name_of(fd);
    struct stat found;
    int of_folder = name && !fstat(fd, &found) && S_ISDIR(found.st_mode);
    if (name && decide(FSYNC, 0) == FAIL) return -1;
    int out = (int)syscall(number, fd);
    if (name && !out) note(of_folder ? FSYNC_FOLDER : FSYNC, name, inode_of(fd), 0, NULL, 0);
    return out;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int cut(int fd, off_t size) {
    const char *name = name_of(fd);
    if (name && decide(TRUNCATE, 0) == FAIL) return -1;
    int out = (int)syscall(SYS_ftruncate, fd, size);
    if (name && !out) note(TRUNCATE, name, inode_of(fd), (uint64_t)size, NULL, 0);
    return out;
}
int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off_t size) { return cut(fd, size); }

static int moved(const char *from, const char *to) {
    char old[2 * PATH_MAX] = "";
    const char *name = inside(from);
    if (name) snprintf(old, sizeof old, "%s", name);
    if (name && decide(RENAME, 0) == FAIL) return -1;
    int out = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    if (name && !out) { const char *other = inside(to); note(RENAME, old, 0, 0, other, other ? strlen(other) : 0); }
    return out;
}
int rename(const char *from, const char *to) { return moved(from, to); }

int unlink(const char *path) {
    const char *name = inside(path);
    struct stat found;
    int there = name && !lstat(path, &found);
    if (there && decide(UNLINK, 0) == FAIL) return -1;
    int out = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (there && !out) note(UNLINK, name, 0, 0, NULL, 0);
    return out;
}
