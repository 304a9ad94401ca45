/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may talk to a coordinator: tokens, and what counts as loopback. A token is read from a
 * private file; it never appears in a message, a log, a reply or an argument.
 */
#ifndef HEFT_SYNC_SECURITY_H
#define HEFT_SYNC_SECURITY_H

#include "base/base.h"

enum { HEFT__TOKEN_MIN = 16, HEFT__TOKEN_MAX = 256 };

/* The token of a file: one line of printable characters without blanks. Owned by the caller
 * (heft__token_free). HEFT_ERR_IO, HEFT_ERR_ARGUMENT (the file is open to others), HEFT_ERR_FORMAT.
 */
HEFT_MUST_CHECK heft_status_t heft__token_read(const char *path, char **token_out,
                                               heft_error_t *err);
/* Overwrites it first. NULL is fine. */
void heft__token_free(char *token);

/* Whether an Authorization header (NULL: none) carries the token with this SHA-256, in a time that
 * does not depend on where the two differ. */
bool heft__token_matches(const uint8_t digest[32], const char *header);

/* A numeric address, or "localhost", also in brackets or with a port. */
bool heft__host_is_loopback(const char *host);

#endif
