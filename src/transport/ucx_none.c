/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the ucx transport, in a build without OpenUCX. */
#include "transport/transport.h"

heft_status_t heft__ucx_acquire(const heft__ucx_opts_t *opts, heft__ucx_t **ucx_out,
                                heft_error_t *err)
{
    (void)opts;
    (void)ucx_out;
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                           "ucx: this build of heft has no OpenUCX (libucx-dev was not there)");
}

void heft__ucx_release(heft__ucx_t *ucx)
{
    (void)ucx;
}

heft__transport_t *heft__ucx_get_transport(heft__ucx_t *ucx)
{
    (void)ucx;
    return NULL;
}

bool heft__ucx_is_built(void)
{
    return false;
}

const char *heft__ucx_get_version(void)
{
    return NULL;
}

heft_status_t heft__pair_create(heft__ucx_t *ucx, heft__pair_t **pair_out, heft_error_t *err)
{
    (void)ucx;
    (void)pair_out;
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "this build of heft has no OpenUCX");
}

void heft__pair_destroy(heft__pair_t *pair)
{
    (void)pair;
}

heft__transport_t *heft__pair_get_transport(heft__pair_t *pair)
{
    (void)pair;
    return NULL;
}
