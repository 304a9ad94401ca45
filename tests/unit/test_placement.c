/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements: tensors held in boxes by ranks. Random fleets are judged element by element: who
 * sends an element holds it, each is sent once, and what a recipe makes of the boxes is what it
 * would make of whole tensors.
 */
#include "heft_test.h"

#include "heft/exec.h"
#include "heft/placement.h"
#include "heft/plan.h"

enum { MAX_TENSORS = 3, MAX_RANKS = 8, MAX_ELEMS = 1024 };

typedef struct fleet {
    heft_manifest_t *manifest;
    heft_shape_t shape[MAX_TENSORS];
    uint32_t n_tensors;
    heft_shard_t shards[MAX_TENSORS * MAX_RANKS * 2];
    uint32_t n_shards;
    int64_t first[MAX_TENSORS]; /* number of a tensor's first element: all are different */
} fleet_t;

static const char *const names[MAX_TENSORS] = { "a.w", "b.w", "c.w" };

static int pick(uint64_t *rng, int low, int high)
{
    return (int)heft_test_random_in(rng, low, high);
}

/* ---- fleets ---- */

static void begin_fleet(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *f = (fleet_t){ .n_tensors = 0 };
    EXPECT_STATUS(heft_manifest_create("source", &f->manifest, &err), HEFT_OK);
}

static void add_tensor(fleet_t *f, heft_dtype_t dtype, const heft_shape_t *shape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    f->shape[f->n_tensors] = *shape;
    f->first[f->n_tensors] = 1 + (int64_t)f->n_tensors * MAX_ELEMS;
    EXPECT_STATUS(heft_manifest_add(f->manifest, names[f->n_tensors++], dtype, shape, &err),
                  HEFT_OK);
}

static void end_fleet(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_manifest_finish(f->manifest, &err), HEFT_OK);
}

static heft_shard_t whole_of(const fleet_t *f, uint32_t t, uint32_t rank)
{
    heft_shard_t shard = { .tensor = names[t], .rank = rank };
    memcpy(shard.end, f->shape[t].extent, sizeof shard.end);
    return shard;
}

/* Part i of n along one dimension, as FSDP cuts it: the last ones are smaller, or empty. */
static heft_shard_t part_of(const fleet_t *f, uint32_t t, uint32_t rank, int dim, int i, int n)
{
    heft_shard_t shard = whole_of(f, t, rank);
    const int64_t extent = f->shape[t].extent[dim];
    const int64_t each = (extent + n - 1) / n;
    shard.begin[dim] = i * each < extent ? i * each : extent;
    shard.end[dim] = (i + 1) * each < extent ? (i + 1) * each : extent;
    return shard;
}

/* Some ranks cover the tensor together; further ones hold any box of it. */
static void random_shards(fleet_t *f, uint64_t *rng, uint32_t t)
{
    const int rank = f->shape[t].rank;
    const int n = rank > 0 ? pick(rng, 1, 4) : 1;
    const int dim = rank > 0 ? pick(rng, 0, rank - 1) : 0;
    for (int i = 0; i < n; i++) {
        f->shards[f->n_shards++] =
            rank > 0 ? part_of(f, t, (uint32_t)i, dim, i, n) : whole_of(f, t, (uint32_t)i);
    }
    for (uint32_t r = (uint32_t)n; r < (uint32_t)pick(rng, n, MAX_RANKS); r++) {
        heft_shard_t shard = whole_of(f, t, r);
        for (int d = 0; d < rank && pick(rng, 0, 2) > 0; d++) {
            shard.begin[d] = pick(rng, 0, (int)shard.end[d]);
            shard.end[d] = pick(rng, (int)shard.begin[d], (int)shard.end[d]);
        }
        f->shards[f->n_shards++] = shard;
    }
}

/* Some hold two boxes in the place of one, under names of their own. */
static void split_shards(fleet_t *f, uint64_t *rng)
{
    static const char *const own[MAX_TENSORS][2] = { { "a.w", "a.w.1" },
                                                     { "b.w.0", "b.w.1" },
                                                     { "c", "a.x" } };
    for (uint32_t i = 0, n = f->n_shards; i < n; i++) {
        heft_shard_t *shard = &f->shards[i];
        uint32_t t = 0;
        while (strcmp(names[t], shard->tensor) != 0) {
            t++;
        }
        if (f->shape[t].rank == 0 || pick(rng, 0, 1) == 0) {
            continue;
        }
        const int d = pick(rng, 0, f->shape[t].rank - 1);
        heft_shard_t other = *shard;
        other.name = own[t][1];
        shard->name = own[t][0];
        shard->end[d] = pick(rng, (int)shard->begin[d], (int)shard->end[d]);
        other.begin[d] = shard->end[d];
        f->shards[f->n_shards++] = other;
    }
}

static void random_fleet(fleet_t *f, uint64_t *rng)
{
    begin_fleet(f);
    for (int n = pick(rng, 1, MAX_TENSORS); n > 0; n--) {
        heft_shape_t shape = { .rank = pick(rng, 0, 3) };
        for (int d = 0; d < shape.rank; d++) {
            shape.extent[d] = pick(rng, pick(rng, 0, 9) == 0 ? 0 : 1, 9);
        }
        add_tensor(f, HEFT_DTYPE_U32, &shape);
    }
    end_fleet(f);
    for (uint32_t t = 0; t < f->n_tensors; t++) {
        random_shards(f, rng, t);
    }
    split_shards(f, rng);
    for (uint32_t i = f->n_shards; i > 1; i--) { /* in any order */
        const uint32_t k = (uint32_t)pick(rng, 0, (int)i - 1);
        const heft_shard_t swap = f->shards[i - 1];
        f->shards[i - 1] = f->shards[k];
        f->shards[k] = swap;
    }
}

static uint32_t tensor_of(const fleet_t *f, const char *name)
{
    uint32_t t = 0;
    while (t < f->n_tensors && strcmp(names[t], name) != 0) {
        t++;
    }
    assert_true(t < f->n_tensors);
    return t;
}

static int64_t count(const heft_shape_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < shape->rank; d++) {
        n *= shape->extent[d];
    }
    return n;
}

/* The index of element i; false: it is not in the box. */
static bool is_in(const heft_shard_t *box, const heft_shape_t *shape, int64_t i, int64_t *index)
{
    bool is_inside = true;
    for (int d = shape->rank - 1; d >= 0; d--) {
        index[d] = i % shape->extent[d];
        i /= shape->extent[d];
        is_inside = is_inside && index[d] >= box->begin[d] && index[d] < box->end[d];
    }
    return is_inside;
}

static const char *own_name(const heft_shard_t *shard)
{
    return shard->name != NULL ? shard->name : shard->tensor;
}

/* ---- who sends what ---- */

static void judge_cuts(const fleet_t *f, const heft_placement_t *p)
{
    static uint8_t sent[MAX_TENSORS][MAX_ELEMS];
    int64_t load[MAX_RANKS] = { 0 };
    memset(sent, 0, sizeof sent);
    for (uint32_t i = 0; i < heft_placement_get_n_cuts(p); i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_shard_t cut;
        EXPECT_STATUS(heft_placement_query_cut(p, i, &cut, &err), HEFT_OK);
        const uint32_t t = tensor_of(f, cut.tensor);
        const heft_shard_t *held = NULL;
        for (uint32_t s = 0; s < f->n_shards; s++) {
            if (f->shards[s].rank == cut.rank && strcmp(f->shards[s].tensor, cut.tensor) == 0 &&
                strcmp(own_name(&f->shards[s]), cut.name) == 0) {
                held = &f->shards[s];
            }
        }
        assert_non_null(held);
        for (int64_t e = 0; e < count(&f->shape[t]); e++) {
            int64_t index[HEFT_MAX_DIMS];
            if (is_in(&cut, &f->shape[t], e, index)) {
                assert_true(is_in(held, &f->shape[t], e, index));
                assert_int_equal(sent[t][e]++, 0);
                load[cut.rank] += 4;
            }
        }
    }
    for (uint32_t t = 0; t < f->n_tensors; t++) {
        for (int64_t e = 0; e < count(&f->shape[t]); e++) {
            assert_int_equal(sent[t][e], 1);
        }
    }
    for (uint32_t r = 0; r < heft_placement_get_n_ranks(p); r++) {
        assert_int_equal(heft_placement_get_load(p, r), load[r]);
    }
}

/* ---- what comes of it ---- */

/* Each tensor once with its dimensions turned, for two ranks that split one of them where they can.
 */
static void write_recipe(const fleet_t *f, char *text, size_t n)
{
    (void)snprintf(text, n, "ranks 2 as r\n");
    for (uint32_t t = 0; t < f->n_tensors; t++) {
        const heft_shape_t *shape = &f->shape[t];
        const bool is_split = shape->rank > 0 && shape->extent[0] % 2 == 0 && count(shape) > 0;
        char from[64] = "";
        char to[64] = "";
        for (int d = 0; d < shape->rank; d++) {
            char axis[16];
            (void)snprintf(axis, sizeof axis, d == 0 && is_split ? "({r}:2 a0)" : "a%d", d);
            (void)snprintf(from + strlen(from), sizeof from - strlen(from), "%s%s",
                           d > 0 ? ", " : "", axis);
            (void)snprintf(to + strlen(to), sizeof to - strlen(to), "%sa%d", d > 0 ? ", " : "",
                           shape->rank - 1 - d);
        }
        (void)snprintf(text + strlen(text), n - strlen(text), "\"%s\" [%s] -> \"%c\" [%s]\n",
                       names[t], from, names[t][0], to);
    }
}

/* What element i of a parameter of one rank must be. */
static uint32_t expected(const fleet_t *f, uint32_t t, uint32_t rank, int64_t i)
{
    const heft_shape_t *shape = &f->shape[t];
    const bool is_split = shape->rank > 0 && shape->extent[0] % 2 == 0 && count(shape) > 0;
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (int d = 0; d < shape->rank; d++) { /* the parameter's last dimension is dimension 0 */
        const int64_t extent = d == 0 && is_split ? shape->extent[0] / 2 : shape->extent[d];
        index[d] = i % extent;
        i /= extent;
    }
    index[0] += is_split ? rank * (shape->extent[0] / 2) : 0;
    int64_t flat = 0;
    for (int d = 0; d < shape->rank; d++) {
        flat = flat * shape->extent[d] + index[d];
    }
    return (uint32_t)(f->first[t] + flat);
}

/* The memory of one shard. */
static uint32_t *local_of(const fleet_t *f, const heft_shard_t *shard)
{
    const uint32_t t = tensor_of(f, shard->tensor);
    uint32_t *data = calloc(MAX_ELEMS, sizeof *data);
    int64_t n = 0;
    assert_non_null(data);
    for (int64_t e = 0; e < count(&f->shape[t]); e++) {
        int64_t index[HEFT_MAX_DIMS];
        if (is_in(shard, &f->shape[t], e, index)) {
            data[n++] = (uint32_t)(f->first[t] + e);
        }
    }
    return data;
}

static heft_plan_t *place(const fleet_t *f, const heft_placement_t *p, heft_status_t *status,
                          heft_error_t *err)
{
    char text[1024];
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tapes[2] = { NULL };
    heft_plan_t *plan = NULL;
    write_recipe(f, text, sizeof text);
    *status = heft_recipe_parse("r", text, strlen(text), &recipe, err);
    for (uint32_t r = 0; r < 2 && *status == HEFT_OK; r++) {
        heft_tape_t *tape = NULL;
        *status = heft_recipe_compile(recipe, NULL, r, f->manifest, NULL, &tape, err);
        if (*status == HEFT_OK) {
            *status = heft_placement_apply(p, tape, &tapes[r], err);
        }
        if (*status != HEFT_OK) {
            heft_tape_destroy(tape);
        }
    }
    if (*status == HEFT_OK) {
        *status = heft_plan_create((const heft_tape_t *const *)tapes, 2, 0, NULL, &plan, NULL, err);
    }
    for (uint32_t r = 0; r < 2; r++) {
        heft_tape_destroy(tapes[r]);
    }
    heft_recipe_destroy(recipe);
    return plan;
}

static void judge_plan(const fleet_t *f, const heft_plan_t *plan)
{
    heft_error_t err = HEFT_ERROR_INIT;
    static uint32_t memory[2][MAX_TENSORS][MAX_ELEMS];
    void *params[2][MAX_TENSORS];
    uint32_t *locals[MAX_TENSORS * MAX_RANKS * 2];
    const void *sources[MAX_TENSORS * MAX_RANKS * 2] = { NULL };
    heft_exec_target_t targets[2];
    heft_plan_info_t info;
    heft_exec_t *exec = NULL;
    heft_plan_query(plan, &info);
    assert_int_equal(info.n_sources, f->n_shards);
    memset(memory, 0xff, sizeof memory);
    for (uint32_t s = 0; s < f->n_shards; s++) {
        char name[64];
        heft_tensor_info_t source;
        locals[s] = local_of(f, &f->shards[s]);
        (void)snprintf(name, sizeof name, "rank-%u.%s", (unsigned)f->shards[s].rank,
                       own_name(&f->shards[s]));
        for (uint32_t i = 0; i < info.n_sources; i++) {
            EXPECT_STATUS(heft_plan_query_source(plan, i, &source, &err), HEFT_OK);
            sources[i] = strcmp(source.name, name) == 0 ? locals[s] : sources[i];
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t t = 0; t < f->n_tensors; t++) {
            params[r][t] = memory[r][t];
        }
        targets[r] = (heft_exec_target_t){ .rank_index = r, .params = params[r] };
    }
    EXPECT_STATUS(heft_exec_create(plan, targets, 2, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t t = 0; t < f->n_tensors; t++) {
            heft_tensor_info_t param;
            EXPECT_STATUS(heft_plan_query_param(plan, r, t, &param, &err), HEFT_OK);
            for (int64_t i = 0; i < param.n_elems; i++) {
                assert_int_equal(memory[r][t][i], expected(f, t, r, i));
            }
        }
    }
    heft_exec_destroy(exec);
    for (uint32_t s = 0; s < f->n_shards; s++) {
        free(locals[s]);
    }
}

static bool is_empty_fleet(const fleet_t *f)
{
    int64_t n = 0;
    for (uint32_t t = 0; t < f->n_tensors; t++) {
        n += count(&f->shape[t]);
    }
    return n == 0;
}

static void random_fleets_send_each_element_once(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = heft_test_cases(1000); i > 0; i--) {
        heft_error_t err = HEFT_ERROR_INIT;
        fleet_t f;
        heft_placement_t *p = NULL;
        heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
        heft_status_t status;
        random_fleet(&f, &rng);
        opts.min_cut_bytes = pick(&rng, 0, 1) == 0 ? 4 : pick(&rng, 1, 200);
        EXPECT_STATUS(heft_placement_create(f.manifest, f.shards, f.n_shards, &opts, &p, &err),
                      HEFT_OK);
        judge_cuts(&f, p);
        heft_plan_t *plan = place(&f, p, &status, &err);
        EXPECT_STATUS(status, is_empty_fleet(&f) ? HEFT_ERR_PROOF : HEFT_OK);
        if (plan != NULL) {
            judge_plan(&f, plan);
        }
        heft_plan_destroy(plan);
        heft_placement_destroy(p);
        heft_manifest_destroy(f.manifest);
    }
}

/* 10 rows over 3 ranks, as meshes of two frameworks cut them: the remainder at the end, or parts of
 * equal size as long as they last. */
static void uneven_splits_arrive_exactly(void **state)
{
    (void)state;
    static const int64_t bounds[][4] = { { 0, 3, 6, 10 }, { 0, 4, 8, 10 }, { 0, 10, 10, 10 } };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_status_t status;
        heft_placement_t *p = NULL;
        fleet_t f;
        begin_fleet(&f);
        add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 10, 3 } });
        end_fleet(&f);
        for (uint32_t r = 0; r < 3; r++) {
            heft_shard_t shard = whole_of(&f, 0, r);
            shard.begin[0] = bounds[i][r];
            shard.end[0] = bounds[i][r + 1];
            f.shards[f.n_shards++] = shard;
        }
        EXPECT_STATUS(heft_placement_create(f.manifest, f.shards, f.n_shards, NULL, &p, &err),
                      HEFT_OK);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(heft_placement_get_load(p, r),
                             (bounds[i][r + 1] - bounds[i][r]) * 3 * 4);
        }
        judge_cuts(&f, p);
        heft_plan_t *plan = place(&f, p, &status, &err);
        EXPECT_STATUS(status, HEFT_OK);
        judge_plan(&f, plan);
        heft_plan_destroy(plan);
        heft_placement_destroy(p);
        heft_manifest_destroy(f.manifest);
    }
}

/* ---- balance ---- */

static void replicas_share_the_work(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fleet_t f;
    heft_placement_t *p = NULL;
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    opts.min_cut_bytes = 4;
    begin_fleet(&f);
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 12, 5 } });
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 14, 5 } });
    end_fleet(&f);
    /* rank 0 alone holds the first, all four the second: 60 and 70 elements */
    f.shards[f.n_shards++] = whole_of(&f, 0, 0);
    for (uint32_t r = 0; r < 4; r++) {
        f.shards[f.n_shards++] = whole_of(&f, 1, r);
    }
    EXPECT_STATUS(heft_placement_create(f.manifest, f.shards, f.n_shards, &opts, &p, &err),
                  HEFT_OK);
    judge_cuts(&f, p);
    assert_int_equal(heft_placement_get_load(p, 0), 240); /* more than its share already */
    assert_int_equal(heft_placement_get_load(p, 1), 100);
    assert_int_equal(heft_placement_get_load(p, 2), 100);
    assert_int_equal(heft_placement_get_load(p, 3), 80);
    assert_int_equal(heft_placement_get_load(p, 4), 0);
    heft_placement_destroy(p);
    /* no cut is smaller than asked for: 280 bytes make two cuts of 100 and more */
    opts.min_cut_bytes = 100;
    EXPECT_STATUS(heft_placement_create(f.manifest, f.shards, f.n_shards, &opts, &p, &err),
                  HEFT_OK);
    assert_int_equal(heft_placement_get_n_cuts(p), 3);
    heft_placement_destroy(p);
    heft_manifest_destroy(f.manifest);
}

/* ---- refusals ---- */

static void refuse(const fleet_t *f, heft_status_t status, const char *part)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    EXPECT_STATUS(heft_placement_create(f->manifest, f->shards, f->n_shards, NULL, &p, &err),
                  status);
    assert_null(p);
    EXPECT_MESSAGE(part);
}

static void what_is_no_placement_is_refused(void **state)
{
    (void)state;
    fleet_t f;
    begin_fleet(&f);
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 6, 4 } });
    end_fleet(&f);
    refuse(&f, HEFT_ERR_PROOF, "no rank holds [0..6, 0..4) of tensor \"a.w\"");
    f.n_shards = 2;
    f.shards[0] = part_of(&f, 0, 0, 0, 0, 3);
    f.shards[1] = part_of(&f, 0, 3, 0, 2, 3);
    refuse(&f, HEFT_ERR_PROOF, "no rank holds [2..4, 0..4) of tensor \"a.w\"");
    f.shards[1].rank = 0;
    refuse(&f, HEFT_ERR_EXISTS, "rank 0 holds two boxes of \"a.w\"");
    f.shards[1].name = "a.w.1";
    refuse(&f, HEFT_ERR_PROOF, "no rank holds [2..4, 0..4)");
    f.shards[1].begin[0] = 1;
    refuse(&f, HEFT_ERR_EXISTS, "rank 0 holds [1..2, 0..4) of tensor \"a.w\" twice");
    f.shards[1].name = "";
    refuse(&f, HEFT_ERR_ARGUMENT, "under a name that is none: \"\"");
    f.shards[1].name = NULL;
    f.shards[1].rank = 1;
    f.shards[1].end[1] = 5;
    refuse(&f, HEFT_ERR_SHAPE, "tensor \"a.w\" rank 1: [0..5) in dimension 1, which has 4");
    f.shards[1].begin[1] = -1;
    refuse(&f, HEFT_ERR_SHAPE, "[-1..5)");
    f.shards[1].tensor = "b.w";
    refuse(&f, HEFT_ERR_NAME, "rank 1 holds \"b.w\", which is no tensor");
    f.shards[1].tensor = NULL;
    refuse(&f, HEFT_ERR_ARGUMENT, "shard 1");
    heft_manifest_destroy(f.manifest);
}

static void exceptions_are_those_of_the_recipe(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    static const char text[] = "\"a.w\" [i, j] -> \"p\" [j, i]\nignore \"b.w\" because \"no\"\n";
    fleet_t f;
    heft_placement_t *p = NULL;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_tape_t *placed = NULL;
    heft_plan_t *plan = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    begin_fleet(&f);
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 6, 4 } });
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 1, .extent = { 3 } });
    end_fleet(&f);
    for (int i = 0; i < 3; i++) {
        f.shards[f.n_shards++] = part_of(&f, 0, (uint32_t)i, 0, i, 3);
        f.shards[f.n_shards++] = whole_of(&f, 1, (uint32_t)i);
    }
    EXPECT_STATUS(heft_placement_create(f.manifest, f.shards, f.n_shards, NULL, &p, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_parse("r", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_compile(recipe, NULL, 0, f.manifest, NULL, &tape, &err), HEFT_OK);
    EXPECT_STATUS(heft_placement_apply(p, tape, &placed, &err), HEFT_OK);
    const heft_tape_t *const tapes[] = { placed };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &plan, NULL, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("source \"b.w\": all 3 elements unused");
    const heft_exception_t *ignored = heft_recipe_get_exception(recipe, 0);
    opts.exceptions = ignored;
    opts.n_exceptions = 1;
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &plan, NULL, &err), HEFT_OK);
    heft_plan_destroy(plan);
    heft_tape_destroy(placed);
    heft_recipe_destroy(recipe);
    heft_placement_destroy(p);
    heft_manifest_destroy(f.manifest);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    fleet_t f;
    begin_fleet(&f);
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 2, .extent = { 6, 4 } });
    add_tensor(&f, HEFT_DTYPE_U32, &(heft_shape_t){ .rank = 1, .extent = { 5 } });
    end_fleet(&f);
    for (int i = 0; i < 3; i++) {
        f.shards[f.n_shards++] = part_of(&f, 0, (uint32_t)i, 0, i, 3);
        f.shards[f.n_shards++] = whole_of(&f, 1, (uint32_t)i);
    }
    static const uint32_t hosts[] = { 4, 4, 5 };
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    opts.hosts = hosts;
    opts.n_hosts = 3;
    opts.to_host = 5;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_placement_t *p = NULL;
        heft_plan_t *plan = NULL;
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status =
            heft_placement_create(f.manifest, f.shards, f.n_shards, &opts, &p, &err);
        if (status == HEFT_OK) {
            plan = place(&f, p, &status, &err);
        }
        heft__alloc_fail_at(-1);
        heft_plan_destroy(plan);
        heft_placement_destroy(p);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_manifest_destroy(f.manifest);
}

static void parts_of_ranks_say_it_themselves(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *ranks = NULL;
    heft_tensor_info_t info;
    EXPECT_STATUS(heft_manifest_create("source", &ranks, &err), HEFT_OK);
    for (int r = 0; r < 12; r++) { /* rank 10 stands behind rank 1 in the names */
        char name[32];
        heft_shape_t shape = { .rank = 2, .extent = { 4, r } };
        (void)snprintf(name, sizeof name, "rank-%d.w", r);
        EXPECT_STATUS(heft_manifest_add(ranks, name, HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
        (void)snprintf(name, sizeof name, "rank-%d.b", r);
        shape = (heft_shape_t){ .rank = 1, .extent = { 3 } };
        EXPECT_STATUS(heft_manifest_add(ranks, name, HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(ranks, &err), HEFT_OK);
    for (long k = 0;; k++) {
        heft_placement_t *p = NULL;
        heft_manifest_t *whole = NULL;
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft_placement_infer(ranks, 1, NULL, &p, &whole, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_shard_t cut;
            assert_int_equal(heft_placement_get_n_cuts(p), 1 + 11); /* b of one rank, w of eleven */
            EXPECT_STATUS(heft_placement_query_cut(p, 11, &cut, &err), HEFT_OK);
            assert_string_equal(cut.tensor, "w");
            assert_int_equal(cut.rank, 11);
            assert_int_equal(cut.begin[1], 55);
            assert_int_equal(cut.end[1], 66);
            EXPECT_STATUS(heft_manifest_query(whole, 1, &info, &err), HEFT_OK);
            assert_int_equal(info.shape.extent[1], 66);
        }
        heft_placement_destroy(p);
        heft_manifest_destroy(whole);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    EXPECT_STATUS(heft_placement_infer(ranks, 0, NULL, &p, &whole, &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("\"w\": ranks 0 and 1 hold parts that differ");
    EXPECT_STATUS(heft_placement_infer(ranks, -1, NULL, &p, &whole, &err), HEFT_ERR_ARGUMENT);
    heft_manifest_destroy(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_fleets_send_each_element_once),
        cmocka_unit_test(uneven_splits_arrive_exactly),
        cmocka_unit_test(replicas_share_the_work),
        cmocka_unit_test(what_is_no_placement_is_refused),
        cmocka_unit_test(exceptions_are_those_of_the_recipe),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(parts_of_ranks_say_it_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
