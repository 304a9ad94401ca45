/* SPDX-License-Identifier: Apache-2.0 */
/* Wire messages: what is encoded is decoded again; what is wrong is refused by name; memory may run
 * out. */
#include "heft_test.h"

#include "sync/wire.h"

#define INC "0123456789abcdef0123456789abcdef"
#define DIG "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define DIG2 "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

typedef heft_status_t (*decode_t)(const char *text, size_t n, heft_error_t *err);

/* Decoders under one signature, results dropped. */
static heft_status_t try_register(const char *text, size_t n, heft_error_t *err)
{
    heft__register_t out;
    return heft__register_decode(text, n, &out, err);
}

static heft_status_t try_bind(const char *text, size_t n, heft_error_t *err)
{
    heft__bind_t out;
    return heft__bind_decode(text, n, &out, err);
}

static heft_status_t try_report(const char *text, size_t n, heft_error_t *err)
{
    heft__report_t out;
    heft_status_t status = heft__report_decode(text, n, &out, err);
    if (status == HEFT_OK) {
        heft__report_fini(&out);
    }
    return status;
}

static heft_status_t try_order(const char *text, size_t n, heft_error_t *err)
{
    heft__order_t out;
    heft_status_t status = heft__order_decode(text, n, &out, err);
    if (status == HEFT_OK) {
        heft__order_fini(&out);
    }
    return status;
}

static heft_status_t try_begin(const char *text, size_t n, heft_error_t *err)
{
    heft__begin_t out;
    heft_status_t status = heft__begin_decode(text, n, &out, err);
    if (status == HEFT_OK) {
        heft__begin_fini(&out);
    }
    return status;
}

static heft_status_t try_contract(const char *text, size_t n, heft_error_t *err)
{
    heft__contract_t out;
    heft_status_t status = heft__contract_decode(text, n, &out, err);
    if (status == HEFT_OK) {
        heft__contract_fini(&out);
    }
    return status;
}

static heft_status_t try_plans(const char *text, size_t n, heft_error_t *err)
{
    heft__plan_entry_t *out = NULL;
    uint32_t count = 0;
    heft_status_t status = heft__plans_decode(text, n, &out, &count, err);
    heft__free(out);
    return status;
}

static heft_status_t try_sources(const char *text, size_t n, heft_error_t *err)
{
    heft__source_t *out = NULL;
    uint32_t count = 0;
    heft_status_t status = heft__source_list_decode(text, n, &out, &count, err);
    heft__free(out);
    return status;
}

static heft_status_t try_digests(const char *text, size_t n, heft_error_t *err)
{
    heft__digest_set_t out = { .params = NULL };
    heft_status_t status = heft__digests_decode(text, n, DIG, &out, err);
    heft__free(out.params);
    return status;
}

static heft_status_t try_live(const char *text, size_t n, heft_error_t *err)
{
    heft__live_t out;
    memset(&out, 0, sizeof out);
    heft_status_t status = heft__live_decode(text, n, &out, err);
    heft__live_fini(&out);
    return status;
}

static heft_status_t try_outcome(const char *text, size_t n, heft_error_t *err)
{
    heft__outcome_t out;
    return heft__outcome_decode(text, n, &out, err);
}

static heft_status_t try_registered(const char *text, size_t n, heft_error_t *err)
{
    heft__registered_t out;
    return heft__registered_decode(text, n, &out, err);
}

/* ---- what must be refused ---- */

typedef struct wrong {
    decode_t decode;
    const char *text;
    heft_status_t status;
    const char *message; /* part of it */
} wrong_t;

#define REG(rest) \
    "{\"format\":1,\"role\":\"source\",\"job\":\"a\",\"replica\":0,\"rank\":0," rest "}"
#define REG_END \
    "\"incarnation\":\"" INC "\",\"epoch\":0,\"mode\":\"staged\",\"transports\":[\"shm\"]"
#define REP(rest)                                                                        \
    "{\"incarnation\":\"" INC "\",\"epoch\":1,\"sequence\":1,\"order\":0,\"wait_ms\":0," \
    "\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":0,\"serving\":false" rest "}"
#define ORD(rest)                                                                       \
    "{\"sequence\":1,\"epoch\":1,\"round\":\"1.1\",\"target\":\"stage\",\"version\":1," \
    "\"decision\":\"none\",\"left_ms\":5" rest "}"
#define PEER(rest)                                                                       \
    "{\"id\":\"a\",\"incarnation\":\"" INC "\",\"replica\":0,\"rank\":0,\"moves\":true," \
    "\"transports\":[\"shm\"],\"manifest\":\"" DIG "\"" rest "}"
#define SRC(replica, rank) "{\"replica\":" replica ",\"rank\":" rank ",\"manifest\":\"" DIG "\"}"
#define CON(rest) \
    "{\"format\":1,\"recipe\":{\"name\":\"n\",\"text\":\"t\"},\"bindings\":{}" rest "}"

static const wrong_t wrongs[] = {
    { try_register, "", HEFT_ERR_FORMAT, "register: line" },
    { try_register, "[]", HEFT_ERR_FORMAT, "not a JSON object" },
    { try_register, "{\"format\":1", HEFT_ERR_FORMAT, "line 1" },
    { try_register, REG(REG_END ",\"rolle\":1"), HEFT_ERR_FORMAT, "unknown key \"rolle\"" },
    { try_register, REG("\"rank\":0," REG_END), HEFT_ERR_FORMAT, "duplicate" },
    { try_register, REG("\"epoch\":0"), HEFT_ERR_FORMAT, "is missing" },
    { try_register, "{\"format\":2," REG_END "}", HEFT_ERR_FORMAT, "format" },
    { try_register, "{\"format\":1,\"role\":\"sauce\"}", HEFT_ERR_FORMAT,
      "key \"role\": unknown value \"sauce\"" },
    { try_register, "{\"role\":1}", HEFT_ERR_FORMAT, "\"role\" is not a string" },
    { try_register, "{\"job\":\"\"}", HEFT_ERR_FORMAT, "\"job\" has 0 bytes" },
    { try_register,
      "{\"format\":1,\"role\":\"source\",\"job\":\"a b\",\"replica\":0,\"rank\":0," REG_END "}",
      HEFT_ERR_FORMAT, "job \"a b\"" },
    { try_register, "{\"replica\":-1}", HEFT_ERR_FORMAT, "outside 0 to" },
    { try_register, "{\"replica\":2147483648}", HEFT_ERR_FORMAT, "outside 0 to" },
    { try_register, "{\"replica\":1.5}", HEFT_ERR_FORMAT, "\"replica\" is not an integer" },
    { try_register, "{\"epoch\":9007199254740992}", HEFT_ERR_FORMAT, "9007199254740992" },
    { try_register, "{\"epoch\":99999999999999999999}", HEFT_ERR_FORMAT, "too big" },
    { try_register, "{\"incarnation\":\"0123\"}", HEFT_ERR_FORMAT, "32 lower-case hex" },
    { try_register, "{\"incarnation\":\"0123456789ABCDEF0123456789ABCDEF\"}", HEFT_ERR_FORMAT,
      "32 lower-case hex" },
    { try_register,
      "{\"format\":1,\"role\":\"source\",\"job\":\"a\",\"replica\":0,\"rank\":0,"
      "\"incarnation\":\"" INC "\",\"epoch\":0,\"mode\":\"fast\",\"transports\":[\"shm\"]}",
      HEFT_ERR_UNSUPPORTED, "mode \"fast\" is neither" },
    { try_register,
      REG("\"incarnation\":\"" INC "\",\"epoch\":0,\"mode\":\"staged\",\"transports\":[]"),
      HEFT_ERR_FORMAT, "0 items" },
    { try_register,
      REG("\"incarnation\":\"" INC "\",\"epoch\":0,\"mode\":\"staged\",\"transports\":[1]"),
      HEFT_ERR_FORMAT, "item 0" },
    { try_register, "{\"transports\":\"shm\"}", HEFT_ERR_FORMAT, "\"transports\" is not a list" },
    { try_bind, "{\"incarnation\":\"" INC "\"}", HEFT_ERR_FORMAT, "\"manifest\" is missing" },
    { try_bind, "{\"incarnation\":\"" INC "\",\"manifest\":\"x\"}", HEFT_ERR_FORMAT, "64 lower" },
    { try_registered, "{\"id\":\"a\",\"epoch\":0}", HEFT_ERR_FORMAT, "epoch" },
    { try_report, REP(",\"phase\":\"stage\""), HEFT_ERR_FORMAT, "phase and result go together" },
    { try_report, REP(",\"result\":\"ok\""), HEFT_ERR_FORMAT, "phase and result go together" },
    { try_report, REP(",\"phase\":\"stage\",\"result\":\"ok\""), HEFT_ERR_FORMAT,
      "phase without round" },
    { try_report, REP(",\"round\":\"1.1\",\"phase\":\"stage\",\"result\":\"failed\""),
      HEFT_ERR_FORMAT, "error goes with" },
    { try_report,
      REP(",\"round\":\"1.1\",\"phase\":\"stage\",\"result\":\"ok\",\"error\":{\"status\":"
          "\"ERR_IO\",\"phase\":\"stage\",\"cause\":\"c\"}"),
      HEFT_ERR_FORMAT, "error goes with" },
    { try_report,
      REP(",\"round\":\"1.1\",\"phase\":\"stage\",\"result\":\"failed\",\"error\":{\"status\":"
          "\"OK\",\"phase\":\"stage\",\"cause\":\"c\"}"),
      HEFT_ERR_FORMAT, "status that is none" },
    { try_report,
      REP(",\"round\":\"1.1\",\"phase\":\"stage\",\"result\":\"failed\",\"error\":{\"status\":"
          "\"ERR_X\",\"phase\":\"stage\",\"cause\":\"c\"}"),
      HEFT_ERR_FORMAT, "unknown status \"ERR_X\"" },
    { try_report, REP(",\"error\":{\"status\":\"ERR_IO\"}"), HEFT_ERR_FORMAT, "report error" },
    { try_report, REP(",\"live_digest\":\"" DIG "\""), HEFT_ERR_FORMAT, "live_digest goes with" },
    { try_report, REP(",\"round\":\"1\""), HEFT_ERR_FORMAT, "epoch.sequence" },
    { try_report, REP(",\"round\":\"01.1\""), HEFT_ERR_FORMAT, "epoch.sequence" },
    { try_report, REP(",\"round\":\"1.1x\""), HEFT_ERR_FORMAT, "epoch.sequence" },
    { try_report, REP(",\"round\":\"1.9007199254740992\""), HEFT_ERR_FORMAT, "epoch.sequence" },
    { try_report, REP(",\"counters\":{\"byte\":1}"), HEFT_ERR_FORMAT, "unknown key \"byte\"" },
    { try_report, REP(",\"counters\":[]"), HEFT_ERR_FORMAT, "\"counters\" is not an object" },
    { try_report, REP(",\"problems\":[1]"), HEFT_ERR_FORMAT, "not a list of objects" },
    { try_report, REP(",\"problems\":[{\"kind\":\"odd\"}]"), HEFT_ERR_FORMAT, "\"odd\"" },
    { try_report, REP(",\"problems\":[{\"kind\":\"name\",\"total\":1,\"items\":[]}]"),
      HEFT_ERR_FORMAT, "0 items of 1" },
    { try_report, REP(",\"problems\":[{\"kind\":\"name\",\"total\":1,\"items\":[\"a\",\"b\"]}]"),
      HEFT_ERR_FORMAT, "2 items of 1" },
    { try_report, REP(",\"absent\":[]"), HEFT_ERR_FORMAT, "\"absent\" is empty" },
    { try_report, REP(",\"absent\":[1]"), HEFT_ERR_FORMAT, "item 0 is not a member id" },
    { try_report, REP(",\"problems\":[{\"kind\":\"name\",\"total\":1,\"items\":[1]}]"),
      HEFT_ERR_FORMAT, "item 0 is not a string" },
    { try_report, "{\"serving\":1}", HEFT_ERR_FORMAT, "true or false" },
    { try_order, ORD(",\"peers\":[1]"), HEFT_ERR_FORMAT, "item 0 is not an object" },
    { try_order, ORD(",\"peers\":[" PEER(",\"x\":1") "]"), HEFT_ERR_FORMAT, "unknown key \"x\"" },
    { try_order, ORD(",\"followers\":[" PEER(",\"x\":1") "]"), HEFT_ERR_FORMAT,
      "order followers: unknown key \"x\"" },
    { try_order, ORD(",\"digests\":[\"z\"]"), HEFT_ERR_FORMAT, "\"digests\": item 0" },
    { try_order, ORD(",\"objects\":[1]"), HEFT_ERR_FORMAT, "\"objects\": item 0" },
    { try_order,
      "{\"sequence\":1,\"epoch\":1,\"round\":\"1.1\",\"target\":\"none\",\"version\":1,"
      "\"decision\":\"none\",\"left_ms\":5}",
      HEFT_ERR_FORMAT, "\"target\" is \"none\"" },
    { try_order, "{\"sequence\":0}", HEFT_ERR_FORMAT, "\"sequence\" is 0" },
    { try_begin, "{\"key\":\"a\"}", HEFT_ERR_VERSION, "version_missing" },
    { try_begin, "{\"version\":0,\"key\":\"a\"}", HEFT_ERR_VERSION, "version_missing" },
    { try_begin, "{\"version\":1}", HEFT_ERR_FORMAT, "\"key\" is missing" },
    { try_begin, "{\"version\":1,\"key\":\"\"}", HEFT_ERR_FORMAT, "\"key\" has 0 bytes" },
    { try_begin, "{\"version\":-1,\"key\":\"a\"}", HEFT_ERR_FORMAT, "\"version\" is -1" },
    { try_begin, "{\"version\":\"1\",\"key\":\"a\"}", HEFT_ERR_FORMAT, "not an integer" },
    { try_begin, "{\"version\":1,\"key\":\"a\",\"destinations\":[]}", HEFT_ERR_FORMAT, "is empty" },
    { try_begin, "{\"version\":1,\"key\":\"a\",\"destinations\":[7]}", HEFT_ERR_FORMAT, "item 0" },
    { try_begin, "{\"version\":1,\"key\":\"a\",\"deadlines\":{\"stage_ms\":0}}", HEFT_ERR_FORMAT,
      "\"stage_ms\" is 0" },
    { try_begin, "{\"version\":1,\"key\":\"a\",\"deadlines\":{\"stage_s\":1}}", HEFT_ERR_FORMAT,
      "unknown key \"stage_s\"" },
    { try_contract, CON(",\"rank\":2,\"ranks\":2"), HEFT_ERR_FORMAT, "rank 2 of 2 ranks" },
    { try_contract, CON(",\"rank\":1,\"ranks\":2,\"first_rank\":1"), HEFT_ERR_FORMAT,
      "first_rank is 1, not 0" },
    { try_contract, CON(",\"rank\":0,\"ranks\":2,\"mapping\":\"" DIG "\""), HEFT_ERR_FORMAT,
      "one of both" },
    { try_contract, "{\"format\":1,\"rank\":0,\"ranks\":2}", HEFT_ERR_FORMAT, "one of both" },
    { try_contract,
      "{\"format\":1,\"mapping\":\"" DIG "\",\"rank\":1,\"ranks\":2,\"first_rank\":2}",
      HEFT_ERR_FORMAT, "rank 1 of 2 ranks from 2" },
    { try_contract, CON(",\"rank\":0"), HEFT_ERR_FORMAT, "\"ranks\" is missing" },
    { try_contract,
      "{\"format\":1,\"recipe\":{\"name\":\"n\"},\"bindings\":{},\"rank\":0,\"ranks\":1}",
      HEFT_ERR_FORMAT, "contract recipe: key \"text\" is missing" },
    { try_contract, "{\"format\":1,\"recipe\":{\"name\":\"n\",\"text\":\"t\"},\"bindings\":[]}",
      HEFT_ERR_FORMAT, "\"bindings\" is not an object" },
    { try_plans, "{\"format\":1,\"plans\":{\"a\":\"b\"}}", HEFT_ERR_FORMAT, "entry \"a\"" },
    { try_plans, "{\"format\":1,\"plans\":[]}", HEFT_ERR_FORMAT, "\"plans\" is not an object" },
    { try_sources, "{\"format\":1,\"sources\":[]}", HEFT_ERR_FORMAT, "0 of them, 1 to 4096" },
    { try_sources, "{\"format\":2,\"sources\":[" SRC("0", "0") "]}", HEFT_ERR_FORMAT, "format" },
    { try_sources, "{\"format\":1,\"sources\":{}}", HEFT_ERR_FORMAT, "\"sources\" is not" },
    { try_sources, "{\"format\":1,\"sources\":[7]}", HEFT_ERR_FORMAT, "item 0 is not an object" },
    { try_sources, "{\"format\":1,\"sources\":[{\"replica\":0,\"rank\":0}]}", HEFT_ERR_FORMAT,
      "\"manifest\" is missing" },
    { try_sources, "{\"format\":1,\"sources\":[" SRC("0", "-1") "]}", HEFT_ERR_FORMAT, "\"rank\"" },
    { try_sources, "{\"format\":1,\"sources\":[" SRC("0", "1") "," SRC("0", "1") "]}",
      HEFT_ERR_FORMAT, "replica 0 rank 1 stands behind replica 0 rank 1" },
    { try_sources, "{\"format\":1,\"sources\":[" SRC("1", "0") "," SRC("0", "1") "]}",
      HEFT_ERR_FORMAT, "replica 0 rank 1 stands behind replica 1 rank 0" },
    { try_digests, "{\"format\":1,\"params\":{}}", HEFT_ERR_NOT_FOUND, "none for plan" },
    { try_digests, "{\"format\":1,\"params\":{\"" DIG "\":{}}}", HEFT_ERR_FORMAT, "no list" },
    { try_digests, "{\"format\":1,\"params\":{\"" DIG "\":[\"12\"]}}", HEFT_ERR_FORMAT,
      "parameter 0" },
    { try_live, "{\"format\":1,\"version\":1,\"plan\":\"" DIG "\",\"params\":[7]}", HEFT_ERR_FORMAT,
      "parameter 0" },
    { try_live,
      "{\"format\":1,\"version\":1,\"plan\":\"" DIG "\",\"params\":[],\"recorded\":[\"x\"]}",
      HEFT_ERR_FORMAT, "recorded 0" },
    { try_live, "{\"format\":1,\"version\":1,\"plan\":\"" DIG "\",\"params\":[],\"recorded\":[]}",
      HEFT_ERR_FORMAT, "0 recorded" },
    { try_outcome, "{\"round\":\"1.1\",\"state\":\"committed\"}", HEFT_ERR_FORMAT, "ended" },
};

static void wrong_messages_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        const heft_status_t status = wrongs[i].decode(wrongs[i].text, strlen(wrongs[i].text), &err);
        if (status != wrongs[i].status || strstr(err.message, wrongs[i].message) == NULL) {
            fail_msg("%s: %s, message \"%s\", expected \"%s\"", wrongs[i].text,
                     heft_status_get_name(status), err.message, wrongs[i].message);
        }
    }
}

/* Every message, complete but for one key that nobody knows. */
static void unknown_json_key_named(void **state)
{
    (void)state;
    static const struct {
        decode_t decode;
        const char *text;
    } all[] = {
        { try_register, REG(REG_END ",\"odd_one\":1") },
        { try_bind, "{\"incarnation\":\"" INC "\",\"manifest\":\"" DIG "\",\"odd_one\":1}" },
        { try_registered, "{\"id\":\"a\",\"epoch\":1,\"odd_one\":1}" },
        { try_report, REP(",\"odd_one\":1") },
        { try_order, ORD(",\"odd_one\":1") },
        { try_order, ORD(",\"peers\":[" PEER(",\"odd_one\":1") "]") },
        { try_begin, "{\"version\":1,\"key\":\"a\",\"odd_one\":1}" },
        { try_contract, CON(",\"rank\":0,\"ranks\":1,\"odd_one\":1") },
        { try_plans, "{\"format\":1,\"plans\":{},\"odd_one\":1}" },
        { try_sources, "{\"format\":1,\"sources\":[" SRC("0", "0") "],\"odd_one\":1}" },
        { try_digests, "{\"format\":1,\"params\":{},\"odd_one\":1}" },
        { try_live,
          "{\"format\":1,\"version\":1,\"plan\":\"" DIG "\",\"params\":[],\"odd_one\":1}" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        const heft_status_t status = all[i].decode(all[i].text, strlen(all[i].text), &err);
        if (status != HEFT_ERR_FORMAT || strstr(err.message, "unknown key \"odd_one\"") == NULL) {
            fail_msg("%s: %s, message \"%s\"", all[i].text, heft_status_get_name(status),
                     err.message);
        }
    }
}

/* 2^53 - 1 is the largest integer that every reader of JSON keeps; one more is refused by name. */
static void json_integer_limit(void **state)
{
    (void)state;
    static const struct {
        decode_t decode;
        const char *key, *before, *after;
    } all[] = {
        { try_begin, "version", "{\"version\":", ",\"key\":\"a\"}" },
        { try_report, "epoch", "{\"incarnation\":\"" INC "\",\"epoch\":",
          ",\"sequence\":1,\"order\":0,\"wait_ms\":0,"
          "\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":0,\"serving\":false}" },
        { try_report, "sequence", "{\"incarnation\":\"" INC "\",\"epoch\":1,\"sequence\":",
          ",\"order\":0,\"wait_ms\":0,"
          "\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":0,\"serving\":false}" },
        { try_report, "live_version",
          "{\"incarnation\":\"" INC "\",\"epoch\":1,\"sequence\":1,\"order\":0,\"wait_ms\":0,"
          "\"state\":\"idle\",\"condition\":\"ok\",\"live_version\":",
          ",\"live_digest\":\"" DIG "\",\"serving\":false}" },
        { try_order, "left_ms",
          "{\"sequence\":1,\"epoch\":1,\"round\":\"1.1\",\"target\":\"stage\",\"version\":1,"
          "\"decision\":\"none\",\"left_ms\":",
          "}" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        char text[512];
        char part[64];
        (void)snprintf(text, sizeof text, "%s9007199254740991%s", all[i].before, all[i].after);
        EXPECT_STATUS(all[i].decode(text, strlen(text), &err), HEFT_OK);
        (void)snprintf(text, sizeof text, "%s9007199254740992%s", all[i].before, all[i].after);
        EXPECT_STATUS(all[i].decode(text, strlen(text), &err), HEFT_ERR_FORMAT);
        (void)snprintf(part, sizeof part, "\"%s\" is 9007199254740992", all[i].key);
        EXPECT_MESSAGE(part);
        (void)snprintf(text, sizeof text, "%s18446744073709551616%s", all[i].before, all[i].after);
        EXPECT_STATUS(all[i].decode(text, strlen(text), &err), HEFT_ERR_FORMAT);
    }
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char text[200000];
    memset(text, '[', sizeof text);
    EXPECT_STATUS(try_report(text, sizeof text, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("deeper than 16");
    /* brackets in strings do not count */
    char ok[64];
    (void)snprintf(ok, sizeof ok, "{\"version\":1,\"key\":\"[[[[[[[[[[[[[[[[[[[[\\\"[[\"}");
    EXPECT_STATUS(try_begin(ok, strlen(ok), &err), HEFT_OK);
}

static void control_characters_do_not_reach_messages(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const char text[] = "{\"a\\nb\\u001b[31m\":1}";
    EXPECT_STATUS(try_bind(text, strlen(text), &err), HEFT_ERR_FORMAT);
    for (const char *c = err.message; *c != '\0'; c++) {
        assert_true((unsigned char)*c >= 0x20);
    }
}

/* ---- round trips ---- */

static heft__report_t full_report(void)
{
    heft__report_t r;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_init(&r);
    (void)strcpy(r.incarnation, INC);
    r.epoch = HEFT__WIRE_MAX_INT;
    r.sequence = 7;
    r.order = 6;
    r.wait_ms = 5;
    r.round = (heft__round_id_t){ 3, 12 };
    r.phase = HEFT__PHASE_PREFLIGHT;
    r.result = HEFT__RESULT_FAILED;
    r.state = HEFT__STATE_IDLE;
    r.condition = HEFT__CONDITION_ROUND_POISONED;
    r.error.status = HEFT_ERR_DIGEST;
    r.error.phase = HEFT__PHASE_VERIFY;
    r.error.rank = 0;
    (void)strcpy(r.error.tensor, "lm_head.weight");
    (void)strcpy(r.error.peer, "source.heft.0.0");
    (void)strcpy(r.error.cause, "1 of 2 \"differ\"");
    r.live_version = 9;
    r.serving = true;
    (void)strcpy(r.live_digest, DIG);
    (void)strcpy(r.plan, DIG2);
    r.counters.bytes = INT64_C(1) << 40;
    r.counters.flip_ns = 3;
    for (int i = 0; i < 57; i++) {
        EXPECT_STATUS(heft__problems_add(&r.problems, HEFT__PROBLEM_NAME, &err, "name %d", i),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft__problems_add(&r.problems, HEFT__PROBLEM_SHAPE, &err, "shape"), HEFT_OK);
    char(*absent)[HEFT__ID_SIZE] = heft__calloc(2, sizeof *absent);
    assert_non_null(absent);
    memcpy(absent[0], "destination.heft.0.0", 21);
    memcpy(absent[1], "destination.heft.1.0", 21);
    heft__report_set_absent(&r, absent, 2);
    return r;
}

static void report_survives_the_wire(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t in = full_report();
    heft__report_t out;
    char *text = NULL;
    EXPECT_STATUS(heft__report_encode(&in, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__report_decode(text, strlen(text), &out, &err), HEFT_OK);
    assert_int_equal(out.epoch, in.epoch);
    assert_int_equal(out.sequence, 7);
    assert_int_equal(out.error.rank, 0);
    assert_int_equal(out.error.status, HEFT_ERR_DIGEST);
    assert_string_equal(out.error.tensor, in.error.tensor);
    assert_string_equal(out.error.cause, in.error.cause);
    assert_int_equal(out.problems.kinds[HEFT__PROBLEM_NAME].total, 57);
    assert_int_equal(out.problems.kinds[HEFT__PROBLEM_NAME].n_items, HEFT__MAX_PROBLEMS);
    assert_string_equal(out.problems.kinds[HEFT__PROBLEM_NAME].items[39], "name 39");
    assert_int_equal(heft__problems_total(&out.problems), 58);
    assert_int_equal(out.n_absent, 2);
    assert_string_equal(out.absent[1], "destination.heft.1.0");
    assert_memory_equal(&in.counters, &out.counters, sizeof in.counters);
    /* encoding it again gives the same text */
    char *again = NULL;
    EXPECT_STATUS(heft__report_encode(&out, &again, &err), HEFT_OK);
    assert_string_equal(text, again);
    heft__free(text);
    heft__free(again);
    heft__report_fini(&in);
    heft__report_fini(&out);
}

static void message_cut_inside_a_character_is_still_sent(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t in = full_report();
    heft__report_t out;
    char *text = NULL;
    (void)strcpy(in.error.cause, "caf\xc3");
    EXPECT_STATUS(
        heft__problems_add(&in.problems, HEFT__PROBLEM_PROOF, &err, "\xe2\x82\xac\xff\xe2\x82"),
        HEFT_OK);
    EXPECT_STATUS(heft__report_encode(&in, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__report_decode(text, strlen(text), &out, &err), HEFT_OK);
    assert_string_equal(out.error.cause, "caf");
    assert_string_equal(out.problems.kinds[HEFT__PROBLEM_PROOF].items[0], "\xe2\x82\xac?");
    heft__free(text);
    heft__report_fini(&in);
    heft__report_fini(&out);
}

static void no_rank_is_not_rank_zero(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t in = full_report();
    heft__report_t out;
    char *text = NULL;
    in.error.rank = -1;
    EXPECT_STATUS(heft__report_encode(&in, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__report_decode(text, strlen(text), &out, &err), HEFT_OK);
    assert_int_equal(out.error.rank, -1);
    heft__free(text);
    heft__report_fini(&in);
    heft__report_fini(&out);
}

static heft__order_t full_order(heft__peer_t *peers, char (*digests)[HEFT__DIGEST_SIZE])
{
    heft__order_t o;
    heft__order_init(&o);
    o.sequence = 17;
    o.epoch = 3;
    o.round = (heft__round_id_t){ 3, 12 };
    o.target = HEFT__PHASE_FLIP;
    o.version = 8;
    o.decision = HEFT__DECISION_COMMIT;
    o.left_ms = 0;
    (void)strcpy(o.plan, DIG);
    memset(peers, 0, 2 * sizeof *peers);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(peers[i].id, sizeof peers[i].id, "destination.heft.0.%d", i);
        (void)strcpy(peers[i].incarnation, INC);
        peers[i].rank = (uint32_t)i;
        peers[i].moves = i == 1;
        peers[i].n_transports = 2;
        (void)strcpy(peers[i].transports[0], "shm");
        (void)strcpy(peers[i].transports[1], "ucx");
        (void)strcpy(peers[i].manifest, DIG);
        (void)strcpy(peers[i].contract, DIG2);
        (void)strcpy(digests[i], DIG);
    }
    o.peers = peers;
    o.n_peers = 2;
    o.relayed = true;
    o.followers = &peers[1];
    o.n_followers = 1;
    o.digests = digests;
    o.n_digests = 2;
    return o;
}

static void order_survives_the_wire(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__peer_t peers[2];
    char digests[2][HEFT__DIGEST_SIZE];
    const heft__order_t in = full_order(peers, digests);
    heft__order_t out;
    char *text = NULL;
    EXPECT_STATUS(heft__order_encode(&in, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__order_decode(text, strlen(text), &out, &err), HEFT_OK);
    assert_int_equal(out.decision, HEFT__DECISION_COMMIT);
    assert_int_equal(out.n_peers, 2);
    assert_memory_equal(out.peers, peers, sizeof peers);
    assert_true(out.relayed);
    assert_int_equal(out.n_followers, 1);
    assert_memory_equal(out.followers, &peers[1], sizeof peers[1]);
    assert_int_equal(out.n_digests, 2);
    assert_int_equal(out.n_objects, 0);
    assert_string_equal(out.digests[1], DIG);
    heft__free(text);
    heft__order_fini(&out);
}

static void small_messages_survive_the_wire(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    heft__register_t reg = { .role = HEFT__ROLE_DESTINATION,
                             .job = "a.b-c_9",
                             .replica = 2,
                             .rank = 3,
                             .incarnation = INC,
                             .epoch = 4,
                             .n_transports = 1 };
    (void)strcpy(reg.transports[0], "shm");
    heft__register_t reg_out;
    EXPECT_STATUS(heft__register_encode(&reg, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__register_decode(text, strlen(text), &reg_out, &err), HEFT_OK);
    assert_memory_equal(&reg, &reg_out, sizeof reg);
    heft__free(text);

    heft__registered_t red = { .id = "source.heft.0.0", .epoch = 1, .poll_ms = 2, .contact_ms = 3 };
    heft__registered_t red_out;
    EXPECT_STATUS(heft__registered_encode(&red, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__registered_decode(text, strlen(text), &red_out, &err), HEFT_OK);
    assert_memory_equal(&red, &red_out, sizeof red);
    heft__free(text);

    heft__bind_t bind = { .incarnation = INC, .manifest = DIG, .sources = DIG };
    heft__bind_t bind_out;
    EXPECT_STATUS(heft__bind_encode(&bind, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__bind_decode(text, strlen(text), &bind_out, &err), HEFT_OK);
    assert_memory_equal(&bind, &bind_out, sizeof bind);
    heft__free(text);

    char ids[1][HEFT__ID_SIZE] = { "destination.heft.0.1" };
    heft__begin_t begin = { .version = 3, .key = "k", .destinations = ids, .n_destinations = 1 };
    char models[1][HEFT__ID_SIZE] = { "target" };
    begin.deadlines.stage_ms = 77;
    begin.carries = HEFT__CARRIES_MERGED;
    begin.models = models;
    begin.n_models = 1;
    heft__begin_t begin_out;
    EXPECT_STATUS(heft__begin_encode(&begin, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__begin_decode(text, strlen(text), &begin_out, &err), HEFT_OK);
    assert_int_equal(begin_out.deadlines.stage_ms, 77);
    assert_int_equal(begin_out.deadlines.flip_ms, 0);
    assert_string_equal(begin_out.destinations[0], ids[0]);
    assert_int_equal(begin_out.carries, HEFT__CARRIES_MERGED);
    assert_int_equal(begin_out.n_models, 1);
    assert_string_equal(begin_out.models[0], "target");
    heft__free(text);
    heft__begin_fini(&begin_out);
}

static void contracts_of_a_family_differ_in_rank_alone(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    char name[] = "n";
    char recipe[] = "\"w\" [a] -> \"w\" [a]\n";
    char bindings[] = "{\"let\": {\"tp\": \"2\"}, \"config\": {}}";
    char reordered[] = "{\"config\":{},\"let\":{\"tp\":\"2\"}}";
    char other[] = "{\"config\":{},\"let\":{\"tp\":\"4\"}}";
    char traced[] = DIG;
#define RECIPE(b, r) \
    { .recipe_name = name, .recipe_text = recipe, .bindings = (b), .rank = (r), .ranks = 2 }
#define TRACED(r)                                                   \
    {                                                               \
        .mapping = traced, .rank = (r), .ranks = 2, .first_rank = 4 \
    }
    heft__contract_t c[5] = { RECIPE(bindings, 0), RECIPE(reordered, 1), RECIPE(other, 0),
                              TRACED(4), TRACED(5) };
    heft__contract_t out[5];
    for (int i = 0; i < 5; i++) {
        char *text = NULL;
        EXPECT_STATUS(heft__contract_encode(&c[i], &text, &err), HEFT_OK);
        EXPECT_STATUS(heft__contract_decode(text, strlen(text), &out[i], &err), HEFT_OK);
        assert_string_equal(i < 3 ? out[i].recipe_text : out[i].mapping, i < 3 ? recipe : traced);
        assert_int_equal(out[i].rank, c[i].rank);
        assert_int_equal(out[i].first_rank, c[i].first_rank);
        heft__free(text);
    }
    assert_string_equal(out[0].family, out[1].family);
    assert_string_not_equal(out[0].family, out[2].family);
    assert_string_equal(out[3].family, out[4].family);
    assert_string_not_equal(out[0].family, out[3].family);
    for (int i = 0; i < 5; i++) {
        heft__contract_fini(&out[i]);
    }
}

static void digest_objects_survive_the_wire(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t params[3] = { 0, UINT64_MAX, 0x0123456789abcdefu };
    heft__digest_set_t sets[2] = { { .plan = DIG, .params = params, .n_params = 3 },
                                   { .plan = DIG2, .params = params, .n_params = 1 } };
    heft__digest_set_t out;
    char *text = NULL;
    EXPECT_STATUS(heft__digests_encode(sets, 2, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__digests_decode(text, strlen(text), DIG, &out, &err), HEFT_OK);
    assert_int_equal(out.n_params, 3);
    assert_memory_equal(out.params, params, sizeof params);
    heft__free(out.params);
    heft__free(text);

    heft__live_t live = { .version = 9, .set = sets[0] };
    heft__live_t live_out;
    EXPECT_STATUS(heft__live_encode(&live, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__live_decode(text, strlen(text), &live_out, &err), HEFT_OK);
    assert_int_equal(live_out.version, 9);
    assert_memory_equal(live_out.set.params, params, sizeof params);
    assert_null(live_out.is_recorded);
    heft__live_fini(&live_out);
    heft__free(text);
    bool is_recorded[sizeof params / sizeof params[0]] = { false, true };
    uint64_t recorded[sizeof params / sizeof params[0]] = { 0, 0xfeedu };
    live.is_recorded = is_recorded;
    live.recorded = recorded;
    EXPECT_STATUS(heft__live_encode(&live, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__live_decode(text, strlen(text), &live_out, &err), HEFT_OK);
    assert_memory_equal(live_out.is_recorded, is_recorded, sizeof is_recorded);
    assert_memory_equal(live_out.recorded, recorded, sizeof recorded);
    heft__live_fini(&live_out);
    heft__free(text);

    const heft__plan_entry_t entries[2] = { { "a", DIG }, { "b", DIG2 } };
    heft__plan_entry_t *plans = NULL;
    uint32_t n = 0;
    EXPECT_STATUS(heft__plans_encode(entries, 2, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__plans_decode(text, strlen(text), &plans, &n, &err), HEFT_OK);
    assert_int_equal(n, 2);
    heft__free(plans);
    heft__free(text);
}

static void sources_have_one_text(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft__source_t in[] = { { .replica = 0, .rank = 0, .manifest = DIG },
                                  { .replica = 0, .rank = 10, .manifest = DIG2 },
                                  { .replica = 1, .rank = 2, .manifest = DIG } };
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        char *text = NULL;
        char *again = NULL;
        heft__source_t *out = NULL;
        uint32_t n = 0;
        heft__alloc_fail_at(k);
        heft_status_t status = heft__source_list_encode(in, 3, &text, &err);
        if (status == HEFT_OK) {
            status = heft__source_list_decode(text, strlen(text), &out, &n, &err);
        }
        if (status == HEFT_OK) {
            status = heft__source_list_encode(out, n, &again, &err);
        }
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            assert_int_equal(n, 3);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(out[i].replica, in[i].replica);
                assert_int_equal(out[i].rank, in[i].rank);
                assert_string_equal(out[i].manifest, in[i].manifest);
            }
            assert_string_equal(text, again);
            assert_string_equal(text, "{\"format\":1,\"sources\":["
                                      "{\"manifest\":\"" DIG "\",\"rank\":0,\"replica\":0},"
                                      "{\"manifest\":\"" DIG2 "\",\"rank\":10,\"replica\":0},"
                                      "{\"manifest\":\"" DIG "\",\"rank\":2,\"replica\":1}]}");
        }
        heft__free(text);
        heft__free(again);
        heft__free(out);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
}

static void identities_have_one_form(void **state)
{
    (void)state;
    char id[HEFT__ID_SIZE];
    char job[HEFT__JOB_SIZE];
    memset(job, 'j', sizeof job - 1);
    job[sizeof job - 1] = '\0';
    assert_true(heft__is_job(job));
    heft__member_id_format(HEFT__ROLE_DESTINATION, job, UINT32_MAX, UINT32_MAX, id);
    assert_int_equal(strlen(id), strlen("destination.") + 64 + 2 * strlen(".4294967295"));
    uint32_t replica = 0;
    uint32_t rank = 0;
    assert_true(heft__member_id_numbers(id, &replica, &rank));
    assert_int_equal(replica, UINT32_MAX);
    assert_int_equal(rank, UINT32_MAX);
    assert_true(heft__member_id_numbers("source.a.7.b.2.30", &replica, &rank));
    assert_int_equal(replica, 2);
    assert_int_equal(rank, 30);
    static const char *const none[] = { "",     "x",    "a.1",    "a.x.1",         "a.1.x",
                                        "a.1.", "a..1", "a.-1.1", "a.1.4294967296" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_false(heft__member_id_numbers(none[i], &replica, &rank));
    }
    assert_false(heft__is_job(""));
    assert_false(heft__is_job("a/b"));
    char inc[HEFT__INCARNATION_SIZE];
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft__incarnation_create(inc, &err), HEFT_OK);
    assert_true(heft__is_hex(inc, 32));
    char text[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_t round = { 3, HEFT__WIRE_MAX_INT };
    heft__round_id_t back;
    heft__round_id_format(round, text);
    assert_true(heft__round_id_parse(text, &back));
    assert_true(heft__round_id_equal(round, back));
    assert_string_equal(heft__phase_text((heft__phase_t)77), "?");
}

/* ---- memory ---- */

/* Every allocation of encode and decode fails in turn; nothing is left over. */
static void report_and_order_survive_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__report_t in = full_report();
    heft__peer_t peers[2];
    char digests[2][HEFT__DIGEST_SIZE];
    const heft__order_t order = full_order(peers, digests);
    char *report_text = NULL;
    char *order_text = NULL;
    EXPECT_STATUS(heft__report_encode(&in, &report_text, &err), HEFT_OK);
    EXPECT_STATUS(heft__order_encode(&order, &order_text, &err), HEFT_OK);
    const int64_t live = heft__alloc_live();
    int failed = 0;
    for (long k = 0;; k++) {
        char *text = NULL;
        heft__report_t r;
        heft__order_t o;
        heft__alloc_fail_at(k);
        heft_status_t status = heft__report_encode(&in, &text, &err);
        if (status == HEFT_OK) {
            heft__free(text);
            status = heft__report_decode(report_text, strlen(report_text), &r, &err);
            if (status == HEFT_OK) {
                heft__report_fini(&r);
                status = heft__order_decode(order_text, strlen(order_text), &o, &err);
                if (status == HEFT_OK) {
                    heft__order_fini(&o);
                }
            }
        }
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        failed++;
    }
    assert_true(failed > 40);
    heft__free(report_text);
    heft__free(order_text);
    heft__report_fini(&in);
}

static void contract_survives_lack_of_memory(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const char text[] = CON(",\"rank\":0,\"ranks\":1");
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft__alloc_fail_at(k);
        const heft_status_t status = try_contract(text, strlen(text), &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 2);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_messages_are_refused_by_name),
        cmocka_unit_test(unknown_json_key_named),
        cmocka_unit_test(json_integer_limit),
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(control_characters_do_not_reach_messages),
        cmocka_unit_test(report_survives_the_wire),
        cmocka_unit_test(message_cut_inside_a_character_is_still_sent),
        cmocka_unit_test(no_rank_is_not_rank_zero),
        cmocka_unit_test(order_survives_the_wire),
        cmocka_unit_test(small_messages_survive_the_wire),
        cmocka_unit_test(contracts_of_a_family_differ_in_rank_alone),
        cmocka_unit_test(digest_objects_survive_the_wire),
        cmocka_unit_test(sources_have_one_text),
        cmocka_unit_test(identities_have_one_form),
        cmocka_unit_test(report_and_order_survive_lack_of_memory),
        cmocka_unit_test(contract_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
