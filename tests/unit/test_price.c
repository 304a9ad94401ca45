/* SPDX-License-Identifier: Apache-2.0 */
/* Prices: cases computed by hand, and what must hold of every fleet. */
#include "heft_test.h"

#include "heft/model.h"
#include "heft/price.h"
#include "tape_builder.h"

/* Eight ranks and eight NICs a host, and round numbers. */
#define NIC "\"nic\": {\"bytes_per_s\": 100, \"latency_s\": 0.5, \"message_s\": 0}"
#define SPEEDS                                                                            \
    "\"copy\": {\"bytes_per_s\": 1000, \"run_s\": 0}, \"flip\": {\"bytes_per_s\": 500}, " \
    "\"digest\": {\"bytes_per_s\": 250}"
#define SIDES(ranks, nics)                                                         \
    "\"source\": {\"ranks_per_host\": " #ranks ", \"nics_per_host\": " #nics "}, " \
    "\"destination\": {\"ranks_per_host\": " #ranks ", \"nics_per_host\": " #nics "}"
#define HEAD "\"format\": 1, \"chunk_bytes\": 10"

static heft_links_t *links_of(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *links = NULL;
    EXPECT_STATUS(heft_links_decode(text, strlen(text), &links, &err), HEFT_OK);
    return links;
}

static heft_price_t *price_of(const heft_links_t *links, uint32_t n_senders, uint32_t n_receivers,
                              uint8_t in_place)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_price_opts_t opts = HEFT_PRICE_OPTS_INIT;
    heft_price_t *price = NULL;
    opts.n_senders = n_senders;
    opts.n_receivers = n_receivers;
    opts.in_place = in_place;
    EXPECT_STATUS(heft_price_create(links, &opts, &price, &err), HEFT_OK);
    return price;
}

static void add(heft_price_t *price, uint32_t sender, uint32_t receiver, int64_t n_bytes,
                int64_t n_packed_bytes, uint64_t n_runs)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_price_route_t route = { .sender = sender,
                                       .receiver = receiver,
                                       .n_bytes = n_bytes,
                                       .n_packed_bytes = n_packed_bytes,
                                       .n_runs = n_runs };
    EXPECT_STATUS(heft_price_add(price, &route, &err), HEFT_OK);
}

static heft_price_info_t finish(heft_price_t *price)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_price_info_t info;
    EXPECT_STATUS(heft_price_finish(price, &err), HEFT_OK);
    heft_price_query(price, &info);
    return info;
}

static void expect_near(double got, double want)
{
    if (got < want - 1e-9 || got > want + 1e-9) {
        fail_msg("%.12g, expected %.12g", got, want);
    }
}

static heft_link_load_t link_of(const heft_price_t *price, heft_link_kind_t kind, uint32_t index)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_link_load_t link = { .kind = 0 };
    for (uint32_t i = 0; i < heft_price_get_n_links(price); i++) {
        EXPECT_STATUS(heft_price_query_link(price, i, &link, &err), HEFT_OK);
        if (link.kind == kind && link.index == index) {
            return link;
        }
    }
    fail_msg("no link %s %u", heft_link_kind_get_name(kind), index);
    return link;
}

/* ---- by hand ---- */

static void one_route_over_a_nic(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(8, 8) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 1, 1, 0);
    add(price, 0, 0, 400, 0, 3);
    heft_price_info_t info = finish(price);
    /* 400 bytes at 100; the latency; gathering the first chunk of 10 at 1000 */
    expect_near(info.stage_s, 4.0 + 0.5 + 0.01);
    expect_near(info.bound_s, 4.0);
    expect_near(info.ideal_s, 4.0);
    expect_near(info.relayed_s, 4.0);
    expect_near(info.verify_s, 400.0 / 250);
    expect_near(info.flip_s, 400.0 / 500);
    expect_near(info.down_s, 0.8);
    expect_near(info.total_s, 4.51 + 1.6 + 0.8);
    assert_int_equal(info.n_messages, 40);
    assert_int_equal(info.n_runs, 3);
    assert_int_equal(info.n_routes, 1);
    assert_int_equal(info.busiest, 0);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void ranks_share_the_nics_of_their_host(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(4, 2) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 6, 6, 0);
    add(price, 0, 0, 100, 0, 1);
    add(price, 1, 1, 300, 0, 1); /* the same port on both sides */
    add(price, 5, 2, 100, 0, 1);
    heft_price_info_t info = finish(price);
    expect_near(info.bound_s, 4.0);
    expect_near(link_of(price, HEFT_LINK_NIC_OUT, 0).busy_s, 4.0);
    expect_near(link_of(price, HEFT_LINK_NIC_OUT, 2).busy_s, 1.0); /* host 1, port 0 */
    expect_near(link_of(price, HEFT_LINK_NIC_IN, 1).busy_s, 1.0);  /* rank 2 */
    assert_int_equal(link_of(price, HEFT_LINK_NIC_IN, 1).host, 2);
    /* receivers: 400 through one port; senders: 500 over three ports */
    expect_near(info.ideal_s, 4.0);
    heft_price_rank_t rank;
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_price_query_sender(price, 0, &rank, &err), HEFT_OK);
    assert_int_equal(rank.n_bytes, 100);
    expect_near(rank.wire_s, 4.0); /* it shares the port */
    EXPECT_STATUS(heft_price_query_receiver(price, 3, &rank, &err), HEFT_OK);
    assert_int_equal(rank.n_bytes, 0);
    assert_int_equal(heft_price_query_receiver(price, 6, &rank, NULL), HEFT_ERR_NOT_FOUND);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void several_nics_serve_one_rank(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(2, 4) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 2, 2, 0);
    add(price, 1, 0, 400, 0, 1);
    expect_near(finish(price).bound_s, 2.0);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void shared_hosts_write_to_memory(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", \"shared_hosts\": true, " SIDES(
        2, 1) ", \"memory\": {\"bytes_per_s\": 200, \"latency_s\": 0.25, \"message_s\": 0.001, "
              "\"host_bytes_per_s\": 500}, " SPEEDS "}");
    heft_price_t *price = price_of(links, 2, 2, 0);
    add(price, 0, 0, 200, 0, 1);
    add(price, 0, 1, 200, 0, 1);
    heft_price_info_t info = finish(price);
    /* the sender writes 400 bytes at 200, and 40 chunks cost 0.001 each; memory is touched twice */
    expect_near(info.stage_s, 2.0 + 0.04 + 0.25);
    expect_near(info.bound_s, 2.0);
    expect_near(link_of(price, HEFT_LINK_HOST, 0).busy_s, 800.0 / 500);
    expect_near(link_of(price, HEFT_LINK_SHARED, 0).busy_s, 2.04);
    expect_near(link_of(price, HEFT_LINK_COPY, 0).busy_s, 2.04);
    expect_near(info.ideal_s, 1.0);        /* both senders at work */
    expect_near(info.flip_s, 800.0 / 500); /* the host, not a rank's 200 at 500 */
    heft_price_destroy(price);

    heft_error_t err = HEFT_ERROR_INIT;
    const heft_price_route_t far = { .sender = 0, .receiver = 2, .n_bytes = 1 };
    price = price_of(links, 2, 4, 0);
    EXPECT_STATUS(heft_price_add(price, &far, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("destination rank 2");
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void switches_are_oversubscribed(void **state)
{
    (void)state;
    /* one rank and NIC a host, four hosts a group, four times too few links upwards */
    heft_links_t *links =
        links_of("{" HEAD ", " SIDES(1, 1) ", \"switch\": {\"hosts\": 4, \"oversubscription\": 4, "
                                           "\"latency_s\": 0.125}, " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 4, 4, 0);
    for (uint32_t i = 0; i < 4; i++) {
        add(price, i, i, 100, 0, 1);
    }
    heft_price_info_t info = finish(price);
    expect_near(link_of(price, HEFT_LINK_LEAF_UP, 0).busy_s, 4.0);
    expect_near(link_of(price, HEFT_LINK_LEAF_DOWN, 1).busy_s, 4.0);
    expect_near(info.bound_s, 4.0);
    expect_near(info.stage_s, 4.0 + 0.5 + 0.125 + 0.01);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void packing_and_messages_cost_seconds(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(
        1, 1) ", \"nic\": {\"bytes_per_s\": 1e6, \"latency_s\": 0, "
              "\"message_s\": 0.1}, \"copy\": {\"bytes_per_s\": 100, \"run_s\": 0.5}, "
              "\"flip\": {\"bytes_per_s\": 1e6}, \"digest\": {\"bytes_per_s\": 1e6}}");
    heft_price_t *price = price_of(links, 1, 1, 0);
    add(price, 0, 0, 100, 40, 4);
    heft_price_info_t info = finish(price);
    expect_near(link_of(price, HEFT_LINK_COPY, 0).busy_s, 1.0 + 4 * 0.5 + 10 * 0.1);
    expect_near(link_of(price, HEFT_LINK_PLACE, 0).busy_s, 0.4 + 4 * 0.5);
    expect_near(info.stage_s, 4.0 + 0.1 + 0.1); /* a chunk of 10 is gathered and put in place */
    expect_near(info.bound_s, 1e-4);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void in_place_the_engine_waits_for_all(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(
        8, 8) ", \"control\": {\"phase_s\": 1, \"member_s\": 0.5}, " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 1, 1, 1);
    add(price, 0, 0, 400, 0, 1);
    heft_price_info_t info = finish(price);
    expect_near(info.prepare_s, 2.0);
    expect_near(info.stage_s, 2.0);
    expect_near(info.flip_s, 2.0 + 4.51 + 0.8);
    expect_near(info.down_s, 2.0 + 7.31 + 3.6);
    expect_near(info.total_s, 2.0 + 2.0 + 2.0 + 7.31 + 3.6);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void replicas_could_feed_one_another(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(1, 1) ", " NIC ", " SPEEDS "}");
    heft_price_opts_t opts = HEFT_PRICE_OPTS_INIT;
    heft_price_t *price = NULL;
    opts.n_senders = 1;
    opts.n_receivers = 8;
    opts.n_replicas = 4;
    EXPECT_STATUS(heft_price_create(links, &opts, &price, &err), HEFT_OK);
    for (uint32_t r = 0; r < 8; r++) {
        add(price, 0, r, 100, 0, 1);
    }
    heft_price_info_t info = finish(price);
    expect_near(info.bound_s, 8.0);
    expect_near(info.relayed_s, 2.0);
    heft_price_destroy(price);
    opts.n_replicas = 3;
    EXPECT_STATUS(heft_price_create(links, &opts, &price, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("8 receivers in 3 replicas");
    heft_links_destroy(links);
}

static void nothing_to_send_takes_no_time(void **state)
{
    (void)state;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(8, 8) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 2, 2, 0);
    heft_price_info_t info;
    heft_price_query(price, &info);
    expect_near(info.total_s, 0);
    add(price, 0, 0, 0, 0, 0);
    info = finish(price);
    expect_near(info.total_s, 0);
    assert_int_equal(info.busiest, UINT32_MAX);
    assert_int_equal(info.n_senders, 0);
    assert_int_equal(heft_price_get_n_links(price), 0);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

/* Two ranks hold a half of "w" each, rank 1 also "v". */
static void routes_of_a_plan_are_added(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    uint32_t w = tb_param(&tb, "w", HEFT_DTYPE_BF16, TB_SHAPE(4, 6));
    uint32_t v = tb_param(&tb, "v", HEFT_DTYPE_BF16, TB_SHAPE(5));
    uint32_t w0 = tb_source(&tb, "rank-0.w", HEFT_DTYPE_BF16, TB_SHAPE(4, 2));
    uint32_t w1 = tb_source(&tb, "rank-1.w", HEFT_DTYPE_BF16, TB_SHAPE(4, 4));
    uint32_t v1 = tb_source(&tb, "rank-1.v", HEFT_DTYPE_BF16, TB_SHAPE(5));
    tb_copy(&tb, tb_narrow(tb_all(&tb, w), 1, 0, 2), tb_all(&tb, w0));
    tb_copy(&tb, tb_narrow(tb_all(&tb, w), 1, 2, 4), tb_all(&tb, w1));
    tb_copy(&tb, tb_all(&tb, v), tb_all(&tb, v1));
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const[]){ tb.tape }, 1, 0, NULL, &plan, NULL, &err),
        HEFT_OK);
    EXPECT_STATUS(heft_routes_create(plan, NULL, 2, NULL, &routes, &err), HEFT_OK);
    heft_links_t *links = links_of("{" HEAD ", " SIDES(8, 8) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 2, 2, 0);
    EXPECT_STATUS(heft_price_add_routes(price, routes, 1, 0, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_price_add_routes(price, routes, 0, 1, &err), HEFT_OK);
    heft_price_info_t info = finish(price);
    heft_price_rank_t rank;
    assert_int_equal(info.n_bytes, 2 * 29);
    EXPECT_STATUS(heft_price_query_sender(price, 0, &rank, &err), HEFT_OK);
    assert_int_equal(rank.n_bytes, 16);
    assert_int_equal(rank.n_runs, 4);
    EXPECT_STATUS(heft_price_query_sender(price, 1, &rank, &err), HEFT_OK);
    assert_int_equal(rank.n_bytes, 42);
    assert_int_equal(rank.n_runs, 5);
    EXPECT_STATUS(heft_price_query_receiver(price, 1, &rank, &err), HEFT_OK);
    assert_int_equal(rank.n_peers, 2);
    expect_near(rank.copy_s, 48.0 / 1000); /* "w" is put in place, "v" has one sender */
    heft_price_destroy(price);
    heft_links_destroy(links);
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
    tb_fini(&tb);
}

/* ---- refusals ---- */

static void routes_beyond_the_fleet_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *links = links_of("{" HEAD ", " SIDES(8, 8) ", " NIC ", " SPEEDS "}");
    heft_price_t *price = price_of(links, 2, 3, 0);
    const heft_price_route_t bad[] = { { .sender = 2, .n_bytes = 1 },
                                       { .receiver = 3, .n_bytes = 1 },
                                       { .n_bytes = -1 },
                                       { .n_bytes = 1, .n_packed_bytes = 2 },
                                       { .n_bytes = INT64_MAX },
                                       { .n_bytes = 1, .n_runs = UINT64_MAX } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EXPECT_STATUS(heft_price_add(price, &bad[i], &err), HEFT_ERR_ARGUMENT);
    }
    assert_int_equal(finish(price).n_routes, 0);
    const heft_price_route_t good = { .n_bytes = 1 };
    EXPECT_STATUS(heft_price_add(price, &good, &err), HEFT_ERR_STATE);
    EXPECT_STATUS(heft_price_finish(price, &err), HEFT_ERR_STATE);
    heft_price_destroy(price);
    heft_links_destroy(links);
}

static void links_are_read_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        { "{", "line 1" },
        { "[]", "object" },
        { "{\"format\": 2}", "\"format\" is not 1" },
        { "{\"format\": 1, \"format\": 1}", "duplicate" },
        { "{" HEAD ", \"speed\": 1}", "\"speed\" is no key" },
        { "{" HEAD ", " NIC ", " SPEEDS "}", "\"source\" is missing" },
        { "{" HEAD ", " SIDES(8, 8) ", " SPEEDS "}", "neither \"nic\" nor \"memory\"" },
        { "{" HEAD ", " SIDES(8, 3) ", " NIC ", " SPEEDS "}", "8 ranks and 3 NICs" },
        { "{" HEAD ", " SIDES(0, 3) ", " NIC ", " SPEEDS "}", "\"source.ranks_per_host\" is no" },
        { "{" HEAD ", " SIDES(8, 8) ", \"nic\": {\"bytes_per_s\": 0, \"latency_s\": 0, "
                                    "\"message_s\": 0}, " SPEEDS "}",
          "\"nic.bytes_per_s\" is no number" },
        { "{" HEAD ", " SIDES(8, 8) ", \"nic\": {\"bytes_per_s\": 1, \"latency_s\": 0}, " SPEEDS
                                    "}",
          "\"nic.message_s\" is missing" },
        { "{" HEAD ", " SIDES(8, 8) ", \"nic\": {\"speed\": 1}, " SPEEDS "}",
          "\"nic.speed\" is no key" },
        { "{" HEAD ", " SIDES(8, 8) ", \"nic\": 7, " SPEEDS "}", "\"nic\" is no object" },
        { "{" HEAD ", \"shared_hosts\": 1, " SIDES(8, 8) ", " NIC ", " SPEEDS "}",
          "\"shared_hosts\" is no true or false" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_links_t *links = NULL;
        EXPECT_STATUS(heft_links_decode(cases[i].text, strlen(cases[i].text), &links, &err),
                      HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i].message);
        assert_null(links);
    }
}

static void links_are_written_and_read_again(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_links_t *links = links_of("{\"format\": 1, " SIDES(
        8, 8) ", \"nic\": {\"bytes_per_s\": "
              "4.85e10, \"latency_s\": 0.1, \"message_s\": 2e-6}, " SPEEDS "}");
    char *text = NULL;
    EXPECT_STATUS(heft_links_encode(links, &text, &err), HEFT_OK);
    assert_string_equal(
        text, "{\n  \"format\": 1,\n  \"shared_hosts\": false,\n  \"chunk_bytes\": 8388608,\n"
              "  \"source\": {\"ranks_per_host\": 8, \"nics_per_host\": 8},\n"
              "  \"destination\": {\"ranks_per_host\": 8, \"nics_per_host\": 8},\n"
              "  \"nic\": {\"bytes_per_s\": 4.85e+10, \"latency_s\": 0.1, \"message_s\": 2e-06},\n"
              "  \"copy\": {\"bytes_per_s\": 1000, \"run_s\": 0},\n"
              "  \"flip\": {\"bytes_per_s\": 500},\n"
              "  \"digest\": {\"bytes_per_s\": 250},\n"
              "  \"control\": {\"phase_s\": 0, \"member_s\": 0}\n}\n");
    heft_string_free(text);
    heft_links_destroy(links);
}

/* ---- of every fleet ---- */

typedef struct fleet {
    double nic, memory, host, copy, flip, digest, over;
    uint32_t ranks[2], nics[2];
    uint32_t n_senders, n_receivers;
    bool shared;
    uint64_t routes;
} fleet_t;

static fleet_t random_fleet(uint64_t *rng)
{
    static const uint32_t counts[] = { 1, 2, 4, 8 };
    fleet_t f = { .routes = heft_test_random(rng), .shared = heft_test_random(rng) % 2 == 0 };
    double *const rates[] = { &f.nic, &f.memory, &f.host, &f.copy, &f.flip, &f.digest };
    for (size_t i = 0; i < 6; i++) {
        *rates[i] = (double)heft_test_random_in(rng, 1, 1000);
    }
    f.over = (double)heft_test_random_in(rng, 1, 4);
    for (int i = 0; i < 2; i++) {
        f.ranks[i] = counts[heft_test_random(rng) % 4];
        f.nics[i] = counts[heft_test_random(rng) % 4];
    }
    f.n_senders = (uint32_t)heft_test_random_in(rng, 1, 20);
    f.n_receivers = (uint32_t)heft_test_random_in(rng, 1, 20);
    return f;
}

static heft_price_info_t price_fleet(const fleet_t *f)
{
    char text[1024];
    (void)snprintf(
        text, sizeof text,
        "{\"format\": 1, \"shared_hosts\": %s, \"chunk_bytes\": 64, "
        "\"source\": {\"ranks_per_host\": %u, \"nics_per_host\": %u}, "
        "\"destination\": {\"ranks_per_host\": %u, \"nics_per_host\": %u}, "
        "\"nic\": {\"bytes_per_s\": %g, \"latency_s\": 0.01, \"message_s\": 0.001}, "
        "\"memory\": {\"bytes_per_s\": %g, \"latency_s\": 0.002, \"message_s\": 0.0005, "
        "\"host_bytes_per_s\": %g}, "
        "\"switch\": {\"hosts\": 2, \"oversubscription\": %g, \"latency_s\": 0.003}, "
        "\"copy\": {\"bytes_per_s\": %g, \"run_s\": 0.0001}, \"flip\": {\"bytes_per_s\": %g}, "
        "\"digest\": {\"bytes_per_s\": %g}}",
        f->shared ? "true" : "false", f->ranks[0], f->nics[0], f->ranks[1], f->nics[1], f->nic,
        f->memory, f->host, f->over, f->copy, f->flip, f->digest);
    heft_links_t *links = links_of(text);
    heft_price_t *price = price_of(links, f->n_senders, f->n_receivers, 0);
    uint64_t rng = f->routes;
    for (int64_t i = heft_test_random_in(&rng, 0, 30); i > 0; i--) {
        const int64_t n_bytes = heft_test_random_in(&rng, 0, 5000);
        add(price, (uint32_t)(heft_test_random(&rng) % f->n_senders),
            (uint32_t)(heft_test_random(&rng) % f->n_receivers), n_bytes,
            heft_test_random_in(&rng, 0, n_bytes), heft_test_random(&rng) % 50);
    }
    heft_price_info_t info = finish(price);
    heft_price_destroy(price);
    heft_links_destroy(links);
    return info;
}

static void bounds_are_below_predictions(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t n = heft_test_cases(400); n > 0; n--) {
        const fleet_t fleet = random_fleet(&rng);
        const heft_price_info_t info = price_fleet(&fleet);
        assert_true(info.stage_s >= info.bound_s);
        assert_true(info.bound_s >= info.ideal_s * (1 - 1e-12));
        assert_true(info.total_s >= info.stage_s + info.down_s);
    }
}

static void what_is_faster_never_takes_longer(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t n = heft_test_cases(200); n > 0; n--) {
        fleet_t fleet = random_fleet(&rng);
        double *const rates[] = { &fleet.nic,  &fleet.memory, &fleet.host,
                                  &fleet.copy, &fleet.flip,   &fleet.digest };
        const heft_price_info_t before = price_fleet(&fleet);
        *rates[heft_test_random(&rng) % 6] *= 1.5;
        const heft_price_info_t after = price_fleet(&fleet);
        assert_true(after.total_s <= before.total_s * (1 + 1e-12));
        assert_true(after.bound_s <= before.bound_s);
        assert_true(after.ideal_s <= before.ideal_s);
        fleet.over = 1;
        assert_true(price_fleet(&fleet).total_s <= after.total_s * (1 + 1e-12));
    }
}

/* ---- memory ---- */

static const char full[] =
    "{" HEAD ", " SIDES(2, 2) ", \"switch\": {\"hosts\": 1, \"oversubscription\": 2, "
                              "\"latency_s\": 0}, " NIC ", " SPEEDS "}";

static void constructors_survive_failed_allocations(void **state)
{
    (void)state;
    bool is_done = false;
    for (long k = 0; !is_done; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_links_t *links = NULL;
        heft_price_t *price = NULL;
        char *text = NULL;
        const heft_price_opts_t opts = { .size = sizeof opts, .n_senders = 2, .n_receivers = 2 };
        const heft_price_route_t route = { .sender = 1, .receiver = 1, .n_bytes = 5 };
        heft__alloc_fail_at(k);
        heft_status_t status = heft_links_decode(full, sizeof full - 1, &links, &err);
        if (status == HEFT_OK) {
            status = heft_links_encode(links, &text, &err);
        }
        if (status == HEFT_OK) {
            status = heft_price_create(links, &opts, &price, &err);
        }
        if (status == HEFT_OK) {
            EXPECT_STATUS(heft_price_add(price, &route, &err), HEFT_OK);
            status = heft_price_finish(price, &err);
        }
        heft__alloc_fail_at(-1);
        is_done = status == HEFT_OK;
        assert_true(is_done || status == HEFT_ERR_NOMEM);
        heft_string_free(text);
        heft_price_destroy(price);
        heft_links_destroy(links);
        assert_int_equal(heft__alloc_live(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_route_over_a_nic),
        cmocka_unit_test(ranks_share_the_nics_of_their_host),
        cmocka_unit_test(several_nics_serve_one_rank),
        cmocka_unit_test(shared_hosts_write_to_memory),
        cmocka_unit_test(switches_are_oversubscribed),
        cmocka_unit_test(packing_and_messages_cost_seconds),
        cmocka_unit_test(in_place_the_engine_waits_for_all),
        cmocka_unit_test(replicas_could_feed_one_another),
        cmocka_unit_test(nothing_to_send_takes_no_time),
        cmocka_unit_test(routes_of_a_plan_are_added),
        cmocka_unit_test(routes_beyond_the_fleet_are_refused),
        cmocka_unit_test(links_are_read_strictly),
        cmocka_unit_test(links_are_written_and_read_again),
        cmocka_unit_test(bounds_are_below_predictions),
        cmocka_unit_test(what_is_faster_never_takes_longer),
        cmocka_unit_test(constructors_survive_failed_allocations),
    };
    return cmocka_run_group_tests_name("price", tests, NULL, NULL);
}
