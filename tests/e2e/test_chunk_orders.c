/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes are cut and in what order they come must not matter. The transport here is the one
 * with puts in this process, but everything that a round sends is held until the sender flushes,
 * cut anew, and sent in a random order. A product that only the engine's loader can make is among
 * the parameters: it is called once, after the last chunk of the last tensor.
 */
#include "deliver_pair.h"

#include "base/base.h"
#include "tape_builder.h"
#include "transport/chunk.h"

enum { MAX_PARTS = 16, MAX_CHUNKS = 8192 };

/* ---- the transport ---- */

static heft__transport_ops_t ops; /* those of `inner`, but for a few */
static const heft__transport_ops_t *inner;
static heft__transport_t *inner_transport;
static _Atomic int64_t cut_bytes;
static uint64_t seed;
static dp_pair_t *watched;
static int n_early;  /* calls of the loader while a chunk was still to come */
static int n_chunks; /* of the last round */

static struct {
    heft__chunk_header_t header;
    uint8_t *data;
} parts[MAX_PARTS];
static int n_parts;

static heft_status_t window_create(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err)
{
    (void)transport;
    heft_status_t status = inner->window_create(inner_transport, params, window_out, err);
    if (status == HEFT_OK) {
        (*window_out)->ops = &ops;
    }
    return status;
}

static heft_status_t window_expect(heft__window_t *window, const heft__expect_t *expect,
                                   heft_error_t *err)
{
    heft__expect_t cut = *expect;
    cut.chunk_bytes = atomic_load(&cut_bytes);
    return inner->window_expect(window, &cut, err);
}

static heft_status_t attach(heft__transport_t *transport, const char *endpoint,
                            const heft__attach_params_t *params, heft__remote_t **remote_out,
                            heft_error_t *err)
{
    (void)transport;
    heft_status_t status = inner->attach(inner_transport, endpoint, params, remote_out, err);
    if (status == HEFT_OK) {
        (*remote_out)->ops = &ops;
    }
    return status;
}

static heft_status_t keep(heft__remote_t *remote, const uint8_t *header, const void *data,
                          int64_t bytes, int64_t deadline_mono_ns, heft_error_t *err)
{
    (void)remote;
    (void)deadline_mono_ns;
    if (n_parts == MAX_PARTS) {
        return heft__error_set(err, HEFT_ERR_NOSPACE, "more than %d tensors", MAX_PARTS);
    }
    heft_status_t status = heft__chunk_decode(header, HEFT__CHUNK_HEADER_BYTES, heft__crc32c,
                                              &parts[n_parts].header, err);
    if (status == HEFT_OK) {
        parts[n_parts].data = malloc((size_t)bytes);
        memcpy(parts[n_parts++].data, data, (size_t)bytes);
    }
    return status;
}

/* Which part, and which chunk of it. */
typedef struct piece {
    int part;
    int64_t at;
} piece_t;

static heft_status_t send_piece(heft__remote_t *remote, piece_t piece, int64_t deadline_mono_ns,
                                heft_error_t *err)
{
    uint8_t bytes[HEFT__CHUNK_HEADER_BYTES];
    const int64_t cut = atomic_load(&cut_bytes);
    const uint8_t *data = parts[piece.part].data + piece.at;
    heft__chunk_header_t header = parts[piece.part].header;
    header.index = (uint64_t)(piece.at / cut);
    header.length = (uint64_t)heft__min_i64(cut, (int64_t)header.length - piece.at);
    header.offset += (uint64_t)piece.at;
    header.crc = heft__crc32c(0, data, (int64_t)header.length);
    heft__chunk_encode(&header, heft__crc32c, bytes);
    n_early += atomic_load(&watched->n_loaded) != (int)header.token.seq - 1;
    return inner->send(remote, bytes, data, (int64_t)header.length, deadline_mono_ns, err);
}

static heft_status_t flush(heft__remote_t *remote, int64_t deadline_mono_ns, heft_error_t *err)
{
    static piece_t pieces[MAX_CHUNKS];
    const int64_t cut = atomic_load(&cut_bytes);
    heft_status_t status = HEFT_OK;
    n_chunks = 0;
    for (int i = 0; i < n_parts; i++) {
        for (int64_t at = 0; at < (int64_t)parts[i].header.length; at += cut) {
            pieces[n_chunks++] = (piece_t){ .part = i, .at = at };
        }
    }
    for (int i = 0; i < n_chunks && status == HEFT_OK; i++) {
        const int k = (int)heft_test_random_in(&seed, i, n_chunks - 1);
        const piece_t piece = pieces[k];
        pieces[k] = pieces[i];
        status = send_piece(remote, piece, deadline_mono_ns, err);
    }
    while (n_parts > 0) {
        free(parts[--n_parts].data);
    }
    return status == HEFT_OK ? inner->flush(remote, deadline_mono_ns, err) : status;
}

/* ---- the engine: p and q are halves of a product of a and b, r is c, s is d in bf16 ---- */

static const dp_tensor_t sources[] = { { "a", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                       { "b", HEFT_DTYPE_U8, DP_SHAPE1(64) },
                                       { "c", HEFT_DTYPE_U8, DP_SHAPE1(700) },
                                       { "d", HEFT_DTYPE_F32, DP_SHAPE1(129) },
                                       { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
static const dp_tensor_t params[] = { { "p", HEFT_DTYPE_U8, DP_SHAPE1(32) },
                                      { "q", HEFT_DTYPE_U8, DP_SHAPE1(32) },
                                      { "r", HEFT_DTYPE_U8, DP_SHAPE1(700) },
                                      { "s", HEFT_DTYPE_F32, DP_SHAPE1(129) },
                                      { NULL, HEFT_DTYPE_NONE, DP_SHAPE1(0) } };
enum { P, Q, R, S };

static void set_tape(dp_pair_t *p)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tape_builder_t tb;
    tb_init(&tb);
    const uint32_t a = tb_source(&tb, "a", HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t b = tb_source(&tb, "b", HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t c = tb_source(&tb, "c", HEFT_DTYPE_U8, TB_SHAPE(700));
    const uint32_t d = tb_source(&tb, "d", HEFT_DTYPE_F32, TB_SHAPE(129));
    const uint32_t t = tb_temp(&tb, HEFT_DTYPE_U8, TB_SHAPE(64));
    const uint32_t out[4] = { tb_param(&tb, "p", HEFT_DTYPE_U8, TB_SHAPE(32)),
                              tb_param(&tb, "q", HEFT_DTYPE_U8, TB_SHAPE(32)),
                              tb_param(&tb, "r", HEFT_DTYPE_U8, TB_SHAPE(700)),
                              tb_param(&tb, "s", HEFT_DTYPE_F32, TB_SHAPE(129)) };
    const heft_view_t product = tb_all(&tb, t);
    const heft_view_t operands[2] = { tb_all(&tb, a), tb_all(&tb, b) };
    EXPECT_STATUS(heft_tape_opaque(tb.tape, "mm", &product, 1, operands, 2, "engine.py:7", &err),
                  HEFT_OK);
    tb_copy(&tb, tb_all(&tb, out[P]), tb_narrow(tb_all(&tb, t), 0, 0, 32));
    tb_copy(&tb, tb_all(&tb, out[Q]), tb_narrow(tb_all(&tb, t), 0, 32, 32));
    tb_copy(&tb, tb_all(&tb, out[R]), tb_all(&tb, c));
    tb_copy(&tb, tb_all(&tb, out[S]), tb_all(&tb, d));
    dp_set_tape(p, tb.tape, NULL, 0);
    tb_fini(&tb);
}

static uint8_t product_of(const uint8_t *a, const uint8_t *b, int i)
{
    return (uint8_t)(a[i] * 3 + b[63 - i]);
}

static int load(dp_pair_t *p, const heft_input_t *inputs, uint32_t n)
{
    if (n != 2 || inputs[0].n_bytes != 64 || inputs[1].n_bytes != 64) {
        return 1;
    }
    for (int i = 0; i < 64; i++) {
        p->blocks[i < 32 ? P : Q][i % 32] = product_of(inputs[0].data, inputs[1].data, i);
    }
    return 0;
}

static void start(dp_pair_t *p, heft__transport_t *transport, heft__loop_t **loop_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__loop_create(false, loop_out, &err), HEFT_OK);
    inner_transport = heft__loop_get_transport(*loop_out);
    inner = inner_transport->ops;
    ops = *inner;
    ops.window_create = window_create;
    ops.window_expect = window_expect;
    ops.attach = attach;
    ops.send = keep;
    ops.flush = flush;
    transport->ops = &ops;
    seed = heft_test_seed();
    n_early = 0;
    watched = p;
    dp_start_over(p, transport, sources, params);
    set_tape(p);
    p->on_load = load;
    EXPECT_STATUS(dp_join(p, NULL, &err), HEFT_OK);
}

static void expect_version(const dp_pair_t *p)
{
    for (int i = 0; i < 64; i++) {
        assert_int_equal(p->blocks[i < 32 ? P : Q][i % 32], product_of(p->data[0], p->data[1], i));
    }
    assert_memory_equal(p->blocks[R], p->data[2], 700);
    assert_memory_equal(p->blocks[S], p->data[3], 129 * 4);
}

static void push(dp_pair_t *p, int64_t version, int64_t cut)
{
    heft_error_t err = HEFT_ERROR_INIT;
    atomic_store(&cut_bytes, cut);
    EXPECT_STATUS(dp_push(p, version, &err), HEFT_OK);
    expect_version(p);
    assert_int_equal(atomic_load(&p->n_loaded), version); /* once, however many chunks */
    assert_int_equal(atomic_load(&p->n_flipped), version);
    assert_int_equal(n_early, 0);
}

static void stop(dp_pair_t *p, heft__loop_t *loop)
{
    dp_stop(p);
    heft__loop_destroy(loop);
}

/* One byte, one element, seven of them, 256 bytes, everything. */
static void where_bytes_are_cut_does_not_matter(void **state)
{
    (void)state;
    dp_pair_t p;
    heft__loop_t *loop;
    heft__transport_t transport;
    const int64_t cuts[] = { 1, 4, 7, 28, 256, INT64_C(1) << 40 };
    const int n_expected[] = { 1344, 336, 194, 50, 8, 4 }; /* r 700, s 516, a 64 and b 64 bytes */
    start(&p, &transport, &loop);
    for (int i = 0; i < 6; i++) {
        push(&p, i + 1, cuts[i]);
        assert_int_equal(n_chunks, n_expected[i]);
    }
    stop(&p, loop);
}

static void a_thousand_orders_and_cuts_give_one_result(void **state)
{
    (void)state;
    dp_pair_t p;
    heft__loop_t *loop;
    heft__transport_t transport;
    start(&p, &transport, &loop);
    for (int64_t version = 1; version <= 1000; version++) {
        push(&p, version, heft_test_random_in(&seed, 1, 800));
        assert_true(n_chunks >= 4);
    }
    stop(&p, loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_bytes_are_cut_does_not_matter),
        cmocka_unit_test(a_thousand_orders_and_cuts_give_one_result),
    };
    const char *level = getenv("HEFT_TEST_LOG");
    heft__log_max_level = level != NULL ? atoi(level) : -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
