/* SPDX-License-Identifier: Apache-2.0 */
/* Options from knobs, by one table of offsets for each struct; a test compares them with the table
 * of knobs. */
#include "sync/settings.h"

#include <string.h>

typedef enum width { TEXT = 0, U8 = 1, U16 = 2, U32 = 4, U64 = 8 } width_t;

typedef struct row {
    const char *knob;
    size_t offset;
    width_t width;
} row_t;

#define ROW(opts, field, knob, width)        \
    {                                        \
        (knob), offsetof(opts, field), width \
    }
#define ROWS_OF_ACCESS(opts)                                                \
    ROW(opts, url, "url", TEXT), ROW(opts, token_file, "token-file", TEXT), \
        ROW(opts, ca_file, "ca-file", TEXT), ROW(opts, insecure, "insecure", U8)
#define ROWS_OF_MEMBERS(opts)                                                                \
    ROWS_OF_ACCESS(opts), ROW(opts, job, "job", TEXT), ROW(opts, n_threads, "threads", U32), \
        ROW(opts, deadline_ms, "deadline-ms", U32), ROW(opts, transport, "transport", TEXT), \
        ROW(opts, ucx_devices, "ucx-devices", TEXT), ROW(opts, ucx_lanes, "ucx-lanes", U32), \
        ROW(opts, host, "host", TEXT), ROW(opts, ucx_silence_ms, "ucx-silence-ms", U32),     \
        ROW(opts, ucx_allow_tcp, "ucx-allow-tcp", U8)

typedef heft_coordinator_opts_t coordinator_t;
static const row_t coordinator_rows[] = {
    ROW(coordinator_t, address, "address", TEXT),
    ROW(coordinator_t, port, "port", U16),
    ROW(coordinator_t, state_file, "state", TEXT),
    ROW(coordinator_t, round_log, "round-log", TEXT),
    ROW(coordinator_t, token_file, "token-file", TEXT),
    ROW(coordinator_t, tls_cert, "tls-cert", TEXT),
    ROW(coordinator_t, tls_key, "tls-key", TEXT),
    ROW(coordinator_t, insecure, "insecure", U8),
    ROW(coordinator_t, no_feed, "no-feed", U8),
    ROW(coordinator_t, relay, "relay", TEXT),
    ROW(coordinator_t, relay_fan_out, "relay-fan-out", U32),
    ROW(coordinator_t, preflight_ms, "preflight-ms", U32),
    ROW(coordinator_t, prepare_ms, "prepare-ms", U32),
    ROW(coordinator_t, stage_ms, "stage-ms", U32),
    ROW(coordinator_t, verify_ms, "verify-ms", U32),
    ROW(coordinator_t, pause_ms, "pause-ms", U32),
    ROW(coordinator_t, decide_ms, "decide-ms", U32),
    ROW(coordinator_t, flip_ms, "flip-ms", U32),
    ROW(coordinator_t, resume_ms, "resume-ms", U32),
    ROW(coordinator_t, release_ms, "release-ms", U32),
    ROW(coordinator_t, abort_ms, "abort-ms", U32),
    ROW(coordinator_t, contact_ms, "contact-ms", U32),
    ROW(coordinator_t, poll_ms, "poll-ms", U32),
    ROW(coordinator_t, request_ms, "request-ms", U32),
    ROW(coordinator_t, max_connections, "max-connections", U32),
};

static const row_t publisher_rows[] = {
    ROWS_OF_MEMBERS(heft_publisher_opts_t),
    ROW(heft_publisher_opts_t, max_bytes_per_s, "max-rate", U64),
};

static const row_t subscriber_rows[] = { ROWS_OF_MEMBERS(heft_subscriber_opts_t) };

static const row_t access_rows[] = { ROWS_OF_ACCESS(heft__access_t) };

/* Numbers of any width, little-endian hosts or not. */
static uint64_t load_number(const char *at, width_t width)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (width) {
    case U8:
        memcpy(&u8, at, sizeof u8);
        return u8;
    case U16:
        memcpy(&u16, at, sizeof u16);
        return u16;
    case U32:
        memcpy(&u32, at, sizeof u32);
        return u32;
    case U64:
    case TEXT:
        break;
    }
    memcpy(&u64, at, sizeof u64);
    return u64;
}

static void store_number(char *at, width_t width, int64_t number)
{
    const uint8_t u8 = (uint8_t)number;
    const uint16_t u16 = (uint16_t)number;
    const uint32_t u32 = (uint32_t)number;
    switch (width) {
    case U8:
        memcpy(at, &u8, sizeof u8);
        return;
    case U16:
        memcpy(at, &u16, sizeof u16);
        return;
    case U32:
        memcpy(at, &u32, sizeof u32);
        return;
    case U64:
    case TEXT:
        break;
    }
    memcpy(at, &number, sizeof number);
}

static heft_status_t fill_row(const row_t *row, char *opts, const heft_config_t *config,
                              heft_error_t *err)
{
    heft_setting_t setting;
    char *at = opts + row->offset;
    heft__config_get(config, row->knob, &setting);
    if (row->width == TEXT) {
        const char *given;
        memcpy(&given, at, sizeof given);
        if (given == NULL) {
            memcpy(at, &setting.text, sizeof setting.text);
        }
        return HEFT_OK;
    }
    const uint64_t given = load_number(at, row->width);
    if (given != 0) {
        return heft__knob_check(setting.knob, given > INT64_MAX ? INT64_MAX : (int64_t)given, err);
    }
    store_number(at, row->width, setting.number);
    return HEFT_OK;
}

static heft_status_t fill(const row_t *rows, size_t n, void *opts, heft_config_t **config_out,
                          heft_error_t *err)
{
    heft_config_t *config = NULL;
    heft_status_t status = heft_config_create(NULL, &config, err);
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        status = fill_row(&rows[i], opts, config, err);
    }
    if (status != HEFT_OK) {
        heft_config_destroy(config);
        return status;
    }
    *config_out = config;
    return HEFT_OK;
}

#define FILL(rows) fill((rows), sizeof(rows) / sizeof(rows)[0], opts, config_out, err)

/* A member that waits at the coordinator for longer than a third of the contact time would be taken
 * for lost by two polls that go astray. The default gives way, a wish does not. */
static heft_status_t fit_poll(heft_coordinator_opts_t *opts, bool is_given,
                              const heft_config_t *config, heft_error_t *err)
{
    const uint32_t third = opts->contact_ms / 3 > 0 ? opts->contact_ms / 3 : 1;
    heft_setting_t setting;
    heft__config_get(config, "poll-ms", &setting);
    if (opts->poll_ms <= third) {
        return HEFT_OK;
    }
    if (is_given || setting.origin != HEFT_ORIGIN_DEFAULT) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "poll-ms %u is more than a third of contact-ms %u: at most %u",
                               opts->poll_ms, opts->contact_ms, third);
    }
    opts->poll_ms = third;
    return HEFT_OK;
}

heft_status_t heft__settings_coordinator(heft_coordinator_opts_t *opts, heft_config_t **config_out,
                                         heft_error_t *err)
{
    const bool is_given = opts->poll_ms != 0;
    heft_status_t status = FILL(coordinator_rows);
    if (status == HEFT_OK) {
        status = fit_poll(opts, is_given, *config_out, err);
        if (status != HEFT_OK) {
            heft_config_destroy(*config_out);
            *config_out = NULL;
            return status;
        }
        heft__config_log_warnings(*config_out);
    }
    return status;
}

heft_status_t heft__settings_publisher(heft_publisher_opts_t *opts, heft_config_t **config_out,
                                       heft_error_t *err)
{
    heft_status_t status = FILL(publisher_rows);
    if (status == HEFT_OK) {
        heft__config_log_warnings(*config_out);
    }
    return status;
}

heft_status_t heft__settings_subscriber(heft_subscriber_opts_t *opts, heft_config_t **config_out,
                                        heft_error_t *err)
{
    heft_status_t status = FILL(subscriber_rows);
    if (status == HEFT_OK) {
        heft__config_log_warnings(*config_out);
    }
    return status;
}

heft_status_t heft__settings_access(heft__access_t *access, heft_config_t **config_out,
                                    heft_error_t *err)
{
    return fill(access_rows, sizeof access_rows / sizeof access_rows[0], access, config_out, err);
}
