/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying: whatever differs is found, and the first difference is traced to its source. */
#include "ref_reshard.h"

#include "heft/exec.h"

typedef struct fixture {
    ref_case_t c;
    char *root;
    heft_checkpoint_t *source;
    heft_checkpoint_t *destination;
    int n_writes;
} fixture_t;

/* Destination tensors as they are written: the plan's parameters, which a test may change. */
typedef struct dest_tensor {
    char name[24];
    heft_dtype_t dtype;
    heft_shape_t shape;
    const uint8_t *data;
} dest_tensor_t;

static heft_checkpoint_t *write_tensors(fixture_t *f, const dest_tensor_t *tensors, int n)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char dir[340];
    (void)snprintf(dir, sizeof dir, "%s/w%d", f->root, f->n_writes++);
    heft_manifest_t *manifest = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    heft_checkpoint_t *out = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &manifest, &err), HEFT_OK);
    for (int i = 0; i < n; i++) {
        EXPECT_STATUS(
            heft_manifest_add(manifest, tensors[i].name, tensors[i].dtype, &tensors[i].shape, &err),
            HEFT_OK);
    }
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_checkpoint_writer_create(dir, manifest, 0, &writer, &err), HEFT_OK);
    for (int i = 0; i < n; i++) {
        uint32_t index;
        heft_tensor_info_t info;
        void *to = NULL;
        EXPECT_STATUS(heft_manifest_find(manifest, tensors[i].name, &index, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_query(manifest, index, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, index, &to, &err), HEFT_OK);
        memcpy(to, tensors[i].data, (size_t)info.n_bytes);
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, index, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    heft_manifest_destroy(manifest);
    EXPECT_STATUS(heft_checkpoint_open(dir, "destination", &out, &err), HEFT_OK);
    return out;
}

static int expected_tensors(const fixture_t *f, dest_tensor_t *tensors)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t p = 0; p < f->c.n_params[0]; p++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(f->c.plan, 0, p, &info, &err), HEFT_OK);
        (void)snprintf(tensors[p].name, sizeof tensors[p].name, "%s", info.name);
        tensors[p].dtype = info.dtype;
        tensors[p].shape = info.shape;
        tensors[p].data = f->c.expected[0][p];
    }
    return (int)f->c.n_params[0];
}

static void rewrite(fixture_t *f)
{
    dest_tensor_t tensors[REF_MAX_PARAMS + 1];
    int n = expected_tensors(f, tensors);
    heft_checkpoint_close(f->destination);
    f->destination = write_tensors(f, tensors, n);
}

/* gate and up [3, 4] fused to gate_up [6, 4], a norm as bf16, bias padded to 8 with ones. */
static void fixture_init(fixture_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *f = (fixture_t){ .root = heft_test_mkdir() };
    int bias = ref_case_source(&f->c, "bias", HEFT_DTYPE_F32, 1, (int64_t[]){ 5 });
    int gate = ref_case_source(&f->c, "gate", HEFT_DTYPE_BF16, 2, (int64_t[]){ 3, 4 });
    int norm = ref_case_source(&f->c, "norm", HEFT_DTYPE_F32, 1, (int64_t[]){ 4 });
    int up = ref_case_source(&f->c, "up", HEFT_DTYPE_BF16, 2, (int64_t[]){ 3, 4 });
    heft_tape_t *t = ref_case_tape(&f->c);
    uint32_t p = ref_tape_param(t, "bias", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    ref_fill(t, ref_narrow(ref_view(t, p), 0, 5, 3), 0x3f800000);
    ref_copy(t, ref_narrow(ref_view(t, p), 0, 0, 5), ref_view(t, (uint32_t)bias));
    p = ref_tape_param(t, "gate_up", HEFT_DTYPE_BF16, 2, (int64_t[]){ 6, 4 });
    ref_copy(t, ref_narrow(ref_view(t, p), 0, 0, 3), ref_view(t, (uint32_t)gate));
    ref_copy(t, ref_narrow(ref_view(t, p), 0, 3, 3), ref_view(t, (uint32_t)up));
    p = ref_tape_param(t, "norm", HEFT_DTYPE_BF16, 1, (int64_t[]){ 4 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)norm));
    ref_case_finish(&f->c);
    char path[340];
    (void)snprintf(path, sizeof path, "%s/source", f->root);
    ref_write_sources(&f->c, path);
    EXPECT_STATUS(heft_checkpoint_open(path, "source", &f->source, &err), HEFT_OK);
    rewrite(f);
}

static void fixture_fini(fixture_t *f)
{
    heft_checkpoint_close(f->destination);
    heft_checkpoint_close(f->source);
    heft_test_rmdir(f->root);
    ref_case_fini(&f->c);
}

static void equal_checkpoints_are_counted(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_init(&f);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err), HEFT_OK);
    assert_null(m.param);
    assert_int_equal(m.n_elems, 8 + 24 + 4);
    assert_int_equal(m.n_differ, 0);
    assert_int_equal(m.n_params, 0);
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, NULL, &err), HEFT_OK);
    fixture_fini(&f);
}

/* The classic: both halves arrive, each in the other's place. Sums and norms see nothing. */
static void swapped_halves_are_found_and_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_init(&f);
    uint8_t half[24];
    uint8_t *gate_up = f.c.expected[0][1];
    memcpy(half, gate_up, 24);
    memcpy(gate_up, gate_up + 24, 24);
    memcpy(gate_up + 24, half, 24);
    rewrite(&f);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, "gate_up");
    assert_int_equal(m.n_dims, 2);
    assert_int_equal(m.index[0], 0);
    assert_int_equal(m.index[1], 0);
    assert_string_equal(m.source, "gate");
    assert_int_equal(m.source_index, 0);
    uint16_t first[2];
    memcpy(&first[0], f.c.sources[1].data, 2);
    memcpy(&first[1], f.c.sources[3].data, 2);
    assert_int_equal(m.expected_bits, first[0]);
    assert_int_equal(m.actual_bits, first[1]);
    assert_int_equal(m.n_differ, 24);
    assert_int_equal(m.n_params, 1);
    assert_int_equal(m.n_elems, 36);
    EXPECT_MESSAGE("parameter \"gate_up\" [0, 0]");
    EXPECT_MESSAGE("source \"gate\" element 0");
    fixture_fini(&f);
}

static void the_first_difference_in_parameter_order_is_given(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_init(&f);
    f.c.expected[0][2][3] ^= 0x80; /* norm[1], from a cast */
    rewrite(&f);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, "norm");
    assert_string_equal(m.source, "norm");
    assert_int_equal(m.source_index, 1);
    assert_int_equal(m.expected_bits ^ m.actual_bits, 0x8000);
    f.c.expected[0][1][(4 * 4 + 2) * 2] ^= 1; /* gate_up[4, 2] is up[1, 2] */
    rewrite(&f);
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, "gate_up");
    assert_int_equal(m.index[0], 4);
    assert_int_equal(m.index[1], 2);
    assert_string_equal(m.source, "up");
    assert_int_equal(m.source_index, 6);
    assert_int_equal(m.n_differ, 2);
    assert_int_equal(m.n_params, 2);
    f.c.expected[0][0][7 * 4 + 1] ^= 1; /* bias[7] is padding */
    rewrite(&f);
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, "bias");
    assert_null(m.source);
    assert_int_equal(m.expected_bits, 0x3f800000);
    assert_int_equal(m.actual_bits, 0x3f800100);
    EXPECT_MESSAGE("parameter \"bias\" [7]: expected the constant 0x3f800000, found 0x3f800100");
    fixture_fini(&f);
}

static void tensors_that_do_not_fit_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_init(&f);
    dest_tensor_t good[REF_MAX_PARAMS + 1];
    int n = expected_tensors(&f, good);
    static const struct {
        const char *what;
        heft_status_t want;
        const char *message;
    } cases[] = {
        { "missing", HEFT_ERR_NAME, "\"gate_up\"" },
        { "renamed", HEFT_ERR_NAME, "\"gate_up\"" },
        { "extra", HEFT_ERR_NAME, "\"gate_up.scale\"" },
        { "shape", HEFT_ERR_SHAPE,
          "\"gate_up\": BF16 [6, 4] in the plan, BF16 [4, 6] in the file" },
        { "several", HEFT_ERR_NAME, "2 parameters missing, the first is \"gate_up\"" },
        { "dtype", HEFT_ERR_SHAPE, "\"gate_up\": BF16 [6, 4] in the plan, F16 [6, 4] in the file" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dest_tensor_t tensors[REF_MAX_PARAMS + 1];
        int n_now = n;
        memcpy(tensors, good, sizeof tensors);
        switch (i) {
        case 0:
            tensors[1] = tensors[2];
            n_now--;
            break;
        case 1:
            (void)snprintf(tensors[1].name, sizeof tensors[1].name, "gate_upp");
            break;
        case 2:
            tensors[n_now] = tensors[1];
            (void)snprintf(tensors[n_now++].name, sizeof tensors[1].name, "gate_up.scale");
            break;
        case 3:
            tensors[1].shape.extent[0] = 4;
            tensors[1].shape.extent[1] = 6;
            break;
        case 4:
            n_now = 1;
            break;
        default:
            tensors[1].dtype = HEFT_DTYPE_F16;
            break;
        }
        heft_checkpoint_t *other = write_tensors(&f, tensors, n_now);
        heft_mismatch_t m = { .rank = 77 };
        EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, other, &m, &err), cases[i].want);
        EXPECT_MESSAGE(cases[i].message);
        assert_int_equal(m.rank, 77); /* outputs are written only when there is something to say */
        heft_checkpoint_close(other);
    }
    EXPECT_STATUS(heft_verify(f.c.plan, 1, f.source, f.destination, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_verify(f.c.plan, 0, f.source, NULL, NULL, &err), HEFT_ERR_ARGUMENT);
    fixture_fini(&f);
}

static void verify_survives_each_allocation_failing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    fixture_t f;
    fixture_init(&f);
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft_mismatch_t m;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_verify(f.c.plan, 0, f.source, f.destination, &m, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
    assert_true(k > 10);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_checkpoints_are_counted),
        cmocka_unit_test(swapped_halves_are_found_and_named),
        cmocka_unit_test(the_first_difference_in_parameter_order_is_given),
        cmocka_unit_test(tensors_that_do_not_fit_are_named),
        cmocka_unit_test(verify_survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
