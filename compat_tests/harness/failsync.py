"""A library in front of the C library's fdatasync and fsync, that fails them on a switch, or makes
none of them return.

It fails those of files whose path holds what a flag file says. If that begins with a «!» (which is
no part of the path), they wait instead, for as long as it says so. The kernel's asynchronous
fdatasync does not come by there, so the library also says that there is none.
"""

import subprocess
from pathlib import Path

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GOES_ON, FAILS, WAITS };

static int wanted_of(int fd) {
    char text[256], link[64], path[4096], *wanted = text;
    const char *flag = getenv("FAILSYNC");
    int file = flag ? open(flag, O_RDONLY) : -1;
    if (file < 0) return GOES_ON;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return GOES_ON;
    text[size] = 0;
    int what = text[0] == '!' ? WAITS : FAILS;
    wanted += what == WAITS;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return GOES_ON;
    path[size] = 0;
    return strstr(path, wanted) != NULL ? what : GOES_ON;
}

static int sync_or_fail(const char *name, int fd) {
    int what;
    while ((what = wanted_of(fd)) == WAITS) usleep(10000);
    if (what == FAILS) { errno = EIO; return -1; }
    int answer = ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
    /* Nor is one answered that was under way when the flag came. */
    while (wanted_of(fd) == WAITS) usleep(10000);
    return answer;
}

int fdatasync(int fd) { return sync_or_fail("fdatasync", fd); }
int fsync(int fd) { return sync_or_fail("fsync", fd); }

long syscall(long number, ...) {
    if (number == SYS_io_setup) { errno = ENOSYS; return -1; }
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a, b, c, d, e, f);
}
"""


def compile_library(folder: Path) -> Path:
    """The library, made in `folder`; needs gcc."""
    source, library = folder / "failsync.c", folder / "failsync.so"
    source.write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    return library


def environment(library: Path, flag: Path) -> dict[str, str]:
    """For the process whose syncs fail while `flag` holds a part of the file's path."""
    return {"LD_PRELOAD": str(library), "FAILSYNC": str(flag)}
