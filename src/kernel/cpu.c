/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which level of kernels runs: the best the CPU and the environment (HEFT_CPU) allow, decided once.
 * The choice is one atomic pointer to a constant table.
 */
#include "kernel/kernel_ops.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const heft__kernel_ops_t *const levels[] = {
    [HEFT__CPU_SCALAR] = &heft__ops_scalar,
};
#define N_LEVELS ((int)(sizeof levels / sizeof levels[0]))

static const char *const names[] = { "scalar", "avx2", "avx512" };

/* Relaxed is enough: it only ever points to constant tables, and any of them is right. */
static _Atomic(const heft__kernel_ops_t *) current;

static bool cpu_can(int level)
{
    return level == HEFT__CPU_SCALAR;
}

static const heft__kernel_ops_t *choose(void)
{
    int level = N_LEVELS - 1;
    const char *wish = getenv("HEFT_CPU");
    for (int i = 0; wish != NULL && i < N_LEVELS; i++) {
        if (strcmp(wish, names[i]) == 0) {
            level = i;
        }
    }
    while (!cpu_can(level)) {
        level--;
    }
    return levels[level];
}

const heft__kernel_ops_t *heft__ops(void)
{
    const heft__kernel_ops_t *ops = atomic_load_explicit(&current, memory_order_relaxed);
    if (ops == NULL) {
        ops = choose();
        atomic_store_explicit(&current, ops, memory_order_relaxed);
    }
    return ops;
}

heft__cpu_level_t heft__cpu_get_level(void)
{
    return heft__ops()->level;
}

const char *heft__cpu_level_name(heft__cpu_level_t level)
{
    return (int)level >= 0 && level <= HEFT__CPU_AVX512 ? names[level] : "unknown";
}

bool heft__cpu_use_level(heft__cpu_level_t level)
{
    if ((int)level < 0 || (int)level >= N_LEVELS || !cpu_can((int)level)) {
        return false;
    }
    atomic_store_explicit(&current, levels[level], memory_order_relaxed);
    return true;
}
