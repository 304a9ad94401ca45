/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of many names is most like one: what is missing on one side is often misspelt on the other.
 * A plan may have 70,000 names, so whatever shows that two differ too much comes before the edit
 * distance: lengths, then letters.
 */
#include "plan/plan.h"

#include <string.h>

/* No fewer edits than letters that one of the two lacks; c & 31 is a class of letters. */
static bool may_be_near(const char *a, size_t n_a, const char *b, size_t n_b, uint32_t limit)
{
    int32_t count[32] = { 0 };
    for (size_t i = 0; i < n_a; i++) {
        count[a[i] & 31]++;
    }
    for (size_t i = 0; i < n_b; i++) {
        count[b[i] & 31]--;
    }
    int32_t more = 0;
    int32_t fewer = 0;
    for (int i = 0; i < 32; i++) {
        more += count[i] > 0 ? count[i] : 0;
        fewer -= count[i] < 0 ? count[i] : 0;
    }
    return (uint32_t)more <= limit && (uint32_t)fewer <= limit;
}

bool heft__proof_nearer(const char *a, const char *b, uint32_t *limit)
{
    enum { MAX_MIDDLE = 128 };
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    size_t n_a = strlen(a);
    size_t n_b = strlen(b);
    while (n_a > 0 && n_b > 0 && a[n_a - 1] == b[n_b - 1]) {
        n_a--;
        n_b--;
    }
    size_t gap = n_a > n_b ? n_a - n_b : n_b - n_a;
    if (gap > *limit || n_a >= MAX_MIDDLE || n_b >= MAX_MIDDLE ||
        !may_be_near(a, n_a, b, n_b, *limit)) {
        return false;
    }
    char middle_a[MAX_MIDDLE];
    char middle_b[MAX_MIDDLE];
    memcpy(middle_a, a, n_a);
    memcpy(middle_b, b, n_b);
    middle_a[n_a] = '\0';
    middle_b[n_b] = '\0';
    uint32_t distance = heft__edit_distance(middle_a, middle_b, *limit);
    if (distance > *limit) {
        return false;
    }
    *limit = distance > 0 ? distance - 1 : 0;
    return true;
}
