/* SPDX-License-Identifier: Apache-2.0 */
/* Drift of two manifests, as text and as JSON. */
#ifndef HEFT_CLI_CLI_DRIFT_H
#define HEFT_CLI_CLI_DRIFT_H

#include "cli/cli.h"
#include "cli/cli_model.h"

json_t *cli_drift_json(const heft_drift_t *drift);
/* One line each, at most max_lines, and how many there are beyond. */
void cli_drift_print(FILE *out, const heft_drift_t *drift, uint32_t max_lines);

#endif
