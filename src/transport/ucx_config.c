/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of UCX that heft depends on, and why: UCX 1.13 was measured with and without each
 * (docs/design/008-ucx.md). They are set in the configuration that is handed to UCX, never in the
 * environment; what the user's environment sets wins, and is said.
 */
#include "transport/ucx_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct wish {
    const char *name; /* the variable, without UCX_ */
    const char *value;
    const char *others[2]; /* variables that say the same more narrowly */
    const char *key;       /* as ucp_config_modify of 1.13 knows it, which later ones refuse;
                              NULL: by its name */
    const char *only_with; /* a variable without which it would mean nothing; NULL: always */
} wish_t;

static const wish_t wishes[] = {
    /* In a queue of UCX's shared memory a sender takes an entry, then fills it. One that is killed
     * between the two blocks the queue: its receiver never hears from anybody again. */
    { "TLS", "^shm", { NULL }, NULL, NULL },
    /* Who asks for them all the same: without it they are not used where failures are to be
     * noticed, but tcp. */
    { "MM_ERROR_HANDLING",
      "y",
      { "UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING" },
      NULL,
      "UCX_TLS" },
    /* A peer that dies is noticed after this; UCX's own 20 s let puts "succeed" meanwhile. */
    { "KEEPALIVE_INTERVAL", "1s", { NULL }, NULL, NULL },
    /* connect() waits in UCX's one thread, in which meanwhile nobody is heard or answered: for a
     * host that has vanished 7 s, not two minutes. UCX_TCP_CONN_NB=y would not wait at all, but
     * then UCX 1.13 ends its process (ucp_request.c: got REP message) where such a connection is
     * refused later on. */
    { "TCP_SYN_CNT", "2", { "UCX_TCP_TX_MAX_BUFS" }, "SYN_CNT", NULL },
    /* UCX 1.13 keeps that in a field of half its size, so that setting it makes this one, which
     * lies behind it, 0. It is the default. */
    { "TCP_TX_MAX_BUFS", "-1", { NULL }, "TX_MAX_BUFS", NULL },
};

static bool is_kept(const char *variable, const wish_t *wish)
{
    const char *own = getenv(variable);
    if (own != NULL) {
        heft__log(HEFT_LOG_INFO, "ucx",
                  "%s=%s of the environment is kept; heft would set UCX_%s=%s", variable, own,
                  wish->name, wish->value);
    }
    return own != NULL;
}

static heft_status_t modify(const heft__ucx_api_t *api, ucp_config_t *config, const wish_t *wish,
                            heft_error_t *err)
{
    char variable[64];
    if (wish->only_with != NULL && getenv(wish->only_with) == NULL) {
        return HEFT_OK;
    }
    (void)snprintf(variable, sizeof variable, "UCX_%s", wish->name);
    bool kept = is_kept(variable, wish);
    for (int i = 0; i < 2 && wish->others[i] != NULL; i++) {
        kept = is_kept(wish->others[i], wish) || kept;
    }
    if (kept) {
        return HEFT_OK;
    }
    ucs_status_t status = UCS_ERR_NO_ELEM;
    if (wish->key != NULL) {
        status = api->ucp_config_modify(config, wish->key, wish->value);
    }
    if (status != UCS_OK) {
        status = api->ucp_config_modify(config, wish->name, wish->value);
    }
    return status == UCS_OK
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_UNSUPPORTED, "ucx: cannot set UCX_%s to %s: %s",
                                 wish->name, wish->value, api->ucs_status_string(status));
}

/* ---- segments of tcp ---- */

enum { EAGER_BYTES = 256 << 10, TCP_EAGER_BYTES = 1 << 20, SEGMENT_EXTRA = 4 << 10 };

/* "512k", as UCX reads it; 0: something else. */
static int64_t read_size(const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    const char *const units = "kmg";
    const char *unit = *end != '\0' ? strchr(units, *end | 0x20) : NULL;
    const int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    return value > 0 && value < 1e9 ? (int64_t)(value * (double)(INT64_C(1) << shift)) : 0;
}

/* Segments of 8 KiB, UCX's own, reach a third of the speed. And a receiver of UCX 1.13 reads every
 * byte into a segment, whatever way it is sent, and copies it to where it belongs. What is no
 * larger than a segment is given to us there, so that this copy can be ours, which sums the bytes
 * in the same pass; so a segment has room for a chunk. Over several networks it is less: they share
 * segments. */
int64_t heft__ucx_segment_bytes(const heft__ucx_opts_t *opts)
{
    static const char *const names[] = { "UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE" };
    for (int i = 0; i < 2; i++) {
        const char *own = getenv(names[i]);
        if (own != NULL) {
            return read_size(own);
        }
    }
    return (opts->max_lanes > 1 ? EAGER_BYTES : TCP_EAGER_BYTES) + SEGMENT_EXTRA;
}

heft_status_t heft__ucx_config_read(const heft__ucx_api_t *api, const heft__ucx_opts_t *opts,
                                    ucp_config_t **config_out, heft_error_t *err)
{
    ucp_config_t *config = NULL;
    const ucs_status_t read = api->ucp_config_read(NULL, NULL, &config);
    if (read != UCS_OK) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "ucx: settings of UCX: %s",
                               api->ucs_status_string(read));
    }
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0] && status == HEFT_OK; i++) {
        status = modify(api, config, &wishes[i], err);
    }
    char lanes[16];
    (void)snprintf(lanes, sizeof lanes, "%u", opts->max_lanes);
    const wish_t devices = { "NET_DEVICES", opts->net_devices, { NULL }, NULL, NULL };
    const wish_t large = { "MAX_RNDV_LANES", lanes, { NULL }, NULL, NULL };
    const wish_t small = { "MAX_EAGER_LANES", lanes, { NULL }, NULL, NULL };
    /* A transport's own settings have no prefix here, and UCX accepts any key: what it does not
     * know it says in a warning, later. */
    char segment[32];
    (void)snprintf(segment, sizeof segment, "%lld", (long long)heft__ucx_segment_bytes(opts));
    const wish_t sent = { "TCP_TX_SEG_SIZE", segment, { NULL }, "TX_SEG_SIZE", NULL };
    const wish_t received = { "TCP_RX_SEG_SIZE", segment, { NULL }, "RX_SEG_SIZE", NULL };
    if (status == HEFT_OK) {
        status = modify(api, config, &sent, err);
    }
    if (status == HEFT_OK) {
        status = modify(api, config, &received, err);
    }
    if (status == HEFT_OK && opts->net_devices != NULL && opts->net_devices[0] != '\0') {
        status = modify(api, config, &devices, err);
    }
    if (status == HEFT_OK && opts->max_lanes > 1) {
        status = modify(api, config, &large, err);
    }
    if (status == HEFT_OK && opts->max_lanes > 1) {
        status = modify(api, config, &small, err);
    }
    if (status != HEFT_OK) {
        api->ucp_config_release(config);
        return status;
    }
    *config_out = config;
    return HEFT_OK;
}

/* ---- lanes ---- */

/* All of them are tcp. */
static bool is_tcp(const char *lanes)
{
    static const char tcp[] = "tcp/";
    for (const char *at = lanes; at != NULL; at = strchr(at, ',')) {
        at += strspn(at, ", ");
        if (strncmp(at, tcp, sizeof tcp - 1) != 0) {
            return false;
        }
    }
    return true;
}

int64_t heft__ucx_max_eager(int64_t segment_bytes, const char *lanes)
{
    return segment_bytes >= TCP_EAGER_BYTES + SEGMENT_EXTRA && is_tcp(lanes) ? TCP_EAGER_BYTES
                                                                             : EAGER_BYTES;
}

static bool has_word(const char *list, const char *word, size_t n)
{
    for (const char *at = list; (at = strstr(at, word)) != NULL; at++) {
        if (at[n] == '\0' || at[n] == ',') {
            return true;
        }
    }
    return false;
}

/* "  lane[0]:  1:posix/memory.0 md[1]  -> ...": UCX 1.13 tells it in no other way. */
static void take_lane(const char *line, char *out, size_t out_bytes)
{
    const char *lane = strstr(line, "lane[");
    const char *colon = lane != NULL ? strchr(lane, ':') : NULL;
    const char *name = colon != NULL ? strchr(colon + 1, ':') : NULL;
    if (name == NULL) {
        return;
    }
    name++;
    size_t n = strcspn(name, " \n");
    for (size_t k = n; k > 0; k--) { /* the last ".0" counts paths of the device */
        if (name[k - 1] == '.') {
            n = k - 1;
            break;
        }
    }
    char word[48];
    const size_t len = strlen(out);
    (void)snprintf(word, sizeof word, "%.*s", (int)(n < 47 ? n : 47), name);
    if (word[0] != '\0' && !has_word(out, word, strlen(word)) && len < out_bytes) {
        (void)snprintf(out + len, out_bytes - len, "%s%s", len > 0 ? ", " : "", word);
    }
}

void heft__ucx_lanes(const heft__ucx_api_t *api, ucp_ep_h ep, char *out, size_t out_bytes)
{
    char text[8192] = "";
    FILE *stream = fmemopen(text, sizeof text, "w");
    out[0] = '\0';
    if (stream == NULL) {
        return;
    }
    api->ucp_ep_print_info(ep, stream);
    (void)fclose(stream);
    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
        }
        take_lane(line, out, out_bytes);
        line = end != NULL ? end + 1 : NULL;
    }
}
