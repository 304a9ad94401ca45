/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: the order, what a member shall reach.
 */
#include <stddef.h>
#include <string.h>

#include "sync/wire_json.h"

#define AT(member) offsetof(heft__order_t, member)
static const heft__field_t order_fields[] = {
    { "sequence", HEFT__FIELD_INT, true, AT(sequence), 1, HEFT__WIRE_MAX_INT, NULL },
    { "epoch", HEFT__FIELD_INT, true, AT(epoch), 1, HEFT__WIRE_MAX_INT, NULL },
    { "round", HEFT__FIELD_ROUND, true, AT(round), 0, 0, NULL },
    { "target", HEFT__FIELD_ENUM, true, AT(target), 0, 0, heft__phase_names },
    { "version", HEFT__FIELD_INT, true, AT(version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "decision", HEFT__FIELD_ENUM, true, AT(decision), 0, 0, heft__decision_names },
    { "left_ms", HEFT__FIELD_INT, true, AT(left_ms), 0, HEFT__WIRE_MAX_INT, NULL },
    { "movers", HEFT__FIELD_U32, false, AT(movers), 0, INT32_MAX, NULL },
    { "feeds", HEFT__FIELD_BOOL, false, AT(feeds), 0, 0, NULL },
    { "plan", HEFT__FIELD_HEX, false, AT(plan), 0, 64, NULL },
    { "source_digest", HEFT__FIELD_HEX, false, AT(source_digest), 0, 64, NULL },
    { "sources", HEFT__FIELD_HEX, false, AT(sources), 0, 64, NULL },
    { "relayed", HEFT__FIELD_BOOL, false, AT(relayed), 0, 0, NULL },
    { "peers", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    { "followers", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    { "digests", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    { "objects", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef AT

#define AT(member) offsetof(heft__peer_t, member)
static const heft__field_t peer_fields[] = {
    { "id", HEFT__FIELD_TEXT, true, AT(id), 1, HEFT__ID_SIZE, NULL },
    { "incarnation", HEFT__FIELD_HEX, true, AT(incarnation), 0, 32, NULL },
    { "replica", HEFT__FIELD_U32, true, AT(replica), 0, INT32_MAX, NULL },
    { "rank", HEFT__FIELD_U32, true, AT(rank), 0, INT32_MAX, NULL },
    { "moves", HEFT__FIELD_BOOL, true, AT(moves), 0, 0, NULL },
    { "in_place", HEFT__FIELD_BOOL, false, AT(in_place), 0, 0, NULL },
    { "transports", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
    { "manifest", HEFT__FIELD_HEX, true, AT(manifest), 0, 64, NULL },
    { "contract", HEFT__FIELD_HEX, false, AT(contract), 0, 64, NULL },
    { "endpoint", HEFT__FIELD_HEX, false, AT(endpoint), 0, 64, NULL },
    { "host", HEFT__FIELD_HEX, false, AT(host), 0, 32, NULL },
    HEFT__FIELD_END
};
#undef AT

void heft__order_init(heft__order_t *order)
{
    memset(order, 0, sizeof *order);
}

void heft__order_fini(heft__order_t *order)
{
    heft__free(order->peers);
    heft__free(order->followers);
    heft__free(order->digests);
    heft__free(order->objects);
    heft__order_init(order);
}

int64_t heft__order_left_ns(const heft__order_t *order, int64_t at_most_ns)
{
    int64_t left_ns = at_most_ns;
    (void)heft__mul(order->left_ms, 1000000, &left_ns);
    return heft__min_i64(left_ns, at_most_ns);
}

static json_t *peers_json(const heft__peer_t *peers, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        json_t *peer = json_object();
        if (peer == NULL || heft__json_write(peer, peer_fields, &peers[i], NULL) != HEFT_OK ||
            !heft__json_put(peer, "transports",
                            heft__json_transports(peers[i].transports, peers[i].n_transports))) {
            json_decref(peer);
            json_decref(list);
            return NULL;
        }
        if (json_array_append_new(list, peer) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

heft_status_t heft__order_encode(const heft__order_t *msg, char **text_out, heft_error_t *err)
{
    json_t *root = json_object();
    heft_status_t status =
        root == NULL ? heft__error_nomem(err, 0) : heft__json_write(root, order_fields, msg, err);
    bool ok = status == HEFT_OK;
    if (ok && msg->n_peers > 0) {
        ok = heft__json_put(root, "peers", peers_json(msg->peers, msg->n_peers));
    }
    if (ok && msg->n_followers > 0) {
        ok = heft__json_put(root, "followers", peers_json(msg->followers, msg->n_followers));
    }
    if (ok && msg->n_digests > 0) {
        ok = heft__json_put(root, "digests", heft__json_digests(msg->digests, msg->n_digests));
    }
    if (ok && msg->n_objects > 0) {
        ok = heft__json_put(root, "objects", heft__json_digests(msg->objects, msg->n_objects));
    }
    if (!ok) {
        json_decref(root);
        return status != HEFT_OK ? status : heft__error_nomem(err, 0);
    }
    return heft__json_finish(root, text_out, err);
}

/* what: "order peers", or "order followers". */
static heft_status_t read_peers(json_t *list, const char *what, heft__peer_t **peers_out,
                                uint32_t *n_out, heft_error_t *err)
{
    const size_t n = json_array_size(list);
    if (n == 0) {
        return HEFT_OK;
    }
    heft__peer_t *peers = heft__calloc(n, sizeof *peers);
    if (peers == NULL) {
        return heft__error_nomem(err, n * sizeof *peers);
    }
    *peers_out = peers; /* the order's, also after a failure */
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(list, i);
        heft__peer_t *peer = &peers[i];
        if (!json_is_object(item)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "%s: item %zu is not an object", what, i);
        }
        heft_status_t status = heft__json_read(item, peer_fields, what, peer, err);
        if (status == HEFT_OK) {
            status = heft__json_read_transports(json_object_get(item, "transports"), what,
                                                peer->transports, &peer->n_transports, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

static heft_status_t read_order(json_t *root, heft__order_t *out, heft_error_t *err)
{
    heft_status_t status = heft__json_read(root, order_fields, "order", out, err);
    if (status == HEFT_OK && out->target == HEFT__PHASE_NONE) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "order: key \"target\" is \"none\"");
    }
    if (status == HEFT_OK) {
        status = read_peers(json_object_get(root, "peers"), "order peers", &out->peers,
                            &out->n_peers, err);
    }
    if (status == HEFT_OK) {
        status = read_peers(json_object_get(root, "followers"), "order followers", &out->followers,
                            &out->n_followers, err);
    }
    if (status == HEFT_OK) {
        status = heft__json_read_digests(json_object_get(root, "digests"), "order", "digests",
                                         &out->digests, &out->n_digests, err);
    }
    if (status == HEFT_OK) {
        status = heft__json_read_digests(json_object_get(root, "objects"), "order", "objects",
                                         &out->objects, &out->n_objects, err);
    }
    return status;
}

heft_status_t heft__order_decode(const char *text, size_t n, heft__order_t *out, heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "order", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__order_t order;
    heft__order_init(&order);
    status = read_order(root, &order, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__order_fini(&order);
        return status;
    }
    *out = order;
    return HEFT_OK;
}
