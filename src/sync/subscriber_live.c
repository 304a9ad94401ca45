/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live parameters of a destination: where they are, what their digests are, and what the
 * engine itself does to them inside a flip.
 */
#include "sync/subscriber_private.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *heft__subscriber_get_param_name(const heft_subscriber_t *sub, uint32_t i)
{
    heft_tensor_info_t info;
    return heft_manifest_query(sub->manifest, i, &info, NULL) == HEFT_OK ? info.name : "?";
}

bool heft__subscriber_is_flagged(const heft_subscriber_t *sub, uint32_t i)
{
    return sub->destination.params != NULL &&
           (sub->destination.params[i].flags & HEFT_PARAM_RECORDED) != 0;
}

static const char *entry_kind(const heft_subscriber_t *sub, uint32_t entry)
{
    if (entry < sub->n_params) {
        return "parameter";
    }
    return sub->work.inputs.is_gathered[entry - sub->n_params] ? "kernel input" : "loader input";
}

static const char *entry_name(const heft_subscriber_t *sub, uint32_t entry)
{
    return entry < sub->n_params ? heft__subscriber_get_param_name(sub, entry)
                                 : sub->work.inputs.items[entry - sub->n_params].name;
}

heft_status_t heft__subscriber_digest_error(const heft_subscriber_t *sub, uint32_t entry,
                                            const char *where, uint64_t got, uint64_t expected,
                                            heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_DIGEST,
                           "%s \"%.120s\": digest %016llx %s, %016llx expected",
                           entry_kind(sub, entry), entry_name(sub, entry), (unsigned long long)got,
                           where, (unsigned long long)expected);
}

heft_status_t heft__subscriber_hook_error(heft_subscriber_t *sub, const char *name, int64_t version,
                                          heft_error_t *err)
{
    const char *why = sub->hooks.explain != NULL ? sub->hooks.explain(sub->hooks.arg) : NULL;
    char at[40] = "";
    if (version >= 0) {
        (void)snprintf(at, sizeof at, " at version %lld", (long long)version);
    }
    return heft__error_set(err, HEFT_ERR_STATE, "the %s hook failed%s%s%.140s", name, at,
                           why != NULL ? ": " : "", why != NULL ? why : "");
}

/* ---- where they are ---- */

static void *get_data(const heft_subscriber_t *sub, uint32_t i)
{
    const heft__destination_t *d = &sub->destination;
    return d->params != NULL ? d->params[i].data : d->pointers[i];
}

static const int64_t *get_strides(const heft_subscriber_t *sub, uint32_t i)
{
    return sub->destination.params != NULL ? sub->destination.params[i].strides : NULL;
}

static heft_status_t check_flags(const heft_subscriber_t *sub, uint32_t i, heft_error_t *err)
{
    const heft_param_t *params = sub->destination.params;
    if (params != NULL &&
        ((params[i].flags & ~(uint32_t)HEFT_PARAM_RECORDED) != 0 || params[i].reserved != 0)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "flags %x, reserved %u", params[i].flags,
                               params[i].reserved);
    }
    return HEFT_OK;
}

heft_status_t heft__subscriber_make_homes(heft_subscriber_t *sub, heft_error_t *err)
{
    sub->homes = heft__calloc((size_t)sub->n_params + 1, sizeof *sub->homes);
    if (sub->homes == NULL) {
        return heft__error_nomem(err, sub->n_params * sizeof *sub->homes);
    }
    for (uint32_t i = 0; i < sub->n_params; i++) {
        heft_tensor_info_t info;
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = heft_manifest_query(sub->manifest, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        status = check_flags(sub, i, &why);
        if (status == HEFT_OK) {
            status =
                heft__home_init(&info, get_data(sub, i), get_strides(sub, i), &sub->homes[i], &why);
        }
        if (status != HEFT_OK) {
            return heft__error_set(err, status, "subscriber: params[%u], \"%.80s\": %.120s", i,
                                   info.name, why.message);
        }
    }
    return HEFT_OK;
}

/* mincore knows every mapped page and fails for others. */
static bool is_mapped(const void *ptr)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    return mincore((void *)((uintptr_t)ptr / page * page), (size_t)page, &resident) == 0;
}

static heft_status_t check_strides(const heft_subscriber_t *sub, uint32_t i, heft_error_t *err)
{
    const heft__home_t *home = &sub->homes[i];
    const int64_t *now = get_strides(sub, i);
    int64_t plain = 1;
    for (int32_t d = home->shape.rank - 1; d >= 0; d--) {
        const int64_t stride = now != NULL ? now[d] : plain;
        if (stride != home->stride[d] && home->shape.extent[d] > 1) {
            return heft__error_set(err, HEFT_ERR_STATE,
                                   "parameter \"%.120s\": the stride of dimension %d was %lld and "
                                   "is %lld",
                                   heft__subscriber_get_param_name(sub, i), d,
                                   (long long)home->stride[d], (long long)stride);
        }
        plain *= home->shape.extent[d];
    }
    return HEFT_OK;
}

heft_status_t heft__subscriber_check_addresses(heft_subscriber_t *sub, heft_error_t *err)
{
    if (sub->hooks.locate != NULL && sub->hooks.locate(sub->hooks.arg) != 0) {
        return heft__subscriber_hook_error(sub, "locate", -1, err);
    }
    for (uint32_t i = 0; i < sub->n_params; i++) {
        const heft__home_t *home = &sub->homes[i];
        const void *now = get_data(sub, i);
        if (now != home->data) {
            return heft__error_set(err, HEFT_ERR_STATE, "parameter \"%.120s\" moved from %p to %p",
                                   heft__subscriber_get_param_name(sub, i),
                                   (const void *)home->data, now);
        }
        heft_status_t status = home->bytes > 0 ? check_strides(sub, i, err) : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
        if (home->bytes > 0 &&
            (!is_mapped(home->data + home->begin) || !is_mapped(home->data + home->end - 1))) {
            return heft__error_set(err, HEFT_ERR_STATE,
                                   "parameter \"%.120s\" at %p is not mapped any more",
                                   heft__subscriber_get_param_name(sub, i), now);
        }
    }
    return HEFT_OK;
}

/* ---- what they hold ---- */

heft_status_t heft__subscriber_check_live(heft_subscriber_t *sub, const bool *wanted,
                                          const uint64_t *expected, heft_error_t *err)
{
    /* measured for all of them before anything is said: live reports want the whole list */
    heft__digest_homes(sub->homes, wanted, sub->work.masks, sub->n_params, sub->n_threads,
                       sub->measured);
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (wanted[i] && sub->measured[i] != expected[i]) {
            return heft__subscriber_digest_error(sub, i, "is live", sub->measured[i], expected[i],
                                                 err);
        }
    }
    return HEFT_OK;
}

void heft__subscriber_record(heft_subscriber_t *sub)
{
    const bool *is_recorded = sub->work.roles.is_recorded;
    heft__digest_homes(sub->homes, is_recorded, sub->work.masks, sub->n_params, sub->n_threads,
                       sub->measured);
    (void)pthread_mutex_lock(&sub->lock);
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (is_recorded[i]) {
            sub->digests[i] = sub->measured[i];
        }
    }
    (void)pthread_mutex_unlock(&sub->lock);
}

void heft__subscriber_keep_masked(heft_subscriber_t *sub, uint32_t first, uint32_t end,
                                  uint8_t *memory)
{
    const heft__work_t *work = &sub->work;
    for (uint32_t i = first; i < end; i++) {
        const heft__home_t *home = &sub->homes[i];
        const uint8_t *from = home->data;
        if (work->masks[i].n == 0 || work->moved[i] == 0) {
            continue;
        }
        if (home->is_strided) {
            heft__home_read(home, work->scratch);
            from = work->scratch;
        }
        heft__mask_copy(&work->masks[i],
                        memory + (work->layout.offsets[i] - work->layout.offsets[first]), from);
    }
}

/* ---- the engine's loader ---- */

heft_status_t heft__subscriber_keep_cold(heft_subscriber_t *sub, const bool *is_loaded,
                                         heft_error_t *err)
{
    for (uint32_t i = 0; i < sub->n_params; i++) {
        const int64_t bytes = sub->homes[i].bytes;
        if (!is_loaded[i] || sub->cold[i] != NULL || bytes == 0) {
            continue;
        }
        sub->cold[i] = heft__malloc((size_t)bytes);
        if (sub->cold[i] == NULL) {
            return heft__error_nomem(err, (size_t)bytes);
        }
        heft__home_read(&sub->homes[i], sub->cold[i]);
    }
    return HEFT_OK;
}

/* The loader finds what it would find in a new process, whatever the version before was. */
static void restore_cold(heft_subscriber_t *sub)
{
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (sub->work.inputs.is_loaded[i] && sub->cold[i] != NULL) {
            heft__home_write(&sub->homes[i], sub->cold[i], 0, sub->homes[i].bytes);
        }
    }
}

heft_status_t heft__subscriber_load(heft_subscriber_t *sub, int64_t version, heft_error_t *err)
{
    heft__work_t *work = &sub->work;
    if (work->n_load_inputs == 0) {
        return HEFT_OK;
    }
    for (uint32_t k = 0, at = 0; k < work->inputs.n; k++) {
        if (!work->inputs.is_gathered[k]) {
            work->load_inputs[at++].data =
                sub->window->ptr + work->layout.offsets[work->layout.n_params + k];
        }
    }
    restore_cold(sub);
    if (sub->hooks.load(sub->hooks.arg, work->load_inputs, work->n_load_inputs) != 0) {
        return heft__subscriber_hook_error(sub, "load", version, err);
    }
    heft_status_t status = heft__subscriber_check_addresses(sub, err);
    /* what it wrote besides, heft has written as well: both must agree */
    return status == HEFT_OK
               ? heft__subscriber_check_live(sub, work->roles.is_grouped, work->expected, err)
               : status;
}
