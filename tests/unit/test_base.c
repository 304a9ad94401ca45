/* SPDX-License-Identifier: Apache-2.0 */
/* Base: statuses, errors, allocation faults, arenas, text, name table, SHA-256, edit distance. */
#include "heft_test.h"

#include <errno.h>
#include <jansson.h>

static void status_table_has_unique_values_and_names(void **state)
{
    (void)state;
    static const heft_status_t values[] = {
#define VALUE(n, v, r, t) HEFT_##n,
        HEFT_STATUS_MAP(VALUE)
#undef VALUE
    };
    const size_t n = sizeof values / sizeof values[0];
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            assert_int_not_equal(values[i], values[j]);
            assert_string_not_equal(heft_status_get_name(values[i]),
                                    heft_status_get_name(values[j]));
        }
    }
    assert_string_equal(heft_status_get_name(HEFT_ERR_NOMEM), "ERR_NOMEM");
    assert_int_equal(heft_status_get_remedy(HEFT_ERR_DIGEST), HEFT_REMEDY_DATA);
}

static void version_is_three_numbers(void **state)
{
    (void)state;
    int major = -1;
    int minor = -1;
    int patch = -1;
    char rest = 'x';
    assert_int_equal(sscanf(heft_version_get(), "%d.%d.%d%c", &major, &minor, &patch, &rest), 3);
    assert_true(major >= 0 && minor >= 0 && patch >= 0);
}

static void status_unknown_value_is_named_unknown(void **state)
{
    (void)state;
    heft_status_t none = (heft_status_t)-12345;
    assert_string_equal(heft_status_get_name(none), "UNKNOWN");
    assert_int_equal(heft_status_get_remedy(none), HEFT_REMEDY_BUG);
}

/* What messages quote is names and files of others, cut anywhere. */
static void a_message_is_utf8_whatever_it_quotes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char *const characters[] = { "\xc3\xa9", "\xe6\x9d\x83", "\xf0\x9f\x98\x80" };
    for (size_t c = 0; c < 3; c++) {
        for (int before = 0; before < 300; before++) {
            char name[600];
            (void)snprintf(name, sizeof name, "%*s%s%s%s%s", before, "", characters[c],
                           characters[c], characters[c], characters[c]);
            assert_int_equal(heft__error_set(&err, HEFT_ERR_NAME, "%s", name), HEFT_ERR_NAME);
            size_t n = 0;
            for (const char *p = err.message; *p != '\0'; p += n) {
                n = heft__utf8_length(p, strlen(p));
                assert_true(n > 0);
            }
            assert_true(strlen(name) < sizeof err.message ? strcmp(name, err.message) == 0
                                                          : strstr(err.message, "...") != NULL);
        }
    }
    static const char *const bad[][2] = { { "a\xff\xfe z", "a?? z" },
                                          { "\xe6\x9d\"", "??\"" },
                                          { "x\xf0\x9f\x98", "x" },
                                          { "x\xed\xa0\x80y", "x???y" },
                                          { "\x9d\x9d", "??" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(heft__error_set(&err, HEFT_ERR_NAME, "%s", bad[i][0]), HEFT_ERR_NAME);
        assert_string_equal(err.message, bad[i][1]);
    }
    const heft_status_t status =
        heft__error_set_sys(&err, HEFT_ERR_IO, ENOENT, "open %s", "\xe6\x9d\xff");
    assert_int_equal(status, HEFT_ERR_IO);
    assert_non_null(strstr(err.message, "open ??"));
}

static void error_is_one_line_and_cut_with_dots(void **state)
{
    (void)state;
    char longer[600];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    heft_error_t err = HEFT_ERROR_INIT;
    assert_int_equal(heft__error_set(&err, HEFT_ERR_NAME, "a\nb %s", longer), HEFT_ERR_NAME);
    assert_int_equal(err.status, HEFT_ERR_NAME);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_string_equal(err.message + sizeof err.message - 4, "...");
    assert_null(strchr(err.message, '\n'));
}

static void error_with_errno_says_its_text(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__error_set_sys(&err, HEFT_ERR_NOSPACE, ENOSPC, "write %s", "out.bin"),
                  HEFT_ERR_NOSPACE);
    assert_int_equal(err.sys_errno, ENOSPC);
    EXPECT_MESSAGE("write out.bin: No space left");
    assert_int_equal(heft__error_set(NULL, HEFT_ERR_IO, "nobody listens"), HEFT_ERR_IO);
}

static void checked_arithmetic_refuses_overflow(void **state)
{
    (void)state;
    int64_t r = 7;
    assert_false(heft__add(INT64_MAX, 1, &r));
    assert_false(heft__sub(INT64_MIN, 1, &r));
    assert_false(heft__mul(INT64_MAX / 2 + 1, 2, &r));
    assert_int_equal(r, 7);
    assert_true(heft__mul(-3, 5, &r));
    assert_int_equal(r, -15);
    size_t s = 9;
    assert_false(heft__size_mul(SIZE_MAX, 2, &s));
    assert_false(heft__size_add(SIZE_MAX, 1, &s));
    assert_int_equal(s, 9);
}

static void alloc_counts_and_fails_on_demand(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    int64_t bytes = heft__alloc_live_bytes();
    void *p = heft__malloc(100);
    assert_non_null(p);
    assert_int_equal(heft__alloc_live(), live + 1);
    assert_int_equal(heft__alloc_live_bytes(), bytes + 100);
    heft__alloc_fail_at(1);
    void *grown = heft__realloc(p, 200);
    assert_non_null(grown);
    assert_null(heft__malloc(1));
    void *after = heft__malloc(1);
    assert_non_null(after);
    heft__free(after);
    heft__free(grown);
    assert_int_equal(heft__alloc_live(), live);
    assert_int_equal(heft__alloc_live_bytes(), bytes);
    assert_null(heft__calloc(SIZE_MAX, 2));
    assert_null(heft__malloc(SIZE_MAX));
}

static void arena_hands_out_aligned_memory_and_survives_failure(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    heft__arena_t arena;
    heft__arena_init(&arena, 64);
    for (size_t i = 0; i < 1000; i++) {
        char *p = heft__arena_alloc(&arena, i % 97);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, (int)i, i % 97);
    }
    assert_non_null(heft__arena_alloc(&arena, 5 << 20));
    heft__alloc_fail_at(0);
    assert_null(heft__arena_alloc(&arena, 9 << 20));
    heft__alloc_fail_at(-1);
    assert_string_equal(heft__arena_strndup(&arena, "hello world", 5), "hello");
    heft__arena_fini(&arena);
    assert_int_equal(heft__alloc_live(), live);
}

static void text_grows_and_remembers_a_failed_append(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    heft__text_t text;
    heft__text_init(&text);
    assert_string_equal(text.data, "");
    for (int i = 0; i < 100; i++) {
        heft__text_printf(&text, "%d,", i);
    }
    heft__text_put(&text, "end");
    assert_int_equal(text.len, strlen(text.data));
    assert_non_null(strstr(text.data, "98,99,end"));
    char *taken = heft__text_take(&text);
    assert_non_null(taken);
    heft__free(taken);
    heft__alloc_fail_at(0);
    heft__text_put(&text, "lost");
    heft__alloc_fail_at(-1);
    heft__text_put(&text, "after");
    assert_true(text.failed);
    assert_null(heft__text_take(&text));
    heft__text_fini(&text);
    assert_int_equal(heft__alloc_live(), live);
}

static void map_finds_what_was_put_and_refuses_twice(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    enum { N = 5000 };
    static char names[N][16];
    heft__map_t map;
    heft__map_init(&map);
    assert_int_equal(heft__map_get(&map, "x", 1), HEFT__MAP_NONE);
    for (uint32_t i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "n.%u", i);
        assert_int_equal(heft__map_put(&map, names[i], strlen(names[i]), i), HEFT_OK);
    }
    assert_int_equal(heft__map_put(&map, "n.17", 4, 1), HEFT_ERR_EXISTS);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(heft__map_get(&map, names[i], strlen(names[i])), i);
    }
    assert_int_equal(heft__map_get(&map, "n.5000", 6), HEFT__MAP_NONE);
    heft__map_fini(&map);
    heft__alloc_fail_at(0);
    assert_int_equal(heft__map_put(&map, "a", 1, 0), HEFT_ERR_NOMEM);
    heft__alloc_fail_at(-1);
    assert_int_equal(heft__alloc_live(), live);
}

static void sha256_matches_published_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t repeat;
        const char *hex;
    } rows[] = {
        /* FIPS 180-4 examples */
        { "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "aaaaaaaaaa", 100000,
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        heft__sha256_t h;
        heft__sha256_init(&h);
        for (size_t k = 0; k < rows[i].repeat; k++) {
            heft__sha256_update(&h, rows[i].text, strlen(rows[i].text));
        }
        uint8_t digest[32];
        char hex[65];
        heft__sha256_final(&h, digest);
        heft__hex(digest, 32, hex);
        assert_string_equal(hex, rows[i].hex);
        uint8_t back[32];
        assert_true(heft__hex_parse(hex, back, 32));
        assert_memory_equal(back, digest, 32);
    }
}

static void hex_parse_refuses_what_is_no_hex(void **state)
{
    (void)state;
    uint8_t out[2] = { 9, 9 };
    assert_false(heft__hex_parse("12g4", out, 2));
    assert_false(heft__hex_parse("123", out, 2));
    assert_false(heft__hex_parse("12345", out, 2));
    assert_int_equal(out[0], 9);
}

static void edit_distance_counts_and_gives_up(void **state)
{
    (void)state;
    assert_int_equal(heft__edit_distance("layer.2.w", "layers.2.w", 8), 1);
    assert_int_equal(heft__edit_distance("kitten", "sitting", 8), 3);
    assert_int_equal(heft__edit_distance("", "abc", 8), 3);
    assert_int_equal(heft__edit_distance("abcdefgh", "ijklmnop", 3), 4);
    assert_int_equal(heft__edit_distance("same", "same", 0), 0);
}

static void little_endian_at_borders(void **state)
{
    (void)state;
    uint8_t p[8];
    heft__put_le64(p, 0x0102030405060708u);
    assert_int_equal(p[0], 8);
    assert_int_equal(p[7], 1);
    assert_true(heft__get_le64(p) == 0x0102030405060708u);
    heft__put_le32(p, 0xa1b2c3d4u);
    assert_int_equal(p[0], 0xd4);
    assert_true(heft__get_le32(p) == 0xa1b2c3d4u);
}

static char logged[4096];

static void keep_line(void *arg, heft_log_level_t level, const char *line)
{
    *(heft_log_level_t *)arg = level;
    (void)snprintf(logged, sizeof logged, "%s", line);
}

static void configure(heft_log_level_t level, heft_log_format_t format, heft_log_level_t *seen)
{
    logged[0] = '\0';
    assert_int_equal(heft_log_configure(level, format, keep_line, seen, NULL), HEFT_OK);
}

static void log_is_silent_below_its_level(void **state)
{
    (void)state;
    heft_log_level_t seen = HEFT_LOG_TRACE;
    configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, &seen);
    heft__log(HEFT_LOG_INFO, "base", "not shown %d", 1);
    assert_string_equal(logged, "");
    heft__log(HEFT_LOG_WARN, "base", "shown %d", 2);
    assert_string_equal(logged, "heft: warn: base: shown 2");
    assert_int_equal(seen, HEFT_LOG_WARN);
    heft_error_t err = HEFT_ERROR_INIT;
    assert_int_equal(heft_log_configure((heft_log_level_t)7, HEFT_LOG_PLAIN, NULL, NULL, &err),
                     HEFT_ERR_ARGUMENT);
    assert_int_equal(heft_log_configure(HEFT_LOG_WARN, (heft_log_format_t)3, NULL, NULL, &err),
                     HEFT_ERR_ARGUMENT);
    assert_int_equal(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, NULL, NULL, NULL), HEFT_OK);
}

static void log_fields_are_text_or_json(void **state)
{
    (void)state;
    heft_log_level_t seen;
    const heft__logged_t fields[] = { HEFT__LOG_TEXT("round", "3.12"), HEFT__LOG_INT("bytes", -5),
                                      HEFT__LOG_REAL("seconds", 1.5),
                                      HEFT__LOG_TEXT("cause", "a \"b\"\n\tc\\"),
                                      HEFT__LOG_TEXT("none", "") };
    configure(HEFT_LOG_INFO, HEFT_LOG_PLAIN, &seen);
    heft__log_event(HEFT_LOG_INFO, "sync", "round ended", fields, 5);
    assert_string_equal(logged, "heft: info: sync: round ended round=3.12 bytes=-5 seconds=1.5 "
                                "cause=\"a \\\"b\\\"\\u000a\\u0009c\\\\\" none=\"\"");
    configure(HEFT_LOG_INFO, HEFT_LOG_TEXT, &seen);
    heft__log_event(HEFT_LOG_INFO, "sync", "round ended", fields, 1);
    assert_int_equal(logged[4], '-'); /* a date */
    assert_string_equal(logged + 24, " info sync: round ended round=3.12");
    configure(HEFT_LOG_INFO, HEFT_LOG_JSON, &seen);
    heft__log_event(HEFT_LOG_INFO, "sync", "round ended", fields, 5);
    assert_non_null(strstr(logged,
                           "\"level\":\"info\",\"part\":\"sync\",\"message\":\"round ended\","
                           "\"round\":\"3.12\",\"bytes\":-5,\"seconds\":1.5,"
                           "\"cause\":\"a \\\"b\\\"\\u000a\\u0009c\\\\\",\"none\":\"\"}"));
    assert_int_equal(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, NULL, NULL, NULL), HEFT_OK);
}

/* A line has a limit; what is beyond is cut so that the JSON stays whole, wherever the cut falls.
 */
static void long_log_lines_stay_whole(void **state)
{
    (void)state;
    heft_log_level_t seen;
    char text[3000];
    for (size_t n = 1700; n < 2200; n++) {
        memset(text, 'x', n);
        text[n] = '\0';
        text[n - 1] = '"';
        text[n - 2] = '\n';
        const heft__logged_t fields[] = { HEFT__LOG_TEXT("a", text), HEFT__LOG_INT("b", 1) };
        configure(HEFT_LOG_INFO, HEFT_LOG_JSON, &seen);
        heft__log_event(HEFT_LOG_INFO, "sync", n % 2 == 0 ? "event" : text, fields, 2);
        json_error_t where;
        json_t *root = json_loads(logged, 0, &where);
        if (root == NULL) {
            fail_msg("%zu: %s: %s", n, where.text, logged + strlen(logged) - 40);
        }
        json_decref(root);
        configure(HEFT_LOG_INFO, HEFT_LOG_PLAIN, &seen);
        heft__log_event(HEFT_LOG_INFO, "sync", "event", fields, 2);
        assert_true(strlen(logged) < 2048);
    }
    assert_int_equal(heft_log_configure(HEFT_LOG_WARN, HEFT_LOG_PLAIN, NULL, NULL, NULL), HEFT_OK);
}

typedef struct opts_v2 {
    size_t size;
    uint32_t depth;
    uint32_t width;
} opts_v2_t;

static void options_keep_defaults_and_refuse_what_is_not_known(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    opts_v2_t out = { sizeof out, 3, 7 };
    assert_int_equal(heft__opts_load(NULL, &out, sizeof out, "box", &err), HEFT_OK);
    assert_int_equal(out.depth, 3);
    opts_v2_t given = { offsetof(opts_v2_t, width), 4, 99 };
    assert_int_equal(heft__opts_load(&given, &out, sizeof out, "box", &err), HEFT_OK);
    assert_int_equal(out.depth, 4);
    assert_int_equal(out.width, 7);
    assert_int_equal(out.size, sizeof out);
    struct {
        opts_v2_t known;
        uint8_t tail[8];
    } longer = { .known = { sizeof longer, 5, 6 } };
    assert_int_equal(heft__opts_load(&longer, &out, sizeof out, "box", &err), HEFT_OK);
    assert_int_equal(out.width, 6);
    longer.tail[2] = 1;
    assert_int_equal(heft__opts_load(&longer, &out, sizeof out, "box", &err), HEFT_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "box: byte 18 is set, this library knows 16 bytes");
    given.size = 3;
    assert_int_equal(heft__opts_load(&given, &out, sizeof out, "box", &err), HEFT_ERR_ARGUMENT);
    given.size = (size_t)1 << 40; /* never initialised: nothing beyond is read */
    assert_int_equal(heft__opts_load(&given, &out, sizeof out, "box", &err), HEFT_ERR_ARGUMENT);
    assert_int_equal(heft__opts_check_reserved("\0\0", 2, "box", &err), HEFT_OK);
    assert_int_equal(heft__opts_check_reserved("\0\1", 2, "box", &err), HEFT_ERR_ARGUMENT);
    assert_string_equal(err.message, "box: reserved[1] is 1, not 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_table_has_unique_values_and_names),
        cmocka_unit_test(version_is_three_numbers),
        cmocka_unit_test(status_unknown_value_is_named_unknown),
        cmocka_unit_test(error_is_one_line_and_cut_with_dots),
        cmocka_unit_test(a_message_is_utf8_whatever_it_quotes),
        cmocka_unit_test(error_with_errno_says_its_text),
        cmocka_unit_test(checked_arithmetic_refuses_overflow),
        cmocka_unit_test(alloc_counts_and_fails_on_demand),
        cmocka_unit_test(arena_hands_out_aligned_memory_and_survives_failure),
        cmocka_unit_test(text_grows_and_remembers_a_failed_append),
        cmocka_unit_test(map_finds_what_was_put_and_refuses_twice),
        cmocka_unit_test(sha256_matches_published_vectors),
        cmocka_unit_test(hex_parse_refuses_what_is_no_hex),
        cmocka_unit_test(edit_distance_counts_and_gives_up),
        cmocka_unit_test(little_endian_at_borders),
        cmocka_unit_test(log_is_silent_below_its_level),
        cmocka_unit_test(log_fields_are_text_or_json),
        cmocka_unit_test(long_log_lines_stay_whole),
        cmocka_unit_test(options_keep_defaults_and_refuse_what_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
