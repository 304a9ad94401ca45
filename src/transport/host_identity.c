/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's own names for what processes share. */
#include "transport/host_identity.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "transport/transport.h"

static uint64_t inode_of(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 ? (uint64_t)sb.st_ino : 0;
}

static bool is_boot_text(const char *text)
{
    return strlen(text) == HEFT__BOOT_TEXT_BYTES - 1 &&
           strspn(text, "0123456789abcdef-") == HEFT__BOOT_TEXT_BYTES - 1;
}

void heft__host_identity_read(heft__host_identity_t *out)
{
    struct stat sb;
    *out = (heft__host_identity_t){ .ipc = inode_of("/proc/self/ns/ipc"),
                                    .net = inode_of("/proc/self/ns/net"),
                                    .shm = stat("/dev/shm", &sb) == 0 ? (uint64_t)sb.st_dev : 0 };
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    const ssize_t n = read(fd, out->boot, sizeof out->boot - 1);
    (void)close(fd);
    out->boot[n > 0 ? n : 0] = '\0';
    if (!is_boot_text(out->boot)) {
        out->boot[0] = '\0';
    }
}

bool heft__host_identity_has_sockets(const heft__host_identity_t *a, const heft__host_identity_t *b)
{
    return a->boot[0] != '\0' && strcmp(a->boot, b->boot) == 0 && a->net != 0 && a->net == b->net;
}

bool heft__host_identity_is_same(const heft__host_identity_t *a, const heft__host_identity_t *b)
{
    return heft__host_identity_has_sockets(a, b) && a->ipc != 0 && a->ipc == b->ipc &&
           a->shm != 0 && a->shm == b->shm;
}

void heft__transport_host_label(char out[33])
{
    heft__host_identity_t host;
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__host_identity_read(&host);
    out[0] = '\0';
    if (host.boot[0] == '\0' || host.net == 0) {
        return;
    }
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, host.boot);
    heft__sha256_update_u64(&sha, host.net);
    heft__sha256_final(&sha, digest);
    heft__hex(digest, 16, out);
}

void heft__host_identity_encode(const heft__host_identity_t *host, heft__text_t *text)
{
    heft__text_printf(text, "{\"boot\":\"%s\",\"ipc\":%llu,\"net\":%llu,\"shm\":%llu}", host->boot,
                      (unsigned long long)host->ipc, (unsigned long long)host->net,
                      (unsigned long long)host->shm);
}

heft_status_t heft__host_identity_decode(struct json_t *object, const char *what,
                                         heft__host_identity_t *out, heft_error_t *err)
{
    const char *boot;
    json_int_t ipc;
    json_int_t net;
    json_int_t shm;
    json_error_t why;
    if (json_unpack_ex(object, &why, JSON_STRICT, "{s:s, s:I, s:I, s:I}", "boot", &boot, "ipc",
                       &ipc, "net", &net, "shm", &shm) != 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: \"host\": %s", what, why.text);
    }
    if ((boot[0] != '\0' && !is_boot_text(boot)) || ipc < 0 || net < 0 || shm < 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "%s: \"host\" is not that of a kernel", what);
    }
    *out =
        (heft__host_identity_t){ .ipc = (uint64_t)ipc, .net = (uint64_t)net, .shm = (uint64_t)shm };
    memcpy(out->boot, boot, strlen(boot) + 1);
    return HEFT_OK;
}
