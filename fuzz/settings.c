/* SPDX-License-Identifier: Apache-2.0 */
/* A settings file, and one variable of the environment (its name and value up to the first zero
 * byte). What is accepted is within its bounds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_values(const heft_config_t *config)
{
    for (uint32_t i = 0; i < heft_config_get_n_knobs(); i++) {
        const heft_knob_t *knob = heft_config_get_knob(i);
        heft_setting_t setting;
        const bool is_number = knob->kind >= HEFT_KNOB_NUMBER;
        heft__config_get(config, knob->name, &setting);
        if (setting.text != NULL &&
            (setting.text[0] == '\0' ||
             (is_number && (setting.number < knob->min || setting.number > knob->max)))) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t n;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_knob_t *knobs = heft__knobs(&n);
    heft_config_t *config = NULL;
    char variable[256] = "HEFT_";
    for (size_t i = 0; i < size && i + 6 < sizeof variable && data[i] != 0; i++) {
        variable[5 + i] = (char)data[i];
    }
    char *const environment[] = { variable, NULL };
    heft_status_t status = heft__config_create_over(knobs, n, "file", (const char *)data, size,
                                                    environment, &config, &err);
    if (status == HEFT_OK) {
        check_values(config);
        heft_config_destroy(config);
    } else if (err.status != status || err.message[0] == '\0') {
        abort();
    }
    return 0;
}
