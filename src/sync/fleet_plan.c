/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From peers to plans: read contracts, group them into families, compile every rank of a family
 * against the source manifest and the destination manifests that are there, prove the whole.
 */
#include "sync/fleet.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "sync/findings.h"
#include "sync/mapping.h"

/* One that cannot be kept for want of memory is left out: the status says that it failed. */
#define ADD_PROBLEM(problems, kind, ...) \
    (void)!heft__problems_add((problems), (kind), NULL, __VA_ARGS__)

static void reads_fini(heft__reads_t *reads)
{
    heft__free(reads->own);
    heft__free(reads->data);
    *reads = (heft__reads_t){ .n = 0 };
}

static void rank_fini(heft__family_t *family, uint32_t r)
{
    if (family->gathered != NULL) {
        heft__gathered_fini(&family->gathered[r]);
    }
    if (family->inputs != NULL) {
        heft__inputs_fini(&family->inputs[r]);
    }
    if (family->input_reads != NULL) {
        reads_fini(&family->input_reads[r]);
    }
    if (family->layouts != NULL) {
        heft__staging_fini(&family->layouts[r]);
    }
    if (family->packings != NULL) {
        heft__packing_fini(&family->packings[r]);
    }
    if (family->digests != NULL) {
        heft__free(family->digests[r]);
    }
    if (family->directs != NULL) {
        heft__direct_fini(&family->directs[r]);
    }
    if (family->bounces != NULL) {
        heft__free(family->bounces[r]);
    }
}

void heft__family_fini(heft__family_t *family)
{
    heft__family_clear_targets(family);
    heft_routes_destroy(family->routes);
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        rank_fini(family, r);
    }
    reads_fini(&family->reads);
    heft__free(family->tables);
    heft__free(family->plan_digests);
    heft__free(family->gathered);
    heft__free(family->inputs);
    heft__free(family->input_reads);
    heft__free(family->input_execs);
    heft__free(family->layouts);
    heft__free(family->deliveries);
    heft__free(family->packings);
    heft__free(family->digests);
    heft__free(family->directs);
    heft__free(family->bounces);
    heft_plan_destroy(family->plan);
    *family = (heft__family_t){ .n_ranks = 0 };
}

/* ---- contracts ---- */

static const heft__link_t *find_contract(const heft__link_t *links, uint32_t n, const char *digest)
{
    for (uint32_t i = 0; i < n; i++) {
        if (links[i].family_digest[0] != '\0' && strcmp(links[i].contract, digest) == 0) {
            return &links[i];
        }
    }
    return NULL;
}

static heft_status_t fetch_contract(heft__fleet_t *fleet, const char *digest,
                                    heft__contract_t *contract_out, heft_error_t *err)
{
    char *text = NULL;
    size_t n = 0;
    heft_status_t status = heft__member_get_object(fleet->member, digest, &text, &n, err);
    if (status == HEFT_OK) {
        status = heft__contract_decode(text, n, contract_out, err);
        heft__free(text);
    }
    return status;
}

/* Rank and family of a link, from one with the same contract where there is one. */
static heft_status_t read_contract(heft__fleet_t *fleet, const heft__fleet_t *old, uint32_t i,
                                   heft_error_t *err)
{
    heft__link_t *link = &fleet->links[i];
    const heft__link_t *same = find_contract(fleet->links, i, link->contract);
    if (same == NULL) {
        same = find_contract(old->links, old->n_links, link->contract);
    }
    if (same != NULL) {
        memcpy(link->family_digest, same->family_digest, sizeof link->family_digest);
        link->rank = same->rank;
        link->first_rank = same->first_rank;
        link->n_ranks = same->n_ranks;
        return HEFT_OK;
    }
    heft__contract_t contract = { .rank = 0 };
    heft_status_t status = fetch_contract(fleet, link->contract, &contract, err);
    if (status == HEFT_OK) {
        memcpy(link->family_digest, contract.family, sizeof link->family_digest);
        link->rank = contract.rank - contract.first_rank;
        link->first_rank = contract.first_rank;
        link->n_ranks = contract.ranks;
    }
    heft__contract_fini(&contract);
    return status;
}

/* ---- one family ---- */

/* The link whose manifest stands for a rank; NULL: nobody holds it. */
static const heft__link_t *link_of_rank(const heft__fleet_t *fleet, uint32_t family, uint32_t rank)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        if (fleet->links[i].family == family && fleet->links[i].rank == rank) {
            return &fleet->links[i];
        }
    }
    return NULL;
}

static bool has_in_place(const heft__fleet_t *fleet, uint32_t f)
{
    bool has = false;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        has = has || (fleet->links[i].family == f && fleet->links[i].in_place);
    }
    return has;
}

static void make_key(const heft__fleet_t *fleet, uint32_t f)
{
    heft__family_t *family = &fleet->families[f];
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, family->digest);
    heft__sha256_update_text(&sha, fleet->sources.digest);
    heft__sha256_update_text(&sha, family->host);
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        const heft__link_t *link = link_of_rank(fleet, f, r);
        heft__sha256_update_text(&sha, link != NULL ? link->manifest : "");
    }
    heft__sha256_update_u64(&sha, has_in_place(fleet, f)); /* planned otherwise */
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, family->key);
}

/* Replicas of a rank must agree on what that rank holds. */
static heft_status_t check_replicas(const heft__fleet_t *fleet, heft__problems_t *problems,
                                    heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        const heft__link_t *first = link_of_rank(fleet, link->family, link->rank);
        if (first != NULL && strcmp(first->manifest, link->manifest) != 0) {
            status = heft__error_set(err, HEFT_ERR_SHAPE,
                                     "%s and %s hold one rank and declare different manifests",
                                     first->id, link->id);
            ADD_PROBLEM(problems, HEFT__PROBLEM_MANIFEST,
                        "%s and %s hold one rank and declare different manifests", first->id,
                        link->id);
        }
    }
    return status;
}

/* NULL without a link: what the rank holds is then what the recipe makes. */
static heft_status_t fetch_manifest(heft__fleet_t *fleet, const heft__link_t *link,
                                    heft_manifest_t **manifest_out, heft_error_t *err)
{
    char *text = NULL;
    size_t n = 0;
    if (link == NULL) {
        return HEFT_OK;
    }
    heft_status_t status = heft__member_get_object(fleet->member, link->manifest, &text, &n, err);
    if (status == HEFT_OK) {
        status = heft_manifest_decode(text, n, manifest_out, err);
        heft__free(text);
    }
    return status;
}

/* A family being planned. */
typedef struct planning {
    heft__fleet_t *fleet;
    uint32_t f;
    heft__mapping_t mapping;
    heft__compiler_t *compiler; /* NULL: traced */
    const heft_tape_t **tapes;  /* of each rank, over whole tensors */
    heft_exception_t *exceptions;
    heft_plan_opts_t opts;
    heft__problems_t *problems;
} planning_t;

static heft__family_t *family_of(const planning_t *p)
{
    return &p->fleet->families[p->f];
}

static void planning_fini(planning_t *p)
{
    for (uint32_t r = 0; p->tapes != NULL && r < family_of(p)->n_ranks; r++) {
        heft__mapping_release(&p->mapping, p->tapes[r]);
    }
    heft__free(p->tapes);
    heft_exceptions_free(p->exceptions);
    heft__compiler_destroy(p->compiler);
    heft__mapping_fini(&p->mapping);
}

/* Sources that nothing reads need to be seen once, by the proof: on the tape of rank 0. */
static heft_status_t compile_rank(planning_t *p, uint32_t rank, const heft__link_t *link,
                                  heft_error_t *err)
{
    heft_manifest_t *manifest = NULL;
    const char *id = link != NULL ? link->id : NULL;
    heft_status_t status = fetch_manifest(p->fleet, link, &manifest, err);
    if (status != HEFT_OK) {
        ADD_PROBLEM(p->problems, heft__problem_kind_of(status), "%s: %s", id != NULL ? id : "",
                    err->message);
        return status;
    }
    if (link != NULL) {
        heft__family_note_table(family_of(p), rank, manifest);
    }
    status = heft__mapping_compile(&p->mapping, p->compiler, rank, &family_of(p)->from, manifest,
                                   rank > 0, id, p->problems, &p->tapes[rank], err);
    heft_manifest_destroy(manifest);
    return status;
}

/* Compile every rank, so that one reply names the problems of all of them. */
static heft_status_t compile_ranks(planning_t *p, heft_error_t *err)
{
    heft_status_t first = HEFT_OK;
    for (uint32_t r = 0; r < family_of(p)->n_ranks; r++) {
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = compile_rank(p, r, link_of_rank(p->fleet, p->f, r), &why);
        if (status != HEFT_OK && first == HEFT_OK) {
            first = status;
            if (err != NULL) {
                *err = why;
            }
        }
    }
    return first;
}

static heft_status_t resolve(planning_t *p, heft_error_t *err)
{
    heft_manifest_t *manifest = NULL;
    const heft__link_t *link = p->fleet->links;
    while (link->family != p->f) {
        link++; /* any rank: exceptions speak of names, which all ranks share */
    }
    heft_status_t status = fetch_manifest(p->fleet, link, &manifest, err);
    if (status == HEFT_OK) {
        status = heft__mapping_resolve(&p->mapping, family_of(p)->from.whole, manifest,
                                       &p->exceptions, &p->opts.n_exceptions, err);
    }
    p->opts.exceptions = p->exceptions;
    p->opts.partial = p->mapping.is_partial;
    heft_manifest_destroy(manifest);
    return status;
}

/* Prove all ranks, as their tapes are. */
static heft_status_t prove(planning_t *p, heft_plan_t **plan_out, heft_error_t *err)
{
    heft_report_t *report = NULL;
    heft_status_t status = heft_plan_create(p->tapes, family_of(p)->n_ranks, p->mapping.first_rank,
                                            &p->opts, plan_out, &report, err);
    if (status == HEFT_ERR_PROOF) {
        heft__problems_add_report(p->problems, report);
    } else if (status != HEFT_OK && err != NULL) {
        ADD_PROBLEM(p->problems, heft__problem_kind_of(status), "%s", err->message);
    }
    heft__report_log_warnings(report, "fleet", heft__mapping_get_name(&p->mapping));
    heft_report_destroy(report);
    return status;
}

/* ---- this source's part ---- */

/* In place every source must know its place among all senders, and what the engine's own loader is
 * given hangs together over all of a rank. */
static bool is_whole_needed(const planning_t *p, const heft_plan_t *whole)
{
    uint32_t param;
    bool is_needed = has_in_place(p->fleet, p->f);
    for (uint32_t r = 0; r < family_of(p)->n_ranks && !is_needed; r++) {
        is_needed = heft__inputs_first(whole, r, &param) != NULL;
    }
    return is_needed;
}

static heft_status_t plan_part(const planning_t *p, heft_error_t *err)
{
    heft__family_t *family = family_of(p);
    heft_tape_t **parts = heft__calloc(family->n_ranks, sizeof(heft_tape_t *));
    heft_status_t status =
        parts != NULL ? HEFT_OK : heft__error_nomem(err, family->n_ranks * sizeof(heft_tape_t *));
    for (uint32_t r = 0; r < family->n_ranks && status == HEFT_OK; r++) {
        status = heft_placement_apply_part(family_of(p)->from.placement, p->fleet->number,
                                           p->tapes[r], &parts[r], err);
    }
    if (status == HEFT_OK) {
        status = heft_plan_create_part((const heft_tape_t *const *)parts, family->n_ranks,
                                       p->mapping.first_rank, &p->opts, &family->plan, err);
    }
    for (uint32_t r = 0; parts != NULL && r < family->n_ranks; r++) {
        heft_tape_destroy(parts[r]);
    }
    heft__free(parts);
    return status;
}

static heft_status_t plan_placed(planning_t *p, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < family_of(p)->n_ranks && status == HEFT_OK; r++) {
        const heft__link_t *link = link_of_rank(p->fleet, p->f, r);
        status =
            heft__mapping_place(&p->mapping, &family_of(p)->from, false,
                                link != NULL ? link->id : NULL, p->problems, &p->tapes[r], err);
    }
    return status == HEFT_OK ? prove(p, &family_of(p)->plan, err) : status;
}

/* From the plan over whole tensors, which proves the ranks, to one over what sources hold. What
 * cannot be planned by parts (checks of a later recipe of a chain, thousands of boxes of a tensor
 * on one source) is planned as a whole. */
static heft_status_t plan_sources(planning_t *p, const heft_plan_t *whole, heft_error_t *err)
{
    heft__family_t *family = family_of(p);
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = is_whole_needed(p, whole) ? HEFT_ERR_UNSUPPORTED : plan_part(p, &why);
    family->is_part = status == HEFT_OK;
    if (status == HEFT_ERR_UNSUPPORTED || status == HEFT_ERR_LIMIT) {
        return plan_placed(p, err);
    }
    if (status != HEFT_OK) {
        ADD_PROBLEM(p->problems, heft__problem_kind_of(status), "%s", why.message);
        if (err != NULL) {
            *err = why;
        }
    }
    return status;
}

static heft_status_t digest_ranks(const planning_t *p, const heft_plan_t *whole, heft_error_t *err)
{
    heft__family_t *family = family_of(p);
    family->plan_digests = heft__calloc(family->n_ranks, sizeof *family->plan_digests);
    if (family->plan_digests == NULL) {
        return heft__error_nomem(err, family->n_ranks * sizeof *family->plan_digests);
    }
    char placed[HEFT__DIGEST_SIZE];
    heft__sources_digest(&family->from, placed);
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        heft__sources_digest_plan(whole, r, placed, family->plan_digests[r]);
    }
    return HEFT_OK;
}

static heft_status_t gather_ranks(const planning_t *p, const heft_plan_t *whole, heft_error_t *err)
{
    heft__family_t *family = family_of(p);
    heft_status_t status = HEFT_OK;
    family->gathered = heft__calloc(family->n_ranks, sizeof *family->gathered);
    if (family->gathered == NULL) {
        return heft__error_nomem(err, family->n_ranks * sizeof *family->gathered);
    }
    for (uint32_t r = 0; r < family->n_ranks && family->from.placement != NULL && status == HEFT_OK;
         r++) {
        status = heft__gathered_init(whole, r, family->from.placement, &family->gathered[r], err);
    }
    return status;
}

static heft_status_t plan_family(planning_t *p, heft_error_t *err)
{
    heft_plan_t *whole = NULL;
    heft_status_t status = prove(p, &whole, err);
    if (status == HEFT_OK) {
        status = digest_ranks(p, whole, err);
    }
    if (status == HEFT_OK) {
        status = gather_ranks(p, whole, err);
    }
    if (status == HEFT_OK && family_of(p)->from.placement == NULL) {
        family_of(p)->plan = whole;
        p->fleet->n_compiled++;
        return HEFT_OK;
    }
    if (status == HEFT_OK) {
        status = plan_sources(p, whole, err);
    }
    p->fleet->n_compiled += status == HEFT_OK;
    heft_plan_destroy(whole);
    return status;
}

static heft_status_t read_mapping(heft__fleet_t *fleet, const heft__contract_t *contract,
                                  heft__mapping_t *mapping_out, heft_error_t *err)
{
    char *text = NULL;
    size_t n = 0;
    heft_status_t status = HEFT_OK;
    if (contract->mapping != NULL) {
        status = heft__member_get_object(fleet->member, contract->mapping, &text, &n, err);
    }
    if (status == HEFT_OK) {
        status = heft__mapping_from_wire(contract, text, n, mapping_out, err);
    }
    heft__free(text);
    return status;
}

static heft_status_t open_planning(planning_t *p, const heft__contract_t *contract,
                                   heft_error_t *err)
{
    heft__family_t *family = family_of(p);
    p->tapes = heft__calloc(family->n_ranks, sizeof *p->tapes);
    family->tables = heft__calloc(family->n_ranks, sizeof *family->tables);
    if (p->tapes == NULL || family->tables == NULL) {
        return heft__error_nomem(err, family->n_ranks * sizeof *family->tables);
    }
    heft_status_t status = read_mapping(p->fleet, contract, &p->mapping, err);
    return status == HEFT_OK
               ? heft__mapping_open(&p->mapping, &family_of(p)->from, &p->compiler, err)
               : status;
}

static heft_status_t make_plan(heft__fleet_t *fleet, uint32_t f, const heft__contract_t *contract,
                               heft__problems_t *problems, heft_error_t *err)
{
    planning_t p = { .fleet = fleet, .f = f, .opts = HEFT_PLAN_OPTS_INIT, .problems = problems };
    heft_status_t status = open_planning(&p, contract, err);
    if (status != HEFT_OK && err != NULL) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_MANIFEST, "%s", err->message);
    }
    if (status == HEFT_OK) {
        status = compile_ranks(&p, err);
    }
    if (status == HEFT_OK) {
        status = resolve(&p, err);
    }
    if (status == HEFT_OK) {
        status = plan_family(&p, err);
    }
    planning_fini(&p);
    return status;
}

/* Which of a plan's sources are this source's. */
static heft_status_t make_reads(const heft__fleet_t *fleet, const heft_plan_t *plan,
                                heft__reads_t *reads, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_status_t status = HEFT_OK;
    heft_plan_query(plan, &info);
    reads->n = info.n_sources;
    reads->own = heft__calloc((size_t)reads->n + 1, sizeof *reads->own);
    reads->data = heft__calloc((size_t)reads->n + 1, sizeof *reads->data);
    if (reads->own == NULL || reads->data == NULL) {
        return heft__error_nomem(err, reads->n * sizeof *reads->data);
    }
    for (uint32_t s = 0; s < reads->n && status == HEFT_OK; s++) {
        heft_tensor_info_t tensor;
        uint32_t sender = UINT32_MAX;
        uint32_t entry = UINT32_MAX;
        status = heft_plan_query_source(plan, s, &tensor, err);
        if (status == HEFT_OK && !heft__sources_is_stand_in(&fleet->sources, tensor.name)) {
            status = heft__sources_locate(&fleet->sources, tensor.name, &sender, &entry, err);
        }
        reads->own[s] = sender == fleet->number ? entry : UINT32_MAX;
    }
    return status;
}

static heft_status_t alloc_ranks(heft__family_t *family, heft_error_t *err)
{
    const size_t n = family->n_ranks;
    family->inputs = heft__calloc(n, sizeof *family->inputs);
    family->input_reads = heft__calloc(n, sizeof *family->input_reads);
    family->input_execs = heft__calloc(n, sizeof(heft_exec_t *));
    family->layouts = heft__calloc(n, sizeof *family->layouts);
    family->deliveries = heft__calloc(n, sizeof *family->deliveries);
    family->packings = heft__calloc(n, sizeof *family->packings);
    family->digests = heft__calloc(n, sizeof *family->digests);
    family->directs = heft__calloc(n, sizeof *family->directs);
    family->bounces = heft__calloc(n, sizeof *family->bounces);
    return family->inputs != NULL && family->input_reads != NULL && family->input_execs != NULL &&
                   family->layouts != NULL && family->deliveries != NULL &&
                   family->packings != NULL && family->digests != NULL && family->directs != NULL &&
                   family->bounces != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n * sizeof *family->layouts);
}

static heft_status_t make_rank(const heft__fleet_t *fleet, heft__family_t *family, uint32_t r,
                               heft_error_t *err)
{
    heft__inputs_t *inputs = &family->inputs[r];
    heft_status_t status =
        heft__inputs_init(family->plan, r, &family->from, &family->gathered[r],
                          family->is_part ? fleet->number : HEFT__ALL_SOURCES, inputs, err);
    heft__gathered_fini(&family->gathered[r]);
    if (status == HEFT_OK && inputs->n > 0) {
        status = make_reads(fleet, inputs->plan, &family->input_reads[r], err);
    }
    if (status == HEFT_OK) {
        status = heft__staging_init_plan(family->plan, r, inputs, &family->layouts[r], err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    size_t n = family->layouts[r].n_entries > 0 ? family->layouts[r].n_entries : 1;
    family->digests[r] = heft__calloc(n, sizeof *family->digests[r]);
    return family->digests[r] != NULL ? HEFT_OK
                                      : heft__error_nomem(err, n * sizeof *family->digests[r]);
}

static heft_status_t make_layouts(heft__fleet_t *fleet, heft__family_t *family,
                                  heft__problems_t *problems, heft_error_t *err)
{
    heft_status_t status = alloc_ranks(family, err);
    if (status == HEFT_OK) {
        status = make_reads(fleet, family->plan, &family->reads, err);
    }
    heft_error_t why = HEFT_ERROR_INIT;
    for (uint32_t r = 0; r < family->n_ranks && status == HEFT_OK; r++) {
        status = make_rank(fleet, family, r, &why);
        if (status != HEFT_OK) {
            ADD_PROBLEM(problems, heft__problem_kind_of(status), "%s", why.message);
            if (err != NULL) {
                *err = why;
            }
        }
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__delivery_route(family->plan, &family->from, family->inputs, family->is_part,
                                  &family->routes, &why);
    if (status != HEFT_OK) {
        ADD_PROBLEM(problems, heft__problem_kind_of(status), "%s", why.message);
        if (err != NULL) {
            *err = why;
        }
        return status;
    }
    for (uint32_t r = 0; r < family->n_ranks; r++) {
        family->deliveries[r] = (heft__delivery_t){ .routes = family->routes,
                                                    .inputs = &family->inputs[r],
                                                    .layout = &family->layouts[r],
                                                    .rank_index = r,
                                                    .n_sources = fleet->sources.n };
    }
    return HEFT_OK;
}

static heft_status_t make_family(heft__fleet_t *fleet, uint32_t f, heft__problems_t *problems,
                                 heft_error_t *err)
{
    heft__contract_t contract = { .rank = 0 };
    heft__family_t *family = &fleet->families[f];
    const heft__link_t *link = fleet->links;
    while (link->family != f) {
        link++; /* a family is made for a link */
    }
    heft_status_t status = heft__sources_toward(&fleet->sources, family->host, &family->from, err);
    if (status == HEFT_OK) {
        status = fetch_contract(fleet, link->contract, &contract, err);
    }
    if (status == HEFT_OK) {
        status = make_plan(fleet, f, &contract, problems, err);
    } else if (err != NULL) {
        ADD_PROBLEM(problems, HEFT__PROBLEM_MANIFEST, "%s: %s", link->id, err->message);
    }
    heft__contract_fini(&contract);
    if (status == HEFT_OK) {
        status = make_layouts(fleet, &fleet->families[f], problems, err);
    }
    return status;
}

/* ---- all families ---- */

static heft_status_t group_links(heft__fleet_t *fleet, heft_error_t *err)
{
    fleet->families = heft__calloc(fleet->n_links, sizeof *fleet->families);
    if (fleet->families == NULL) {
        return heft__error_nomem(err, fleet->n_links * sizeof *fleet->families);
    }
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        heft__link_t *link = &fleet->links[i];
        uint32_t f = 0;
        const char *host = heft__sources_near(&fleet->sources, link->host);
        while (f < fleet->n_families &&
               (strcmp(fleet->families[f].digest, link->family_digest) != 0 ||
                strcmp(fleet->families[f].host, host) != 0)) {
            f++;
        }
        if (f == fleet->n_families) {
            heft__family_t *family = &fleet->families[fleet->n_families++];
            memcpy(family->digest, link->family_digest, sizeof family->digest);
            (void)snprintf(family->host, sizeof family->host, "%s", host);
            family->n_ranks = link->n_ranks;
            family->first_rank = link->first_rank;
        }
        link->family = f;
    }
    return HEFT_OK;
}

/* Whether somebody holds a rank, on whichever host. */
static bool has_rank(const heft__fleet_t *fleet, uint32_t f, uint32_t rank)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        if (link->rank == rank && strcmp(link->family_digest, fleet->families[f].digest) == 0) {
            return true;
        }
    }
    return false;
}

/* One problem for each family that lacks ranks: a part of an engine is no place to serve from. */
static heft_status_t check_ranks(const heft__fleet_t *fleet, uint32_t f, heft__problems_t *problems,
                                 heft_error_t *err)
{
    enum { MAX_SHOWN = 8 };
    const uint32_t n_ranks = fleet->families[f].n_ranks;
    const uint32_t first_rank = fleet->families[f].first_rank;
    uint32_t n_missing = 0;
    char list[128] = "";
    size_t len = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (!has_rank(fleet, f, r) && n_missing++ < MAX_SHOWN) {
            len += (size_t)snprintf(list + len, sizeof list - len, len > 0 ? ", %u" : "%u",
                                    first_rank + r);
        }
    }
    if (n_missing == 0) {
        return HEFT_OK;
    }
    char text[240];
    (void)snprintf(text, sizeof text,
                   "destinations for rank%s %s%s of %u are missing: start them, or wait with "
                   "--wait-for %u",
                   n_missing > 1 ? "s" : "", list, n_missing > MAX_SHOWN ? ", ..." : "", n_ranks,
                   n_ranks);
    ADD_PROBLEM(problems, HEFT__PROBLEM_SIDE, "%s", text);
    return heft__error_set(err, HEFT_ERR_PROOF, "%s", text);
}

/* Take over a family of the old fleet whose plan is made of the same things. */
static bool reuse_family(heft__family_t *family, const heft__fleet_t *old)
{
    for (uint32_t i = 0; i < old->n_families; i++) {
        heft__family_t *candidate = &old->families[i];
        if (candidate->plan != NULL && strcmp(candidate->key, family->key) == 0) {
            *family = *candidate;
            *candidate = (heft__family_t){ .n_ranks = 0 };
            return true;
        }
    }
    return false;
}

heft_status_t heft__fleet_plan(heft__fleet_t *fleet, const heft__fleet_t *old,
                               heft__problems_t *problems, heft_error_t *err)
{
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        heft_status_t status = read_contract(fleet, old, i, err);
        if (status != HEFT_OK) {
            ADD_PROBLEM(problems, HEFT__PROBLEM_MANIFEST, "%s: contract: %s", fleet->links[i].id,
                        err != NULL ? err->message : "");
            return status;
        }
    }
    heft_status_t status = group_links(fleet, err);
    if (status == HEFT_OK) {
        status = check_replicas(fleet, problems, err);
    }
    heft_status_t missing = HEFT_OK;
    heft_error_t why = HEFT_ERROR_INIT;
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        make_key(fleet, f);
        if (check_ranks(fleet, f, problems, &why) != HEFT_OK) {
            missing = why.status; /* go on: what else does not fit is told as well */
        }
        if (!reuse_family(&fleet->families[f], old)) {
            status = make_family(fleet, f, problems, err);
        }
    }
    if (status == HEFT_OK) {
        status = heft__fleet_check_tables(fleet, problems, err);
    }
    for (uint32_t i = 0; i < fleet->n_links && status == HEFT_OK; i++) {
        heft__link_t *link = &fleet->links[i];
        const heft__delivery_t *d = &fleet->families[link->family].deliveries[link->rank];
        link->sends = heft__delivery_find_sender(d, fleet->number) != UINT32_MAX;
    }
    if (status == HEFT_OK && missing != HEFT_OK && err != NULL) {
        *err = why;
    }
    return status == HEFT_OK ? missing : status;
}
