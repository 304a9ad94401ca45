/* SPDX-License-Identifier: Apache-2.0 */
/* A table of experts from untrusted JSON: what is accepted is written and read again unchanged. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heft/experts.h"
#include "heft/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_expert_table_info_t info;
    heft_expert_table_info_t again;
    char *text = NULL;
    char *text_again = NULL;
    heft_status_t status =
        heft_expert_table_check((const char *)data, size, NULL, &info, &text, &err);
    if (status != HEFT_OK) {
        check(text == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    status = heft_expert_table_check(text, strlen(text), NULL, &again, &text_again, &err);
    check(status == HEFT_OK && strcmp(text, text_again) == 0);
    check(memcmp(info.digest, again.digest, sizeof info.digest) == 0);
    check(info.n_experts <= info.n_slots && info.n_slots == again.n_slots);
    heft_string_free(text);
    heft_string_free(text_again);
    return 0;
}
