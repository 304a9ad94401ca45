/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options structs and the table of knobs (heft/config.h): fields that are zero take the value of
 * their knob, fields that are set are checked against its bounds.
 */
#ifndef HEFT_SYNC_SETTINGS_H
#define HEFT_SYNC_SETTINGS_H

#include "base/base.h"
#include "heft/sync.h"

/* The texts put into opts belong to *config_out, which the caller destroys. HEFT_ERR_ARGUMENT. */
HEFT_MUST_CHECK heft_status_t heft__settings_coordinator(heft_coordinator_opts_t *opts,
                                                         heft_config_t **config_out,
                                                         heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__settings_publisher(heft_publisher_opts_t *opts,
                                                       heft_config_t **config_out,
                                                       heft_error_t *err);
HEFT_MUST_CHECK heft_status_t heft__settings_subscriber(heft_subscriber_opts_t *opts,
                                                        heft_config_t **config_out,
                                                        heft_error_t *err);

/* What a client needs to reach a coordinator: files, not secrets. */
typedef struct heft__access {
    const char *url;
    const char *token_file; /* NULL: no token */
    const char *ca_file;    /* NULL: the system's */
    uint8_t insecure;       /* send a token over plain HTTP beyond loopback */
} heft__access_t;

HEFT_MUST_CHECK heft_status_t heft__settings_access(heft__access_t *access,
                                                    heft_config_t **config_out, heft_error_t *err);

#endif
