/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens and loopback. Tokens are compared by their SHA-256, byte for byte without an early end. */
#include "sync/security.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

static const char scheme[] = "Bearer ";

static heft_status_t check_token(const char *path, char *text, size_t n, heft_error_t *err)
{
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        text[--n] = '\0';
    }
    if (n < HEFT__TOKEN_MIN || n > HEFT__TOKEN_MAX) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "token file %.120s: a token of %zu characters, outside %d to %d",
                               path, n, HEFT__TOKEN_MIN, HEFT__TOKEN_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "token file %.120s: character %zu is a blank or not printable",
                                   path, i + 1);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__token_read(const char *path, char **token_out, heft_error_t *err)
{
    char *text = NULL;
    size_t n = 0;
    heft_status_t status =
        heft__file_read(path, "token file", HEFT__TOKEN_MAX + 2, true, &text, &n, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = check_token(path, text, n, err);
    if (status != HEFT_OK) {
        heft__token_free(text);
        return status;
    }
    *token_out = text;
    return HEFT_OK;
}

void heft__token_free(char *token)
{
    if (token != NULL) {
        explicit_bzero(token, strlen(token));
        heft__free(token);
    }
}

bool heft__token_matches(const uint8_t digest[32], const char *header)
{
    const size_t n = sizeof scheme - 1;
    const bool has_scheme = header != NULL && strncasecmp(header, scheme, n) == 0;
    const char *token = has_scheme ? header + n : "";
    uint8_t given[32];
    heft__sha256_t hash;
    heft__sha256_init(&hash);
    heft__sha256_update(&hash, token, strlen(token));
    heft__sha256_final(&hash, given);
    unsigned differ = 0;
    for (size_t i = 0; i < sizeof given; i++) {
        differ |= (unsigned)(given[i] ^ digest[i]);
    }
    return has_scheme && differ == 0;
}

bool heft__host_is_loopback(const char *host)
{
    char name[64];
    const bool has_brackets = host[0] == '[';
    const char *from = host + has_brackets;
    size_t n = strcspn(from, has_brackets ? "]" : ":");
    if (!has_brackets && strchr(from + n, ':') != strrchr(from, ':')) {
        n = strlen(from); /* several colons: an IPv6 address without a port */
    }
    if (n >= sizeof name) {
        return false;
    }
    memcpy(name, from, n);
    name[n] = '\0';
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, name, &v4) == 1) {
        return (ntohl(v4.s_addr) >> 24) == 127;
    }
    if (inet_pton(AF_INET6, name, &v6) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    }
    return strcasecmp(name, "localhost") == 0;
}
