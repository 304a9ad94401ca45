/* SPDX-License-Identifier: Apache-2.0 */
/* What `heft demo` needs beside processes: a training step on files, memcpy's speed, a clean-up. */
#ifndef HEFT_CLI_DEMO_MODEL_H
#define HEFT_CLI_DEMO_MODEL_H

#include "cli/cli.h"

/* Write to `dir` the checkpoint `model` after one step of sign descent with a pseudo-random
 * gradient: every f32 and bf16 weight moves; other dtypes are copied. config.json comes along. */
int demo_train_step(const cli_args_t *args, const char *model, const char *dir);

/* 10^9 bytes per second of glibc memcpy between two touched buffers of this size, the median of
 * five; 0 without memory. */
double demo_measure_memcpy(int64_t n_bytes);

void demo_remove_tree(const char *path);

#endif
