/* SPDX-License-Identifier: Apache-2.0 */
/* Folding tapes of the size of real models: counts are checked, time and memory are printed. */
#include "heft_test.h"
#include "synth_model.h"
#include "tape/tape.h"

#include <sys/resource.h>

static double peak_mib(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Fold one rank; returns the number of pieces. Every parameter must be covered, and the pieces of
 * all parameters together have as many elements as the parameters. */
static uint64_t fold_model(const char *name, const synth_model_t *model, int64_t tp, int64_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    heft__fold_t *fold = NULL;
    int64_t live = heft__alloc_live();
    int64_t t0 = heft__clock_mono_ns();
    EXPECT_STATUS(synth_model_tape(model, tp, rank, &tape, &err), HEFT_OK);
    int64_t t1 = heft__clock_mono_ns();
    int64_t tape_bytes = heft__alloc_live_bytes();
    int64_t n_allocs = heft__alloc_total();
    EXPECT_STATUS(heft__fold_create(tape, NULL, &fold, &err), HEFT_OK);
    int64_t t2 = heft__clock_mono_ns();
    (void)fprintf(stderr,
                  "%s tp %lld: %zu buffers, %u writes, tape %.3f s and %.1f MiB; fold %.3f s, "
                  "%llu pieces, %.1f MiB, %lld allocations; peak of the process %.0f MiB\n",
                  name, (long long)tp, tape->n_buffers, heft_tape_get_n_writes(tape),
                  (double)(t1 - t0) * 1e-9, (double)tape_bytes / 1048576, (double)(t2 - t1) * 1e-9,
                  (unsigned long long)fold->n_pieces,
                  (double)(heft__alloc_live_bytes() - tape_bytes) / 1048576,
                  (long long)(heft__alloc_total() - n_allocs), peak_mib());
    for (uint32_t b = 0; b < tape->n_buffers; b++) {
        uint64_t n;
        int64_t n_elems = 0;
        const heft__fold_piece_t *pieces = heft__fold_get_pieces(fold, b, &n);
        for (uint64_t i = 0; i < n; i++) {
            n_elems += heft__fold_piece_count(&pieces[i]);
        }
        assert_int_equal(n_elems,
                         tape->buffers[b].kind == HEFT_BUFFER_PARAM ? tape->buffers[b].n_elems : 0);
    }
    assert_int_equal(fold->n_overwrites, model->has_fills ? fold->n_pieces : 0);
    assert_int_equal(fold->n_opaques, model->has_kernels ? fold->n_pieces : 0);
    uint64_t n_pieces = fold->n_pieces;
    heft__fold_destroy(fold);
    heft_tape_destroy(tape);
    assert_int_equal(heft__alloc_live(), live);
    return n_pieces;
}

static void a_dense_model_folds_to_one_piece_for_each_source(void **state)
{
    (void)state;
    assert_int_equal(fold_model("8b", &synth_dense_8b, 2, 1),
                     synth_model_n_sources(&synth_dense_8b));
}

static void a_model_of_94_layers_and_128_experts_folds_to_one_piece_for_each_source(void **state)
{
    (void)state;
    assert_int_equal(synth_model_n_sources(&synth_moe_235b), 94 * (128 * 3 + 9) + 3);
    assert_int_equal(fold_model("235b", &synth_moe_235b, 8, 5),
                     synth_model_n_sources(&synth_moe_235b));
}

static void a_model_of_61_layers_and_384_experts_folds_to_one_piece_for_each_source(void **state)
{
    (void)state;
    assert_int_equal(fold_model("1t", &synth_moe_1t, 8, 7), synth_model_n_sources(&synth_moe_1t));
}

static void temporaries_on_the_way_change_nothing(void **state)
{
    (void)state;
    synth_model_t model = synth_moe_235b;
    model.has_temps = true;
    model.n_layers = 47;
    assert_int_equal(fold_model("235b with temporaries, half the layers", &model, 8, 5),
                     synth_model_n_sources(&model));
}

static void kernel_layouts_that_interleave_experts_cost_no_more(void **state)
{
    (void)state;
    synth_model_t model = synth_moe_235b;
    model.is_transposed = true;
    assert_int_equal(fold_model("235b, experts transposed", &model, 8, 5),
                     synth_model_n_sources(&model));
}

static void zeroing_first_and_kernels_on_the_way_stay_cheap(void **state)
{
    (void)state;
    synth_model_t model = synth_moe_235b;
    model.n_layers = 47;
    model.has_fills = true;
    assert_int_equal(fold_model("235b zeroed first, half the layers", &model, 8, 5),
                     synth_model_n_sources(&model));
    model.has_fills = false;
    model.has_kernels = true;
    assert_int_equal(fold_model("235b through kernels, half the layers", &model, 8, 5),
                     synth_model_n_sources(&model));
}

/* n sources of [n_rows, width], side by side in one parameter of [n_rows, n * width]: every
 * interval overlaps every other. Written in an order that jumps about. */
static void many_column_blocks_of_one_parameter_stay_cheap(void **state)
{
    (void)state;
    enum { N = 768, N_ROWS = 4096, WIDTH = 48, N_PARAMS = 20 };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    EXPECT_STATUS(heft_tape_create(&tape, &err), HEFT_OK);
    for (int p = 0; p < N_PARAMS; p++) {
        char name[32];
        uint32_t param;
        heft_shape_t shape = { .rank = 2, .extent = { N_ROWS, N * WIDTH } };
        (void)snprintf(name, sizeof name, "p%d", p);
        EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, name, HEFT_DTYPE_BF16, &shape,
                                           &param, &err),
                      HEFT_OK);
        for (int i = 0; i < N; i++) {
            uint32_t src;
            heft_shape_t one = { .rank = 2, .extent = { N_ROWS, WIDTH } };
            (void)snprintf(name, sizeof name, "s%d.%d", p, i);
            EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_SOURCE, name, HEFT_DTYPE_BF16,
                                               &one, &src, &err),
                          HEFT_OK);
            heft_view_t from = heft_view_contiguous(src, &one);
            heft_view_t to = heft_view_contiguous(param, &shape);
            to.offset = (int64_t)(i * 385 % N) * WIDTH;
            to.extent[1] = WIDTH;
            EXPECT_STATUS(heft_tape_copy(tape, &to, &from, NULL, &err), HEFT_OK);
        }
    }
    heft__fold_t *fold = NULL;
    int64_t t = heft__clock_mono_ns();
    EXPECT_STATUS(heft__fold_create(tape, NULL, &fold, &err), HEFT_OK);
    (void)fprintf(stderr, "%d parameters of %d column blocks: fold %.3f s\n", N_PARAMS, N,
                  (double)(heft__clock_mono_ns() - t) * 1e-9);
    assert_int_equal(fold->n_pieces, N * N_PARAMS);
    heft__fold_destroy(fold);
    heft_tape_destroy(tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_model_folds_to_one_piece_for_each_source),
        cmocka_unit_test(a_model_of_94_layers_and_128_experts_folds_to_one_piece_for_each_source),
        cmocka_unit_test(a_model_of_61_layers_and_384_experts_folds_to_one_piece_for_each_source),
        cmocka_unit_test(temporaries_on_the_way_change_nothing),
        cmocka_unit_test(kernel_layouts_that_interleave_experts_cost_no_more),
        cmocka_unit_test(zeroing_first_and_kernels_on_the_way_stay_cheap),
        cmocka_unit_test(many_column_blocks_of_one_parameter_stay_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
