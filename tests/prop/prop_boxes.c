/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cover both ways with exceptions for parts of tensors, against a count element by element: random
 * copies of blocks on up to three ranks, random boxes that excuse. What is left uncovered and
 * unused, what each entry excuses, which are stale, and what a proven plan keeps.
 */
#include "heft_test.h"

#include "heft/plan.h"

enum { SIDE = 6, MAX_RANKS = 3, N_TENSORS = 2, N_EXCEPTIONS = 4, ELEMS = SIDE * SIDE };

typedef struct box_case {
    uint64_t rng;
    uint32_t n_ranks;
    heft_tape_t *tapes[MAX_RANKS];
    bool written[MAX_RANKS][N_TENSORS][ELEMS];
    bool used[N_TENSORS][ELEMS];
    heft_exception_t exceptions[N_EXCEPTIONS];
    uint32_t n_exceptions;
    int64_t excused[N_EXCEPTIONS];
} box_case_t;

static const char *const params[N_TENSORS] = { "p.a", "p.b" };
static const char *const sources[N_TENSORS] = { "s.a", "s.b" };

static int64_t pick(box_case_t *c, int64_t low, int64_t high)
{
    return heft_test_random_in(&c->rng, low, high);
}

static uint32_t add(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 2, .extent = { SIDE, SIDE } };
    uint32_t id = 0;
    EXPECT_STATUS(heft_tape_add_buffer(tape, kind, name, HEFT_DTYPE_BF16, &shape, &id, &err),
                  HEFT_OK);
    return id;
}

/* One copy of a block of fresh elements, so that nothing is written twice. */
static void write_block(box_case_t *c, uint32_t rank, const uint32_t *param, const uint32_t *source)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t p = pick(c, 0, N_TENSORS - 1);
    const int64_t s = pick(c, 0, N_TENSORS - 1);
    const int64_t rows = pick(c, 1, SIDE);
    const int64_t cols = pick(c, 1, SIDE);
    const int64_t at[4] = { pick(c, 0, SIDE - rows), pick(c, 0, SIDE - cols),
                            pick(c, 0, SIDE - rows), pick(c, 0, SIDE - cols) };
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < cols; k++) {
            if (c->written[rank][p][(at[0] + i) * SIDE + at[1] + k]) {
                return;
            }
        }
    }
    heft_view_t to = { .buffer = param[p], .rank = 2, .extent = { rows, cols } };
    to.stride[0] = SIDE;
    to.stride[1] = 1;
    heft_view_t from = to;
    to.offset = at[0] * SIDE + at[1];
    from.buffer = source[s];
    from.offset = at[2] * SIDE + at[3];
    EXPECT_STATUS(heft_tape_copy(c->tapes[rank], &to, &from, "", &err), HEFT_OK);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < cols; k++) {
            c->written[rank][p][(at[0] + i) * SIDE + at[1] + k] = true;
            c->used[s][(at[2] + i) * SIDE + at[3] + k] = true;
        }
    }
}

static void make_exceptions(box_case_t *c)
{
    static const char *const patterns[2][3] = { { "p.a", "p.b", "p.*" }, { "s.a", "s.b", "s.*" } };
    c->n_exceptions = (uint32_t)pick(c, 0, N_EXCEPTIONS);
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        const bool is_wide = i < 2 && pick(c, 0, 1) == 0; /* enough to be proven, often */
        const bool is_source = is_wide ? i == 1 : pick(c, 0, 1) == 1;
        heft_exception_t *e = &c->exceptions[i];
        *e = (heft_exception_t){ .kind =
                                     is_source ? HEFT_EXCEPTION_UNUSED : HEFT_EXCEPTION_UNTOUCHED,
                                 .pattern = patterns[is_source][is_wide ? 2 : pick(c, 0, 2)],
                                 .reason = "padding",
                                 .where = "",
                                 .n_dims = 2 };
        for (int k = 0; k < 2; k++) {
            e->begin[k] = !is_wide && pick(c, 0, 2) == 0 ? pick(c, 0, SIDE - 1) : 0;
            e->end[k] = !is_wide && pick(c, 0, 2) == 0 ? pick(c, e->begin[k] + 1, SIDE) : SIDE;
        }
    }
}

/* What is there of one tensor; entries take elements in order, each element once. */
static int64_t judge(box_case_t *c, heft_exception_kind_t kind, const char *name, const bool *there)
{
    bool seen[ELEMS];
    int64_t left = 0;
    memcpy(seen, there, sizeof seen);
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        const heft_exception_t *e = &c->exceptions[i];
        if (e->kind != kind || !heft_name_matches(e->pattern, name)) {
            continue;
        }
        for (int64_t at = 0; at < ELEMS; at++) {
            const int64_t row = at / SIDE;
            const int64_t col = at % SIDE;
            if (!seen[at] && row >= e->begin[0] && row < e->end[0] && col >= e->begin[1] &&
                col < e->end[1]) {
                seen[at] = true;
                c->excused[i]++;
            }
        }
    }
    for (int64_t at = 0; at < ELEMS; at++) {
        left += !seen[at];
    }
    return left;
}

static const heft_finding_t *find(const heft_report_t *report, heft_finding_kind_t kind,
                                  int32_t rank, const char *name)
{
    for (uint32_t i = 0; i < heft_report_get_n_findings(report); i++) {
        const heft_finding_t *f = heft_report_get_finding(report, i);
        if (f->kind == kind && f->rank == rank && strcmp(f->name, name) == 0) {
            return f;
        }
    }
    return NULL;
}

static void expect_count(const heft_report_t *report, heft_finding_kind_t kind, int32_t rank,
                         const char *name, int64_t expected)
{
    const heft_finding_t *f = find(report, kind, rank, name);
    assert_true((expected > 0) == (f != NULL));
    assert_true(f == NULL || f->n_elems == expected);
}

/* Entries of one pattern cannot be told apart by name, so their sums are compared. */
static void check_exceptions(const box_case_t *c, const heft_report_t *report)
{
    int64_t excused = 0;
    int64_t n_stale = 0;
    int64_t noted = 0;
    int64_t stale = 0;
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        excused += c->excused[i];
        n_stale += c->excused[i] == 0;
    }
    for (uint32_t i = 0; i < heft_report_get_n_findings(report); i++) {
        const heft_finding_t *f = heft_report_get_finding(report, i);
        noted += f->kind == HEFT_FINDING_EXCEPTION ? f->n_elems : 0;
        stale += f->kind == HEFT_FINDING_STALE;
    }
    assert_int_equal(excused, noted);
    assert_int_equal(n_stale, stale);
}

static void check_case(box_case_t *c, bool *was_proven)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_t *plan = NULL;
    heft_report_t *report = NULL;
    opts.exceptions = c->exceptions;
    opts.n_exceptions = c->n_exceptions;
    heft_status_t status = heft_plan_create((const heft_tape_t *const *)c->tapes, c->n_ranks, 0,
                                            &opts, &plan, &report, &err);
    assert_true(status == HEFT_OK || status == HEFT_ERR_PROOF);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        for (uint32_t p = 0; p < N_TENSORS; p++) {
            const bool *written = c->written[r][p];
            const int64_t left = judge(c, HEFT_EXCEPTION_UNTOUCHED, params[p], written);
            expect_count(report, HEFT_FINDING_UNCOVERED, (int32_t)r, params[p], left);
            int64_t n_written = 0;
            for (int64_t at = 0; at < ELEMS; at++) {
                n_written += written[at];
            }
            if (status == HEFT_OK) {
                const int64_t kept = n_written > 0 ? ELEMS - n_written : 0;
                assert_int_equal(heft_plan_get_n_kept(plan, r, p), kept);
            }
        }
    }
    for (uint32_t s = 0; s < N_TENSORS; s++) {
        const int64_t left = judge(c, HEFT_EXCEPTION_UNUSED, sources[s], c->used[s]);
        expect_count(report, HEFT_FINDING_UNUSED, -1, sources[s], left);
    }
    check_exceptions(c, report);
    *was_proven = status == HEFT_OK;
    heft_plan_destroy(plan);
    heft_report_destroy(report);
}

static void boxes_excuse_what_a_count_of_elements_says(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(6000);
    int64_t n_proven = 0;
    for (int64_t i = 0; i < n; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        box_case_t c = { .rng = seed + (uint64_t)i };
        bool was_proven = false;
        c.n_ranks = (uint32_t)pick(&c, 1, MAX_RANKS);
        for (uint32_t r = 0; r < c.n_ranks; r++) {
            EXPECT_STATUS(heft_tape_create(&c.tapes[r], &err), HEFT_OK);
            const uint32_t param[] = { add(c.tapes[r], HEFT_BUFFER_PARAM, params[0]),
                                       add(c.tapes[r], HEFT_BUFFER_PARAM, params[1]) };
            const uint32_t source[] = { add(c.tapes[r], HEFT_BUFFER_SOURCE, sources[0]),
                                        add(c.tapes[r], HEFT_BUFFER_SOURCE, sources[1]) };
            for (int64_t k = pick(&c, 0, 8); k >= 0; k--) {
                write_block(&c, r, param, source);
            }
        }
        make_exceptions(&c);
        check_case(&c, &was_proven);
        n_proven += was_proven;
        for (uint32_t r = 0; r < c.n_ranks; r++) {
            heft_tape_destroy(c.tapes[r]);
        }
    }
    (void)fprintf(stderr, "%lld cases, %lld proven\n", (long long)n, (long long)n_proven);
    assert_true(n_proven > 0 && n_proven < n);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        boxes_excuse_what_a_count_of_elements_says) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
