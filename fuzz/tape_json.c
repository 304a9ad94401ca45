/* SPDX-License-Identifier: Apache-2.0 */
/* A tape from untrusted JSON: an accepted one is written and read again with equal text and digest,
 * and folding it ends in order. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heft/model.h"
#include "tape/tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void fold(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__fold_t *folded = NULL;
    const heft__fold_opts_t opts = { .max_pieces = 4096 };
    heft_status_t status = heft__fold_create(tape, &opts, &folded, &err);
    check(status == HEFT_OK || err.message[0] != '\0');
    heft__fold_destroy(folded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    heft_status_t status = heft_tape_decode((const char *)data, size, &tape, &err);
    if (status != HEFT_OK) {
        check(tape == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    char *text = NULL;
    char *text_again = NULL;
    heft_tape_t *again = NULL;
    char digests[2][HEFT_TAPE_DIGEST_BYTES];
    check(heft_tape_encode(tape, &text, &err) == HEFT_OK);
    check(heft_tape_decode(text, strlen(text), &again, &err) == HEFT_OK);
    check(heft_tape_encode(again, &text_again, &err) == HEFT_OK);
    check(strcmp(text, text_again) == 0);
    check(heft_tape_query_digest(tape, digests[0], &err) == HEFT_OK);
    check(heft_tape_query_digest(again, digests[1], &err) == HEFT_OK);
    check(strcmp(digests[0], digests[1]) == 0);
    fold(tape);
    heft_string_free(text);
    heft_string_free(text_again);
    heft_tape_destroy(again);
    heft_tape_destroy(tape);
    return 0;
}
