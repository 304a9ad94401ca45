/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain TCP streams over loopback, one thread each, 1 MiB a call: OPTION is their number. One byte
 * back on each stream says that its share has arrived.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_STREAMS 64
#define CALL_BYTES (1u << 20)
#define BUFFER_BYTES (256 << 10)

typedef struct stream {
    int fd;
    bool is_sender;
    uint8_t *begin;
    size_t n_bytes;
} stream_t;

static stream_t streams[MAX_STREAMS];
static size_t n_streams;
static int listener = -1;

static void set_buffers(int fd)
{
    const int bytes = BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static void open_ends(peer_t *peer)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;
    n_streams = peer->option[0] != '\0' ? strtoul(peer->option, NULL, 10) : 1;
    if (n_streams < 1 || n_streams > MAX_STREAMS) {
        peer_die("streams", (int)n_streams);
    }
    if (peer->is_sender) {
        return;
    }
    listener = socket(AF_INET, SOCK_STREAM, 0);
    set_buffers(listener);
    if (bind(listener, (const struct sockaddr *)&address, len) != 0 ||
        listen(listener, MAX_STREAMS) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) != 0) {
        peer_die("listen", 0);
    }
    (void)snprintf(peer->info, sizeof peer->info, "%d", ntohs(address.sin_port));
}

static void connect_ends(peer_t *peer, const char *info)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons((uint16_t)strtoul(info, NULL, 10)) };
    const size_t share = peer->n_bytes / n_streams;
    for (size_t i = 0; i < n_streams; i++) {
        int fd = peer->is_sender ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
        if (peer->is_sender) {
            set_buffers(fd);
            if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
                peer_die("connect", (int)i);
            }
            if (write(fd, &(uint8_t){ (uint8_t)i }, 1) != 1) {
                peer_die("number of the stream", (int)i);
            }
        }
        uint8_t number = (uint8_t)i;
        if (!peer->is_sender && read(fd, &number, 1) != 1) {
            peer_die("number of the stream", (int)i);
        }
        streams[number] =
            (stream_t){ .fd = fd,
                        .is_sender = peer->is_sender,
                        .begin = peer->memory + number * share,
                        .n_bytes =
                            number + 1u < n_streams ? share : peer->n_bytes - number * share };
    }
}

static void *move(void *arg)
{
    const stream_t *s = arg;
    for (size_t at = 0; at < s->n_bytes;) {
        const size_t left = s->n_bytes - at;
        const size_t n = left < CALL_BYTES ? left : CALL_BYTES;
        const ssize_t moved = s->is_sender ? write(s->fd, s->begin + at, n)
                                           : recv(s->fd, s->begin + at, n, MSG_WAITALL);
        if (moved <= 0) {
            peer_die("stream", s->fd);
        }
        at += (size_t)moved;
    }
    uint8_t receipt = 1;
    const ssize_t n = s->is_sender ? read(s->fd, &receipt, 1) : write(s->fd, &receipt, 1);
    if (n != 1) {
        peer_die("receipt", s->fd);
    }
    return NULL;
}

static void go(peer_t *peer)
{
    pthread_t threads[MAX_STREAMS];
    (void)peer;
    for (size_t i = 0; i < n_streams; i++) {
        if (pthread_create(&threads[i], NULL, move, &streams[i]) != 0) {
            peer_die("thread", (int)i);
        }
    }
    for (size_t i = 0; i < n_streams; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv)
{
    return peer_main(argc, argv,
                     &(peer_ops_t){ .open = open_ends, .connect = connect_ends, .go = go });
}
