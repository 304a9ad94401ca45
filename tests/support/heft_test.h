/* SPDX-License-Identifier: Apache-2.0 */
/* What every test includes: cmocka with its prerequisites, status checks that print the message,
 * and fixtures. */
#ifndef HEFT_TEST_H
#define HEFT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "heft/status.h"

/* Fails with the error's message when call does not return status. `err` must be in scope. */
#define EXPECT_STATUS(call, expected)                                              \
    do {                                                                           \
        heft_status_t got_ = (call);                                               \
        if (got_ != (expected)) {                                                  \
            fail_msg("%s: %s, expected %s: %s", #call, heft_status_get_name(got_), \
                     heft_status_get_name(expected), err.message);                 \
        }                                                                          \
    } while (0)

#define EXPECT_MESSAGE(part)                                           \
    do {                                                               \
        if (strstr(err.message, (part)) == NULL) {                     \
            fail_msg("message lacks \"%s\": %s", (part), err.message); \
        }                                                              \
    } while (0)

/* A fresh directory under $TMPDIR, removed (with its files) by heft_test_rmdir. The path is owned
 * by the caller. */
char *heft_test_mkdir(void);
void heft_test_rmdir(char *path);
/* Write a file; fails the test when it cannot. */
void heft_test_write_file(const char *dir, const char *name, const void *data, size_t bytes);

/* splitmix64: the seed is printed by the test and can be set with HEFT_TEST_SEED. */
uint64_t heft_test_seed(void);
uint64_t heft_test_random(uint64_t *state);
/* Uniform in [lo, hi]. */
int64_t heft_test_random_in(uint64_t *state, int64_t lo, int64_t hi);

/* Cases for a property: HEFT_TEST_CASES if set, else `normal`, or a quarter of it under a
 * sanitizer. */
int64_t heft_test_cases(int64_t normal);

#endif
