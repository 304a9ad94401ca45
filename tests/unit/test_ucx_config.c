/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that UCX is given, by a UCX that only notes them: its releases know tcp's by two
 * names. */
#include "heft_test.h"
#include "transport/ucx_private.h"

#include <stdlib.h>

enum { MAX_SET = 16 };

static struct ucp_config {
    const char *refused[2]; /* keys that this release does not know */
    char set[MAX_SET][64];  /* KEY=VALUE */
    int n_set;
    int n_held;
} ucx;

static ucs_status_t read_config(const char *prefix, const char *file, ucp_config_t **out)
{
    assert_null(prefix);
    assert_null(file);
    ucx.n_held++;
    *out = (ucp_config_t *)&ucx;
    return UCS_OK;
}

static ucs_status_t modify(ucp_config_t *config, const char *key, const char *value)
{
    assert_ptr_equal(config, &ucx);
    for (int i = 0; i < 2; i++) {
        if (ucx.refused[i] != NULL && strcmp(ucx.refused[i], key) == 0) {
            return UCS_ERR_INVALID_PARAM;
        }
    }
    assert_true(ucx.n_set < MAX_SET);
    (void)snprintf(ucx.set[ucx.n_set++], sizeof ucx.set[0], "%s=%s", key, value);
    return UCS_OK;
}

static void release(ucp_config_t *config)
{
    assert_ptr_equal(config, &ucx);
    ucx.n_held--;
}

static const char *text_of(ucs_status_t status)
{
    return status == UCS_ERR_INVALID_PARAM ? "Invalid parameter" : "?";
}

static const heft__ucx_api_t api = { .ucp_config_read = read_config,
                                     .ucp_config_modify = modify,
                                     .ucp_config_release = release,
                                     .ucs_status_string = text_of };

static bool is_set(const char *wanted)
{
    for (int i = 0; i < ucx.n_set; i++) {
        if (strcmp(ucx.set[i], wanted) == 0) {
            return true;
        }
    }
    return false;
}

static heft_status_t read_with(const char *first, const char *second, heft_error_t *err)
{
    static const heft__ucx_opts_t opts = { .max_lanes = 1 };
    ucp_config_t *config = NULL;
    ucx = (struct ucp_config){ .refused = { first, second } };
    const heft_status_t status = heft__ucx_config_read(&api, &opts, &config, err);
    if (status == HEFT_OK) {
        assert_int_equal(ucx.n_held, 1);
        release(config);
    }
    assert_int_equal(ucx.n_held, 0);
    return status;
}

static void segments_are_set_by_the_name_that_a_release_knows(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(read_with(NULL, NULL, &err),
                  HEFT_OK); /* 1.13: takes any key, and means the short ones */
    assert_true(is_set("TX_SEG_SIZE=1052672"));
    assert_true(is_set("RX_SEG_SIZE=1052672"));
    assert_false(is_set("TCP_TX_SEG_SIZE=1052672"));
    EXPECT_STATUS(read_with("TX_SEG_SIZE", "RX_SEG_SIZE", &err), HEFT_OK); /* 1.22 */
    assert_true(is_set("TCP_TX_SEG_SIZE=1052672"));
    assert_true(is_set("TCP_RX_SEG_SIZE=1052672"));
    assert_true(is_set("TLS=^shm"));
    assert_true(is_set("KEEPALIVE_INTERVAL=1s"));
}

static void connections_are_not_waited_for_long(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(read_with(NULL, NULL, &err), HEFT_OK);
    assert_true(is_set("SYN_CNT=2"));
    EXPECT_STATUS(read_with("SYN_CNT", NULL, &err), HEFT_OK); /* 1.22 */
    assert_true(is_set("TCP_SYN_CNT=2"));
    assert_int_equal(setenv("UCX_TCP_TX_MAX_BUFS", "64", 1), 0);
    EXPECT_STATUS(read_with(NULL, NULL, &err), HEFT_OK); /* 1.13 would lose it */
    assert_int_equal(unsetenv("UCX_TCP_TX_MAX_BUFS"), 0);
    assert_false(is_set("SYN_CNT=2"));
}

static void a_setting_that_no_name_fits_is_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(read_with("TX_SEG_SIZE", "TCP_TX_SEG_SIZE", &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("ucx: cannot set UCX_TCP_TX_SEG_SIZE to 1052672: Invalid parameter");
    EXPECT_STATUS(read_with("KEEPALIVE_INTERVAL", NULL, &err), HEFT_ERR_UNSUPPORTED);
}

static void what_the_environment_sets_is_kept(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    assert_int_equal(setenv("UCX_TCP_TX_SEG_SIZE", "64k", 1), 0);
    EXPECT_STATUS(read_with(NULL, NULL, &err), HEFT_OK);
    assert_int_equal(unsetenv("UCX_TCP_TX_SEG_SIZE"), 0);
    assert_false(is_set("TX_SEG_SIZE=65536"));
    assert_true(is_set("RX_SEG_SIZE=65536")); /* one size for both ways */
}

int main(void)
{
    static const char *const variables[] = { "UCX_TLS",
                                             "UCX_KEEPALIVE_INTERVAL",
                                             "UCX_TCP_SYN_CNT",
                                             "UCX_TCP_TX_MAX_BUFS",
                                             "UCX_TCP_TX_SEG_SIZE",
                                             "UCX_TCP_RX_SEG_SIZE" };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        (void)unsetenv(variables[i]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_set_by_the_name_that_a_release_knows),
        cmocka_unit_test(connections_are_not_waited_for_long),
        cmocka_unit_test(a_setting_that_no_name_fits_is_named),
        cmocka_unit_test(what_the_environment_sets_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
