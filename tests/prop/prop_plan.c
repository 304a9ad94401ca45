/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof against the naive interpreter: random tapes of up to three ranks over shared sources;
 * what is covered, constant, lost and used, and which parameters meet in a source element, is
 * counted element by element from the interpreter's values. With an exception `equal` for all
 * parameters the lost values are checks: used, tied, and equal to the interpreter's earlier values.
 */
#include "heft_test.h"
#include "ref_tape.h"

#include "plan/plan.h"

enum { MAX_RANKS = 3, MAX_SOURCES = 3, MAX_PARAMS = 3, MAX_SIDE = 4, MAX_BUFFER = 64 };

typedef struct plan_case {
    uint64_t rng;
    uint32_t n_ranks;
    uint32_t n_sources;
    heft_shape_t source_shape[MAX_SOURCES];
    heft_tape_t *tapes[MAX_RANKS];
    ref_run_t runs[MAX_RANKS];
    heft_plan_t *plan;
    heft_report_t *report;
} plan_case_t;

static int64_t pick(plan_case_t *c, int64_t low, int64_t high)
{
    return heft_test_random_in(&c->rng, low, high);
}

static heft_shape_t pick_shape(plan_case_t *c)
{
    heft_shape_t shape = { .rank = (int32_t)pick(c, 0, 3) };
    for (int32_t i = 0; i < shape.rank; i++) {
        shape.extent[i] = pick(c, 1, MAX_SIDE);
    }
    return shape;
}

/* A view with these extents somewhere in a buffer; false when it does not fit. */
static bool pick_view(plan_case_t *c, const heft_tape_t *tape, uint32_t buffer,
                      const heft_shape_t *extents, bool is_dst, heft_view_t *view)
{
    heft_buffer_info_t info;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_query_buffer(tape, buffer, &info, &err), HEFT_OK);
    *view = (heft_view_t){ .buffer = buffer, .rank = extents->rank };
    int64_t unit = pick(c, 1, 2);
    int64_t low = 0;
    int64_t high = 0;
    for (int32_t i = extents->rank - 1; i >= 0; i--) {
        view->extent[i] = extents->extent[i];
        view->stride[i] = unit;
        unit *= extents->extent[i] + (pick(c, 0, 3) == 0);
        if (!is_dst && pick(c, 0, 7) == 0) {
            view->stride[i] = pick(c, 0, 2);
        }
        if (pick(c, 0, 7) == 0) {
            view->stride[i] = -view->stride[i];
        }
    }
    if (view->rank > 1 && pick(c, 0, 2) == 0) { /* transposed */
        int64_t swap = view->stride[0];
        view->stride[0] = view->stride[1];
        view->stride[1] = swap;
    }
    for (int32_t i = 0; i < view->rank; i++) {
        int64_t span = (view->extent[i] - 1) * view->stride[i];
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    if (high - low >= info.n_elems) {
        return false;
    }
    view->offset = pick(c, 0, info.n_elems - 1 - (high - low)) - low;
    return true;
}

static heft_view_t whole_of(const heft_tape_t *tape, uint32_t buffer)
{
    heft_buffer_info_t info;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_tape_query_buffer(tape, buffer, &info, &err), HEFT_OK);
    heft_shape_t flat = { .rank = 1, .extent = { info.n_elems } };
    return heft_view_contiguous(buffer, &flat);
}

static void write_one(plan_case_t *c, heft_tape_t *tape, uint32_t n_buffers)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t extents = pick_shape(c);
    uint32_t to = (uint32_t)pick(c, c->n_sources, n_buffers - 1);
    uint32_t from = (uint32_t)pick(c, 0, n_buffers - 1);
    heft_view_t dst;
    heft_view_t src;
    if (!pick_view(c, tape, to, &extents, true, &dst) ||
        !pick_view(c, tape, from, &extents, false, &src)) {
        return;
    }
    heft_buffer_info_t info;
    EXPECT_STATUS(heft_tape_query_buffer(tape, from, &info, &err), HEFT_OK);
    if (info.kind == HEFT_BUFFER_PARAM) { /* may be undefined: read it only in place */
        src = dst;
        src.buffer = from;
        if (to != from) {
            return;
        }
    }
    /* a destination that is not injective is refused, and nothing is recorded */
    heft_status_t status;
    if (pick(c, 0, 4) == 0) {
        status = heft_tape_fill(tape, &dst, (uint64_t)pick(c, 0, 2), "fill", &err);
    } else if (pick(c, 0, 3) == 0 && info.kind != HEFT_BUFFER_PARAM) {
        heft_op_t ops[] = {
            { .code = HEFT_OP_LOAD, .dtype = HEFT_DTYPE_BF16 },
            { .code = HEFT_OP_ADD_IMM, .dtype = HEFT_DTYPE_F32, .imm = (double)pick(c, 1, 2) }
        };
        status = heft_tape_map(tape, &dst, &src, 1, ops, 2, "map", &err);
    } else if (info.kind != HEFT_BUFFER_PARAM) {
        status = heft_tape_copy(tape, &dst, &src, "copy", &err);
    } else {
        return;
    }
    assert_true(status == HEFT_OK || status == HEFT_ERR_ARGUMENT);
}

static void make_tape(plan_case_t *c, uint32_t r)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char name[16];
    uint32_t id;
    EXPECT_STATUS(heft_tape_create(&c->tapes[r], &err), HEFT_OK);
    for (uint32_t s = 0; s < c->n_sources; s++) {
        (void)snprintf(name, sizeof name, "s%u", (unsigned)s);
        EXPECT_STATUS(heft_tape_add_buffer(c->tapes[r], HEFT_BUFFER_SOURCE, name, HEFT_DTYPE_BF16,
                                           &c->source_shape[s], &id, &err),
                      HEFT_OK);
    }
    uint32_t n_params = (uint32_t)pick(c, 1, MAX_PARAMS);
    uint32_t n_buffers = c->n_sources + n_params + (uint32_t)pick(c, 0, 1);
    for (uint32_t b = c->n_sources; b < n_buffers; b++) {
        bool is_param = b < c->n_sources + n_params;
        heft_shape_t shape = pick_shape(c);
        (void)snprintf(name, sizeof name, "%c%u", is_param ? 'p' : 't', (unsigned)b);
        EXPECT_STATUS(heft_tape_add_buffer(c->tapes[r],
                                           is_param ? HEFT_BUFFER_PARAM : HEFT_BUFFER_TEMP, name,
                                           HEFT_DTYPE_BF16, &shape, &id, &err),
                      HEFT_OK);
        if (!is_param || pick(c, 0, 3) > 0) { /* no read of a temporary is undefined */
            heft_view_t view = whole_of(c->tapes[r], b);
            EXPECT_STATUS(heft_tape_fill(c->tapes[r], &view, 7, "temp", &err), HEFT_OK);
        }
    }
    for (int64_t n = pick(c, 1, 10); n > 0; n--) {
        write_one(c, c->tapes[r], n_buffers);
    }
}

/* ---- what the interpreter says ---- */

typedef struct oracle {
    uint32_t owner[MAX_SOURCES][MAX_BUFFER]; /* 1 + a node that reads the element; 0: none */
    uint32_t parent[MAX_RANKS * MAX_BUFFER]; /* nodes: rank * MAX_BUFFER + buffer */
} oracle_t;

static uint32_t find(oracle_t *o, uint32_t node)
{
    while (o->parent[node] != node) {
        node = o->parent[node];
    }
    return node;
}

/* Every source element that a value needs is read by node. */
static void read_value(oracle_t *o, const ref_run_t *run, uint32_t value, uint32_t node)
{
    const ref_value_t *v = &run->values[value];
    if (value == REF_UNDEFINED || v->code == HEFT_OP_CONST) {
        return;
    }
    if (v->code != HEFT_OP_LOAD) {
        read_value(o, run, v->args[0], node);
        read_value(o, run, v->args[1], node);
        return;
    }
    uint32_t *owner = &o->owner[v->buffer][v->element];
    if (*owner == 0) {
        *owner = node + 1;
    } else {
        uint32_t a = find(o, node);
        uint32_t b = find(o, *owner - 1);
        o->parent[a > b ? a : b] = a > b ? b : a;
    }
}

static void run_oracle(plan_case_t *c, oracle_t *o)
{
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < MAX_RANKS * MAX_BUFFER; i++) {
        o->parent[i] = i;
    }
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        ref_run_init(&c->runs[r], c->tapes[r]);
        for (uint32_t b = 0; b < c->tapes[r]->n_buffers; b++) {
            for (int64_t e = 0; e < c->tapes[r]->buffers[b].n_elems; e++) {
                if (c->tapes[r]->buffers[b].kind == HEFT_BUFFER_PARAM) {
                    read_value(o, &c->runs[r], c->runs[r].buffers[b][e], r * MAX_BUFFER + b);
                }
            }
        }
    }
}

/* The same when lost values are checks. Earlier values that are not lost bring nothing new: what
 * they read is read by the later value, or by its check. */
static void add_lost(plan_case_t *c, oracle_t *o)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const ref_run_t *run = &c->runs[r];
        for (size_t i = 0; i < run->n_overwrites; i++) {
            if (!ref_is_constant(run, run->overwrites[i].earlier)) {
                read_value(o, run, run->overwrites[i].earlier,
                           r * MAX_BUFFER + run->overwrites[i].buffer);
            }
        }
    }
}

/* ---- the comparison ---- */

static int64_t reported(const plan_case_t *c, heft_finding_kind_t kind, int32_t rank,
                        const char *name)
{
    for (uint32_t i = 0; i < heft_report_get_n_findings(c->report); i++) {
        const heft_finding_t *finding = heft_report_get_finding(c->report, i);
        if (finding->kind == kind && finding->rank == rank && strcmp(finding->name, name) == 0) {
            return finding->n_elems;
        }
    }
    return 0;
}

static void check_param(const plan_case_t *c, uint32_t r, uint32_t b)
{
    const heft_buffer_info_t *info = &c->tapes[r]->buffers[b];
    const ref_run_t *run = &c->runs[r];
    int64_t n_uncovered = 0;
    int64_t n_constant = 0;
    int64_t n_lost = 0;
    int64_t n_twice = 0;
    bool all_same = true;
    bool lost[MAX_BUFFER] = { false };
    bool twice[MAX_BUFFER] = { false };
    for (int64_t e = 0; e < info->n_elems; e++) {
        n_uncovered += run->buffers[b][e] == REF_UNDEFINED;
        n_constant +=
            run->buffers[b][e] != REF_UNDEFINED && ref_is_constant(run, run->buffers[b][e]);
    }
    for (size_t i = 0; i < run->n_overwrites; i++) {
        const ref_overwrite_t *o = &run->overwrites[i];
        if (o->buffer == b && !ref_is_constant(run, o->earlier)) {
            twice[o->element] = true;
            all_same = all_same && o->earlier == o->later;
            lost[o->element] = lost[o->element] ||
                               (o->earlier != o->later && !ref_is_kept(run, o->earlier, o->later));
        }
    }
    for (int64_t e = 0; e < info->n_elems; e++) {
        n_lost += lost[e];
        n_twice += twice[e];
    }
    int32_t rank = (int32_t)r;
    assert_int_equal(reported(c, HEFT_FINDING_UNCOVERED, rank, info->name), n_uncovered);
    assert_int_equal(reported(c, HEFT_FINDING_CONSTANT, rank, info->name), n_constant);
    assert_int_equal(reported(c, HEFT_FINDING_OVERLAP, rank, info->name), 0);
    /* one overwrite is judged as a whole: a lucky equal element among others counts with them, and
     * an overwrite of nothing but equal elements is one rule too many */
    int64_t n_overwritten = reported(c, HEFT_FINDING_OVERWRITTEN, rank, info->name);
    assert_true(n_overwritten > 0 || (n_lost == 0 && (n_twice == 0 || !all_same)));
    assert_true(n_overwritten >= n_lost && n_overwritten <= n_twice);
}

static void check_sources(const plan_case_t *c, const oracle_t *o)
{
    for (uint32_t s = 0; s < c->n_sources; s++) {
        const heft_buffer_info_t *info = &c->tapes[0]->buffers[s];
        int64_t n_unused = 0;
        for (int64_t e = 0; e < info->n_elems; e++) {
            n_unused += o->owner[s][e] == 0;
        }
        assert_int_equal(reported(c, HEFT_FINDING_UNUSED, -1, info->name), n_unused);
    }
}

/* Two parameters are in one group exactly when the oracle joins them. */
static void check_groups(plan_case_t *c, oracle_t *o)
{
    uint32_t node_of_group[MAX_RANKS * MAX_BUFFER];
    int64_t source_bytes[MAX_RANKS * MAX_BUFFER] = { 0 };
    heft_plan_info_t info;
    heft_plan_query(c->plan, &info);
    memset(node_of_group, 0xff, sizeof node_of_group);
    for (uint32_t s = 0; s < c->n_sources; s++) {
        for (int64_t e = 0; e < MAX_BUFFER; e++) {
            if (o->owner[s][e] > 0) {
                source_bytes[find(o, o->owner[s][e] - 1)] += 2;
            }
        }
    }
    uint32_t n_groups = 0;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        for (uint32_t p = 0; p < heft_plan_get_n_params(c->plan, r); p++) {
            heft_error_t err = HEFT_ERROR_INIT;
            heft_tensor_info_t param;
            uint32_t b;
            uint64_t n_pieces;
            EXPECT_STATUS(heft_plan_query_param(c->plan, r, p, &param, &err), HEFT_OK);
            EXPECT_STATUS(
                heft_tape_find_buffer(c->tapes[r], HEFT_BUFFER_PARAM, param.name, &b, &err),
                HEFT_OK);
            (void)heft_plan_get_param_pieces(c->plan, r, p, &n_pieces);
            uint32_t group = heft_plan_get_param_group(c->plan, r, p);
            assert_true((group == HEFT_GROUP_NONE) == (n_pieces == 0));
            if (n_pieces == 0) {
                continue;
            }
            uint32_t node = find(o, r * MAX_BUFFER + b);
            assert_true(group <= n_groups); /* numbered as they are met */
            if (group == n_groups) {
                heft_group_info_t got;
                EXPECT_STATUS(heft_plan_query_group(c->plan, group, &got, &err), HEFT_OK);
                assert_int_equal(got.source_bytes, source_bytes[node]);
                node_of_group[n_groups++] = node;
            }
            assert_int_equal(node_of_group[group], node);
        }
    }
    assert_int_equal(info.n_groups, n_groups);
    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t h = 0; h < g; h++) {
            assert_int_not_equal(node_of_group[g], node_of_group[h]);
        }
    }
}

/* The value of a check at an index; sources of the plan have the order of their buffers. */
static uint32_t eval_check(plan_case_t *c, uint32_t r, const heft_piece_t *check,
                           const int64_t *index)
{
    heft__fold_src_t srcs[HEFT_MAX_SOURCES];
    for (uint32_t s = 0; s < check->n_srcs; s++) {
        assert_int_equal(check->srcs[s].opaque, 0);
        srcs[s] = (heft__fold_src_t){ .buffer = check->srcs[s].source,
                                      .opaque_write = HEFT__NO_WRITE,
                                      .offset = check->srcs[s].offset,
                                      .stride = check->srcs[s].stride };
    }
    const heft__fold_piece_t piece = { .rank = check->rank,
                                       .n_srcs = check->n_srcs,
                                       .n_ops = check->n_ops,
                                       .extent = check->extent,
                                       .dst_stride = check->dst_stride,
                                       .srcs = srcs,
                                       .ops = check->ops };
    return ref_eval_piece(&c->runs[r], &piece, index);
}

static uint32_t buffer_of_param(const plan_case_t *c, uint32_t r, uint32_t param)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    uint32_t b;
    EXPECT_STATUS(heft_plan_query_param(c->plan, r, param, &info, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_find_buffer(c->tapes[r], HEFT_BUFFER_PARAM, info.name, &b, &err),
                  HEFT_OK);
    return b;
}

/* Mark the earlier values that a check stands for; it must stand for one at every index. */
static void check_check(plan_case_t *c, uint32_t r, const heft_piece_t *check, bool *seen)
{
    const ref_run_t *run = &c->runs[r];
    uint32_t b = buffer_of_param(c, r, check->param);
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    do {
        int64_t e = check->dst_offset;
        for (int k = 0; k < check->rank; k++) {
            e += index[k] * check->dst_stride[k];
        }
        uint32_t value = eval_check(c, r, check, index);
        bool found = false;
        for (size_t i = 0; i < run->n_overwrites; i++) {
            const ref_overwrite_t *o = &run->overwrites[i];
            if (o->buffer == b && o->element == e && o->earlier == value) {
                seen[i] = true;
                found = true;
            }
        }
        assert_true(found);
    } while (ref_next_index(index, check->extent, check->rank));
}

static void check_checks(plan_case_t *c, int64_t *n_checks)
{
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const ref_run_t *run = &c->runs[r];
        bool *seen = calloc(run->n_overwrites + 1, sizeof *seen);
        assert_non_null(seen);
        uint64_t n;
        const heft_piece_t *checks = heft_plan_get_checks(c->plan, r, &n);
        for (uint64_t i = 0; i < n; i++) {
            assert_true(i == 0 || checks[i - 1].param < checks[i].param ||
                        (checks[i - 1].param == checks[i].param &&
                         checks[i - 1].dst_offset <= checks[i].dst_offset));
            check_check(c, r, &checks[i], seen);
        }
        for (size_t i = 0; i < run->n_overwrites; i++) {
            const ref_overwrite_t *o = &run->overwrites[i];
            assert_true(seen[i] || ref_is_constant(run, o->earlier) || o->earlier == o->later ||
                        ref_is_kept(run, o->earlier, o->later));
        }
        free(seen);
        *n_checks += (int64_t)n;
    }
}

static heft_status_t make_plan(plan_case_t *c, const heft_plan_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tapes[MAX_RANKS];
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        tapes[r] = c->tapes[r];
    }
    heft_report_destroy(c->report);
    heft_status_t status = heft_plan_create(tapes, c->n_ranks, 0, opts, &c->plan, &c->report, &err);
    if (status != HEFT_OK && status != HEFT_ERR_PROOF) {
        fail_msg("%s", err.message);
    }
    return status;
}

static void check_findings(const plan_case_t *c, const oracle_t *o)
{
    bool moves = false;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        for (uint32_t b = 0; b < c->tapes[r]->n_buffers; b++) {
            if (c->tapes[r]->buffers[b].kind == HEFT_BUFFER_PARAM) {
                check_param(c, r, b);
            }
        }
    }
    for (uint32_t s = 0; s < c->n_sources; s++) {
        for (int64_t e = 0; e < MAX_BUFFER; e++) {
            moves = moves || o->owner[s][e] > 0;
        }
    }
    check_sources(c, o);
    bool is_empty = false;
    for (uint32_t i = 0; i < heft_report_get_n_findings(c->report); i++) {
        const heft_finding_t *finding = heft_report_get_finding(c->report, i);
        is_empty = is_empty || finding->kind == HEFT_FINDING_EMPTY;
    }
    assert_true(is_empty == !moves);
}

/* What is refused is tried again with everything excused that can be, to see its groups. */
static void check_case(plan_case_t *c, oracle_t *o, int64_t *n_proven, int64_t *n_checks)
{
    const heft_exception_t equal = {
        .kind = HEFT_EXCEPTION_EQUAL, .pattern = "*", .reason = "a test", .where = ""
    };
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_status_t status = make_plan(c, &opts);
    check_findings(c, o);
    opts.partial = 1;
    if (status != HEFT_OK) {
        status = make_plan(c, &opts);
    }
    if (status != HEFT_OK) {
        add_lost(c, o);
        opts.exceptions = &equal;
        opts.n_exceptions = 1;
        opts.partial = 0;
        status = make_plan(c, &opts);
        check_sources(c, o);
        opts.partial = 1;
    }
    if (status != HEFT_OK) {
        status = make_plan(c, &opts);
    }
    if (status == HEFT_OK) {
        check_checks(c, n_checks);
        check_groups(c, o);
        ++*n_proven;
    }
}

static void make_case(plan_case_t *c, uint64_t seed)
{
    *c = (plan_case_t){ .rng = seed };
    c->n_ranks = (uint32_t)pick(c, 1, MAX_RANKS);
    c->n_sources = (uint32_t)pick(c, 1, MAX_SOURCES);
    for (uint32_t s = 0; s < c->n_sources; s++) {
        c->source_shape[s] = pick_shape(c);
    }
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        make_tape(c, r);
    }
}

static void drop_case(plan_case_t *c)
{
    heft_plan_destroy(c->plan);
    heft_report_destroy(c->report);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        ref_run_fini(&c->runs[r]);
        heft_tape_destroy(c->tapes[r]);
    }
}

static void the_proof_counts_what_the_interpreter_counts(void **state)
{
    (void)state;
    static plan_case_t c;
    static oracle_t o;
    int64_t live = heft__alloc_live();
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(4000);
    int64_t n_proven = 0;
    int64_t n_checks = 0;
    for (int64_t i = 0; i < n; i++) {
        make_case(&c, seed + (uint64_t)i);
        run_oracle(&c, &o);
        check_case(&c, &o, &n_proven, &n_checks);
        drop_case(&c);
    }
    (void)fprintf(stderr, "%lld cases, %lld proven, %lld checks\n", (long long)n,
                  (long long)n_proven, (long long)n_checks);
    /* groups and checks are seen often enough */
    assert_true(n < 100 || (n_proven * 10 > n && n_checks > n / 100));
    assert_int_equal(heft__alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_proof_counts_what_the_interpreter_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
