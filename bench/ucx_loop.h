/* SPDX-License-Identifier: Apache-2.0 */
/* A minimal loop of ucp_put_nbx, with the settings that heft gives UCX: what the benches of the ucx
 * transport compare with. Failures end the program. */
#ifndef BENCH_UCX_LOOP_H
#define BENCH_UCX_LOOP_H

#include "transport/transport.h"
#include "transport/ucx_private.h"

enum { UL_PIECE = 8 << 20, UL_UNDER_WAY = 8 };

typedef struct ul_loop {
    const heft__ucx_api_t *api;
    ucp_context_h context;
    ucp_worker_h worker;
    int fd;
    int n_under_way;
} ul_loop_t;

/* Where the puts of a loop go. */
typedef struct ul_target {
    ucp_ep_h ep;
    ucp_rkey_h rkey;
    uint64_t base;
} ul_target_t;

extern heft_error_t ul_err;

#define UL_CHECK(call)                                                           \
    do {                                                                         \
        if ((call) != HEFT_OK) {                                                 \
            (void)fprintf(stderr, "ucx bench: %s: %s\n", #call, ul_err.message); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

double ul_now(void);
int64_t ul_in_s(int64_t s);
/* Memory that was touched, in huge pages where there are some. */
uint8_t *ul_take(int64_t bytes);
/* Whole, or the program ends. */
void ul_put(int fd, const void *data, size_t n);
void ul_get(int fd, void *data, size_t n);
int ul_compare(const void *a, const void *b); /* of doubles */

void ul_start(ul_loop_t *p);
/* UCX_TLS names no network: puts go through shared memory. */
bool ul_is_shared(void);
/* A receiver: says on `out` where it is, and makes progress until it is ended. A byte on `in` stops
 * it, the next one lets it go on; it says each of them back. */
_Noreturn void ul_serve(int64_t bytes, int out, int in);
/* What ul_serve says, read from fd. */
void ul_connect(ul_loop_t *p, int fd, ul_target_t *to);
/* Puts with several under way; ul_flush waits until they are in place. */
void ul_put_range(ul_loop_t *p, const ul_target_t *to, int64_t offset, const uint8_t *source,
                  int64_t bytes);
void ul_flush(ul_loop_t *p, const ul_target_t *to);

#endif
