/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exploration of the round machine: sources and destinations, every interleaving of polls and work,
 * every fault at every step, a crash of the coordinator included. Depth first over hashed states.
 * The two are engines of their own or the ranks of one, receive in staging or in place; with
 * recovery, an operator makes every claim that could hold, and pushes again.
 *
 * Version 7 is live, version 8 is brought. Or slot 0 is a destination that serves the committed
 * version 8 and brings it to two that have just come: it must go on serving, whatever happens to
 * them, and they serve that version or nothing. Checked in every state: the promises of
 * docs/internals/sync.md.
 */
#include "round_world.h"

#include <inttypes.h>

#define MAX_DEPTH 400

typedef struct explorer {
    uint64_t *seen;
    size_t cap, used;
    uint8_t faults; /* at the start */
    uint64_t n_moves;
    uint64_t n_ends, n_committed, n_aborted, n_unknown, n_partial;
    uint64_t reached[16]; /* by state */
    const char *path[MAX_DEPTH];
    int path_member[MAX_DEPTH];
} explorer_t;

/* True when the state is new. */
static bool visit(explorer_t *e, uint64_t h)
{
    if (e->used * 2 >= e->cap) {
        const size_t cap = e->cap > 0 ? e->cap * 2 : 1u << 16;
        uint64_t *seen = calloc(cap, sizeof *seen);
        assert_non_null(seen);
        for (size_t i = 0; i < e->cap; i++) {
            if (e->seen[i] != 0) {
                size_t at = e->seen[i] & (cap - 1);
                while (seen[at] != 0) {
                    at = (at + 1) & (cap - 1);
                }
                seen[at] = e->seen[i];
            }
        }
        free(e->seen);
        e->seen = seen;
        e->cap = cap;
    }
    size_t at = h & (e->cap - 1);
    while (e->seen[at] != 0) {
        if (e->seen[at] == h) {
            return false;
        }
        at = (at + 1) & (e->cap - 1);
    }
    e->seen[at] = h;
    e->used++;
    return true;
}

/* ---- promises ---- */

static void violated(const explorer_t *e, int depth, const node_t *n, const char *what)
{
    for (int i = 0; i < depth; i++) {
        (void)fprintf(stderr, "  %s %d\n", e->path[i], e->path_member[i]);
    }
    (void)fprintf(stderr, "machine: %s phase %s decision %d\n", heft__round_state_text(&n->round),
                  heft__phase_text(n->round.phase), (int)n->round.decision);
    for (int i = 0; i < n->n; i++) {
        (void)fprintf(stderr, "  member %d: %s %s %s serving %d live %d, order %s, poison %d\n", i,
                      heft__phase_text(n->sims[i].phase), heft__result_text(n->sims[i].result),
                      heft__state_text(n->sims[i].state), n->sims[i].serving, (int)n->sims[i].live,
                      heft__phase_text(n->members[i].target), (int)n->members[i].poison);
    }
    fail_msg("%s", what);
}

static void check(const explorer_t *e, int depth, const node_t *n)
{
    const char *wrong = world_check(n);
    if (wrong != NULL) {
        violated(e, depth, n, wrong);
    }
}

/* Nothing can happen any more. */
static void check_end(explorer_t *e, int depth, const node_t *n)
{
    const heft__round_t *r = &n->round;
    const heft__round_state_t state = r->state == HEFT__ROUND_IDLE ? r->outcome : r->state;
    const char *wrong = world_check_end(n);
    e->n_ends++;
    e->n_committed += state == HEFT__ROUND_COMMITTED;
    e->n_aborted += state == HEFT__ROUND_ABORTED;
    e->n_unknown += state == HEFT__ROUND_UNKNOWN;
    e->n_partial += state == HEFT__ROUND_PARTIAL;
    if (wrong == NULL && n->faults == e->faults && state != HEFT__ROUND_COMMITTED) {
        wrong = "not committed although nothing failed";
    }
    if (wrong != NULL) {
        violated(e, depth, n, wrong);
    }
}

static bool is_fault(int move)
{
    return move >= MOVE_REPLY_LOST && move < MOVE_HEAL;
}

static bool is_operator(int move)
{
    return move > MOVE_HEAL;
}

/* Time passes by itself, and people act, when all else has come to rest. */
static bool is_open(const node_t *at, int move, bool moved)
{
    if (is_fault(move)) {
        return at->faults > 0;
    }
    return !moved || (move != MOVE_TIME && !is_operator(move));
}

static void explore(explorer_t *e, const node_t *at, int depth)
{
    assert_true(depth < MAX_DEPTH);
    e->reached[at->round.state]++;
    bool moved = false; /* by something other than time and faults */
    const uint64_t own = world_hash(at);
    node_t *next = malloc(sizeof *next);
    assert_non_null(next);
    for (int move = 0; move < N_MOVES; move++) {
        if (!is_open(at, move, moved)) {
            continue;
        }
        const int n_members = world_move_is_per_member(move) ? at->n : 1;
        for (int i = 0; i < n_members; i++) {
            *next = *at;
            next->round.members = next->members;
            if (is_fault(move)) {
                next->faults--;
            }
            if (!world_apply(next, move, i)) {
                continue;
            }
            next->warned = next->warned || next->round.n_warnings > 0;
            next->round.n_warnings = 0;
            const uint64_t h = world_hash(next);
            e->n_moves++;
            if (h == own) {
                continue;
            }
            /* a member that cannot be reached does not hold up time */
            moved = moved || (!is_fault(move) && move != MOVE_HEAL && move != MOVE_PUSH &&
                              !(move == MOVE_WORK && !at->sims[i].reachable));
            e->path[depth] = move_names[move];
            e->path_member[depth] = i;
            if (visit(e, h)) {
                check(e, depth + 1, next);
                explore(e, next, depth + 1);
            }
        }
    }
    free(next);
    if (!moved && heft__round_next_tick(&at->round) == INT64_MAX) {
        check_end(e, depth, at);
    }
}

/* ---- random walks ---- */

static void random_step(node_t *n, uint64_t *seed, int percent)
{
    const int i = (int)heft_test_random_in(seed, 0, n->n - 1);
    const bool fault = heft_test_random_in(seed, 0, 99) < percent;
    const int quiet[] = { MOVE_POLL, MOVE_POLL, MOVE_POLL, MOVE_WORK, MOVE_WORK, MOVE_WRITE_OK };
    if (!fault) {
        (void)world_apply(n, quiet[heft_test_random_in(seed, 0, 5)], i);
        return;
    }
    const int which = (int)heft_test_random_in(seed, MOVE_REPLY_LOST, N_MOVES - 1);
    n->heals = 1;
    n->claims = 1;
    n->pushes = 1;
    (void)world_apply(n, which, i);
}

static void random_faults_hold_promises(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    const int64_t n_walks = heft_test_cases(10000);
    uint64_t reached[16] = { 0 };
    explorer_t e;
    memset(&e, 0, sizeof e);
    for (int64_t walk = 0; walk < n_walks; walk++) {
        node_t n;
        variant_t fleet = {
            .one_engine = heft_test_random_in(&seed, 0, 1) == 1,
            .is_feed = heft_test_random_in(&seed, 0, 2) == 0,
        };
        fleet.relays = !fleet.is_feed && heft_test_random_in(&seed, 0, 1) == 1;
        fleet.n_sources = fleet.is_feed ? 1 : (int)heft_test_random_in(&seed, 1, 3);
        fleet.n_destinations = fleet.n_sources < 3 ? 2 : 1;
        if (fleet.relays && fleet.n_sources == 1) {
            fleet.n_destinations = 3;
        }
        for (int i = fleet.n_sources; i < fleet.n_sources + fleet.n_destinations; i++) {
            fleet.in_place[i] = heft_test_random_in(&seed, 0, 3) == 0;
        }
        world_start(&n, &fleet);
        const int percent = (int)heft_test_random_in(&seed, 0, 30);
        for (int step = 0; step < 300; step++) {
            random_step(&n, &seed, percent);
            reached[n.round.state]++;
            check(&e, 0, &n);
        }
    }
    for (int s = 0; s <= HEFT__ROUND_PARTIAL; s++) {
        if (reached[s] == 0 && n_walks >= 10000 && s != HEFT__ROUND_REVOKING) {
            fail_msg("state %d was never reached", s);
        }
    }
}

/* What each fleet must come to; a revoke takes four refusals, which have a test of their own. */
static void explore_as(const variant_t *v)
{
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    e.faults = v->faults;
    world_start(&n, v);
    (void)visit(&e, world_hash(&n));
    explore(&e, &n, 0);
    (void)printf("%-36s %u fault%s: %zu states, %" PRIu64 " moves; %" PRIu64 " ends: %" PRIu64
                 " committed, %" PRIu64 " aborted, %" PRIu64 " unknown, %" PRIu64
                 " partially committed\n",
                 v->name, v->faults, v->faults == 1 ? "" : "s", e.used, e.n_moves, e.n_ends,
                 e.n_committed, e.n_aborted, e.n_unknown, e.n_partial);
    bool stages = false;
    for (int i = n.n_senders; i < n.n; i++) {
        stages = stages || !v->in_place[i];
    }
    for (int s = 0; s <= HEFT__ROUND_PARTIAL; s++) {
        const bool excused = s == HEFT__ROUND_REVOKING ||
                             (v->is_feed && s == HEFT__ROUND_PARTIAL && v->faults < 2) ||
                             (!stages && (s == HEFT__ROUND_STAGING || s == HEFT__ROUND_STOPPING));
        if (e.reached[s] == 0 && !excused) {
            fail_msg("%s: state %d was never reached", v->name, s);
        }
    }
    free(e.seen);
}

static uint8_t n_faults(void)
{
    const char *faults = getenv("HEFT_TEST_FAULTS"); /* 2: millions of states */
    return faults != NULL ? (uint8_t)strtoul(faults, NULL, 10) : 1;
}

static void every_fault_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "two engines, staged", .faults = faults },
        { .name = "one engine of two ranks, staged", .faults = faults, .one_engine = true },
        { .name = "two engines, in place", .faults = faults, .in_place = { false, true, true } },
        { .name = "one engine of two, in place",
          .faults = faults,
          .one_engine = true,
          .in_place = { false, true, true } },
        { .name = "one staged, one in place",
          .faults = faults,
          .in_place = { false, true, false } },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        explore_as(&variants[i]);
    }
}

/* Ranks of a trainer that hold a model together: each sends its part to every destination. */
static void every_fault_of_several_sources_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "two sources, two engines, staged",
          .faults = 1,
          .n_sources = 2,
          .n_destinations = 2 },
        { .name = "two sources, two ranks, in place",
          .faults = 1,
          .n_sources = 2,
          .n_destinations = 2,
          .one_engine = true,
          .in_place = { false, false, true, true } },
        { .name = "two sources, one engine, staged",
          .faults = faults,
          .n_sources = 2,
          .n_destinations = 1 },
        { .name = "two sources, one engine, in place",
          .faults = faults,
          .n_sources = 2,
          .n_destinations = 1,
          .in_place = { false, false, true } },
        { .name = "two sources, one engine, recovery",
          .faults = faults,
          .n_sources = 2,
          .n_destinations = 1,
          .claims = 2,
          .pushes = 1 },
        { .name = "three sources, one engine, staged",
          .faults = 1,
          .n_sources = 3,
          .n_destinations = 1 },
    };
    const size_t n = sizeof variants / sizeof variants[0];
    for (size_t i = 0; i < (faults > 1 ? n : n - 1); i++) { /* the last only where time is given */
        explore_as(&variants[i]);
    }
}

/* The same with an operator who makes every claim that could hold, and pushes once more. */
static void recovery_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "recovery, two engines", .faults = faults, .claims = 2, .pushes = 1 },
        { .name = "recovery, one engine of two",
          .faults = faults,
          .claims = 2,
          .pushes = 1,
          .one_engine = true },
        { .name = "recovery, in place",
          .faults = faults,
          .claims = 2,
          .pushes = 1,
          .in_place = { false, true, true } },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        explore_as(&variants[i]);
    }
}

/* Late join: from a destination that serves, to two that have just come; and once more. */
static void every_fault_of_a_feed_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "feed, two engines", .faults = faults, .pushes = 1, .is_feed = true },
        { .name = "feed, one engine of two ranks",
          .faults = faults,
          .pushes = 1,
          .is_feed = true,
          .one_engine = true },
        { .name = "feed, one staged, one in place",
          .faults = faults,
          .pushes = 1,
          .is_feed = true,
          .in_place = { false, true, false } },
        { .name = "feed, recovery", .faults = faults, .claims = 2, .pushes = 1, .is_feed = true },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        explore_as(&variants[i]);
    }
}

/* A destination that forwards to another one while it receives: the round is over only when it has
 * stopped as well, or is shut out. */
static void every_fault_of_relays_keeps_the_promises(void **state)
{
    (void)state;
    const uint8_t faults = n_faults();
    const variant_t variants[] = {
        { .name = "relay, two engines", .faults = faults, .relays = true },
        { .name = "relay, one engine of two ranks",
          .faults = faults,
          .relays = true,
          .one_engine = true },
        { .name = "relay, recovery", .faults = 1, .claims = 2, .pushes = 1, .relays = true },
        { .name = "relay, two sources",
          .faults = 1,
          .relays = true,
          .n_sources = 2,
          .n_destinations = 2 },
        { .name = "relays, chain of three",
          .faults = 1,
          .relays = true,
          .n_sources = 1,
          .n_destinations = 3 },
    };
    const size_t n = sizeof variants / sizeof variants[0];
    for (size_t i = 0; i < (faults > 1 ? n : n - 2); i++) { /* the last only where time is given */
        explore_as(&variants[i]);
    }
}

/* Without faults up to a state: every member polls and works in turn. */
static void run_until(node_t *n, heft__round_state_t state)
{
    for (int step = 0; n->round.state != state; step++) {
        assert_true(step < 1000);
        (void)world_apply(n, MOVE_WRITE_OK, 0);
        for (int i = 0; i < n->n && n->round.state != state; i++) {
            (void)world_apply(n, MOVE_POLL, i);
            (void)world_apply(n, MOVE_WORK, i);
        }
    }
}

/* Two more faults of any kind, where they matter most: when both destinations have refused their
 * flip once, and have not said so yet. */
static void faults_after_two_refusals_keep_the_promises(void **state)
{
    (void)state;
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    world_start(&n, &(const variant_t){ .faults = 0 });
    run_until(&n, HEFT__ROUND_FLIPPING);
    for (int i = 1; i < n.n; i++) {
        assert_true(world_apply(&n, MOVE_POLL, i));
        assert_true(world_apply(&n, MOVE_REFUSE, i));
    }
    n.faults = 2;
    e.faults = UINT8_MAX; /* something has failed already */
    explore(&e, &n, 0);
    (void)printf("%zu states\n", e.used);
    assert_true(e.reached[HEFT__ROUND_REVOKING] > 0);
    free(e.seen);
}

static void without_faults_every_order_of_events_commits(void **state)
{
    (void)state;
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    world_start(&n, &(const variant_t){ .faults = 0 });
    explore(&e, &n, 0);
    assert_true(e.n_ends > 0);
    assert_int_equal(e.n_ends, e.n_committed);
    free(e.seen);
}

/* One that was being fed in place is let go of in the middle of its flip, because the coordinator
 * restarted and its time was over; then the coordinator restarts again, and does not know that. */
static void one_let_go_in_its_flip_has_not_flipped(void **state)
{
    (void)state;
    explorer_t e;
    memset(&e, 0, sizeof e);
    node_t n;
    world_start(&n, &(const variant_t){ .is_feed = true, .in_place = { false, true, true } });
    run_until(&n, HEFT__ROUND_FLIPPING);
    assert_true(world_apply(&n, MOVE_POLL, 1));
    assert_true(world_apply(&n, MOVE_POLL, 2));
    assert_true(world_apply(&n, MOVE_CRASH, 0));
    for (int i = 0; i < n.n; i++) {
        assert_true(world_apply(&n, MOVE_POLL, i));
    }
    while (n.round.state == HEFT__ROUND_FLIPPING) {
        assert_true(world_apply(&n, MOVE_TIME_EARLY, 0));
        check(&e, 0, &n);
    }
    assert_int_equal(n.round.state, HEFT__ROUND_COMMITTED);
    assert_true(world_apply(&n, MOVE_POLL, 1));
    assert_true(world_apply(&n, MOVE_WORK, 1));
    n.faults = 2;
    e.faults = UINT8_MAX; /* something has failed already */
    explore(&e, &n, 0);
    (void)printf("%zu states\n", e.used);
    assert_true(e.n_ends > 0);
    free(e.seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_every_order_of_events_commits),
        cmocka_unit_test(every_fault_keeps_the_promises),
        cmocka_unit_test(every_fault_of_several_sources_keeps_the_promises),
        cmocka_unit_test(recovery_keeps_the_promises),
        cmocka_unit_test(every_fault_of_a_feed_keeps_the_promises),
        cmocka_unit_test(every_fault_of_relays_keeps_the_promises),
        cmocka_unit_test(faults_after_two_refusals_keep_the_promises),
        cmocka_unit_test(one_let_go_in_its_flip_has_not_flipped),
        cmocka_unit_test(random_faults_hold_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
