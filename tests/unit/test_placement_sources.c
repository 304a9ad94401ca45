/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements that the manifests of a trainer's ranks say: what they hold together becomes one
 * model, and everything that does not fit is refused by name. Elements carry their own place, so
 * what a plan makes of the boxes is judged one by one.
 */
#include "heft_test.h"

#include "heft/exec.h"
#include "heft/placement.h"
#include "heft/plan.h"
#include "heft/recipe.h"

enum { MAX_SOURCES = 16, MAX_ENTRIES = 64, MAX_ELEMS = 4096 };

typedef struct side {
    heft_manifest_t *manifests[MAX_SOURCES];
    heft_placement_source_t sources[MAX_SOURCES];
    char labels[MAX_SOURCES][24];
    uint32_t n;
} side_t;

static void begin_side(side_t *side, uint32_t n)
{
    *side = (side_t){ .n = n };
    for (uint32_t r = 0; r < n; r++) {
        heft_error_t err = HEFT_ERROR_INIT;
        EXPECT_STATUS(heft_manifest_create("source", &side->manifests[r], &err), HEFT_OK);
        (void)snprintf(side->labels[r], sizeof side->labels[r], "job/0/%u", (unsigned)r);
    }
}

/* A box [row, row + rows) x [column, column + columns) of a tensor "w" of rank r. */
static void add_box(side_t *side, uint32_t r, const char *name, const heft_shape_t *whole,
                    const int64_t box[4], uint32_t replica)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 2, .extent = { box[1], box[3] } };
    const heft_part_t part = {
        .tensor = "w", .shape = *whole, .begin = { box[0], box[2] }, .replica = replica
    };
    EXPECT_STATUS(heft_manifest_add(side->manifests[r], name, HEFT_DTYPE_U32, &shape, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(side->manifests[r], name, &part, &err), HEFT_OK);
}

static void add_whole(side_t *side, uint32_t r, const char *name, heft_dtype_t dtype,
                      const heft_shape_t *shape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_manifest_add(side->manifests[r], name, dtype, shape, &err), HEFT_OK);
}

static void end_side(side_t *side)
{
    for (uint32_t r = 0; r < side->n; r++) {
        heft_error_t err = HEFT_ERROR_INIT;
        EXPECT_STATUS(heft_manifest_finish(side->manifests[r], &err), HEFT_OK);
        side->sources[r] =
            (heft_placement_source_t){ .manifest = side->manifests[r], .label = side->labels[r] };
    }
}

static void fini_side(side_t *side)
{
    for (uint32_t r = 0; r < side->n; r++) {
        heft_manifest_destroy(side->manifests[r]);
    }
}

static const heft_shape_t tall = { .rank = 2, .extent = { 10, 4 } };

/* ---- what they hold is put together ---- */

static heft_plan_t *plan_of(const heft_placement_t *p, const heft_manifest_t *whole)
{
    static const char text[] = "\"w\" [i, j] -> \"w\" [j, i]\n";
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_tape_t *placed = NULL;
    heft_plan_t *plan = NULL;
    EXPECT_STATUS(heft_recipe_parse("r", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_compile(recipe, NULL, 0, whole, NULL, &tape, &err), HEFT_OK);
    EXPECT_STATUS(heft_placement_apply(p, tape, &placed, &err), HEFT_OK);
    const heft_tape_t *const tapes[] = { placed };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, NULL, &plan, NULL, &err), HEFT_OK);
    heft_tape_destroy(placed);
    heft_recipe_destroy(recipe);
    return plan;
}

/* Memory of an entry: each element says where in the whole tensor it stands. */
static uint32_t *memory_of(const side_t *side, uint32_t r, uint32_t i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    heft_part_t part;
    uint32_t *data = calloc(MAX_ELEMS, sizeof *data);
    assert_non_null(data);
    EXPECT_STATUS(heft_manifest_query(side->manifests[r], i, &info, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_query_part(side->manifests[r], i, &part, &err), HEFT_OK);
    for (int64_t y = 0; y < info.shape.extent[0]; y++) {
        for (int64_t x = 0; x < info.shape.extent[1]; x++) {
            data[y * info.shape.extent[1] + x] =
                (uint32_t)((part.begin[0] + y) * part.shape.extent[1] + part.begin[1] + x);
        }
    }
    return data;
}

static void judge(const side_t *side)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    heft_tensor_info_t info;
    static uint32_t result[MAX_ELEMS];
    uint32_t *memory[MAX_ENTRIES];
    const void *sources[MAX_ENTRIES] = { NULL };
    uint32_t n = 0;
    EXPECT_STATUS(heft_placement_from_sources(side->sources, side->n, NULL, &p, &whole, NULL, &err),
                  HEFT_OK);
    assert_int_equal(heft_placement_get_n_ranks(p), side->n);
    heft_plan_t *plan = plan_of(p, whole);
    for (uint32_t r = 0; r < side->n; r++) {
        for (uint32_t i = 0; i < heft_manifest_get_n_tensors(side->manifests[r]); i++) {
            char name[64];
            heft_tensor_info_t source;
            EXPECT_STATUS(heft_manifest_query(side->manifests[r], i, &info, &err), HEFT_OK);
            (void)snprintf(name, sizeof name, "rank-%u.%s", (unsigned)r, info.name);
            memory[n] = memory_of(side, r, i);
            for (uint32_t s = 0; heft_plan_query_source(plan, s, &source, NULL) == HEFT_OK; s++) {
                sources[s] = strcmp(source.name, name) == 0 ? memory[n] : sources[s];
            }
            n++;
        }
    }
    void *params[] = { result };
    const heft_exec_target_t target = { .rank_index = 0, .params = params };
    heft_exec_t *exec = NULL;
    memset(result, 0xff, sizeof result);
    EXPECT_STATUS(heft_exec_create(plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_query(whole, 0, &info, &err), HEFT_OK);
    for (int64_t y = 0; y < info.shape.extent[0]; y++) {
        for (int64_t x = 0; x < info.shape.extent[1]; x++) {
            assert_int_equal(result[x * info.shape.extent[0] + y], y * info.shape.extent[1] + x);
        }
    }
    while (n > 0) {
        free(memory[--n]);
    }
    heft_exec_destroy(exec);
    heft_plan_destroy(plan);
    heft_placement_destroy(p);
    heft_manifest_destroy(whole);
}

/* 10 rows over 3 ranks, the remainder at the end (as one framework cuts) or equal parts as long as
 * they last (as another does); and fewer rows than ranks. */
static void uneven_split(void **state)
{
    (void)state;
    static const int64_t bounds[][4] = { { 0, 3, 6, 10 }, { 0, 4, 8, 10 }, { 0, 10, 10, 10 } };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        side_t side;
        begin_side(&side, 3);
        for (uint32_t r = 0; r < 3; r++) {
            const int64_t box[4] = { bounds[i][r], bounds[i][r + 1] - bounds[i][r], 0, 4 };
            add_box(&side, r, "w", &tall, box, 0);
        }
        end_side(&side);
        judge(&side);
        fini_side(&side);
    }
}

/* Rows over two ranks, twice: four ranks, of which each pair shares the work. */
static void replicas(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    opts.min_cut_bytes = 4;
    begin_side(&side, 4);
    for (uint32_t r = 0; r < 4; r++) {
        const int64_t box[4] = { r % 2 * 5, 5, 0, 4 };
        add_box(&side, r, "w", &tall, box, r / 2);
    }
    end_side(&side);
    judge(&side);
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 4, &opts, &p, &whole, NULL, &err),
                  HEFT_OK);
    for (uint32_t r = 0; r < 4; r++) {
        assert_true(heft_placement_get_load(p, r) >= 2 * 4 * 4);
        assert_true(heft_placement_get_load(p, r) <= 3 * 4 * 4);
    }
    heft_placement_destroy(p);
    heft_manifest_destroy(whole);
    fini_side(&side);
}

/* A mesh of devices over hosts: what position (i, j) of n0 x n1 holds of a tensor of 16 x 16. */
typedef struct mesh {
    int64_t n[2];
    int64_t axis[2]; /* of the mesh, that cuts each dimension */
    uint32_t n_hosts;
    const uint32_t *device_at; /* by position; device d is of host d / (devices per host) */
} mesh_t;

static void add_mesh(side_t *side, const mesh_t *mesh)
{
    static const heft_shape_t square = { .rank = 2, .extent = { 16, 16 } };
    const uint32_t n = (uint32_t)(mesh->n[0] * mesh->n[1]);
    begin_side(side, mesh->n_hosts);
    for (uint32_t at = 0; at < n; at++) {
        const int64_t position[2] = { at / mesh->n[1], at % mesh->n[1] };
        const uint32_t device = mesh->device_at != NULL ? mesh->device_at[at] : at;
        char name[16];
        int64_t box[4];
        for (int d = 0; d < 2; d++) {
            box[2 * d + 1] = 16 / mesh->n[mesh->axis[d]];
            box[2 * d] = position[mesh->axis[d]] * box[2 * d + 1];
        }
        (void)snprintf(name, sizeof name, "w.%u", (unsigned)device);
        add_box(side, device / (n / mesh->n_hosts), name, &square, box, 0);
    }
    end_side(side);
}

/* Number of entry i's box among the boxes of its size. */
static int64_t number_of(const side_t *side, uint32_t r, uint32_t i)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    heft_part_t part;
    EXPECT_STATUS(heft_manifest_query(side->manifests[r], i, &info, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_query_part(side->manifests[r], i, &part, &err), HEFT_OK);
    return part.begin[0] / info.shape.extent[0] * (16 / info.shape.extent[1]) +
           part.begin[1] / info.shape.extent[1];
}

static void host_axis_ambiguous(void **state)
{
    (void)state;
    side_t side;
    /* four hosts, and two axes of four: which of them runs along the hosts cannot be guessed */
    for (int64_t k = 0; k < 2; k++) {
        add_mesh(&side, &(mesh_t){ .n = { 4, 4 }, .axis = { k, 1 - k }, .n_hosts = 4 });
        judge(&side);
        fini_side(&side);
    }
    /* the second host of a mesh (2, 8): shards 8, 10, 12, 14 of (8, 2), or 4 to 7 of (2, 8) */
    for (int64_t k = 0; k < 2; k++) {
        add_mesh(&side, &(mesh_t){ .n = { 2, 8 }, .axis = { 1 - k, k }, .n_hosts = 4 });
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(number_of(&side, 1, i), k == 0 ? 8 + 2 * i : 4 + i);
        }
        judge(&side);
        fini_side(&side);
    }
}

static void mesh_position_not_device_number(void **state)
{
    (void)state;
    static const uint32_t torus[] = { 0, 1, 3, 2, 6, 7, 5, 4 };
    side_t side;
    add_mesh(&side, &(mesh_t){ .n = { 2, 4 }, .axis = { 0, 1 }, .n_hosts = 4, .device_at = torus });
    for (uint32_t at = 0; at < 8; at++) {
        assert_int_equal(number_of(&side, torus[at] / 2, torus[at] % 2), at);
    }
    judge(&side);
    fini_side(&side);
}

static void stages_hold_tensors_of_their_own(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    heft_shard_t cut;
    const char *reason = NULL;
    begin_side(&side, 2);
    add_whole(&side, 0, "a", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 1, "b", HEFT_DTYPE_BF16, &tall);
    EXPECT_STATUS(heft_manifest_exclude(side.manifests[0], "b", "of the other stage", &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_manifest_exclude(side.manifests[0], "c", "no weight", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_exclude(side.manifests[1], "c", "is none", &err), HEFT_OK);
    end_side(&side);
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 2, NULL, &p, &whole, NULL, &err),
                  HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(whole), 2);
    assert_int_equal(heft_manifest_get_n_excluded(whole), 1);
    assert_string_equal(heft_manifest_get_excluded(whole, 0, &reason), "c");
    assert_string_equal(reason, "no weight");
    EXPECT_STATUS(heft_placement_query_cut(p, 1, &cut, &err), HEFT_OK);
    assert_string_equal(cut.tensor, "b");
    assert_string_equal(cut.name, "b");
    assert_int_equal(cut.rank, 1);
    heft_placement_destroy(p);
    heft_manifest_destroy(whole);
    fini_side(&side);
}

static void one_source_says_it_all(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    begin_side(&side, 1);
    add_whole(&side, 0, "b", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 0, "a", HEFT_DTYPE_F32, &tall);
    EXPECT_STATUS(heft_manifest_set_attr(side.manifests[0], "framework", "x", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_tensor_attr(side.manifests[0], "b", "repeat.axis", "0", &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_tensor_attr(side.manifests[0], "b", "repeat.factor", "2", &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_manifest_exclude(side.manifests[0], "c", "no weight", &err), HEFT_OK);
    end_side(&side);
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 1, NULL, &p, &whole, NULL, &err),
                  HEFT_OK);
    assert_null(p);
    assert_string_equal(heft_manifest_get_digest(whole),
                        heft_manifest_get_digest(side.manifests[0]));
    heft_manifest_destroy(whole);
    fini_side(&side);
}

/* ---- refusals ---- */

static void refuse(side_t *side, heft_status_t status, const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    char *report = NULL;
    end_side(side);
    EXPECT_STATUS(
        heft_placement_from_sources(side->sources, side->n, NULL, &p, &whole, &report, &err),
        status);
    EXPECT_MESSAGE(text);
    assert_null(p);
    assert_null(whole);
    assert_null(report); /* it is one thing */
    fini_side(side);
}

static void box_gap(void **state)
{
    (void)state;
    side_t side;
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 4, 0, 4 }, 0);
    add_box(&side, 1, "w", &tall, (int64_t[]){ 6, 4, 0, 3 }, 0);
    refuse(&side, HEFT_ERR_PROOF,
           "tensor \"w\": no source holds [4..6, 0..3): 12 of 40 elements are missing");
}

static void box_overlap(void **state)
{
    (void)state;
    side_t side;
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 6, 0, 4 }, 1);
    add_box(&side, 1, "w", &tall, (int64_t[]){ 4, 6, 0, 4 }, 1);
    refuse(&side, HEFT_ERR_EXISTS,
           "tensor \"w\": overlap without a replica index: job/0/0 and job/0/1 both hold [4..6, "
           "0..4) as replica 1");
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 4, 0, 4 }, 0);
    add_box(&side, 1, "w.0", &tall, (int64_t[]){ 4, 6, 0, 4 }, 0);
    add_box(&side, 1, "w.1", &tall, (int64_t[]){ 5, 2, 1, 2 }, 1);
    refuse(&side, HEFT_ERR_EXISTS,
           "tensor \"w\": job/0/1 holds [5..7, 1..3) twice, in \"w.0\" and \"w.1\"");
}

static void side_disagrees_with_itself(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t wide = { .rank = 2, .extent = { 10, 5 } };
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 5, 0, 4 }, 0);
    add_box(&side, 1, "w", &wide, (int64_t[]){ 5, 5, 0, 5 }, 0);
    refuse(&side, HEFT_ERR_SHAPE, "tensor \"w\": U32 [10, 4] of job/0/0, U32 [10, 5] of job/0/1");
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 10, 0, 4 }, 0);
    add_whole(&side, 1, "w", HEFT_DTYPE_F32, &tall); /* of the same size */
    refuse(&side, HEFT_ERR_SHAPE, "tensor \"w\": U32 [10, 4] of job/0/0, F32 [10, 4] of job/0/1");
    for (int k = 0; k < 2; k++) { /* said by one alone, in either order */
        begin_side(&side, 2);
        add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 5, 0, 4 }, 0);
        add_box(&side, 1, "w", &tall, (int64_t[]){ 5, 5, 0, 4 }, 0);
        EXPECT_STATUS(
            heft_manifest_set_tensor_attr(side.manifests[k], "w", "repeat.axis", "0", &err),
            HEFT_OK);
        EXPECT_STATUS(
            heft_manifest_set_tensor_attr(side.manifests[k], "w", "repeat.factor", "2", &err),
            HEFT_OK);
        refuse(&side, HEFT_ERR_SHAPE,
               k == 0 ? "tensor \"w\": repeat.axis is 0 of job/0/0, not given of job/0/1"
                      : "tensor \"w\": repeat.axis is not given of job/0/0, 0 of job/0/1");
    }
    begin_side(&side, 2);
    add_whole(&side, 0, "a", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 1, "b", HEFT_DTYPE_F32, &tall);
    EXPECT_STATUS(heft_manifest_set_attr(side.manifests[1], "framework", "x", &err), HEFT_OK);
    refuse(&side, HEFT_ERR_NAME, "attribute \"framework\" is not given of job/0/0, x of job/0/1");
}

static void names_local_to_a_stage_are_refused(void **state)
{
    (void)state;
    side_t side;
    begin_side(&side, 2);
    add_whole(&side, 0, "layers.0.w", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 1, "layers.0.w", HEFT_DTYPE_F32, &tall);
    refuse(&side, HEFT_ERR_EXISTS,
           "tensor \"layers.0.w\": job/0/0 and job/0/1 both have that name, and neither says");
}

static void all_problems_reported(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    char *report = NULL;
    begin_side(&side, 2);
    add_box(&side, 0, "w", &tall, (int64_t[]){ 0, 6, 0, 4 }, 0);
    add_box(&side, 1, "w", &tall, (int64_t[]){ 4, 4, 0, 4 }, 0);
    add_whole(&side, 0, "a", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 1, "a", HEFT_DTYPE_BF16, &tall);
    add_whole(&side, 0, "b", HEFT_DTYPE_F32, &tall);
    add_whole(&side, 1, "b", HEFT_DTYPE_F32, &tall);
    EXPECT_STATUS(heft_manifest_set_attr(side.manifests[0], "framework", "y", &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_attr(side.manifests[1], "framework", "x", &err), HEFT_OK);
    end_side(&side);
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 2, NULL, &p, &whole, &report, &err),
                  HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("(1 of 5 problems)");
    assert_string_equal(
        report,
        "tensor \"a\": F32 [10, 4] of job/0/0, BF16 [10, 4] of job/0/1\n"
        "tensor \"b\": job/0/0 and job/0/1 both have that name, and neither says of which whole "
        "tensor it is a part, or which replica\n"
        "attribute \"framework\" is y of job/0/0, x of job/0/1\n"
        "tensor \"w\": overlap without a replica index: job/0/0 and job/0/1 both hold [4..6, 0..4) "
        "as replica 0\n"
        "tensor \"w\": no source holds [8..10, 0..4): 8 of 40 elements are missing\n");
    heft_string_free(report);
    fini_side(&side);
    /* more than are listed */
    begin_side(&side, 2);
    for (int i = 0; i < 50; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t.%02d", i);
        add_whole(&side, 0, name, HEFT_DTYPE_F32, &tall);
        add_whole(&side, 1, name, HEFT_DTYPE_F32, &tall);
    }
    end_side(&side);
    side.sources[0].label = NULL;
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 2, NULL, &p, &whole, &report, &err),
                  HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("rank 0 and job/0/1");
    assert_non_null(strstr(report, "\"t.39\""));
    assert_null(strstr(report, "\"t.40\""));
    assert_non_null(strstr(report, "... 50 problems in all\n"));
    heft_string_free(report);
    fini_side(&side);
}

static void arguments_are_checked(void **state)
{
    (void)state;
    side_t side;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *p = NULL;
    heft_manifest_t *whole = NULL;
    begin_side(&side, 0);
    refuse(&side, HEFT_ERR_ARGUMENT, "0 sources");
    begin_side(&side, 1);
    side.sources[0].manifest = side.manifests[0];
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 1, NULL, &p, &whole, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source 0 has no finished manifest");
    EXPECT_STATUS(heft_placement_from_sources(side.sources, 1, NULL, NULL, &whole, NULL, &err),
                  HEFT_ERR_ARGUMENT);
    fini_side(&side);
    EXPECT_STATUS(heft_manifest_create("destination", &side.manifests[0], &err), HEFT_OK);
    refuse(&side, HEFT_ERR_ARGUMENT, "of a source");
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    side_t side;
    begin_side(&side, 3);
    for (uint32_t r = 0; r < 3; r++) {
        heft_error_t err = HEFT_ERROR_INIT;
        add_box(&side, r, "w", &tall, (int64_t[]){ 0, 10, 0, 4 }, r);
        EXPECT_STATUS(heft_manifest_exclude(side.manifests[r], "c", "no weight", &err), HEFT_OK);
    }
    add_whole(&side, 1, "b", HEFT_DTYPE_F32, &tall);
    end_side(&side);
    for (uint32_t n = 2; n <= 3; n++) {
        side.sources[2].manifest = n == 2 ? side.manifests[1] : side.manifests[2];
        for (long k = 0;; k++) {
            heft_error_t err = HEFT_ERROR_INIT;
            heft_placement_t *p = NULL;
            heft_manifest_t *whole = NULL;
            char *report = NULL;
            const int64_t live = heft__alloc_live();
            heft__alloc_fail_at(k);
            heft_status_t status =
                heft_placement_from_sources(side.sources, 3, NULL, &p, &whole, &report, &err);
            heft__alloc_fail_at(-1);
            heft_placement_destroy(p);
            heft_manifest_destroy(whole);
            heft_string_free(report);
            assert_int_equal(heft__alloc_live(), live);
            if (status != HEFT_ERR_NOMEM) {
                EXPECT_STATUS(status, n == 2 ? HEFT_ERR_EXISTS : HEFT_OK);
                break;
            }
        }
    }
    fini_side(&side);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_split),
        cmocka_unit_test(replicas),
        cmocka_unit_test(host_axis_ambiguous),
        cmocka_unit_test(mesh_position_not_device_number),
        cmocka_unit_test(stages_hold_tensors_of_their_own),
        cmocka_unit_test(one_source_says_it_all),
        cmocka_unit_test(box_gap),
        cmocka_unit_test(box_overlap),
        cmocka_unit_test(side_disagrees_with_itself),
        cmocka_unit_test(names_local_to_a_stage_are_refused),
        cmocka_unit_test(all_problems_reported),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
