/* SPDX-License-Identifier: Apache-2.0 */
/* A full disk: a file system of 256 KiB, mounted in a mount namespace of this test's own. Needs the
 * right to mount; without it the test is skipped (77). */
#include "test_checkpoint_writer_files.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>

static char *mount_dir;

static heft_manifest_t *manifest_of(int64_t n_tensors, int64_t n_bytes)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &m, &err), HEFT_OK);
    for (int64_t i = 0; i < n_tensors; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "t%03d", (int)i);
        add_tensor(m, name, HEFT_DTYPE_U8, n_bytes);
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    return m;
}

static void full_disk_is_found_before_any_work(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = manifest_of(3, 100000);
    heft_checkpoint_writer_t *w = NULL;
    char dir[512];
    (void)snprintf(dir, sizeof dir, "%s/out", mount_dir);
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, m, 100000, &w, &err), HEFT_ERR_NOSPACE);
    EXPECT_MESSAGE("model-00003-of-00003.safetensors");
    EXPECT_MESSAGE("bytes");
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_null(w);
    assert_int_equal(count_entries(mount_dir, ""), 0);
    heft_manifest_destroy(m);
}

static void reserved_space_is_enough(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = manifest_of(2, 100000);
    heft_checkpoint_writer_t *w = NULL;
    EXPECT_STATUS(heft_checkpoint_writer_create(mount_dir, m, 100000, &w, &err), HEFT_OK);
    /* somebody else takes the rest: the reserved pages can still be written */
    char path[512];
    (void)snprintf(path, sizeof path, "%s/filler", mount_dir);
    FILE *filler = fopen(path, "wb");
    assert_non_null(filler);
    static const char block[4096] = { 1 };
    while (fwrite(block, 1, sizeof block, filler) == sizeof block && fflush(filler) == 0) {
    }
    (void)fclose(filler);
    for (uint32_t k = 0; k < 2; k++) {
        EXPECT_STATUS(fill_tensor(w, m, k, &err), HEFT_OK);
    }
    /* the index is small, but there is no room for it either: nothing may be published */
    EXPECT_STATUS(heft_checkpoint_writer_commit(w, &err), HEFT_ERR_NOSPACE);
    heft_checkpoint_writer_destroy(w);
    assert_int_equal(count_entries(mount_dir, "model"), 0);
    assert_int_equal(count_entries(mount_dir, ".heft-tmp-"), 0);
    assert_int_equal(unlink(path), 0);
    EXPECT_STATUS(write_checkpoint(mount_dir, m, 100000, &err), HEFT_OK);
    expect_checkpoint(mount_dir, m);
    heft_manifest_destroy(m);
}

int main(void)
{
    mount_dir = heft_test_mkdir();
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", mount_dir, "tmpfs", 0, "size=256k") != 0) {
        (void)fprintf(stderr, "skipped: cannot mount a small file system: %s\n", strerror(errno));
        heft_test_rmdir(mount_dir);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_disk_is_found_before_any_work),
        cmocka_unit_test(reserved_space_is_enough),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)umount2(mount_dir, MNT_DETACH);
    heft_test_rmdir(mount_dir);
    return failed;
}
