/* SPDX-License-Identifier: Apache-2.0 */
/* Drift of two manifests, as text and as JSON. */
#include "cli/cli_drift.h"

json_t *cli_drift_json(const heft_drift_t *drift)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < heft_drift_get_n(drift); i++) {
        const heft_drift_finding_t *f = heft_drift_get(drift, i);
        (void)json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s}", "kind",
                                                     heft_drift_kind_get_name(f->kind), "name",
                                                     f->name, "other", f->other, "text", f->text));
    }
    return array;
}

void cli_drift_print(FILE *out, const heft_drift_t *drift, uint32_t max_lines)
{
    uint32_t n = heft_drift_get_n(drift);
    for (uint32_t i = 0; i < n && i < max_lines; i++) {
        (void)fprintf(out, "%s\n", heft_drift_get(drift, i)->text);
    }
    if (n > max_lines) {
        (void)fprintf(out, "and %u more\n", n - max_lines);
    }
}
