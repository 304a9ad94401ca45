/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which level of kernels runs: the best the CPU and the environment (HEFT_CPU) allow, decided once.
 * The choice is one atomic pointer to a constant table.
 */
#include "kernel/kernel_ops.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef HEFT_KERNEL_X86
#include <cpuid.h>

static bool has_f16c(void)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static const char *const names[] = { "scalar", "avx2", "avx2-wide", "avx512" };
#define N_LEVELS ((int)(sizeof names / sizeof names[0]))

/* The release makes the CRC tables visible with it: pairs with the acquire in heft__ops. */
static _Atomic(const heft__kernel_ops_t *) current;

#ifdef HEFT_KERNEL_X86
/* Every CPU with AVX2 has the other two as well; asked for all the same. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("sse4.2") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static const heft__kernel_ops_t *find_level(int level)
{
    bool can = has_avx2();
    bool can_wide = can && __builtin_cpu_supports("vpclmulqdq");
    switch (level) {
    case HEFT__CPU_SCALAR:
        return &heft__ops_scalar;
    case HEFT__CPU_AVX2:
        return can ? &heft__ops_avx2 : NULL;
    case HEFT__CPU_AVX2_WIDE:
        return can_wide ? &heft__ops_avx2_wide : NULL;
    case HEFT__CPU_AVX512:
        return can_wide && has_avx512() ? &heft__ops_avx512 : NULL;
    default:
        return NULL;
    }
}
#else
static const heft__kernel_ops_t *find_level(int level)
{
    return level == HEFT__CPU_SCALAR ? &heft__ops_scalar : NULL;
}
#endif

/* The level wished for, or the highest there is. */
static int wished_level(void)
{
    const char *wish = getenv("HEFT_CPU");
    if (wish == NULL || wish[0] == '\0') {
        return N_LEVELS - 1;
    }
    for (int i = 0; i < N_LEVELS; i++) {
        if (strcmp(wish, names[i]) == 0) {
            return i;
        }
    }
    heft__log(HEFT_LOG_WARN, "kernel", "HEFT_CPU=%s is no level; using the best there is", wish);
    return N_LEVELS - 1;
}

static const heft__kernel_ops_t *choose(void)
{
    int level = wished_level();
    while (find_level(level) == NULL) {
        level--;
    }
    return find_level(level);
}

const heft__kernel_ops_t *heft__ops(void)
{
    const heft__kernel_ops_t *ops = atomic_load_explicit(&current, memory_order_acquire);
    if (ops == NULL) {
        heft__crc_tables_init();
        ops = choose();
        atomic_store_explicit(&current, ops, memory_order_release);
    }
    return ops;
}

heft__cpu_level_t heft__cpu_get_level(void)
{
    return heft__ops()->level;
}

const char *heft__cpu_level_name(heft__cpu_level_t level)
{
    return (int)level >= 0 && (int)level < N_LEVELS ? names[level] : "unknown";
}

bool heft__cpu_use_level(heft__cpu_level_t level)
{
    const heft__kernel_ops_t *ops = find_level((int)level);
    if (ops == NULL) {
        return false;
    }
    heft__crc_tables_init();
    atomic_store_explicit(&current, ops, memory_order_release);
    return true;
}
