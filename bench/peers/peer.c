/* SPDX-License-Identifier: Apache-2.0 */
/* The conversation, memory and contents of a peer: see peer.h. */
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The same as in peers.py: word i of contents `seed`. */
static uint64_t word(uint64_t i, uint64_t seed)
{
    return (i + (seed << 40)) * UINT64_C(0x9E3779B97F4A7C15);
}

_Noreturn void peer_die(const char *what, int code)
{
    (void)fprintf(stderr, "%s: %d\n", what, code);
    exit(1);
}

uint8_t *peer_allocate(size_t n_bytes)
{
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        peer_die("mmap", -1);
    }
    (void)madvise(memory, n_bytes, MADV_HUGEPAGE);
    memset(memory, 1, n_bytes);
    return memory;
}

void peer_put_hex(char *out, size_t room, const void *bytes, size_t n)
{
    const uint8_t *from = bytes;
    if (room < 2 * n + 1) {
        peer_die("info is too long", (int)n);
    }
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", from[i]);
    }
}

size_t peer_get_hex(const char *text, void *out, size_t room)
{
    uint8_t *to = out;
    size_t n = 0;
    unsigned byte;
    while (n < room && sscanf(text + 2 * n, "%2x", &byte) == 1) {
        to[n++] = (uint8_t)byte;
    }
    return n;
}

static void fill(const peer_t *peer, uint64_t seed)
{
    uint64_t *words = (uint64_t *)(void *)peer->memory;
    for (size_t i = 0; i < peer->n_bytes / sizeof *words; i++) {
        words[i] = word(i, seed);
    }
}

static void check(const peer_t *peer, uint64_t seed)
{
    const uint64_t *words = (const uint64_t *)(const void *)peer->memory;
    for (size_t i = 0; i < peer->n_bytes / sizeof *words; i++) {
        if (words[i] != word(i, seed)) {
            printf("bad %zu\n", i);
            return;
        }
    }
    puts("ok");
}

static bool answer(peer_t *peer, const peer_ops_t *ops, const char *line)
{
    uint64_t seed = 0;
    if (strncmp(line, "peer ", 5) == 0) {
        ops->connect(peer, line + 5);
        puts("ready");
    } else if (sscanf(line, "fill %" SCNu64, &seed) == 1) {
        fill(peer, seed);
        puts("ok");
    } else if (sscanf(line, "check %" SCNu64, &seed) == 1) {
        check(peer, seed);
    } else if (strcmp(line, "go") == 0) {
        ops->go(peer);
        puts("ok");
    } else {
        return false; /* end */
    }
    return true;
}

int peer_main(int argc, char **argv, const peer_ops_t *ops)
{
    if (argc < 3) {
        (void)fprintf(stderr, "%s send|recv BYTES [OPTION]: see bench/peers/compare.py\n", argv[0]);
        return 2;
    }
    peer_t peer = { .is_sender = strcmp(argv[1], "send") == 0,
                    .n_bytes = strtoull(argv[2], NULL, 10) & ~(size_t)4095,
                    .option = argc > 3 ? argv[3] : "",
                    .info = "-" };
    peer.memory = peer_allocate(peer.n_bytes);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    ops->open(&peer);
    printf("hello %s\n", peer.info);
    char line[PEER_INFO_BYTES + 16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (!answer(&peer, ops, line)) {
            break;
        }
    }
    return 0;
}
