/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums: published vectors, algebra, and every CPU level against division bit by bit. */
#include "heft_test.h"

#include "kernel/kernel_ops.h"

#define MAX_BYTES 3000

static uint64_t crc64_bitwise(uint64_t crc, const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? UINT64_C(0x95ac9329ac4bc9b5) : 0);
        }
    }
    return crc;
}

static uint32_t crc32c_bitwise(uint32_t crc, const uint8_t *p, int64_t n)
{
    crc = ~crc;
    for (int64_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

static void fill(uint8_t *p, size_t n, uint64_t *random)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)heft_test_random(random);
    }
}

/* Run a check at every level the CPU has. */
static void at_every_level(void (*check)(uint64_t seed))
{
    uint64_t seed = heft_test_seed();
    heft__cpu_level_t best = heft__cpu_get_level();
    for (int level = 0; level <= (int)best; level++) {
        assert_true(heft__cpu_use_level((heft__cpu_level_t)level));
        check(seed);
    }
    assert_true(heft__cpu_use_level(best));
}

static void check_vectors(uint64_t seed)
{
    (void)seed;
    uint8_t zeros[32] = { 0 };
    uint8_t ones[32];
    uint8_t count[256];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 256; i++) {
        count[i] = (uint8_t)i;
    }
    assert_int_equal(heft__crc64("", 0), 0);
    assert_int_equal(heft__crc64("123456789", 9), UINT64_C(0xe9c6d914c4b8d9ca));
    assert_int_equal(heft__crc64(zeros, 32), 0);
    assert_int_equal(heft__crc64(count, 256), crc64_bitwise(0, count, 256));
    assert_int_equal(heft__crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(heft__crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(heft__crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(heft__crc32c(0, count, 32), 0x46dd794e);
}

static void published_vectors_hold(void **state)
{
    (void)state;
    at_every_level(check_vectors);
}

static void check_lengths(uint64_t seed)
{
    uint8_t data[MAX_BYTES + 64];
    fill(data, sizeof data, &seed);
    for (int64_t i = 0; i < heft_test_cases(1500); i++) {
        int64_t n = i < 700 ? i : heft_test_random_in(&seed, 0, MAX_BYTES);
        const uint8_t *p = data + heft_test_random_in(&seed, 0, 63);
        uint64_t start = heft_test_random(&seed);
        assert_int_equal(heft__crc64_update(start, p, n), crc64_bitwise(start, p, n));
        assert_int_equal(heft__crc32c((uint32_t)start, p, n),
                         crc32c_bitwise((uint32_t)start, p, n));
    }
}

static void every_length_and_alignment_agrees_with_division(void **state)
{
    (void)state;
    at_every_level(check_lengths);
}

static void check_copies(uint64_t seed)
{
    const heft__kernel_ops_t *ops = heft__ops();
    uint8_t data[MAX_BYTES + 64];
    uint8_t copy[MAX_BYTES + 256];
    fill(data, sizeof data, &seed);
    for (int64_t i = 0; i < heft_test_cases(1500); i++) {
        int64_t n = i < 600 ? i : heft_test_random_in(&seed, 0, MAX_BYTES);
        const uint8_t *src = data + heft_test_random_in(&seed, 0, 63);
        uint8_t *dst = copy + 64 + heft_test_random_in(&seed, 0, 63);
        bool nt = heft_test_random_in(&seed, 0, 1) != 0;
        uint64_t start = heft_test_random(&seed);
        memset(copy, 0x5a, sizeof copy);
        uint64_t crc = ops->crc64_move(start, dst, src, n, nt, 4096);
        ops->fence();
        assert_int_equal(crc, crc64_bitwise(start, src, n));
        assert_memory_equal(dst, src, (size_t)n);
        memset(copy, 0x5a, sizeof copy);
        uint32_t crc32 = ops->crc32c_move((uint32_t)start, dst, src, n, nt, 4096);
        ops->fence();
        assert_int_equal(~crc32, crc32c_bitwise(~(uint32_t)start, src, n));
        assert_memory_equal(dst, src, (size_t)n);
        for (const uint8_t *p = copy; p < copy + sizeof copy; p++) {
            if (p < dst || p >= dst + n) {
                assert_int_equal(*p, 0x5a);
            }
        }
    }
}

static void copies_with_checksums_copy_and_touch_nothing_else(void **state)
{
    (void)state;
    at_every_level(check_copies);
}

static void check_shift(uint64_t seed)
{
    static const uint8_t zeros[70000];
    for (int64_t i = 0; i < heft_test_cases(200); i++) {
        uint64_t crc = heft_test_random(&seed);
        int64_t n = heft_test_random_in(&seed, 0, i % 2 != 0 ? 300 : (int64_t)sizeof zeros);
        assert_int_equal(heft__crc64_shift(crc, n), crc64_bitwise(crc, zeros, n));
    }
    /* far: in two steps or in one */
    for (int64_t i = 0; i < heft_test_cases(200); i++) {
        uint64_t crc = heft_test_random(&seed);
        int64_t a = (int64_t)(heft_test_random(&seed) >> 2);
        int64_t b = (int64_t)(heft_test_random(&seed) >> 2);
        assert_int_equal(heft__crc64_shift(heft__crc64_shift(crc, a), b),
                         heft__crc64_shift(crc, a + b));
    }
    assert_int_equal(heft__crc64_shift(0, INT64_MAX), 0);
    assert_int_equal(heft__crc64_shift(77, 0), 77);
}

static void a_shift_is_that_many_zero_bytes(void **state)
{
    (void)state;
    at_every_level(check_shift);
}

/* Parts of any size, in any order. */
static void digest_adds_up(void **state)
{
    (void)state;
    enum { BYTES = 2000 };
    uint64_t random = heft_test_seed();
    uint8_t param[BYTES];
    int64_t begins[BYTES + 1] = { 0 };
    int64_t order[BYTES];
    int64_t n = 0;
    fill(param, BYTES, &random);
    while (begins[n] < BYTES) {
        const int64_t bytes = heft_test_random_in(&random, 1, 300);
        order[n] = n;
        begins[n + 1] = heft__min_i64(begins[n] + bytes, BYTES);
        n++;
    }
    uint64_t digest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = heft_test_random_in(&random, i, n - 1);
        const int64_t part = order[k];
        order[k] = order[i];
        const int64_t end = begins[part + 1];
        digest ^=
            heft__crc64_shift(heft__crc64(param + begins[part], end - begins[part]), BYTES - end);
    }
    assert_true(n > 1);
    assert_int_equal(digest, heft__crc64(param, BYTES));
}

static void zeros_contribute_nothing(void **state)
{
    (void)state;
    uint8_t padded[100] = { 0 };
    memcpy(padded + 60, "weights", 7);
    uint64_t share = heft__crc64_shift(heft__crc64("weights", 7), 33);
    assert_int_equal(heft__crc64(padded, 100), share);
}

static void exchanged_elements_change_the_digest(void **state)
{
    (void)state;
    uint64_t random = heft_test_seed();
    uint16_t param[512];
    for (uint16_t i = 0; i < 512; i++) {
        param[i] = (uint16_t)(i + 1);
    }
    uint64_t digest = heft__crc64(param, sizeof param);
    for (int64_t i = 0; i < heft_test_cases(2000); i++) {
        int64_t a = heft_test_random_in(&random, 0, 511);
        int64_t b = heft_test_random_in(&random, 0, 510);
        b += b >= a;
        uint16_t value = param[a];
        param[a] = param[b];
        param[b] = value;
        assert_int_not_equal(heft__crc64(param, sizeof param), digest);
        param[b] = param[a];
        param[a] = value;
    }
    assert_int_equal(heft__crc64(param, sizeof param), digest);
}

/* docs/formats/digest.md states these lines; the tests run in tests/. */
static void the_documented_vectors_hold(void **state)
{
    (void)state;
    static char doc[16384];
    FILE *f = fopen("../docs/formats/digest.md", "rb");
    assert_non_null(f);
    doc[fread(doc, 1, sizeof doc - 1, f)] = '\0';
    (void)fclose(f);
    uint8_t count[256];
    for (int i = 0; i < 256; i++) {
        count[i] = (uint8_t)i;
    }
    static const uint8_t ones[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
    static const uint16_t matrix[6] = { 1, 2, 3, 4, 5, 6 };
    static const uint16_t transpose[6] = { 1, 4, 2, 5, 3, 6 };
    const struct {
        const char *format;
        const void *data;
        int64_t n;
    } vectors[] = {
        { "| none | `%016llx` |", "", 0 },
        { "| `123456789` (ASCII) | `%016llx` |", "123456789", 9 },
        { "| 32 zero bytes | `%016llx` |", doc + sizeof doc - 32, 32 },
        { "| `01` | `%016llx` |", "\x01", 1 },
        { "| `80` | `%016llx` |", "\x80", 1 },
        { "| `ff` x 8 | `%016llx` |", ones, 8 },
        { "| `00 01 02 .. ff` | `%016llx` |", count, 256 },
        { "| `heft` (ASCII) | `%016llx` |", "heft", 4 },
        { "| `00 00 00` then `heft` | `%016llx` |", "\0\0\0heft", 7 },
        { "| `heft` then `00 00 00` | `%016llx` |", "heft\0\0", 7 },
        { "| XOR, = CRC of all 16 | | | `%016llx` |", count, 16 },
        { "bit patterns 1 2 3 4 5 6 has `%016llx`", matrix, sizeof matrix },
        { "its transpose `[3, 2]` `%016llx`", transpose, sizeof transpose },
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        char line[128];
        uint64_t digest = heft__crc64(vectors[i].data, vectors[i].n);
        const char *gap = strstr(vectors[i].format, "%016llx");
        (void)snprintf(line, sizeof line, "%.*s%016llx%s", (int)(gap - vectors[i].format),
                       vectors[i].format, (unsigned long long)digest, gap + strlen("%016llx"));
        if (strstr(doc, line) == NULL) {
            fail_msg("docs/formats/digest.md lacks \"%s\"", line);
        }
    }
}

static void multiplication_is_that_of_polynomials(void **state)
{
    (void)state;
    uint64_t one = UINT64_C(1) << 63;
    uint64_t x = UINT64_C(1) << 62;
    assert_int_equal(heft__crc64_mul(one, 0x1234), 0x1234);
    assert_int_equal(heft__crc64_mul(x, x), UINT64_C(1) << 61);
    assert_int_equal(heft__crc64_mul(x, 1), HEFT__CRC64_POLY); /* x * x^63 */
    assert_int_equal(heft__crc64_mul(0x9876543210, 0xabcdef),
                     heft__crc64_mul(0xabcdef, 0x9876543210));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors_hold),
        cmocka_unit_test(every_length_and_alignment_agrees_with_division),
        cmocka_unit_test(copies_with_checksums_copy_and_touch_nothing_else),
        cmocka_unit_test(a_shift_is_that_many_zero_bytes),
        cmocka_unit_test(digest_adds_up),
        cmocka_unit_test(zeros_contribute_nothing),
        cmocka_unit_test(exchanged_elements_change_the_digest),
        cmocka_unit_test(the_documented_vectors_hold),
        cmocka_unit_test(multiplication_is_that_of_polynomials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
