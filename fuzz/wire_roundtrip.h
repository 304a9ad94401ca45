/* SPDX-License-Identifier: Apache-2.0 */
/* The property of every wire decoder: what is accepted is written and read again to the same text.
 */
#ifndef WIRE_ROUNDTRIP_H
#define WIRE_ROUNDTRIP_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sync/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

/* TYPE, its decoder, encoder and fini. */
#define WIRE_ROUNDTRIP(name, type, decode, encode, fini)             \
    static int name(const char *data, size_t size)                   \
    {                                                                \
        heft_error_t err = HEFT_ERROR_INIT;                          \
        type first;                                                  \
        type second;                                                 \
        char *text = NULL;                                           \
        char *again = NULL;                                          \
        heft_status_t status = decode(data, size, &first, &err);     \
        if (status != HEFT_OK) {                                     \
            check(err.status == status && err.message[0] != '\0');   \
            return 0;                                                \
        }                                                            \
        check(encode(&first, &text, &err) == HEFT_OK);               \
        check(decode(text, strlen(text), &second, &err) == HEFT_OK); \
        check(encode(&second, &again, &err) == HEFT_OK);             \
        check(strcmp(text, again) == 0);                             \
        fini(&first);                                                \
        fini(&second);                                               \
        heft__free(text);                                            \
        heft__free(again);                                           \
        return 1;                                                    \
    }

/* For values that own nothing. */
#define WIRE_NOTHING(value) (void)(value)

#endif
