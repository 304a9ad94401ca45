/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the control protocol, written out, and what they are expected to be answered with. */
#ifndef HTTP_REQUESTS_H
#define HTTP_REQUESTS_H

#include <jansson.h>

#include "http_fleet.h"

#define INC_A "0123456789abcdef0123456789abcdef"
#define INC_B "1123456789abcdef0123456789abcdef"
#define DIG "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

#define CONTRACT(rank)                                                                        \
    "{\"format\":1,\"recipe\":{\"name\":\"n\",\"text\":\"t\"},\"bindings\":{},\"rank\":" rank \
    ",\"ranks\":4}"

/* Request, expect the code and a part of the body. */
void expect(const env_t *e, const char *method, const char *path, const char *body, int expected,
            const char *part);
json_t *get_json(const env_t *e, const char *path);
int64_t status_int(const env_t *e, const char *key);
void register_text(char *out, size_t size, const char *role, uint32_t rank, const char *incarnation,
                   int64_t epoch);
void enroll(const env_t *e, const char *role, uint32_t rank, const char *incarnation);
void put(const env_t *e, const char *text, char *digest_out);
char *manifest_text(const char *side);
void bind_text(char *out, size_t size, const char *incarnation, const char *manifest,
               const char *contract, const char *endpoint);
void report_text(const env_t *e, char *out, size_t size, const char *incarnation, int64_t sequence,
                 const char *rest);
/* The round of a begin that was accepted. */
void begin(const env_t *e, const char *body, char *round_out);

#endif
