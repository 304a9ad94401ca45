/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: coordinator, source and destination as processes of their own, driven over two pipes. The
 * test program runs itself again with a role as its arguments; commands and answers are lines.
 */
#ifndef NODE_H
#define NODE_H

#include "heft_test.h"

#include <sys/types.h>

typedef struct node {
    pid_t pid;
    int to;   /* its stdin */
    int from; /* its stdout */
    int go;   /* lets a slow transfer go on */
    char line[512];
} node_t;

/* Runs the node and never returns when argv names a role. */
void node_main_if_asked(int argc, char **argv);

/* args: NULL-terminated, such as { "subscriber", url, "0", "1", "64", NULL }. */
node_t node_spawn(const char *const *args);
void node_go(node_t *node);
void node_send(node_t *node, const char *fmt, ...) HEFT_PRINTF(2, 3);
/* The next line into node->line; fails the test after timeout_ms. */
const char *node_expect(node_t *node, const char *prefix, int timeout_ms);
void node_kill(node_t *node, int sig);
/* Kill it if it lives, reap it, close the pipes. */
void node_end(node_t *node);
/* Resident bytes of a process. */
int64_t node_rss(const node_t *node);

#endif
