/* SPDX-License-Identifier: Apache-2.0 */
/* The status table, looked up by value. */
#include "heft/status.h"

#include <stddef.h>

typedef struct status_row {
    heft_status_t value;
    heft_remedy_t remedy;
    const char *name;
    const char *text;
} status_row_t;

static const status_row_t rows[] = {
#define STATUS_ROW(n, v, r, t) \
    { .value = HEFT_##n, .remedy = HEFT_REMEDY_##r, .name = #n, .text = (t) },
    HEFT_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

static const status_row_t *find_row(heft_status_t status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value == status) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *heft_status_get_name(heft_status_t status)
{
    const status_row_t *row = find_row(status);
    return row != NULL ? row->name : "UNKNOWN";
}

const char *heft_status_get_text(heft_status_t status)
{
    const status_row_t *row = find_row(status);
    return row != NULL ? row->text : "unknown status";
}

heft_remedy_t heft_status_get_remedy(heft_status_t status)
{
    const status_row_t *row = find_row(status);
    return row != NULL ? row->remedy : HEFT_REMEDY_BUG;
}

const char *heft_version_get(void)
{
    return HEFT_VERSION;
}
