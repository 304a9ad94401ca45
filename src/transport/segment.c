/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments on memfd. Order of attempts: huge pages (2 MiB) if enough are free for the whole
 * segment, else ordinary pages with MADV_HUGEPAGE, which the system follows only where
 * /sys/kernel/mm/transparent_hugepage/shmem_enabled says "advise" (or more); what was really got is
 * read back. All pages are allocated here: a first touch in the data path costs ten times a copy.
 */
#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static bool round_up(int64_t bytes, int64_t unit, int64_t *out)
{
    int64_t sum;
    if (!heft__add(bytes > 0 ? bytes : 1, unit - 1, &sum)) {
        return false;
    }
    *out = sum / unit * unit;
    return true;
}

/* Bytes in free 2 MiB pages that no mapping has reserved. */
static int64_t huge_free_bytes(void)
{
    static const char *const files[] = {
        "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
    };
    long long count[2] = { 0, 0 };
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(files[i], "re");
        if (f == NULL) {
            return 0;
        }
        /* NOLINTNEXTLINE(cert-err34-c): the kernel wrote these numbers, they fit */
        int n = fscanf(f, "%lld", &count[i]);
        (void)fclose(f);
        if (n != 1) {
            return 0;
        }
    }
    int64_t bytes;
    return count[0] > count[1] && heft__mul(count[0] - count[1], HUGE_BYTES, &bytes) ? bytes : 0;
}

/* KiB of the mapping at ptr that huge pages map (ShmemPmdMapped of /proc/self/smaps). */
static int64_t pmd_mapped_kib(const void *ptr)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    if (f == NULL) {
        return 0;
    }
    char line[512];
    bool inside = false;
    long long kib = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        unsigned long long lo;
        unsigned long long hi;
        /* NOLINTNEXTLINE(cert-err34-c): the kernel wrote these numbers, they fit */
        if (sscanf(line, "%llx-%llx ", &lo, &hi) == 2) {
            inside = (uintptr_t)ptr == (uintptr_t)lo;
        } else if (inside &&
                   sscanf(line, "ShmemPmdMapped: %lld", &kib) == 1) { /* NOLINT(cert-err34-c) */
            break;
        }
    }
    (void)fclose(f);
    return kib;
}

static void drop(heft__segment_t *segment)
{
    if (segment->ptr != NULL) {
        (void)munmap(segment->ptr, (size_t)segment->map_bytes);
    }
    if (segment->fd >= 0) {
        (void)close(segment->fd);
    }
    *segment = (heft__segment_t){ .fd = -1 };
}

void heft__segment_fini(heft__segment_t *segment)
{
    if (segment->ptr != NULL) { /* a zeroed segment owns no descriptor */
        drop(segment);
    }
}

void heft__segment_strand(heft__segment_t *segment, void **ptr_out, size_t *bytes_out)
{
    *ptr_out = segment->ptr;
    *bytes_out = (size_t)segment->map_bytes;
    if (segment->ptr != NULL) {
        void *kept = mmap(segment->ptr, (size_t)segment->map_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (kept == MAP_FAILED) {
            heft__log(HEFT_LOG_WARN, "segment", "%lld bytes of staging stay allocated",
                      (long long)segment->map_bytes);
        }
        (void)close(segment->fd);
    }
    *segment = (heft__segment_t){ .fd = -1 };
}

/* A sealed memfd of segment->map_bytes; errno says why it failed. */
static bool open_sized(heft__segment_t *segment, unsigned flags)
{
    segment->fd = memfd_create("heft-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (segment->fd < 0) {
        return false;
    }
    if (ftruncate(segment->fd, (off_t)segment->map_bytes) == 0 &&
        fcntl(segment->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        return true;
    }
    int saved = errno;
    drop(segment);
    errno = saved;
    return false;
}

static bool map(heft__segment_t *segment, int flags)
{
    void *ptr = mmap(NULL, (size_t)segment->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags,
                     segment->fd, 0);
    if (ptr == MAP_FAILED) {
        return false;
    }
    segment->ptr = ptr;
    /* A forked child must neither keep the memory alive nor be able to write to it. */
    (void)madvise(ptr, (size_t)segment->map_bytes, MADV_DONTFORK);
    return true;
}

static bool create_huge(int64_t bytes, heft__segment_t *segment)
{
    int64_t size;
    if (bytes < HUGE_BYTES || !round_up(bytes, HUGE_BYTES, &size) || huge_free_bytes() < size) {
        return false;
    }
    *segment = (heft__segment_t){ .fd = -1, .bytes = bytes, .map_bytes = size };
    /* Without MAP_NORESERVE the pages are reserved here: too few is an error, not a signal. */
    if (!open_sized(segment, MFD_HUGETLB) || !map(segment, MAP_POPULATE)) {
        drop(segment);
        return false;
    }
    segment->page_bytes = HUGE_BYTES;
    return true;
}

/* Allocate every page; errno says why it failed. */
static bool prefault(const heft__segment_t *segment)
{
    size_t bytes = (size_t)segment->map_bytes;
    (void)madvise(segment->ptr, bytes, MADV_HUGEPAGE); /* refused where not built in: no harm */
    if (madvise(segment->ptr, bytes, MADV_POPULATE_WRITE) == 0) {
        return true;
    }
    if (errno != EINVAL) {
        return false;
    }
    int rc; /* an older kernel: allocate through the file, the mapping fills by minor faults */
    do {
        rc = fallocate(segment->fd, 0, 0, (off_t)segment->map_bytes);
    } while (rc != 0 && errno == EINTR);
    return rc == 0;
}

static heft_status_t no_space(int64_t needed, int64_t available, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_NOSPACE,
                           "staging memory: %lld bytes needed, %lld bytes available",
                           (long long)needed, (long long)available);
}

static heft_status_t create_plain(heft__segment_t *segment, heft_error_t *err)
{
    if (!open_sized(segment, 0)) {
        int saved = errno;
        return heft__error_set_sys(err, HEFT_ERR_NOSPACE, saved, "memfd of %lld bytes",
                                   (long long)segment->map_bytes);
    }
    if (!map(segment, 0) || !prefault(segment)) {
        int saved = errno;
        int64_t needed = segment->map_bytes;
        drop(segment);
        return heft__error_set_sys(err, HEFT_ERR_NOSPACE, saved,
                                   "staging memory: %lld bytes needed, %lld bytes available",
                                   (long long)needed, (long long)heft__memory_available(""));
    }
    if (segment->map_bytes >= HUGE_BYTES &&
        pmd_mapped_kib(segment->ptr) >= segment->map_bytes / 1024 / 2) {
        segment->page_bytes = HUGE_BYTES;
    }
    return HEFT_OK;
}

heft_status_t heft__segment_create(int64_t bytes, heft__segment_t *segment_out, heft_error_t *err)
{
    heft__segment_t segment;
    if (create_huge(bytes, &segment)) {
        *segment_out = segment;
        return HEFT_OK;
    }
    int64_t page = (int64_t)sysconf(_SC_PAGESIZE);
    segment = (heft__segment_t){ .fd = -1, .bytes = bytes, .page_bytes = page };
    if (bytes < 0 || !round_up(bytes, page, &segment.map_bytes)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW, "staging memory of %lld bytes",
                               (long long)bytes);
    }
    int64_t available = heft__memory_available("");
    if (segment.map_bytes > available) {
        return no_space(segment.map_bytes, available, err);
    }
    heft_status_t status = create_plain(&segment, err);
    if (status == HEFT_OK) {
        *segment_out = segment;
    }
    return status;
}

/* What a peer says about its segment is checked against the descriptor itself. */
static heft_status_t check_foreign(int fd, int64_t bytes, int64_t *size_out, heft_error_t *err)
{
    struct stat sb;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &sb) != 0) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL,
                               "the peer's segment is not sealed against shrinking");
    }
    if (sb.st_size < bytes || sb.st_size == 0) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL,
                               "the peer's segment has %lld bytes, %lld needed",
                               (long long)sb.st_size, (long long)bytes);
    }
    *size_out = sb.st_size;
    return HEFT_OK;
}

heft_status_t heft__segment_map(int fd, int64_t bytes, heft__segment_t *segment_out,
                                heft_error_t *err)
{
    heft__segment_t segment = { .fd = fd, .bytes = bytes };
    heft_status_t status = check_foreign(fd, bytes, &segment.map_bytes, err);
    if (status == HEFT_OK && !map(&segment, MAP_POPULATE)) {
        status = heft__error_set_sys(err, HEFT_ERR_NOSPACE, errno, "mapping %lld bytes of a peer",
                                     (long long)segment.map_bytes);
    }
    if (status != HEFT_OK) {
        drop(&segment);
        return status;
    }
    *segment_out = segment;
    return HEFT_OK;
}
