/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs and the table of knobs: every knob reaches its field, none is forgotten, fields
 * that are set win and are checked. */
#include "heft_test.h"

#include "sync/settings.h"

static const heft_knob_t *only_of(uint32_t i, uint32_t user)
{
    const heft_knob_t *knob = heft_config_get_knob(i);
    return (knob->users & user) != 0 && knob->removed == NULL ? knob : NULL;
}

/* A value that is not the default. */
static const char *other_value(const heft_knob_t *knob)
{
    switch (knob->kind) {
    case HEFT_KNOB_NUMBER:
    case HEFT_KNOB_BYTES:
        return knob->fallback != NULL && strcmp(knob->fallback, "17") == 0 ? "18" : "17";
    case HEFT_KNOB_FLAG:
        return "1";
    case HEFT_KNOB_TEXT:
    case HEFT_KNOB_FILE:
        break;
    }
    return knob->choices != NULL ? strrchr(knob->choices, ' ') + 1 : "another";
}

/* `fill` twice, with and without the variable: some field must differ, unless the command itself
 * reads the knob. */
#define CHECK_REACHES(type, init, fill, user)                              \
    for (uint32_t i = 0; i < heft_config_get_n_knobs(); i++) {             \
        const heft_knob_t *knob = only_of(i, (user));                      \
        if (knob == NULL || is_of_the_command(knob)) {                     \
            continue;                                                      \
        }                                                                  \
        type before = init;                                                \
        type after = init;                                                 \
        heft_config_t *config_before = NULL;                               \
        heft_config_t *config_after = NULL;                                \
        EXPECT_STATUS(fill(&before, &config_before, &err), HEFT_OK);       \
        assert_int_equal(setenv(knob->variable, other_value(knob), 1), 0); \
        EXPECT_STATUS(fill(&after, &config_after, &err), HEFT_OK);         \
        assert_int_equal(unsetenv(knob->variable), 0);                     \
        if (are_same(&before, &after, sizeof before)) {                    \
            fail_msg("%s does not reach " #type, knob->name);              \
        }                                                                  \
        heft_config_destroy(config_before);                                \
        heft_config_destroy(config_after);                                 \
    }

/* As bytes: both come from one initialiser, so padding is equal too. */
static bool are_same(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

/* Logging is set up by the command. */
static bool is_of_the_command(const heft_knob_t *knob)
{
    return strcmp(knob->name, "log") == 0 || strcmp(knob->name, "log-format") == 0;
}

static void every_knob_reaches_its_field(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    CHECK_REACHES(heft_coordinator_opts_t, HEFT_COORDINATOR_OPTS_INIT, heft__settings_coordinator,
                  HEFT_KNOB_COORDINATOR)
    CHECK_REACHES(heft_publisher_opts_t, HEFT_PUBLISHER_OPTS_INIT, heft__settings_publisher,
                  HEFT_KNOB_PUBLISHER)
    CHECK_REACHES(heft_subscriber_opts_t, HEFT_SUBSCRIBER_OPTS_INIT, heft__settings_subscriber,
                  HEFT_KNOB_SUBSCRIBER)
    CHECK_REACHES(heft__access_t, { .url = NULL }, heft__settings_access, HEFT_KNOB_CLIENT)
}

static void defaults_fill_what_is_zero(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    heft_config_t *config = NULL;
    opts.poll_ms = 77;
    opts.state_file = "mine";
    assert_int_equal(setenv("HEFT_POLL_MS", "88", 1), 0);
    assert_int_equal(setenv("HEFT_STATE", "theirs", 1), 0);
    EXPECT_STATUS(heft__settings_coordinator(&opts, &config, &err), HEFT_OK);
    assert_int_equal(unsetenv("HEFT_POLL_MS"), 0);
    assert_int_equal(unsetenv("HEFT_STATE"), 0);
    assert_int_equal(opts.poll_ms, 77);
    assert_string_equal(opts.state_file, "mine");
    assert_string_equal(opts.address, "127.0.0.1");
    assert_int_equal(opts.stage_ms, 1800000);
    assert_null(opts.token_file);
    heft_config_destroy(config);
}

static void fields_are_within_bounds(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_config_t *config = NULL;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    opts.flip_ms = 86400001;
    EXPECT_STATUS(heft__settings_coordinator(&opts, &config, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("flip-ms: \"86400001\" is not a whole number from 1 to 86400000");
    opts = (heft_coordinator_opts_t)HEFT_COORDINATOR_OPTS_INIT;
    opts.insecure = 2;
    EXPECT_STATUS(heft__settings_coordinator(&opts, &config, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("insecure: \"2\" is none of 0, 1");
    heft_publisher_opts_t pub = HEFT_PUBLISHER_OPTS_INIT;
    pub.n_threads = 5000;
    EXPECT_STATUS(heft__settings_publisher(&pub, &config, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("threads: \"5000\"");
    pub = (heft_publisher_opts_t)HEFT_PUBLISHER_OPTS_INIT;
    pub.max_bytes_per_s = UINT64_MAX;
    EXPECT_STATUS(heft__settings_publisher(&pub, &config, &err),
                  HEFT_OK); /* no limit to speak of */
    heft_config_destroy(config);
    assert_int_equal(heft__alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_knob_reaches_its_field),
        cmocka_unit_test(defaults_fill_what_is_zero),
        cmocka_unit_test(fields_are_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
