/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: precedence, refusals that say where, and the page that documents every knob. */
#include "heft_test.h"

#include <sys/stat.h>
#include <unistd.h>

static char here[] = "HEFT_POLL_MS=70";

static heft_config_t *make(const char *text, char *const *environment)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t n;
    const heft_knob_t *knobs = heft__knobs(&n);
    heft_config_t *config = NULL;
    EXPECT_STATUS(heft__config_create_over(knobs, n, "here.conf", text,
                                           text != NULL ? strlen(text) : 0, environment, &config,
                                           &err),
                  HEFT_OK);
    return config;
}

static void refuse(const char *text, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t n;
    const heft_knob_t *knobs = heft__knobs(&n);
    heft_config_t *config = NULL;
    EXPECT_STATUS(
        heft__config_create_over(knobs, n, "here.conf", text, strlen(text), NULL, &config, &err),
        HEFT_ERR_ARGUMENT);
    assert_null(config);
    EXPECT_MESSAGE(part);
    assert_null(strchr(err.message, '\n'));
}

static void expect(const heft_config_t *config, const char *name, const char *text,
                   heft_origin_t origin, const char *where)
{
    heft_setting_t setting;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_config_query(config, name, &setting, &err), HEFT_OK);
    if (text == NULL) {
        assert_null(setting.text);
    } else {
        assert_string_equal(setting.text, text);
    }
    assert_int_equal(setting.origin, origin);
    assert_string_equal(setting.where, where);
}

static void flag_beats_environment_beats_file_beats_default(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *const environment[] = { here, NULL };
    heft_config_t *config = make("poll-ms = 60\nflip-ms=50", NULL);
    expect(config, "poll-ms", "60", HEFT_ORIGIN_FILE, "here.conf");
    expect(config, "stage-ms", "1800000", HEFT_ORIGIN_DEFAULT, "default");
    expect(config, "url", NULL, HEFT_ORIGIN_NONE, "none");
    heft_config_destroy(config);
    config = make("poll-ms = 60\nflip-ms=50", environment);
    expect(config, "poll-ms", "70", HEFT_ORIGIN_ENVIRONMENT, "HEFT_POLL_MS");
    EXPECT_STATUS(heft_config_set(config, "poll-ms", "80", &err), HEFT_OK);
    expect(config, "poll-ms", "80", HEFT_ORIGIN_FLAG, "flag");
    expect(config, "flip-ms", "50", HEFT_ORIGIN_FILE, "here.conf");
    EXPECT_STATUS(heft_config_set(config, "poll-ms", "0", &err), HEFT_ERR_ARGUMENT);
    expect(config, "poll-ms", "80", HEFT_ORIGIN_FLAG, "flag");
    heft_setting_t setting;
    EXPECT_STATUS(heft_config_query(config, "flip-ms", &setting, &err), HEFT_OK);
    assert_int_equal(setting.line, 2);
    assert_int_equal(setting.number, 50);
    heft_config_destroy(config);
    heft_config_destroy(NULL);
}

static void a_file_is_read_as_written(void **state)
{
    (void)state;
    heft_config_t *config = make("# comment = no\n\n \t url =  http://a=b:1 \r\n"
                                 "insecure = true\nmax-rate = 3M\njob=a b",
                                 NULL);
    expect(config, "url", "http://a=b:1", HEFT_ORIGIN_FILE, "here.conf");
    expect(config, "job", "a b", HEFT_ORIGIN_FILE, "here.conf");
    heft_setting_t setting;
    heft__config_get(config, "insecure", &setting);
    assert_int_equal(setting.number, 1);
    heft__config_get(config, "max-rate", &setting);
    assert_int_equal(setting.number, 3000000);
    heft_config_destroy(config);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    refuse("\npol-ms = 3", "here.conf:2: unknown key \"pol-ms\"; nearest: poll-ms");
    refuse("poll_ms = 3", "nearest: poll-ms");
    refuse("qqqqqqqqqq = 3", "here.conf:1: unknown key \"qqqqqqqqqq\"");
    refuse("poll-ms = 3\n#\npoll-ms = 3", "here.conf:3: poll-ms was given in line 1 already");
    refuse("poll-ms", "here.conf:1: \"poll-ms\" is not \"key = value\"");
    refuse("= 3", "unknown key \"\"");
    refuse("poll-ms =", "here.conf:1: poll-ms: an empty value");
    refuse("poll-ms = 3s", "\"3s\" is not a whole number from 1 to 86400000");
    refuse("poll-ms = 1K", "\"1K\" is not a whole number");
    refuse("poll-ms = -1", "\"-1\" is not a whole number");
    refuse("poll-ms = 0", "\"0\" is not a whole number from 1");
    refuse("poll-ms = 86400001", "from 1 to 86400000");
    refuse("poll-ms = 99999999999999999999", "is not a whole number");
    refuse("poll-ms = 1e3", "is not a whole number");
    refuse("max-rate = 9223372036854775807K", "(K, M, G, T may follow)");
    refuse("insecure = yes", "here.conf:1: insecure: \"yes\" is none of 0, 1, true, false");
    refuse("insecure = TRUE", "is none of");
    refuse("relay = ON", "here.conf:1: relay: no \"ON\"; one of: off auto on");
    refuse("relay = au", "no \"au\"");
    refuse("relay = auto on", "no \"auto on\"");
    refuse("transport = tcp", "no \"tcp\"; one of: auto shm ucx");
    refuse("log = loud", "no \"loud\"; one of: error warn info debug trace");
    refuse("log-format = xml", "no \"xml\"; one of: plain text json");
    refuse("recipes = /x", "recipes is not for the file: set HEFT_RECIPES in the environment");
    refuse("url = a\tb", "a control character (9)");
    refuse("url = a\x01", "a control character (1)");
    refuse("ur\x01l = a", "unknown key \"ur?l\"; nearest: url");
}

static void variables_are_checked_and_misspellings_told(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t n;
    const heft_knob_t *knobs = heft__knobs(&n);
    heft_config_t *config = NULL;
    char bad[] = "HEFT_INSECURE=yes";
    char *const wrong[] = { bad, NULL };
    EXPECT_STATUS(heft__config_create_over(knobs, n, NULL, NULL, 0, wrong, &config, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("HEFT_INSECURE: \"yes\" is none of 0, 1, true, false");
    char maybe[] = "HEFT_RELAY=maybe";
    char *const no_choice[] = { maybe, NULL };
    EXPECT_STATUS(heft__config_create_over(knobs, n, NULL, NULL, 0, no_choice, &config, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("HEFT_RELAY: no \"maybe\"; one of: off auto on");
    char near[] = "HEFT_POL_MS=3";
    char far[] = "HEFT_SOMETHING_ELSE=3";
    char test[] = "HEFT_TEST_SEED=3";
    char other[] = "HOME=/x";
    char empty[] = "HEFT_POLL_MS=";
    char *const some[] = { near, far, test, other, empty, NULL };
    config = make(NULL, some);
    assert_string_equal(heft_config_get_warning(config, 0),
                        "HEFT_POL_MS in the environment is no setting; nearest: HEFT_POLL_MS");
    assert_string_equal(heft_config_get_warning(config, 1),
                        "HEFT_SOMETHING_ELSE in the environment is no setting");
    assert_null(heft_config_get_warning(config, 2));
    expect(config, "poll-ms", "10000", HEFT_ORIGIN_DEFAULT, "default");
    heft_config_destroy(config);
}

static void a_removed_key_names_its_successor(void **state)
{
    (void)state;
    static const heft_knob_t knobs[] = {
        { .name = "poll-ms",
          .variable = "HEFT_POLL_MS",
          .fallback = "5",
          .min = 1,
          .max = 9,
          .kind = HEFT_KNOB_NUMBER,
          .users = HEFT_KNOB_COORDINATOR },
        { .name = "poll-s",
          .variable = "HEFT_POLL_S",
          .removed = "poll-ms, in milliseconds",
          .kind = HEFT_KNOB_NUMBER,
          .users = HEFT_KNOB_COORDINATOR },
    };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_config_t *config = NULL;
    char variable[] = "HEFT_POLL_S=3";
    char *const environment[] = { variable, NULL };
    EXPECT_STATUS(heft__config_create_over(knobs, 2, "f", "poll-s = 3", 10, NULL, &config, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("f:1: poll-s: poll-s was removed: use poll-ms, in milliseconds");
    EXPECT_STATUS(heft__config_create_over(knobs, 2, NULL, NULL, 0, environment, &config, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("HEFT_POLL_S: poll-s was removed");
    EXPECT_STATUS(heft__config_create_over(knobs, 2, NULL, NULL, 0, NULL, &config, &err), HEFT_OK);
    EXPECT_STATUS(heft_config_set(config, "poll-s", "3", &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("was removed");
    EXPECT_STATUS(heft_config_query(config, "pol-ms", &(heft_setting_t){ 0 }, &err),
                  HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("nearest: poll-ms");
    heft_config_destroy(config);
}

static void lack_of_memory_leaves_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t n;
    const heft_knob_t *knobs = heft__knobs(&n);
    char unknown[] = "HEFT_WHAT=3";
    char *const environment[] = { here, unknown, NULL };
    const char text[] = "url = x\npoll-ms = 5\n";
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_config_t *config = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status =
            heft__config_create_over(knobs, n, "f", text, strlen(text), environment, &config, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_config_destroy(config);
            assert_true(k > 6);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(config);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_int_equal(heft__alloc_live(), live);
}

static void files_are_checked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *dir = heft_test_mkdir();
    char path[600];
    char *text = NULL;
    size_t n = 0;
    heft_test_write_file(dir, "f", "abc", 3);
    (void)snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(chmod(path, 0640), 0);
    EXPECT_STATUS(heft__file_read(path, "thing", 3, true, &text, &n, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("mode 640 lets others at it: chmod 600");
    EXPECT_STATUS(heft__file_read(path, "thing", 2, false, &text, &n, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("3 bytes, at most 2 are allowed");
    assert_int_equal(chmod(path, 0600), 0);
    EXPECT_STATUS(heft__file_read(path, "thing", 3, true, &text, &n, &err), HEFT_OK);
    assert_int_equal(n, 3);
    assert_string_equal(text, "abc");
    heft__free(text);
    EXPECT_STATUS(heft__file_read(dir, "thing", 3, false, &text, &n, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("no regular file");
    (void)snprintf(path, sizeof path, "%s/gone", dir);
    EXPECT_STATUS(heft__file_read(path, "thing", 3, false, &text, &n, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("thing ");
    heft_config_t *config = NULL;
    EXPECT_STATUS(heft_config_create(path, &config, &err), HEFT_ERR_IO);
    EXPECT_MESSAGE("settings file ");
    heft_test_rmdir(dir);
}

/* ---- the page ---- */

static void put_users(heft__text_t *text, uint32_t users)
{
    static const char *const names[] = { "coordinator", "publisher", "subscriber", "client",
                                         "process" };
    const char *comma = "";
    for (uint32_t i = 0; i < 5; i++) {
        if ((users & (1u << i)) != 0) {
            heft__text_printf(text, "%s%s", comma, names[i]);
            comma = ", ";
        }
    }
}

static void put_row(heft__text_t *text, const heft_knob_t *knob)
{
    static const char *const kinds[] = { "text", "file", "number", "bytes", "flag" };
    heft__text_printf(text, "| `%s` | `%s` | %s%s", knob->name, knob->variable,
                      knob->choices != NULL ? "one of: " : kinds[knob->kind],
                      knob->choices != NULL ? knob->choices : "");
    if (knob->kind == HEFT_KNOB_NUMBER || knob->kind == HEFT_KNOB_BYTES) {
        heft__text_printf(text, ", %lld to ", (long long)knob->min);
        heft__text_printf(text, knob->max == INT64_MAX ? "2^63-1" : "%lld", (long long)knob->max);
    }
    heft__text_printf(text, " | %s | ", knob->fallback != NULL ? knob->fallback : "");
    put_users(text, knob->users);
    heft__text_printf(text, " | %s |\n", knob->help);
}

static void the_page_has_every_knob(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *page = NULL;
    size_t n = 0;
    EXPECT_STATUS(
        heft__file_read("../docs/guide/configuration.md", "page", 1u << 20, false, &page, &n, &err),
        HEFT_OK);
    heft__text_t table;
    heft__text_init(&table);
    for (uint32_t i = 0; i < heft_config_get_n_knobs(); i++) {
        put_row(&table, heft_config_get_knob(i));
    }
    if (strstr(page, table.data) == NULL) {
        (void)fputs(table.data, stderr);
        fail_msg("docs/guide/configuration.md lacks the table above");
    }
    heft__text_fini(&table);
    heft__free(page);
    assert_null(heft_config_get_knob(heft_config_get_n_knobs()));
}

static void the_table_is_sound(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < heft_config_get_n_knobs(); i++) {
        const heft_knob_t *knob = heft_config_get_knob(i);
        char variable[64] = "HEFT_";
        for (size_t k = 0; knob->name[k] != '\0'; k++) {
            const char c = knob->name[k];
            assert_true(c == '-' || (c >= 'a' && c <= 'z'));
            variable[5 + k] = c == '-' ? '_' : (char)(c - 'a' + 'A');
            variable[6 + k] = '\0';
        }
        assert_string_equal(knob->variable, variable);
        assert_true(knob->users != 0 && knob->help[strlen(knob->help) - 1] == '.');
        assert_true((knob->value == NULL) == (knob->kind == HEFT_KNOB_FLAG));
        for (uint32_t k = 0; k < i; k++) {
            assert_string_not_equal(heft_config_get_knob(k)->name, knob->name);
        }
        if (knob->fallback != NULL) { /* defaults are values */
            heft_error_t err = HEFT_ERROR_INIT;
            heft_config_t *config = make(NULL, NULL);
            EXPECT_STATUS(heft_config_set(config, knob->name, knob->fallback, &err), HEFT_OK);
            heft_config_destroy(config);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flag_beats_environment_beats_file_beats_default),
        cmocka_unit_test(a_file_is_read_as_written),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(variables_are_checked_and_misspellings_told),
        cmocka_unit_test(a_removed_key_names_its_successor),
        cmocka_unit_test(lack_of_memory_leaves_nothing),
        cmocka_unit_test(files_are_checked),
        cmocka_unit_test(the_page_has_every_knob),
        cmocka_unit_test(the_table_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
