/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source and a destination of a few tensors, through the whole path: what preflight refuses (each
 * fault is named with both values, nothing is paused, no byte of the destination changes), and what
 * it lets through.
 */
#include "heft_test.h"
#include "heft/sync.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_TENSORS = 8, MAX_BYTES = 4096, MAX_SUBS = 2 };

typedef struct tensor {
    const char *name; /* NULL ends a list */
    heft_dtype_t dtype;
    heft_shape_t shape;
    const char *attrs[2][2]; /* key and value; NULL: none */
} tensor_t;

#define SHAPE1(n)                  \
    {                              \
        .rank = 1, .extent = { n } \
    }
#define BF16(name, n)                     \
    {                                     \
        name, HEFT_DTYPE_BF16, SHAPE1(n), \
        {                                 \
            {                             \
                NULL                      \
            }                             \
        }                                 \
    }

static const char same[] = "\"{rest*}\" [...] -> \"{rest*}\" [...]\n";

typedef struct receiver {
    heft_manifest_t *manifest;
    heft_subscriber_t *sub;
    void *data[MAX_TENSORS];
    atomic_int n_paused;
    heft_hooks_t hooks;
    pthread_t thread;
    atomic_bool stop;
} receiver_t;

typedef struct pair {
    heft_coordinator_t *coordinator;
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    heft_manifest_t *source;
    heft_publisher_t *pub;
    void *data[MAX_TENSORS];
    receiver_t receivers[MAX_SUBS];
    uint32_t n_receivers;
} pair_t;

static heft_manifest_t *make_manifest(const char *side, const tensor_t *tensors, void **data,
                                      int fill)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *m = NULL;
    EXPECT_STATUS(heft_manifest_create(side, &m, &err), HEFT_OK);
    for (int i = 0; tensors[i].name != NULL; i++) {
        const tensor_t *t = &tensors[i];
        EXPECT_STATUS(heft_manifest_add(m, t->name, t->dtype, &t->shape, &err), HEFT_OK);
        for (int k = 0; k < 2 && t->attrs[k][0] != NULL; k++) {
            EXPECT_STATUS(
                heft_manifest_set_tensor_attr(m, t->name, t->attrs[k][0], t->attrs[k][1], &err),
                HEFT_OK);
        }
    }
    EXPECT_STATUS(heft_manifest_finish(m, &err), HEFT_OK);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(m); i++) {
        data[i] = aligned_alloc(64, MAX_BYTES);
        assert_non_null(data[i]);
        memset(data[i], fill, MAX_BYTES);
    }
    return m;
}

static void free_side(heft_manifest_t *manifest, void **data)
{
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest); i++) {
        free(data[i]);
    }
    heft_manifest_destroy(manifest);
}

static int on_pause(void *arg)
{
    atomic_fetch_add(&((receiver_t *)arg)->n_paused, 1);
    return 0;
}

static void *poll_until_stopped(void *arg)
{
    receiver_t *r = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    while (!atomic_load(&r->stop)) {
        (void)!heft_subscriber_poll(r->sub, 20, &err);
    }
    return NULL;
}

static receiver_t *add_receiver(pair_t *p, const tensor_t *tensors)
{
    heft_error_t err = HEFT_ERROR_INIT;
    receiver_t *r = &p->receivers[p->n_receivers];
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    r->manifest = make_manifest("destination", tensors, r->data, 0x77);
    r->hooks = (heft_hooks_t)HEFT_HOOKS_INIT;
    r->hooks.arg = r;
    r->hooks.pause = on_pause;
    opts.url = heft_coordinator_get_url(p->coordinator);
    opts.replica = p->n_receivers++;
    opts.hooks = &r->hooks;
    EXPECT_STATUS(
        heft_subscriber_create(&opts, p->recipe, p->bindings, r->manifest, r->data, &r->sub, &err),
        HEFT_OK);
    assert_int_equal(pthread_create(&r->thread, NULL, poll_until_stopped, r), 0);
    return r;
}

static void start(pair_t *p, const char *recipe, const tensor_t *source,
                  const tensor_t *destination)
{
    heft_error_t err = HEFT_ERROR_INIT;
    memset(p, 0, sizeof *p);
    EXPECT_STATUS(heft_recipe_parse("pair", recipe, strlen(recipe), &p->recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&p->bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_coordinator_start(NULL, &p->coordinator, &err), HEFT_OK);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    opts.url = heft_coordinator_get_url(p->coordinator);
    p->source = make_manifest("source", source, p->data, 0x11);
    EXPECT_STATUS(
        heft_publisher_create(&opts, p->source, (const void *const *)p->data, &p->pub, &err),
        HEFT_OK);
    (void)add_receiver(p, destination);
}

static void stop(pair_t *p)
{
    heft_publisher_destroy(p->pub);
    for (uint32_t i = 0; i < p->n_receivers; i++) {
        receiver_t *r = &p->receivers[i];
        atomic_store(&r->stop, true);
        assert_int_equal(pthread_join(r->thread, NULL), 0);
        heft_subscriber_destroy(r->sub);
        free_side(r->manifest, r->data);
    }
    heft_coordinator_stop(p->coordinator);
    free_side(p->source, p->data);
    heft_bindings_destroy(p->bindings);
    heft_recipe_destroy(p->recipe);
}

/* The result of a round, as the coordinator keeps it; freed by the caller. */
static char *get_result(const pair_t *p, const heft_push_result_t *result)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char path[80];
    char *json = NULL;
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld", (long long)result->round_epoch,
                   (long long)result->round_seq);
    EXPECT_STATUS(
        heft_client_get(heft_coordinator_get_url(p->coordinator), path, 20000, &json, &err),
        HEFT_OK);
    return json;
}

/* A push is refused in preflight, and each text is among the problems of its result. */
static void expect_problems(pair_t *p, const char *const *texts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    assert_int_not_equal(heft_publisher_push(p->pub, 1, &result, &err), HEFT_OK);
    EXPECT_MESSAGE("in preflight");
    assert_string_equal(result.state, "aborted");
    char *json = get_result(p, &result);
    for (int i = 0; texts[i] != NULL; i++) {
        if (strstr(json, texts[i]) == NULL) {
            fail_msg("no \"%s\" in %s", texts[i], strstr(json, "\"problems\""));
        }
    }
    heft_string_free(json);
    for (uint32_t i = 0; i < p->n_receivers; i++) {
        const receiver_t *r = &p->receivers[i];
        assert_int_equal(atomic_load(&r->n_paused), 0);
        assert_int_equal(heft_subscriber_get_version(r->sub), 0);
        for (uint32_t k = 0; k < heft_manifest_get_n_tensors(r->manifest); k++) {
            for (int b = 0; b < MAX_BYTES; b++) {
                assert_int_equal(((const uint8_t *)r->data[k])[b], 0x77);
            }
        }
    }
}

static void expect_refused(const char *recipe, const tensor_t *source, const tensor_t *destination,
                           const char *const *texts)
{
    pair_t p;
    start(&p, recipe, source, destination);
    expect_problems(&p, texts);
    stop(&p);
}

#define TEXTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void name_only_on_source(void **state)
{
    (void)state;
    const tensor_t source[] = { BF16("layers.0.w", 8), BF16("layers.1.w", 8), { .name = NULL } };
    const tensor_t destination[] = { BF16("layers.0.w", 8), { .name = NULL } };
    expect_refused(same, source, destination,
                   TEXTS("parameter \\\"layers.1.w\\\" is not in the destination; nearest is "
                         "\\\"layers.0.w\\\""));
}

static void name_only_on_destination(void **state)
{
    (void)state;
    static const char recipe[] = "\"layers.{i}.w\" [d] -> \"layers.{i}.w\" [d]\n";
    const tensor_t source[] = { BF16("layer.1.w", 8), BF16("layers.0.w", 8), { .name = NULL } };
    const tensor_t destination[] = { BF16("layers.0.w", 8),
                                     BF16("layers.1.w", 8),
                                     { .name = NULL } };
    expect_refused(recipe, source, destination,
                   TEXTS("parameter \\\"layers.1.w\\\" rank 0: all 8 elements uncovered; nearest "
                         "unused source \\\"layer.1.w\\\"",
                         "source \\\"layer.1.w\\\": all 8 elements unused; nearest uncovered "
                         "parameter \\\"layers.1.w\\\" rank 0"));
}

static void shape_mismatch(void **state)
{
    (void)state;
    const tensor_t source[] = { BF16("a", 8), BF16("b", 8), { .name = NULL } };
    const tensor_t destination[] = { BF16("a", 8), BF16("b", 9), { .name = NULL } };
    expect_refused(same, source, destination,
                   TEXTS("parameter \\\"b\\\": BF16 [8] here, BF16 [9] in the destination"));
}

static void dtype_same_size_mismatch(void **state)
{
    (void)state;
    const tensor_t source[] = { BF16("a", 8), { .name = NULL } };
    const tensor_t destination[] = { { "a", HEFT_DTYPE_F16, SHAPE1(8), { { NULL } } },
                                     { .name = NULL } };
    expect_refused(same, source, destination,
                   TEXTS("parameter \\\"a\\\": BF16 [8] here, F16 [8] in the destination"));
}

static void attribute_mismatch(void **state)
{
    (void)state;
    static const char recipe[] = "\"w\" [d] -> \"w\" [d]\n"
                                 "attr \"w\" cut.axis = 0, cut.parts = 2\n";
    const tensor_t source[] = { BF16("w", 8), { .name = NULL } };
    const tensor_t destination[] = {
        { "w", HEFT_DTYPE_BF16, SHAPE1(8), { { "cut.axis", "0" }, { "cut.parts", "4" } } },
        { .name = NULL }
    };
    expect_refused(recipe, source, destination,
                   TEXTS("parameter \\\"w\\\": cut.parts is 2 here, 4 in the destination"));
}

static void padded_size_mismatch(void **state)
{
    (void)state;
    static const char recipe[] = "\"w\" [d] where d pad 768 as e -> \"w\" [e]\n";
    const tensor_t source[] = { BF16("w", 700), { .name = NULL } };
    const tensor_t destination[] = { BF16("w", 1024), { .name = NULL } };
    expect_refused(recipe, source, destination,
                   TEXTS("parameter \\\"w\\\": BF16 [768] here, BF16 [1024] in the destination"));
}

static void all_problems_reported(void **state)
{
    (void)state;
    const tensor_t source[] = { BF16("a", 8), BF16("b", 8),         BF16("c", 8),
                                BF16("d", 8), BF16("only_here", 8), { .name = NULL } };
    const tensor_t destination[] = {
        BF16("a", 9),          { "b", HEFT_DTYPE_F16, SHAPE1(8), { { NULL } } },
        BF16("c", 7),          BF16("d", 5),
        BF16("only_there", 8), { .name = NULL }
    };
    expect_refused(same, source, destination,
                   TEXTS("\"kind\":\"shape\",\"total\":4,", "\"kind\":\"name\",\"total\":1,",
                         "parameter \\\"a\\\": BF16 [8] here, BF16 [9] in the destination",
                         "parameter \\\"b\\\": BF16 [8] here, F16 [8] in the destination",
                         "parameter \\\"c\\\": BF16 [8] here, BF16 [7] in the destination",
                         "parameter \\\"d\\\": BF16 [8] here, BF16 [5] in the destination",
                         "parameter \\\"only_here\\\" is not in the destination; nearest is "
                         "\\\"only_there\\\""));
}

static void side_disagrees_with_itself(void **state)
{
    (void)state;
    const tensor_t source[] = { BF16("a", 8), { .name = NULL } };
    const tensor_t other[] = { BF16("a", 9), { .name = NULL } };
    pair_t p;
    start(&p, same, source, source);
    (void)add_receiver(&p, other);
    expect_problems(&p, TEXTS("destination.heft.0.0 and destination.heft.1.0 hold one rank and "
                              "declare different manifests"));
    stop(&p);
}

/* Everything that the second of two sources holds is ignored by the recipe. */
static void a_source_of_which_nothing_is_read_is_named(void **state)
{
    (void)state;
    static const char without_b[] = "\"a\" [...] -> \"a\" [...]\n"
                                    "ignore \"b\" because \"nobody reads it\"\n";
    static const tensor_t second[] = { BF16("b", 8), BF16(NULL, 1) };
    static const tensor_t first[] = { BF16("a", 8), BF16(NULL, 1) };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    void *data[MAX_TENSORS];
    pair_t p;
    start(&p, without_b, first, first);
    heft_manifest_t *other = make_manifest("source", second, data, 0x22);
    heft_publisher_opts_t opts = HEFT_PUBLISHER_OPTS_INIT;
    heft_publisher_t *pub = NULL;
    opts.url = heft_coordinator_get_url(p.coordinator);
    opts.rank = 1;
    EXPECT_STATUS(heft_publisher_create(&opts, other, (const void *const *)data, &pub, &err),
                  HEFT_OK);
    assert_int_not_equal(heft_publisher_push(p.pub, 1, &result, &err), HEFT_OK);
    assert_string_equal(result.state, "aborted");
    EXPECT_MESSAGE("source.heft.0.1 is in no route: no destination reads anything that it holds");
    assert_int_equal(atomic_load(&p.receivers[0].n_paused), 0);
    heft_publisher_destroy(pub);
    free_side(other, data);
    EXPECT_STATUS(heft_publisher_push(p.pub, 2, &result, &err), HEFT_ERR_NAME);
    stop(&p);
}

static void zero_byte_plan_refused(void **state)
{
    (void)state;
    const tensor_t empty[] = { BF16("a", 0), { .name = NULL } };
    expect_refused(same, empty, empty,
                   TEXTS("the plan moves nothing: 0 pieces, 0 bytes planned, 0 bytes expected"));
}

/* ---- memory ---- */

/* Known when the destination is created: it never takes part in a round. */
static void staging_too_small(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const tensor_t source[] = { BF16("a", 8), { .name = NULL } };
    pair_t p;
    start(&p, same, source, source);
    const int64_t n = INT64_C(1) << 49;
    const heft_shape_t shape = { .rank = 1, .extent = { n } };
    heft_manifest_t *huge = NULL;
    EXPECT_STATUS(heft_manifest_create("destination", &huge, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(huge, "a", HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(huge, &err), HEFT_OK);
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    heft_subscriber_t *sub = NULL;
    opts.url = heft_coordinator_get_url(p.coordinator);
    opts.replica = 5;
    EXPECT_STATUS(heft_subscriber_create(&opts, p.recipe, p.bindings, huge, p.data, &sub, &err),
                  HEFT_ERR_NOSPACE);
    EXPECT_MESSAGE("1125899906842624 bytes needed");
    EXPECT_MESSAGE("bytes available");
    assert_null(sub);
    heft_manifest_destroy(huge);
    /* the fleet does not know it, and goes on */
    heft_push_result_t result;
    EXPECT_STATUS(heft_publisher_push(p.pub, 1, &result, &err), HEFT_OK);
    assert_int_equal(result.n_destinations, 1);
    stop(&p);
}

/* ---- a coordinator that says nothing ---- */

/* Every call that needs one ends by its deadline, and says where it waited. */
static void every_wait_has_a_deadline(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const tensor_t tensors[] = { BF16("a", 8), { .name = NULL } };
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    char url[64];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(listen(fd, 16), 0); /* it is there, takes what it is told, and never answers */
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", ntohs(at.sin_port));
    pair_t p;
    start(&p, same, tensors, tensors);

    heft_publisher_opts_t source = HEFT_PUBLISHER_OPTS_INIT;
    heft_publisher_t *pub = NULL;
    source.url = url;
    source.deadline_ms = 300;
    EXPECT_STATUS(heft_publisher_create(&source, p.source, (const void *const *)p.data, &pub, &err),
                  HEFT_ERR_PEER);
    EXPECT_MESSAGE("127.0.0.1");
    assert_null(pub);
    heft_subscriber_opts_t destination = HEFT_SUBSCRIBER_OPTS_INIT;
    heft_subscriber_t *sub = NULL;
    destination.url = url;
    destination.deadline_ms = 300;
    EXPECT_STATUS(heft_subscriber_create(&destination, p.recipe, p.bindings,
                                         p.receivers[0].manifest, p.receivers[0].data, &sub, &err),
                  HEFT_ERR_PEER);
    EXPECT_MESSAGE("127.0.0.1");
    assert_null(sub);
    heft_client_opts_t client = HEFT_CLIENT_OPTS_INIT;
    client.url = url;
    client.deadline_ms = 100;
    EXPECT_STATUS(heft_client_await_destinations(&client, 1, 300, NULL, NULL, &err),
                  HEFT_ERR_TIMEOUT);
    char *json = NULL;
    EXPECT_STATUS(heft_client_get(url, "/v1/status", 100, &json, &err), HEFT_ERR_TIMEOUT);
    EXPECT_STATUS(heft_client_post(url, "/v1/rounds", "{}", 100, &json, &err), HEFT_ERR_TIMEOUT);
    assert_null(json);
    stop(&p);
    (void)close(fd);
}

/* ---- what goes through ---- */

static void scalar_tensor_moves(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t result;
    const tensor_t tensors[] = { { "scale", HEFT_DTYPE_F32, { .rank = 0 }, { { NULL } } },
                                 BF16("w", 8),
                                 { .name = NULL } };
    pair_t p;
    start(&p, same, tensors, tensors);
    for (int version = 1; version <= 2; version++) {
        const float value = 0.5f * (float)version;
        memcpy(p.data[0], &value, sizeof value);
        EXPECT_STATUS(heft_publisher_push(p.pub, version, &result, &err), HEFT_OK);
        assert_int_equal(result.n_bytes, 4 + 16);
        const uint8_t *live = p.receivers[0].data[0];
        assert_memory_equal(live, &value, sizeof value);
        assert_int_equal(live[4], 0x77); /* one element, and nothing behind it */
    }
    stop(&p);
}

/* What a round has moved and how long it took is told after its buffers are gone, and after others.
 */
static void metrics_survive_release(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_push_result_t first;
    heft_push_result_t result;
    const tensor_t tensors[] = { BF16("w", 8), { .name = NULL } };
    pair_t p;
    start(&p, same, tensors, tensors);
    EXPECT_STATUS(heft_publisher_push(p.pub, 1, &first, &err), HEFT_OK);
    for (int64_t version = 1; version <= 4; version++) {
        char *json = get_result(&p, &first);
        assert_non_null(strstr(json, "\"state\":\"committed\""));
        assert_non_null(strstr(json, "\"ended\":true"));
        assert_non_null(strstr(json, "\"bytes\":16,\"pieces\":1,"));
        assert_non_null(strstr(json, "\"stage\":"));
        assert_non_null(strstr(json, "\"release\":"));
        heft_string_free(json);
        EXPECT_STATUS(heft_publisher_push(p.pub, version + 1, &result, &err), HEFT_OK);
    }
    stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_only_on_source),
        cmocka_unit_test(name_only_on_destination),
        cmocka_unit_test(shape_mismatch),
        cmocka_unit_test(dtype_same_size_mismatch),
        cmocka_unit_test(attribute_mismatch),
        cmocka_unit_test(padded_size_mismatch),
        cmocka_unit_test(all_problems_reported),
        cmocka_unit_test(side_disagrees_with_itself),
        cmocka_unit_test(a_source_of_which_nothing_is_read_is_named),
        cmocka_unit_test(zero_byte_plan_refused),
        cmocka_unit_test(staging_too_small),
        cmocka_unit_test(every_wait_has_a_deadline),
        cmocka_unit_test(scalar_tensor_moves),
        cmocka_unit_test(metrics_survive_release),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
