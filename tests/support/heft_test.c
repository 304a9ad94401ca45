/* SPDX-License-Identifier: Apache-2.0 */
#include "heft_test.h"

#include <ftw.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

char *heft_test_mkdir(void)
{
    const char *tmp = getenv("TMPDIR");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/heft-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(path) == NULL) {
        fail_msg("mkdtemp %s failed", path);
    }
    return strdup(path);
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

void heft_test_rmdir(char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

void heft_test_write_file(const char *dir, const char *name, const void *data, size_t bytes)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        fail_msg("cannot write %s", path);
    }
}

uint64_t heft_test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t heft_test_seed(void)
{
    const char *text = getenv("HEFT_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)heft__clock_mono_ns();
    (void)fprintf(stderr, "seed: HEFT_TEST_SEED=%" PRIu64 "\n", seed);
    return seed;
}

int64_t heft_test_random_in(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(heft_test_random(state) % (uint64_t)(hi - lo + 1));
}

#if defined(__has_feature)
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer)
#define SLOWDOWN 4 /* of unoptimised, sanitized code, and more */
#else
#define SLOWDOWN 1
#endif

int64_t heft_test_cases(int64_t normal)
{
    const char *text = getenv("HEFT_TEST_CASES");
    char *end = NULL;
    if (text == NULL) {
        return heft__max_i64(normal / SLOWDOWN, 1);
    }
    const long long n = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || n < 1) { /* none would pass whatever is tested */
        (void)fprintf(stderr, "HEFT_TEST_CASES=\"%s\" is no number of cases from 1\n", text);
        exit(2);
    }
    return n;
}
