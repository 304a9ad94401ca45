/* SPDX-License-Identifier: Apache-2.0 */
/* Tapes traced of toy loaders (tests/python/loaders), each with the element map its loader must
 * have: folded, proven, and written out element by element. golden/loader_tapes has a file for each
 * toy; tests/python/loaders/toys/golden.py makes them. */
#include "heft_test.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>

#include "heft/plan.h"

#define FOLDER "golden/loader_tapes"

enum { MAX_EXCEPTIONS = 8, MAX_WORDS = 1024, MAX_WORD = 256 };

typedef struct toy {
    const char *name; /* of the file */
    json_t *json;
    heft_tape_t *tape;
    heft_plan_t *plan;
    uint32_t rank;
    char words[MAX_WORDS][MAX_WORD]; /* of the parameter at hand */
} toy_t;

/* ---- reading ---- */

static json_t *field(const toy_t *toy, const char *key)
{
    json_t *value = json_object_get(toy->json, key);
    if (value == NULL) {
        fail_msg("%s lacks \"%s\"", toy->name, key);
    }
    return value;
}

static heft_tape_t *decode(const toy_t *toy)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = json_dumps(field(toy, "tape"), JSON_COMPACT);
    assert_non_null(text);
    heft_tape_t *tape = NULL;
    heft_status_t status = heft_tape_decode(text, strlen(text), &tape, &err);
    free(text);
    if (status != HEFT_OK) {
        fail_msg("%s: %s", toy->name, err.message);
    }
    return tape;
}

static heft_exception_kind_t kind_of(const toy_t *toy, const char *word)
{
    static const struct {
        const char *word;
        heft_exception_kind_t kind;
    } kinds[] = { { "unused", HEFT_EXCEPTION_UNUSED },
                  { "elsewhere", HEFT_EXCEPTION_ELSEWHERE },
                  { "equal", HEFT_EXCEPTION_EQUAL },
                  { "untouched", HEFT_EXCEPTION_UNTOUCHED } };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].word, word) == 0) {
            return kinds[i].kind;
        }
    }
    fail_msg("%s: exception of kind \"%s\"", toy->name, word);
    return HEFT_EXCEPTION_UNUSED;
}

static heft_plan_t *prove(const toy_t *toy)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_exception_t exceptions[MAX_EXCEPTIONS] = { 0 };
    json_t *listed = field(toy, "exceptions");
    size_t n = json_array_size(listed);
    assert_true(n <= MAX_EXCEPTIONS);
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_array_get(listed, i);
        exceptions[i].kind = kind_of(toy, json_string_value(json_array_get(one, 0)));
        exceptions[i].pattern = json_string_value(json_array_get(one, 1));
        exceptions[i].reason = "a toy says so";
        json_t *box = json_array_get(one, 2);
        exceptions[i].n_dims = (int32_t)json_array_size(box);
        for (size_t d = 0; d < json_array_size(box); d++) {
            json_t *range = json_array_get(box, d);
            exceptions[i].begin[d] = json_integer_value(json_array_get(range, 0));
            exceptions[i].end[d] = json_integer_value(json_array_get(range, 1));
        }
    }
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.exceptions = exceptions;
    opts.n_exceptions = (uint32_t)n;
    const heft_tape_t *tapes[] = { toy->tape };
    heft_plan_t *plan = NULL;
    if (heft_plan_create(tapes, 1, toy->rank, &opts, &plan, NULL, &err) != HEFT_OK) {
        fail_msg("%s: %s", toy->name, err.message);
    }
    return plan;
}

static void toy_init(toy_t *toy, const char *file)
{
    char path[512];
    json_error_t error;
    (void)snprintf(path, sizeof path, FOLDER "/%s", file);
    toy->name = file;
    toy->json = json_load_file(path, 0, &error);
    if (toy->json == NULL) {
        fail_msg("%s:%d: %s", path, error.line, error.text);
    }
    toy->rank = (uint32_t)json_integer_value(field(toy, "rank"));
    toy->tape = decode(toy);
    toy->plan = prove(toy);
}

static void toy_fini(toy_t *toy)
{
    heft_plan_destroy(toy->plan);
    heft_tape_destroy(toy->tape);
    json_decref(toy->json);
}

/* ---- pieces, element by element ---- */

typedef struct elem {
    const char *source;
    int64_t index;
} elem_t;

static int by_name(const void *a, const void *b)
{
    const elem_t *x = a;
    const elem_t *y = b;
    int order = strcmp(x->source, y->source);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* "w#14*s#5", each element once; "=" for none. */
static void spell(elem_t *elems, uint32_t n, char *word)
{
    size_t at = 0;
    qsort(elems, n, sizeof *elems, by_name);
    (void)snprintf(word, MAX_WORD, "=");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && by_name(&elems[i - 1], &elems[i]) == 0) {
            continue;
        }
        int used = snprintf(word + at, MAX_WORD - at, "%s%s#%" PRId64, i > 0 ? "*" : "",
                            elems[i].source, elems[i].index);
        assert_true(used > 0 && at + (size_t)used < MAX_WORD);
        at += (size_t)used;
    }
}

static int64_t dot(const int64_t *index, const int64_t *stride, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t d = 0; d < rank; d++) {
        sum += index[d] * stride[d];
    }
    return sum;
}

/* Where element k of a piece, in row-major order, comes from and goes. */
static void write_elem(toy_t *toy, const heft_piece_t *piece, int64_t k)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (int32_t d = piece->rank - 1; d >= 0; d--) {
        index[d] = k % piece->extent[d];
        k /= piece->extent[d];
    }
    elem_t elems[HEFT_MAX_SOURCES];
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const heft_piece_src_t *src = &piece->srcs[s];
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_source(toy->plan, src->source, &info, &err), HEFT_OK);
        elems[s] = (elem_t){ info.name, src->offset + dot(index, src->stride, piece->rank) };
    }
    int64_t at = piece->dst_offset + dot(index, piece->dst_stride, piece->rank);
    assert_true(at >= 0 && at < MAX_WORDS);
    if (strcmp(toy->words[at], "_") != 0) {
        fail_msg("%s: element %" PRId64 " of parameter %u twice", toy->name, at, piece->param);
    }
    spell(elems, piece->n_srcs, toy->words[at]);
}

static bool is_opaque(const toy_t *toy, const char *param)
{
    json_t *listed = field(toy, "opaque");
    for (size_t i = 0; i < json_array_size(listed); i++) {
        if (strcmp(json_string_value(json_array_get(listed, i)), param) == 0) {
            return true;
        }
    }
    return false;
}

static void check_opaque(const toy_t *toy, const heft_piece_t *pieces, uint64_t n)
{
    assert_true(n > 0);
    for (uint64_t i = 0; i < n; i++) {
        if (pieces[i].n_srcs != 1 || pieces[i].srcs[0].opaque == 0) {
            fail_msg("%s: a piece that needs no operation", toy->name);
        }
    }
}

static void check_param(toy_t *toy, uint32_t param)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    uint64_t n;
    EXPECT_STATUS(heft_plan_query_param(toy->plan, 0, param, &info, &err), HEFT_OK);
    const heft_piece_t *pieces = heft_plan_get_param_pieces(toy->plan, 0, param, &n);
    if (is_opaque(toy, info.name)) {
        check_opaque(toy, pieces, n);
        return;
    }
    json_t *expected = json_object_get(field(toy, "map"), info.name);
    if (expected == NULL || (int64_t)json_array_size(expected) != info.n_elems) {
        fail_msg("%s: no map of %" PRId64 " elements for \"%s\"", toy->name, info.n_elems,
                 info.name);
    }
    for (int64_t i = 0; i < info.n_elems; i++) {
        (void)snprintf(toy->words[i], MAX_WORD, "_");
    }
    for (uint64_t i = 0; i < n; i++) {
        int64_t n_elems = 1;
        for (int32_t d = 0; d < pieces[i].rank; d++) {
            n_elems *= pieces[i].extent[d];
        }
        for (int64_t k = 0; k < n_elems; k++) {
            write_elem(toy, &pieces[i], k);
        }
    }
    for (int64_t i = 0; i < info.n_elems; i++) {
        const char *word = json_string_value(json_array_get(expected, (size_t)i));
        if (strcmp(word, toy->words[i]) != 0) {
            fail_msg("%s: %s#%" PRId64 " <- %s, expected %s", toy->name, info.name, i,
                     toy->words[i], word);
        }
    }
}

static void check_toy(const char *file)
{
    toy_t *toy = calloc(1, sizeof *toy);
    assert_non_null(toy);
    toy_init(toy, file);
    uint32_t n = heft_plan_get_n_params(toy->plan, 0);
    assert_int_equal(json_object_size(field(toy, "map")), n);
    for (uint32_t param = 0; param < n; param++) {
        check_param(toy, param);
    }
    toy_fini(toy);
    free(toy);
}

static void golden_tapes_fold_to_their_element_maps(void **state)
{
    (void)state;
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    int n = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strstr(entry->d_name, ".json") != NULL) {
            check_toy(entry->d_name);
            n++;
        }
    }
    (void)closedir(folder);
    assert_true(n >= 90); /* the folder is not empty by mistake */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_tapes_fold_to_their_element_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
