/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of bench/peers share: memory, its contents, and a conversation in lines with
 * the program that runs them (compare.py). Benchmark code: it ends the process on any error.
 *
 *   program: hello INFO      memory is there and touched; INFO is what the other end must know, or
 * - runner:  peer INFO       the other end's; program: ready runner:  fill SEED       (sender) new
 * contents; program: ok runner:  go              both; program: ok, from the receiver once it holds
 * every byte runner:  check SEED      (receiver); program: ok, or bad INDEX of the first wrong 8
 * bytes runner:  end
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEER_INFO_BYTES 4096

typedef struct peer {
    bool is_sender;
    size_t n_bytes;
    uint8_t *memory;
    const char *option; /* of the command line, or "" */
    char info[PEER_INFO_BYTES];
} peer_t;

typedef struct peer_ops {
    void (*open)(peer_t *peer);                      /* may replace memory; fills info */
    void (*connect)(peer_t *peer, const char *info); /* of the other end */
    void (*go)(peer_t *peer);
} peer_ops_t;

int peer_main(int argc, char **argv, const peer_ops_t *ops);
uint8_t *peer_allocate(size_t n_bytes);
_Noreturn void peer_die(const char *what, int code);
void peer_put_hex(char *out, size_t room, const void *bytes, size_t n);
size_t peer_get_hex(const char *text, void *out, size_t room);
