/* SPDX-License-Identifier: Apache-2.0 */
/* Who forwards to whom: the tree, and where the setting `auto` has one. */
#include "heft_test.h"

#include "sync/coordinator.h"

enum { MOST = 40 };

/* A round whose plans have just been agreed on, without a service around it. */
typedef struct world {
    heft_coordinator_t c;
    heft__round_member_t members[MOST];
    heft__entry_t entries[MOST];
    heft__entry_t *slots[MOST];
    uint32_t n;
} world_t;

static void start(world_t *w, heft__relaying_t relay, uint32_t fan_out)
{
    memset(w, 0, sizeof *w);
    w->c.relay = relay;
    w->c.relay_fan_out = fan_out;
    w->c.round.members = w->members;
    w->c.round.relays = true;
    w->c.entries = w->slots;
}

/* host "": it does not say. */
static uint32_t add(world_t *w, heft__role_t role, uint32_t rank, const char *host)
{
    const uint32_t slot = w->n++;
    heft__entry_t *entry = &w->entries[slot];
    assert_true(w->n <= MOST);
    w->c.round.n_members = w->n;
    w->members[slot] = (heft__round_member_t){
        .used = true, .in_round = true, .role = role, .moves = role == HEFT__ROLE_DESTINATION
    };
    w->slots[slot] = entry;
    entry->identity.role = role;
    entry->identity.replica = slot;
    entry->identity.rank = rank;
    entry->identity.n_transports = 1;
    (void)snprintf(entry->identity.transports[0], HEFT__TRANSPORT_SIZE, "ucx");
    (void)snprintf(entry->identity.host, sizeof entry->identity.host, "%s", host);
    heft__member_id_format(role, "heft", slot, rank, entry->id);
    memset(entry->bind.contract, 'a' + (int)rank % 6, HEFT__DIGEST_SIZE - 1);
    memset(entry->report.plan, 'a' + (int)rank % 6, HEFT__DIGEST_SIZE - 1);
    return slot;
}

static uint32_t add_engine(world_t *w, uint32_t rank, const char *host)
{
    return add(w, HEFT__ROLE_DESTINATION, rank, host);
}

static uint32_t relay_of(const world_t *w, uint32_t slot)
{
    return heft__round_get_relay(&w->members[slot]);
}

static uint32_t count_relayed(world_t *w)
{
    uint32_t n = 0;
    heft__coordinator_relay_locked(&w->c);
    for (uint32_t i = 0; i < w->n; i++) {
        n += relay_of(w, i) != UINT32_MAX;
        w->members[i].relay = 0;
    }
    return n;
}

/* `n` replicas of one rank, each on a host of its own, and one source. */
static void add_replicas(world_t *w, uint32_t n)
{
    (void)add(w, HEFT__ROLE_SOURCE, 0, "trainer");
    for (uint32_t i = 0; i < n; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "node-%02u", i);
        (void)add_engine(w, 0, host);
    }
}

static void a_chain_and_a_tree(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_ON, 1);
    add_replicas(&w, 5);
    heft__coordinator_relay_locked(&w.c);
    for (uint32_t i = 1; i <= 5; i++) {
        assert_int_equal(relay_of(&w, i), i == 1 ? UINT32_MAX : i - 1);
        assert_int_equal(heft__round_is_relay(&w.c.round, i), i < 5);
    }
    start(&w, HEFT__RELAY_ON, 2);
    add_replicas(&w, 7);
    heft__coordinator_relay_locked(&w.c);
    const uint32_t expected[] = { UINT32_MAX, 1, 1, 2, 2, 3, 3 };
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(relay_of(&w, i + 1), expected[i]);
    }
}

static void only_those_that_are_alike(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_ON, 1);
    (void)add(&w, HEFT__ROLE_SOURCE, 0, "trainer");
    const uint32_t a0 = add_engine(&w, 0, "a");
    const uint32_t a1 = add_engine(&w, 1, "a");
    const uint32_t b0 = add_engine(&w, 0, "b");
    const uint32_t b1 = add_engine(&w, 1, "b");
    const uint32_t other = add_engine(&w, 0, "c"); /* another plan */
    const uint32_t buffer = add_engine(&w, 0, "d");
    const uint32_t idle = add_engine(&w, 0, "e");
    const uint32_t apart = add_engine(&w, 0, "f");
    w.entries[other].report.plan[0] = 'f';
    w.members[buffer].in_place = true;
    w.members[idle].moves = false;
    (void)snprintf(w.entries[apart].identity.transports[0], HEFT__TRANSPORT_SIZE, "shm");
    heft__coordinator_relay_locked(&w.c);
    assert_int_equal(relay_of(&w, a0), UINT32_MAX);
    assert_int_equal(relay_of(&w, a1), UINT32_MAX);
    assert_int_equal(relay_of(&w, b0), a0);
    assert_int_equal(relay_of(&w, b1), a1);
    assert_int_equal(relay_of(&w, other), UINT32_MAX);
    assert_int_equal(relay_of(&w, buffer), UINT32_MAX);
    assert_int_equal(relay_of(&w, idle), UINT32_MAX);
    assert_int_equal(relay_of(&w, apart), UINT32_MAX);
}

/* One copy out of the trainer's host in the place of n. */
static void auto_relays_between_hosts(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        world_t w;
        start(&w, HEFT__RELAY_AUTO, 1);
        add_replicas(&w, n);
        assert_int_equal(count_relayed(&w), n - 1);
    }
}

static void auto_leaves_one_host_alone(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_AUTO, 1);
    (void)add(&w, HEFT__ROLE_SOURCE, 0, "node");
    for (uint32_t i = 0; i < 4; i++) {
        (void)add_engine(&w, 0, "node");
    }
    assert_int_equal(count_relayed(&w), 0);
    start(&w, HEFT__RELAY_AUTO, 1); /* nor anyone who does not say where it is */
    (void)add(&w, HEFT__ROLE_SOURCE, 0, "trainer");
    for (uint32_t i = 0; i < 4; i++) {
        (void)add_engine(&w, 0, "");
    }
    assert_int_equal(count_relayed(&w), 0);
    start(&w, HEFT__RELAY_AUTO, 1);
    add_replicas(&w, 4);
    w.entries[0].identity.host[0] = '\0';
    assert_int_equal(count_relayed(&w), 0);
}

/* As many trainer hosts as replicas: their links carry no more than a receiver's. */
static void auto_leaves_large_trainers_alone(void **state)
{
    (void)state;
    for (uint32_t n_sources = 1; n_sources <= 8; n_sources++) {
        world_t w;
        start(&w, HEFT__RELAY_AUTO, 1);
        for (uint32_t s = 0; s < n_sources; s++) {
            char host[16];
            (void)snprintf(host, sizeof host, "trainer-%u", s);
            (void)add(&w, HEFT__ROLE_SOURCE, s, host);
        }
        for (uint32_t i = 0; i < 4; i++) {
            char host[16];
            (void)snprintf(host, sizeof host, "node-%u", i);
            (void)add_engine(&w, 0, host);
        }
        /* 4 / n_sources against 1, and it must be a quarter longer */
        assert_int_equal(count_relayed(&w), n_sources <= 3 ? 3 : 0);
    }
}

/* Engines of eight ranks a host: each host's link has eight to take in, relays or not. */
static void auto_counts_what_a_host_takes_in(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_AUTO, 1);
    for (uint32_t s = 0; s < 4; s++) {
        char host[16];
        (void)snprintf(host, sizeof host, "trainer-%u", s);
        (void)add(&w, HEFT__ROLE_SOURCE, s, host);
    }
    for (uint32_t i = 0; i < 24; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "node-%u", i / 6);
        (void)add_engine(&w, i % 6, host);
    }
    assert_int_equal(count_relayed(&w), 0); /* 24 / 4 = 6 out of each trainer, 6 into each node */
}

/* Replicas on one host: the first gets it over the network, the others from it. */
static void neighbours_follow_each_other(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_AUTO, 1);
    (void)add(&w, HEFT__ROLE_SOURCE, 0, "trainer");
    const uint32_t b = add_engine(&w, 0, "b");
    const uint32_t a = add_engine(&w, 0, "a");
    const uint32_t b2 = add_engine(&w, 0, "b");
    const uint32_t near = add_engine(&w, 0, "trainer");
    heft__coordinator_relay_locked(&w.c);
    assert_int_equal(relay_of(&w, a), UINT32_MAX);
    assert_int_equal(relay_of(&w, b), a);
    assert_int_equal(relay_of(&w, b2), b);
    assert_int_equal(relay_of(&w, near), UINT32_MAX);
}

static void who_failed_forwards_nothing_until_a_commit(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_AUTO, 1);
    add_replicas(&w, 3);
    heft__coordinator_relay_locked(&w.c);
    assert_true(heft__round_is_relay(&w.c.round, 1));
    w.c.round.outcome = HEFT__ROUND_ABORTED;
    w.c.round.cause_slot = 2; /* the one that it forwards to says so */
    (void)snprintf(w.c.round.cause.peer, sizeof w.c.round.cause.peer, "%s", w.entries[1].id);
    heft__coordinator_judge_relays_locked(&w.c);
    for (uint32_t i = 0; i < w.n; i++) {
        w.members[i].relay = 0;
    }
    heft__coordinator_relay_locked(&w.c);
    assert_false(heft__round_is_relay(&w.c.round, 1));
    assert_int_equal(relay_of(&w, 2), UINT32_MAX);
    assert_int_equal(relay_of(&w, 3), 2);
    assert_int_equal(relay_of(&w, 1), 3);
    w.c.round.outcome = HEFT__ROUND_COMMITTED;
    heft__coordinator_judge_relays_locked(&w.c);
    assert_false(w.entries[1].failed_to_relay);
}

static void off_is_off(void **state)
{
    (void)state;
    world_t w;
    start(&w, HEFT__RELAY_OFF, 1);
    w.c.round.relays = false;
    add_replicas(&w, 4);
    assert_int_equal(count_relayed(&w), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_and_a_tree),
        cmocka_unit_test(only_those_that_are_alike),
        cmocka_unit_test(auto_relays_between_hosts),
        cmocka_unit_test(auto_leaves_one_host_alone),
        cmocka_unit_test(auto_leaves_large_trainers_alone),
        cmocka_unit_test(auto_counts_what_a_host_takes_in),
        cmocka_unit_test(neighbours_follow_each_other),
        cmocka_unit_test(who_failed_forwards_nothing_until_a_commit),
        cmocka_unit_test(off_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
