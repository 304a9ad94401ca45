/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest use of libheft: a fused parameter from two source tensors, proven and copied in
 * memory.
 *
 *   gate [2, 3], up [2, 3]  ->  gate_up [4, 3]
 */
#include <heft/heft.h>

#include <stdio.h>
#include <string.h>

static const char recipe_text[] = "\"gate\" [f, d] -> \"gate_up\" [(0:2 f), d]\n"
                                  "\"up\" [f, d] -> \"gate_up\" [(1:2 f), d]\n";

static heft_status_t build_plan(const heft_manifest_t *source, heft_plan_t **plan_out,
                                heft_error_t *err)
{
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tape = NULL;
    heft_status_t status =
        heft_recipe_parse("embed", recipe_text, strlen(recipe_text), &recipe, err);
    if (status == HEFT_OK) {
        status = heft_recipe_compile(recipe, NULL, 0, source, NULL, &tape, err);
    }
    if (status == HEFT_OK) {
        const heft_tape_t *tapes[] = { tape };
        status = heft_plan_create(tapes, 1, 0, NULL, plan_out, NULL, err);
    }
    heft_tape_destroy(tape);
    heft_recipe_destroy(recipe);
    return status;
}

static heft_status_t build_source(heft_manifest_t **source_out, heft_error_t *err)
{
    const heft_shape_t shape = { .rank = 2, .extent = { 2, 3 } };
    heft_manifest_t *source = NULL;
    heft_status_t status = heft_manifest_create("source", &source, err);
    if (status == HEFT_OK) {
        status = heft_manifest_add(source, "gate", HEFT_DTYPE_F32, &shape, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_add(source, "up", HEFT_DTYPE_F32, &shape, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(source, err);
    }
    if (status != HEFT_OK) {
        heft_manifest_destroy(source);
        return status;
    }
    *source_out = source;
    return HEFT_OK;
}

static heft_status_t run(float fused[12], heft_error_t *err)
{
    static const float gate[6] = { 1, 2, 3, 4, 5, 6 };
    static const float up[6] = { 11, 12, 13, 14, 15, 16 };
    const void *sources[] = { gate, up }; /* plan order is name order */
    void *params[] = { fused };
    heft_manifest_t *source = NULL;
    heft_plan_t *plan = NULL;
    heft_exec_t *exec = NULL;
    heft_status_t status = build_source(&source, err);
    if (status == HEFT_OK) {
        status = build_plan(source, &plan, err);
    }
    if (status == HEFT_OK) {
        const heft_exec_target_t target = { .rank_index = 0, .params = params };
        status = heft_exec_create(plan, &target, 1, NULL, &exec, err);
    }
    if (status == HEFT_OK) {
        status = heft_exec_run(exec, sources, err);
    }
    heft_exec_destroy(exec);
    heft_plan_destroy(plan);
    heft_manifest_destroy(source);
    return status;
}

int main(void)
{
    static const float expected[12] = { 1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16 };
    float fused[12] = { 0 };
    heft_error_t err = HEFT_ERROR_INIT;
    if (run(fused, &err) != HEFT_OK) {
        (void)fprintf(stderr, "%s: %s\n", heft_status_get_name(err.status), err.message);
        return 1;
    }
    if (memcmp(fused, expected, sizeof fused) != 0) {
        (void)fprintf(stderr, "wrong result\n");
        return 1;
    }
    (void)printf("gate_up = [gate; up], 12 elements, proven\n");
    return 0;
}
