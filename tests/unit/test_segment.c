/* SPDX-License-Identifier: Apache-2.0 */
#include "heft_test.h"
#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void segment_is_zeroed_writable_and_sealed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t segment;
    EXPECT_STATUS(heft__segment_create(100000, &segment, &err), HEFT_OK);
    assert_int_equal(segment.bytes, 100000);
    assert_true(segment.map_bytes >= 100000);
    assert_int_equal(segment.map_bytes % segment.page_bytes, 0);
    for (int64_t i = 0; i < segment.map_bytes; i += 511) {
        assert_int_equal(segment.ptr[i], 0);
    }
    memset(segment.ptr, 0x5a, (size_t)segment.map_bytes);
    assert_int_not_equal(ftruncate(segment.fd, 4096), 0);
    assert_int_not_equal(ftruncate(segment.fd, (off_t)segment.map_bytes * 2), 0);
    heft__segment_fini(&segment);
    assert_null(segment.ptr);
    heft__segment_fini(&segment); /* twice is fine */
}

static void segment_pages_are_resident_at_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t segment;
    enum { PAGES = 64 };
    EXPECT_STATUS(heft__segment_create(PAGES * 4096, &segment, &err), HEFT_OK);
    unsigned char resident[PAGES];
    assert_int_equal(mincore(segment.ptr, PAGES * 4096, resident), 0);
    for (int i = 0; i < PAGES; i++) {
        assert_int_equal(resident[i] & 1, 1);
    }
    heft__segment_fini(&segment);
}

static void two_mappings_share_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t mine;
    heft__segment_t theirs;
    EXPECT_STATUS(heft__segment_create(5000, &mine, &err), HEFT_OK);
    EXPECT_STATUS(heft__segment_map(dup(mine.fd), 5000, &theirs, &err), HEFT_OK);
    theirs.ptr[4999] = 77;
    assert_int_equal(mine.ptr[4999], 77);
    heft__segment_fini(&mine); /* the other mapping keeps the bytes */
    assert_int_equal(theirs.ptr[4999], 77);
    heft__segment_fini(&theirs);
}

static void empty_segment_has_one_page(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t segment;
    EXPECT_STATUS(heft__segment_create(0, &segment, &err), HEFT_OK);
    assert_int_equal(segment.map_bytes, segment.page_bytes);
    heft__segment_fini(&segment);
}

static void too_large_a_segment_names_needed_and_available(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t segment;
    int64_t huge = INT64_C(1) << 50;
    EXPECT_STATUS(heft__segment_create(huge, &segment, &err), HEFT_ERR_NOSPACE);
    EXPECT_MESSAGE("1125899906842624 bytes needed");
    EXPECT_MESSAGE("bytes available");
    EXPECT_STATUS(heft__segment_create(INT64_MAX, &segment, &err), HEFT_ERR_OVERFLOW);
}

static void unsealed_or_short_descriptors_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__segment_t segment;
    int fd = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 8192), 0);
    EXPECT_STATUS(heft__segment_map(dup(fd), 8192, &segment, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("not sealed");
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_STATUS(heft__segment_map(dup(fd), 8193, &segment, &err), HEFT_ERR_PROTOCOL);
    EXPECT_MESSAGE("8192 bytes, 8193 needed");
    (void)close(fd);
    EXPECT_STATUS(heft__segment_map(open("/dev/null", O_RDWR), 1, &segment, &err),
                  HEFT_ERR_PROTOCOL);
}

/* A tree such as /proc and /sys, with a control group two levels deep. */
static void available_memory_is_the_tightest_group(void **state)
{
    (void)state;
    char *root = heft_test_mkdir();
    char dir[600];
    const char *dirs[] = { "proc",
                           "proc/self",
                           "sys",
                           "sys/fs",
                           "sys/fs/cgroup",
                           "sys/fs/cgroup/a",
                           "sys/fs/cgroup/a/b" };
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        (void)snprintf(dir, sizeof dir, "%s/%s", root, dirs[i]);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
#define PUT(name, text) heft_test_write_file(root, (name), (text), strlen(text))
    assert_true(heft__memory_available(root) == INT64_MAX);
    PUT("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64 kB\n");
    assert_int_equal(heft__memory_available(root), 65536);
    PUT("proc/self/cgroup", "0::/a/b\n");
    PUT("sys/fs/cgroup/a/b/memory.max", "max\n");
    PUT("sys/fs/cgroup/a/b/memory.current", "10\n");
    assert_int_equal(heft__memory_available(root), 65536);
    PUT("sys/fs/cgroup/a/memory.max", "40000\n");
    PUT("sys/fs/cgroup/a/memory.current", "30000\n");
    PUT("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 4000\n");
    assert_int_equal(heft__memory_available(root), 14000);
    PUT("sys/fs/cgroup/a/b/memory.max", "1000\n");
    PUT("sys/fs/cgroup/a/b/memory.current", "2000\n");
    assert_int_equal(heft__memory_available(root), 0);
#undef PUT
    heft_test_rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segment_is_zeroed_writable_and_sealed),
        cmocka_unit_test(segment_pages_are_resident_at_once),
        cmocka_unit_test(two_mappings_share_bytes),
        cmocka_unit_test(empty_segment_has_one_page),
        cmocka_unit_test(too_large_a_segment_names_needed_and_available),
        cmocka_unit_test(unsealed_or_short_descriptors_are_refused),
        cmocka_unit_test(available_memory_is_the_tightest_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
