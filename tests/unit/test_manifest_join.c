/* SPDX-License-Identifier: Apache-2.0 */
/* Several source ranks as one source, and what that means for the cover of a destination. */
#include "heft_test.h"
#include "tape_builder.h"

#include "heft/contract.h"

static heft_manifest_t *decode(const char *tensors, const char *attrs)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    char text[600];
    (void)snprintf(text, sizeof text,
                   "{\"heft_manifest\":1,\"side\":\"source\",\"attributes\":{%s},\"tensors\":[%s]}",
                   attrs, tensors);
    EXPECT_STATUS(heft_manifest_decode(text, strlen(text), &m, &err), HEFT_OK);
    return m;
}

#define EMBED "{\"name\":\"embed.weight\",\"dtype\":\"BF16\",\"shape\":[4,2]}"
#define LAYER(n) "{\"name\":\"layers." n ".w\",\"dtype\":\"BF16\",\"shape\":[2,2]}"

typedef struct stages {
    heft_manifest_t *parts[2];
    heft_manifest_t *joined;
    uint32_t writers[8];
} stages_t;

static void open_stages(stages_t *s, const char *first, const char *second)
{
    *s = (stages_t){ .parts = { decode(first, "\"framework\":\"m\""),
                                decode(second, "\"framework\":\"m\"") } };
}

static void close_stages(stages_t *s)
{
    heft_manifest_destroy(s->parts[0]);
    heft_manifest_destroy(s->parts[1]);
    heft_manifest_destroy(s->joined);
}

static heft_status_t join(stages_t *s, const char *shared, heft_error_t *err)
{
    return heft_manifest_join((const heft_manifest_t *const *)s->parts, 2, &shared,
                              shared != NULL ? 1 : 0, &s->joined, s->writers, err);
}

static void a_tied_embedding_of_two_stages_has_one_writer(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    stages_t s;
    open_stages(&s, EMBED "," LAYER("0"), EMBED "," LAYER("1"));
    EXPECT_STATUS(join(&s, "embed.weight", &err), HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(s.joined), 3);
    assert_int_equal(s.writers[0], 0); /* embed.weight */
    assert_int_equal(s.writers[1], 0); /* layers.0.w */
    assert_int_equal(s.writers[2], 1); /* layers.1.w */
    assert_string_equal(heft_manifest_get_attr(s.joined, "framework"), "m");
    close_stages(&s);
}

static void names_local_to_a_stage_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    stages_t s;
    open_stages(&s, EMBED "," LAYER("0"), EMBED "," LAYER("0"));
    EXPECT_STATUS(join(&s, "embed.weight", &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("tensor \"layers.0.w\" is in source 0 and in source 1");
    EXPECT_STATUS(join(&s, NULL, &err), HEFT_ERR_EXISTS);
    EXPECT_MESSAGE("tensor \"embed.weight\"");
    assert_null(s.joined);
    close_stages(&s);
}

static void what_is_declared_shared_must_be_so(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    stages_t s;
    open_stages(&s, EMBED, "{\"name\":\"embed.weight\",\"dtype\":\"F32\",\"shape\":[4,2]}");
    EXPECT_STATUS(join(&s, "embed.weight", &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("shared tensor \"embed.weight\"");
    close_stages(&s);
    open_stages(&s, EMBED "," LAYER("0"), LAYER("1"));
    EXPECT_STATUS(join(&s, "embed.*", &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("shared \"embed.*\" matches no tensor that two sources have");
    close_stages(&s);
    open_stages(&s, EMBED, LAYER("1"));
    heft_manifest_destroy(s.parts[1]);
    s.parts[1] = decode(LAYER("1"), "\"framework\":\"n\"");
    EXPECT_STATUS(join(&s, NULL, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("attribute \"framework\": \"m\" of source 0, \"n\" of source 1");
    close_stages(&s);
}

/* A loader of everything, held against one stage and against both. */
static void no_stage_alone_covers_and_the_sum_does(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    stages_t s;
    tape_builder_t tb;
    open_stages(&s, EMBED "," LAYER("0"), EMBED "," LAYER("1"));
    EXPECT_STATUS(join(&s, "embed.weight", &err), HEFT_OK);
    tb_init(&tb);
    static const char *const names[] = { "embed.weight", "layers.0.w", "layers.1.w" };
    for (int i = 0; i < 3; i++) {
        const heft_shape_t shape = i == 0 ? TB_SHAPE(4, 2) : TB_SHAPE(2, 2);
        uint32_t from = tb_source(&tb, names[i], HEFT_DTYPE_BF16, shape);
        uint32_t to = tb_param(&tb, names[i], HEFT_DTYPE_BF16, shape);
        tb_copy(&tb, tb_all(&tb, to), tb_all(&tb, from));
    }
    const heft_tape_t *tapes[] = { tb.tape };
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    opts.tapes = tapes;
    opts.n_tapes = 1;
    heft_contract_t *c = NULL;
    for (int p = 0; p < 2; p++) {
        EXPECT_STATUS(heft_contract_create(s.parts[p], &opts, &c, NULL, &err), HEFT_ERR_NAME);
        EXPECT_MESSAGE(p == 0 ? "layers.1.w" : "layers.0.w");
    }
    EXPECT_STATUS(heft_contract_create(s.joined, &opts, &c, NULL, &err), HEFT_OK);
    heft_contract_destroy(c);
    tb_fini(&tb);
    close_stages(&s);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    stages_t s;
    open_stages(&s, EMBED "," LAYER("0"), EMBED "," LAYER("1"));
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = join(&s, "embed.weight", &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
        assert_null(s.joined);
        assert_int_equal(heft__alloc_live(), live);
    }
    close_stages(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_embedding_of_two_stages_has_one_writer),
        cmocka_unit_test(names_local_to_a_stage_are_refused),
        cmocka_unit_test(what_is_declared_shared_must_be_so),
        cmocka_unit_test(no_stage_alone_covers_and_the_sum_does),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
