/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes by rule: one formula each, for recipes and for adapters. */
#include "heft/sizes.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"

static heft_status_t check_positive(const char *what, int64_t value, heft_error_t *err)
{
    return value > 0 ? HEFT_OK
                     : heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is %lld: at least 1 wanted",
                                       what, (long long)value);
}

heft_status_t heft_padded_size(int64_t size, int64_t lanes, int64_t tp, int64_t *padded_out,
                               heft_error_t *err)
{
    int64_t unit;
    int64_t padded;
    heft_status_t status = check_positive("the size to be padded", size, err);
    if (status == HEFT_OK) {
        status = check_positive("lanes", lanes, err);
    }
    if (status == HEFT_OK) {
        status = check_positive("tp", tp, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (!heft__mul(lanes, tp, &unit) || !heft__mul(unit, 2, &unit) ||
        !heft__add(size, (unit - size % unit) % unit, &padded)) {
        return heft__error_set(err, HEFT_ERR_OVERFLOW,
                               "size %lld in 2 * %lld lanes * %lld shards is beyond 64 bits",
                               (long long)size, (long long)lanes, (long long)tp);
    }
    *padded_out = padded;
    return HEFT_OK;
}

heft_status_t heft_kv_repeat(int64_t kv_heads, int64_t kv_tp, int64_t *factor_out,
                             heft_error_t *err)
{
    heft_status_t status = check_positive("the number of key/value heads", kv_heads, err);
    if (status == HEFT_OK) {
        status = check_positive("kv_tp", kv_tp, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    bool is_repeated = kv_tp > kv_heads;
    if (is_repeated ? kv_tp % kv_heads != 0 : kv_heads % kv_tp != 0) {
        return heft__error_set(
            err, HEFT_ERR_ARGUMENT,
            "%lld key/value heads on kv_tp = %lld ranks: one must divide the other",
            (long long)kv_heads, (long long)kv_tp);
    }
    *factor_out = is_repeated ? kv_tp / kv_heads : 1;
    return HEFT_OK;
}

heft_status_t heft_rollout_tp(const char *key, const int64_t *configured, const char *variable,
                              const char *value, int64_t *tp_out, heft_error_t *err)
{
    long long from_env = 0;
    if (configured != NULL && *configured <= 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%.80s is %lld: at least 1 wanted", key,
                               (long long)*configured);
    }
    if (value != NULL) {
        char *end = NULL;
        errno = 0;
        from_env = strtoll(value, &end, 10);
        bool is_number = value[0] >= '0' && value[0] <= '9' && *end == '\0' && errno == 0;
        if (!is_number || from_env <= 0) {
            return heft__error_set(
                err, HEFT_ERR_ARGUMENT,
                "the environment's %.80s is \"%.40s\": a number, at least 1, wanted", variable,
                value);
        }
    }
    if (configured == NULL && value == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "rollout TP is not known: set %.80s or the environment's %.80s", key,
                               variable);
    }
    if (configured != NULL && value != NULL && *configured != from_env) {
        return heft__error_set(
            err, HEFT_ERR_ARGUMENT,
            "Rollout TP mismatch: %.80s is %lld, the environment's %.80s is %lld", key,
            (long long)*configured, variable, from_env);
    }
    *tp_out = configured != NULL ? *configured : from_env;
    return HEFT_OK;
}
