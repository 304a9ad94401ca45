/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination's plan, and what is made of it: what is sent and what the engine's loader writes,
 * the layout of staging, room for digests. All of it is made beside what is there and takes its
 * place at once, so that a failure leaves the old plan usable.
 */
#include "sync/subscriber_private.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "sync/findings.h"

static const int64_t quiet_ns = 2000000000;

/* ---- work ---- */

static void roles_fini(heft__roles_t *roles)
{
    heft__free(roles->is_direct);
    heft__free(roles->is_recorded);
    heft__free(roles->is_grouped);
    heft__free(roles->is_watched);
    heft__free(roles->is_vouched);
    *roles = (heft__roles_t){ .is_direct = NULL };
}

void heft__work_fini(heft__work_t *work)
{
    roles_fini(&work->roles);
    for (uint32_t i = 0; work->masks != NULL && i < work->layout.n_params; i++) {
        heft__mask_fini(&work->masks[i]);
    }
    heft__free(work->masks);
    heft__free(work->scratch);
    heft__free(work->load_inputs);
    heft__free(work->moved);
    heft__free(work->staged);
    heft__free(work->arrived);
    heft__free(work->expected);
    heft_routes_destroy(work->routes);
    heft__kernels_fini(&work->kernels);
    heft__inputs_fini(&work->inputs);
    heft__staging_fini(&work->layout);
    heft_plan_destroy(work->plan);
    heft__sources_fini(&work->sources);
    *work = (heft__work_t){ .plan = NULL };
}

heft__delivery_t heft__work_delivery(const heft__work_t *work)
{
    return (heft__delivery_t){ .routes = work->routes,
                               .inputs = &work->inputs,
                               .layout = &work->layout,
                               .plan = work->plan,
                               .n_sources = work->sources.n };
}

static heft_status_t alloc_work(heft__work_t *work, heft_error_t *err)
{
    const size_t n_params = (size_t)work->layout.n_params + 1;
    const size_t n = (size_t)work->layout.n_entries + 1;
    heft__roles_t *roles = &work->roles;
    roles->is_direct = heft__calloc(n_params, sizeof *roles->is_direct);
    roles->is_recorded = heft__calloc(n_params, sizeof *roles->is_recorded);
    roles->is_grouped = heft__calloc(n_params, sizeof *roles->is_grouped);
    roles->is_watched = heft__calloc(n_params, sizeof *roles->is_watched);
    roles->is_vouched = heft__calloc(n_params, sizeof *roles->is_vouched);
    work->load_inputs = heft__calloc((size_t)work->inputs.n + 1, sizeof *work->load_inputs);
    work->masks = heft__calloc(n, sizeof *work->masks);
    work->moved = heft__calloc(n, sizeof *work->moved);
    work->staged = heft__calloc(n, sizeof *work->staged);
    work->arrived = heft__calloc(n, sizeof *work->arrived);
    work->expected = heft__calloc(n, sizeof *work->expected);
    const bool ok = roles->is_direct != NULL && roles->is_recorded != NULL &&
                    roles->is_grouped != NULL && roles->is_watched != NULL &&
                    roles->is_vouched != NULL && work->load_inputs != NULL && work->masks != NULL &&
                    work->moved != NULL && work->staged != NULL && work->arrived != NULL &&
                    work->expected != NULL;
    return ok ? HEFT_OK : heft__error_nomem(err, n * sizeof *work->arrived);
}

/* What rounds leave alone, and room to gather it where it is strided. */
static heft_status_t make_masks(const heft_subscriber_t *sub, heft__work_t *work, heft_error_t *err)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < sub->n_params; i++) {
        heft_status_t status = heft__mask_init(work->plan, 0, i, &work->masks[i], err);
        if (status != HEFT_OK) {
            return status;
        }
        if (work->masks[i].n > 0 && sub->homes[i].is_strided) {
            most = heft__max_i64(most, sub->homes[i].bytes);
        }
    }
    work->scratch = most > 0 ? heft__malloc((size_t)most) : NULL;
    return most == 0 || work->scratch != NULL ? HEFT_OK : heft__error_nomem(err, (size_t)most);
}

/* ---- what does not fit this engine ---- */

/* "w", "x", "y" and 3 more. */
static void list_loaded(const heft_subscriber_t *sub, const heft__inputs_t *inputs, char *text,
                        size_t size)
{
    enum { MAX_SHOWN = 5 };
    uint32_t n = 0;
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (inputs->is_loaded[i] && n++ < MAX_SHOWN && len < size) {
            len += (size_t)snprintf(text + len, size - len, "%s\"%.40s\"", n > 1 ? ", " : "",
                                    heft__subscriber_get_param_name(sub, i));
        }
    }
    if (n > MAX_SHOWN && len < size) {
        (void)snprintf(text + len, size - len, " and %u more", n - MAX_SHOWN);
    }
}

static heft_status_t check_loader(const heft_subscriber_t *sub, const heft__work_t *work,
                                  heft_error_t *err)
{
    uint32_t param = 0;
    const heft_opaque_t *op = heft__inputs_first(work->plan, 0, &param);
    if (op == NULL || (sub->hooks.load != NULL && !sub->in_place)) {
        return HEFT_OK;
    }
    char names[128];
    list_loaded(sub, &work->inputs, names, sizeof names);
    return heft__error_set(
        err, HEFT_ERR_UNSUPPORTED, "only the engine's loader can write %s (%s): %s", names, op->op,
        sub->in_place ? "in place there is no staging for what it needs" : "there is no load hook");
}

/* The inputs of what is run here need staging. */
static heft_status_t check_kernels(const heft_subscriber_t *sub, const heft__work_t *work,
                                   heft_error_t *err)
{
    uint32_t param = 0;
    uint32_t n = 0;
    if (!sub->in_place || work->kernels.plan == NULL) {
        return HEFT_OK;
    }
    while (param + 1 < sub->n_params && !heft__kernels_write(&work->kernels, param)) {
        param++;
    }
    const char *op = heft_plan_get_opaques(work->kernels.plan, 0, &n)->op;
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                           "parameter \"%.80s\": no source holds all that %.*s needs, and in place "
                           "there is no staging for what several send",
                           heft__subscriber_get_param_name(sub, param), (int)strcspn(op, "("), op);
}

/* Parameters are those of the manifest, in its order. */
static heft_status_t check_params(const heft_subscriber_t *sub, const heft_plan_t *plan,
                                  heft_error_t *err)
{
    const uint32_t n = heft_plan_get_n_params(plan, 0);
    if (n != sub->n_params) {
        return heft__error_set(err, HEFT_ERR_SHAPE, "%u parameters in the plan, %u in the manifest",
                               n, sub->n_params);
    }
    for (uint32_t i = 0; i < n; i++) {
        heft_tensor_info_t info;
        const char *name = heft__subscriber_get_param_name(sub, i);
        heft_status_t status = heft_plan_query_param(plan, 0, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (strcmp(info.name, name) != 0 || info.n_bytes != sub->homes[i].bytes) {
            return heft__error_set(err, HEFT_ERR_SHAPE,
                                   "parameter \"%.80s\": %lld bytes in the plan; \"%.80s\": %lld "
                                   "bytes in the manifest",
                                   info.name, (long long)info.n_bytes, name,
                                   (long long)sub->homes[i].bytes);
        }
    }
    return HEFT_OK;
}

static const heft_exception_t *find_derived(const heft_exception_t *exceptions, uint32_t n,
                                            const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (exceptions[i].kind == HEFT_EXCEPTION_DERIVED &&
            heft_name_matches(exceptions[i].pattern, name)) {
            return &exceptions[i];
        }
    }
    return NULL;
}

/* ---- from a plan to work ---- */

/* What a round does with each parameter. An engine that was registered by a contract must be able
 * to compute what is derived; with a bare recipe that is left to whoever wrote it. */
static heft_status_t assign_roles(const heft_subscriber_t *sub, heft__work_t *work,
                                  const heft_exception_t *exceptions, uint32_t n_exceptions,
                                  heft_error_t *err)
{
    heft__roles_t *roles = &work->roles;
    const heft__inputs_t *inputs = &work->inputs;
    for (uint32_t i = 0; i < sub->n_params; i++) {
        const char *name = heft__subscriber_get_param_name(sub, i);
        const bool is_loaded = inputs->n > 0 && inputs->is_loaded[i];
        uint64_t n_pieces = 0;
        (void)heft_plan_get_param_pieces(work->plan, 0, i, &n_pieces);
        const bool is_derived =
            n_pieces == 0 && find_derived(exceptions, n_exceptions, name) != NULL;
        if (is_derived && sub->destination.contract != NULL && sub->hooks.flipped == NULL) {
            return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                   "parameter \"%.120s\" is derived: without a flipped hook nobody "
                                   "computes it",
                                   name);
        }
        roles->is_direct[i] = n_pieces > 0 && !is_loaded;
        roles->is_recorded[i] = is_loaded || heft__subscriber_is_flagged(sub, i) ||
                                (is_derived && sub->hooks.flipped != NULL);
        roles->is_grouped[i] = inputs->n > 0 && inputs->is_grouped[i];
        roles->is_watched[i] = roles->is_direct[i] || roles->is_recorded[i];
        roles->is_vouched[i] = roles->is_recorded[i] || heft__kernels_write(&work->kernels, i);
        work->moved[i] = roles->is_direct[i] ? work->layout.sizes[i] : 0;
    }
    for (uint32_t i = work->layout.n_params; i < work->layout.n_entries; i++) {
        work->moved[i] = work->layout.sizes[i];
    }
    return HEFT_OK;
}

/* What is sent here, and what is run here. */
static heft_status_t make_delivery(const heft_subscriber_t *sub, heft__gathered_t *gathered,
                                   heft__work_t *work, heft_error_t *err)
{
    heft_status_t status = heft__inputs_init(work->plan, 0, &work->sources, gathered,
                                             HEFT__ALL_SOURCES, &work->inputs, err);
    if (status == HEFT_OK) {
        status = check_loader(sub, work, err);
    }
    if (status == HEFT_OK) {
        status = heft__staging_init_plan(work->plan, 0, &work->inputs, &work->layout, err);
    }
    if (status == HEFT_OK) {
        status = heft__delivery_route(work->plan, &work->sources, &work->inputs, false,
                                      &work->routes, err);
    }
    if (status == HEFT_OK) {
        status = heft__kernels_init(gathered, work->plan, work->routes, &work->kernels, err);
    }
    return status == HEFT_OK ? check_kernels(sub, work, err) : status;
}

static heft_status_t fill_work(const heft_subscriber_t *sub, heft__gathered_t *gathered,
                               const heft_exception_t *exceptions, uint32_t n_exceptions,
                               heft__work_t *work, heft_error_t *err)
{
    heft_status_t status = check_params(sub, work->plan, err);
    if (status == HEFT_OK) {
        status = make_delivery(sub, gathered, work, err);
    }
    if (status == HEFT_OK) {
        status = alloc_work(work, err);
    }
    if (status == HEFT_OK) {
        for (uint32_t k = 0; k < work->inputs.n; k++) {
            if (!work->inputs.is_gathered[k]) {
                work->load_inputs[work->n_load_inputs++] = work->inputs.items[k];
            }
        }
        status = assign_roles(sub, work, exceptions, n_exceptions, err);
    }
    return status == HEFT_OK ? make_masks(sub, work, err) : status;
}

static heft_status_t prove(const heft_subscriber_t *sub, const heft_tape_t *tape,
                           const heft_exception_t *exceptions, uint32_t n_exceptions,
                           heft__problems_t *problems, heft_plan_t **plan_out, heft_error_t *err)
{
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_report_t *report = NULL;
    const heft_tape_t *const tapes[1] = { tape };
    opts.exceptions = exceptions;
    opts.n_exceptions = n_exceptions;
    opts.partial = 1;
    heft_status_t status = heft_plan_create(tapes, 1, sub->rank, &opts, plan_out, &report, err);
    if (status == HEFT_ERR_PROOF) {
        heft__problems_add_report(problems, report);
    }
    heft__report_log_warnings(report, "subscriber", heft__mapping_get_name(&sub->mapping));
    heft_report_destroy(report);
    return status;
}

/* Kernels of which no source holds all inputs. Their pieces are repeated as they are over whole
 * tensors, which both ends know. */
static heft_status_t gather(const heft_subscriber_t *sub, const heft__work_t *work,
                            const heft_tape_t *placed, const heft_exception_t *exceptions,
                            uint32_t n_exceptions, heft__gathered_t *gathered_out,
                            heft_error_t *err)
{
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_t *whole = NULL;
    uint32_t n_ops = 0;
    (void)heft_plan_get_opaques(work->plan, 0, &n_ops);
    if (work->sources.placement == NULL || n_ops == 0) {
        return HEFT_OK;
    }
    const heft_tape_t *const tapes[1] = { heft__tape_get_unplaced(placed) };
    opts.exceptions = exceptions;
    opts.n_exceptions = n_exceptions;
    opts.partial = 1;
    heft_status_t status = heft_plan_create(tapes, 1, sub->rank, &opts, &whole, NULL, err);
    if (status == HEFT_OK) {
        status = heft__gathered_init(whole, 0, work->sources.placement, gathered_out, err);
    }
    heft_plan_destroy(whole);
    return status;
}

/* The tape of this rank over what the sources hold, to be released. */
static heft_status_t make_tape(const heft_subscriber_t *sub, const heft__sources_t *sources,
                               heft__problems_t *problems, const heft_tape_t **tape_out,
                               heft_error_t *err)
{
    const uint32_t i = sub->rank - sub->mapping.first_rank;
    heft__compiler_t *compiler = NULL;
    heft_status_t status = heft__mapping_open(&sub->mapping, sources, &compiler, err);
    if (status == HEFT_OK) {
        status = heft__mapping_compile(&sub->mapping, compiler, i, sources, sub->manifest, false,
                                       NULL, problems, tape_out, err);
    }
    heft__compiler_destroy(compiler);
    return status == HEFT_OK && sources->placement != NULL
               ? heft__mapping_place(&sub->mapping, sources, true, NULL, problems, tape_out, err)
               : status;
}

/* For work->sources. */
static heft_status_t make_work(const heft_subscriber_t *sub, heft__problems_t *problems,
                               heft__work_t *work, heft_error_t *err)
{
    const heft__sources_t *sources = &work->sources;
    const heft_tape_t *tape = NULL;
    heft_exception_t *exceptions = NULL;
    heft__gathered_t gathered = { .n_ops = 0 };
    uint32_t n_exceptions = 0;
    heft_status_t status = make_tape(sub, sources, problems, &tape, err);
    if (status == HEFT_OK) {
        status = heft__mapping_resolve(&sub->mapping, sources->whole, sub->manifest, &exceptions,
                                       &n_exceptions, err);
    }
    if (status == HEFT_OK) {
        status = prove(sub, tape, exceptions, n_exceptions, problems, &work->plan, err);
    }
    if (status == HEFT_OK) {
        status = gather(sub, work, tape, exceptions, n_exceptions, &gathered, err);
    }
    if (status == HEFT_OK) {
        char placed[HEFT__DIGEST_SIZE];
        heft__sources_digest(sources, placed);
        heft__sources_digest_plan(work->plan, 0, placed, work->digest);
        status = fill_work(sub, &gathered, exceptions, n_exceptions, work, err);
    }
    heft__gathered_fini(&gathered);
    heft_exceptions_free(exceptions);
    heft__mapping_release(&sub->mapping, tape);
    return status;
}

/* ---- staging for it ---- */

static int64_t window_bytes(const heft_subscriber_t *sub, const heft__staging_t *layout)
{
    return sub->in_place ? heft__staging_buffer_bytes(layout, sub->buffer_bytes) : layout->bytes;
}

/* A larger window in place of the old one: nobody writes to that any more, it is given back, and
 * only then is memory asked for. Without success the old size comes back. */
static heft_status_t regrow(heft_subscriber_t *sub, const heft__staging_t *layout,
                            heft_error_t *err)
{
    bool replaced = false;
    heft_status_t status = HEFT_OK;
    if (sub->window != NULL) {
        status = heft__window_fence(sub->window, heft__clock_mono_ns() + quiet_ns, &replaced, err);
        if (status != HEFT_OK && status != HEFT_ERR_NOSPACE) {
            return status;
        }
        heft__window_destroy(sub->window);
        sub->window = NULL;
    }
    status = heft__subscriber_create_window(sub, layout, err);
    if (status != HEFT_OK &&
        heft__subscriber_create_window(sub, &sub->work.layout, NULL) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "subscriber", "%s: no memory for staging",
                  heft__member_get_id(sub->member));
    }
    return status;
}

heft_status_t heft__subscriber_provide_staging(heft_subscriber_t *sub,
                                               const heft__staging_t *layout, bool *moved_out,
                                               heft_error_t *err)
{
    if (sub->window == NULL || sub->window->bytes < window_bytes(sub, layout)) {
        *moved_out = true; /* also when it fails: the old size has a new place */
        return regrow(sub, layout, err);
    }
    if (sub->window->ptr != NULL) {
        return HEFT_OK;
    }
    /* a fence that found no memory left the window without any: try again before it is needed */
    return heft__window_fence(sub->window, heft__clock_mono_ns() + quiet_ns, moved_out, err);
}

/* ---- the sources of a round ---- */

/* Work for work->sources, and memory for it. */
static heft_status_t prepare_work(heft_subscriber_t *sub, heft__problems_t *problems,
                                  heft__work_t *work, bool *moved_out, heft_error_t *err)
{
    heft_status_t status = make_work(sub, problems, work, err);
    if (status == HEFT_OK && work->inputs.n > 0) {
        status = heft__subscriber_keep_cold(sub, work->inputs.is_loaded, err);
    }
    return status == HEFT_OK ? heft__subscriber_provide_staging(sub, &work->layout, moved_out, err)
                             : status;
}

/* Where what is sent here was dealt out for: this host; where another destination feeds this one,
 * the host of that one, because its parameters came by its plan. */
static const char *host_of_writer(const heft_subscriber_t *sub, const heft__order_t *order)
{
    return heft__subscriber_is_fed_by(order) ? order->peers[0].host
                                             : heft__member_get_host(sub->member);
}

heft_status_t heft__subscriber_plan(heft_subscriber_t *sub, const heft__order_t *order,
                                    heft__problems_t *problems, bool *moved_out, heft_error_t *err)
{
    if (order->sources[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "an order of preflight without sources");
    }
    const char *host = host_of_writer(sub, order);
    if (sub->work.plan != NULL && strcmp(sub->work.sources.digest, order->sources) == 0 &&
        strcmp(sub->work.sources.faced, heft__sources_near(&sub->work.sources, host)) == 0) {
        return heft__subscriber_provide_staging(sub, &sub->work.layout, moved_out, err);
    }
    heft__work_t work = { .plan = NULL };
    heft_status_t status = heft__sources_load(sub->member, order->sources, &work.sources, err);
    if (status == HEFT_OK) {
        status = heft__sources_face(&work.sources, host, err);
    }
    if (status == HEFT_OK) {
        status = prepare_work(sub, problems, &work, moved_out, err);
    }
    if (status != HEFT_OK) {
        heft__work_fini(&work);
        return status;
    }
    heft__work_fini(&sub->work);
    sub->work = work;
    return heft__subscriber_offer(sub, &sub->work.sources, err);
}

/* ---- a contract, at creation ---- */

/* What the engine holds is what the contract was made for. */
static heft_status_t check_destination(const heft_subscriber_t *sub, heft_error_t *err)
{
    const heft_manifest_t *declared = heft_contract_get_destination(
        sub->destination.contract, sub->rank - sub->mapping.first_rank);
    heft_drift_t *drift = NULL;
    if (declared == NULL || declared == sub->manifest) {
        return HEFT_OK;
    }
    heft_status_t status = heft_drift_create(declared, sub->manifest, &drift, err);
    if (status != HEFT_OK) {
        return status;
    }
    const uint32_t n = heft_drift_get_n(drift);
    if (n > 0) {
        status = heft__error_set(
            err, HEFT_ERR_MISMATCH, "rank %u is not what the contract was made for: %.150s%s",
            sub->rank, heft_drift_get(drift, 0)->text, n > 1 ? ", and more" : "");
    }
    heft_drift_destroy(drift);
    return status;
}

heft_status_t heft__subscriber_plan_contract(heft_subscriber_t *sub, heft_error_t *err)
{
    const heft_manifest_t *source = heft_contract_get_manifest(sub->destination.contract);
    heft__problems_t problems = { 0 };
    heft__work_t work = { .plan = NULL };
    heft_status_t status = check_destination(sub, err);
    if (status == HEFT_OK) { /* the usual one; others make another plan of it in preflight */
        status = heft__sources_init_one(source, &work.sources, err);
    }
    if (status == HEFT_OK) {
        status = make_work(sub, &problems, &work, err);
    }
    if (status == HEFT_OK && work.inputs.n > 0) {
        status = heft__subscriber_keep_cold(sub, work.inputs.is_loaded, err);
    }
    heft__problems_fini(&problems);
    if (status != HEFT_OK) {
        heft__work_fini(&work);
        return status;
    }
    sub->work = work;
    return HEFT_OK;
}

/* ---- another layout, by a recipe ---- */

heft_status_t heft__subscriber_plan_again(heft_subscriber_t *next, const heft__sources_t *sources,
                                          heft_error_t *err)
{
    heft__problems_t problems = { 0 };
    heft__work_t work = { .sources = *sources };
    heft_status_t status = make_work(next, &problems, &work, err);
    if (status == HEFT_OK && work.inputs.n > 0) {
        status = heft__subscriber_keep_cold(next, work.inputs.is_loaded, err);
    }
    heft__problems_fini(&problems);
    if (status != HEFT_OK) {
        heft__subscriber_lend_sources(&work);
        heft__work_fini(&work);
        return status;
    }
    heft__work_fini(&next->work);
    next->work = work;
    return HEFT_OK;
}

void heft__subscriber_lend_sources(heft__work_t *work)
{
    work->sources = (heft__sources_t){ .n = 0 };
}
