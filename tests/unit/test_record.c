/* SPDX-License-Identifier: Apache-2.0 */
/* The state file and the object store. */
#include "heft_test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "sync/objects.h"
#include "sync/record.h"

#define INC "0123456789abcdef0123456789abcdef"
#define DIG "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static heft__record_t full_record(heft__record_member_t *members)
{
    heft__record_t r = { .epoch = 3,
                         .sequence = 12,
                         .committed_version = 7,
                         .committed_digest = DIG,
                         .before_version = 6,
                         .before_digest = DIG,
                         .round = { 3, 12 },
                         .in_doubt = true,
                         .relays = true,
                         .version = 8,
                         .source_digest = DIG,
                         .decision = HEFT__DECISION_COMMIT };
    memset(members, 0, 2 * sizeof *members);
    for (int i = 0; i < 2; i++) {
        members[i].role = i == 0 ? HEFT__ROLE_SOURCE : HEFT__ROLE_DESTINATION;
        (void)strcpy(members[i].job, "heft");
        (void)strcpy(members[i].incarnation, INC);
        members[i].in_round = true;
        members[i].moves = i == 1;
        members[i].poison = HEFT__POISON_SILENT;
    }
    r.members = members;
    r.n_members = 2;
    return r;
}

static void record_survives_the_disk(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    heft__record_member_t members[2];
    const heft__record_t in = full_record(members);
    heft__record_t out;
    bool maybe = true;
    EXPECT_STATUS(heft__record_load(path, &out, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft__record_save(path, &in, &maybe, &err), HEFT_OK);
    assert_false(maybe);
    EXPECT_STATUS(heft__record_load(path, &out, &err), HEFT_OK);
    assert_int_equal(out.epoch, 3);
    assert_int_equal(out.decision, HEFT__DECISION_COMMIT);
    assert_true(out.in_doubt);
    assert_true(out.relays);
    assert_int_equal(out.n_members, 2);
    assert_memory_equal(out.members, members, sizeof members);
    heft__record_fini(&out);
    /* nobody else reads it */
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    heft_test_rmdir(dir);
}

static void failed_save_leaves_the_old_record(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char path[600];
    char aside[620];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    (void)snprintf(aside, sizeof aside, "%s.new", path);
    heft__record_member_t members[2];
    heft__record_t record = full_record(members);
    heft__record_t out;
    bool maybe = true;
    EXPECT_STATUS(heft__record_save(path, &record, &maybe, &err), HEFT_OK);
    assert_int_equal(mkdir(aside, 0700), 0);
    record.epoch = 99;
    EXPECT_STATUS(heft__record_save(path, &record, &maybe, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("state.json");
    assert_false(maybe);
    EXPECT_STATUS(heft__record_load(path, &out, &err), HEFT_OK);
    assert_int_equal(out.epoch, 3);
    heft__record_fini(&out);
    heft_test_rmdir(dir);
}

static void full_disk_leaves_the_old_record(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    char *dir = heft_test_mkdir();
    char path[600];
    char aside[620];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    (void)snprintf(aside, sizeof aside, "%s.new", path);
    heft__record_member_t members[2];
    const heft__record_t record = full_record(members);
    heft__record_t out;
    bool maybe = true;
    EXPECT_STATUS(heft__record_save(path, &record, &maybe, &err), HEFT_OK);
    assert_int_equal(symlink("/dev/full", aside), 0);
    EXPECT_STATUS(heft__record_save(path, &record, &maybe, &err), HEFT_ERR_NOSPACE);
    assert_false(maybe);
    EXPECT_STATUS(heft__record_load(path, &out, &err), HEFT_OK);
    heft__record_fini(&out);
    heft_test_rmdir(dir);
}

static void damaged_record_is_refused_with_its_path(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    static const char *const texts[] = {
        "",
        "{",
        "{\"format\":1}",
        "{\"format\":2,\"epoch\":1,\"sequence\":0,\"committed_version\":0,\"before_version\":0,"
        "\"in_doubt\":false,\"decision\":\"none\",\"members\":[]}",
        "{\"format\":1,\"epoch\":1,\"sequence\":0,\"committed_version\":5,\"before_version\":0,"
        "\"in_doubt\":false,\"decision\":\"none\",\"members\":[]}",
        "{\"format\":1,\"epoch\":1,\"sequence\":0,\"committed_version\":0,\"before_version\":0,"
        "\"in_doubt\":false,\"decision\":\"none\",\"members\":[{}]}",
        "{\"format\":1,\"epoch\":1,\"sequence\":0,\"committed_version\":0,\"before_version\":0,"
        "\"in_doubt\":false,\"decision\":\"none\",\"members\":[1]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        heft__record_t out;
        heft_test_write_file(dir, "state.json", texts[i], strlen(texts[i]));
        EXPECT_STATUS(heft__record_load(path, &out, &err), HEFT_ERR_FORMAT);
        EXPECT_MESSAGE("state.json");
    }
    heft_test_rmdir(dir);
}

static void record_survives_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char path[600];
    (void)snprintf(path, sizeof path, "%s/state.json", dir);
    heft__record_member_t members[2];
    const heft__record_t record = full_record(members);
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft__record_t out;
        bool maybe;
        heft__alloc_fail_at(k);
        heft_status_t status = heft__record_save(path, &record, &maybe, &err);
        if (status == HEFT_OK) {
            status = heft__record_load(path, &out, &err);
            if (status == HEFT_OK) {
                heft__record_fini(&out);
            }
        }
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 3);
            break;
        }
        /* the folder cannot be synced without its name: an error of the system */
        assert_true(status == HEFT_ERR_NOMEM || status == HEFT_ERR_IO);
    }
    heft_test_rmdir(dir);
}

/* ---- objects ---- */

static void put_text(heft__objects_t *objects, const char *text, char *digest_out, int64_t now)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__object_digest(text, strlen(text), digest_out);
    EXPECT_STATUS(heft__objects_put(objects, digest_out, text, strlen(text), now, &err), HEFT_OK);
}

static void object_is_what_its_name_says(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__objects_t objects;
    heft__objects_init(&objects, 1000);
    char digest[HEFT__DIGEST_SIZE];
    put_text(&objects, "hello", digest, 1);
    put_text(&objects, "hello", digest, 2);
    assert_int_equal(objects.n_items, 1);
    assert_int_equal(objects.bytes, 5);
    const heft__object_t *object = heft__objects_get(&objects, digest, 3);
    assert_non_null(object);
    assert_string_equal(object->data, "hello");
    EXPECT_STATUS(heft__objects_put(&objects, DIG, "x", 1, 1, &err), HEFT_ERR_DIGEST);
    assert_null(heft__objects_get(&objects, DIG, 1));
    put_text(&objects, "", digest, 1);
    assert_int_equal(heft__objects_get(&objects, digest, 1)->n, 0);
    heft__objects_fini(&objects);
}

static void store_is_bounded_and_swept(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__objects_t objects;
    heft__objects_init(&objects, 10);
    char a[HEFT__DIGEST_SIZE];
    char b[HEFT__DIGEST_SIZE];
    char c[HEFT__DIGEST_SIZE];
    put_text(&objects, "aaaaa", a, 1);
    put_text(&objects, "bbbb", b, 2);
    heft__object_digest("cc", 2, c);
    EXPECT_STATUS(heft__objects_put(&objects, c, "cc", 2, 3, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("holds 9 of 10");
    heft__objects_mark(&objects, a);
    heft__objects_mark(&objects, "");
    heft__objects_sweep(&objects, 3);
    assert_non_null(heft__objects_get(&objects, a, 3));
    assert_null(heft__objects_get(&objects, b, 3));
    assert_int_equal(objects.bytes, 5);
    put_text(&objects, "cc", c, 4);
    /* marks last for one sweep; what was used lately stays */
    heft__objects_sweep(&objects, 4);
    assert_null(heft__objects_get(&objects, a, 5));
    assert_non_null(heft__objects_get(&objects, c, 5));
    heft__objects_fini(&objects);
    assert_int_equal(heft__alloc_live(), 0);
}

static void store_survives_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char digest[HEFT__DIGEST_SIZE];
    heft__object_digest("x", 1, digest);
    for (long k = 0;; k++) {
        heft__objects_t objects;
        heft__objects_init(&objects, 100);
        heft__alloc_fail_at(k);
        const heft_status_t status = heft__objects_put(&objects, digest, "x", 1, 1, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(objects.n_items, status == HEFT_OK ? 1 : 0);
        heft__objects_fini(&objects);
        assert_int_equal(heft__alloc_live(), 0);
        if (status == HEFT_OK) {
            assert_true(k >= 3);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_survives_the_disk),
        cmocka_unit_test(failed_save_leaves_the_old_record),
        cmocka_unit_test(full_disk_leaves_the_old_record),
        cmocka_unit_test(damaged_record_is_refused_with_its_path),
        cmocka_unit_test(record_survives_lack_of_memory),
        cmocka_unit_test(object_is_what_its_name_says),
        cmocka_unit_test(store_is_bounded_and_swept),
        cmocka_unit_test(store_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
