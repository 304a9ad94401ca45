/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process with one end of the ucx transport: a receiver or a sender that does what it is
 * told, a line at a time. It is this test's own program, started anew: UCX does not survive a fork.
 */
#ifndef UCX_PEER_PROCESS_H
#define UCX_PEER_PROCESS_H

#include "heft_test.h"
#include "transport/transport.h"

#include <sys/types.h>

typedef struct up_process {
    pid_t pid;
    FILE *in;
    FILE *out;
    char line[16384]; /* its last answer */
} up_process_t;

/* To be called first in main: does not return in the other process. */
void up_main(int argc, char **argv);
void up_start(up_process_t *p, const heft__ucx_opts_t *opts);
/* Tell it something and read the answer, a line. */
const char *up_tell(up_process_t *p, const char *format, ...) HEFT_PRINTF(2, 3);
/* Tell it and do not wait. */
void up_tell_only(up_process_t *p, const char *format, ...) HEFT_PRINTF(2, 3);
const char *up_read(up_process_t *p);
/* kill -9, and reap it. */
void up_kill(up_process_t *p);
/* Let it end by itself. */
void up_end(up_process_t *p);

/* Byte i of the pattern number `seed`. */
uint8_t up_byte(uint32_t seed, int64_t i);
void up_fill(uint8_t *to, int64_t n, uint32_t seed);
/* heft__pack_t of what "expect-packed" expects; arg: bytes of the window, an int64_t. */
heft_status_t up_pack(void *arg, uint32_t route, uint8_t *base, int64_t at, uint8_t *packed,
                      int64_t bytes, heft_error_t *err);

#endif
