/* SPDX-License-Identifier: Apache-2.0 */
/* A contract from untrusted JSON: an accepted one is written and read again unchanged, and making
 * its mapping again ends in order, however wrong it is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heft/contract.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void make_again(const heft_contract_t *contract)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    heft_report_t *report = NULL;
    heft_status_t status = heft_contract_check(contract, &drift, &report, &err);
    check((status == HEFT_OK) == (drift != NULL));
    check(status == HEFT_OK || err.message[0] != '\0');
    heft_drift_destroy(drift);
    heft_report_destroy(report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_contract_t *contract = NULL;
    heft_status_t status = heft_contract_decode((const char *)data, size, &contract, &err);
    if (status != HEFT_OK) {
        check(contract == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    char *text = NULL;
    char *text_again = NULL;
    heft_contract_t *again = NULL;
    heft_drift_t *drift = NULL;
    check(heft_contract_encode(contract, &text, &err) == HEFT_OK);
    check(heft_contract_decode(text, strlen(text), &again, &err) == HEFT_OK);
    check(heft_contract_encode(again, &text_again, &err) == HEFT_OK);
    check(strcmp(text, text_again) == 0);
    check(heft_contract_compare(contract, again, &drift, &err) == HEFT_OK);
    check(heft_drift_get_n(drift) == 0);
    make_again(contract);
    heft_drift_destroy(drift);
    heft_string_free(text);
    heft_string_free(text_again);
    heft_contract_destroy(again);
    heft_contract_destroy(contract);
    return 0;
}
