/* SPDX-License-Identifier: Apache-2.0 */
/* Bump allocation in blocks: made for objects that are filled once and freed together. */
#include "base/base.h"

#include <string.h>

struct heft__arena_block {
    heft__arena_block_t *next;
    size_t cap;
    size_t used;
    size_t reserved; /* keeps the data 16-byte aligned */
};

enum { ALIGN = 16, MAX_BLOCK_BYTES = 1 << 20 };

void heft__arena_init(heft__arena_t *arena, size_t block_bytes)
{
    *arena = (heft__arena_t){ .head = NULL,
                              .block_bytes = block_bytes < 256 ? 256 : block_bytes,
                              .used_bytes = 0 };
}

void heft__arena_fini(heft__arena_t *arena)
{
    heft__arena_block_t *block = arena->head;
    while (block != NULL) {
        heft__arena_block_t *next = block->next;
        heft__free(block);
        block = next;
    }
    arena->head = NULL;
    arena->used_bytes = 0;
}

static heft__arena_block_t *add_block(heft__arena_t *arena, size_t need)
{
    size_t cap = arena->block_bytes > need ? arena->block_bytes : need;
    size_t total;
    if (!heft__size_add(cap, sizeof(heft__arena_block_t), &total)) {
        return NULL;
    }
    heft__arena_block_t *block = heft__malloc(total);
    if (block == NULL) {
        return NULL;
    }
    *block = (heft__arena_block_t){ .next = arena->head, .cap = cap, .used = 0 };
    arena->head = block;
    if (arena->block_bytes < MAX_BLOCK_BYTES) {
        arena->block_bytes *= 2;
    }
    return block;
}

void *heft__arena_alloc(heft__arena_t *arena, size_t bytes)
{
    size_t size;
    if (!heft__size_add(bytes == 0 ? 1 : bytes, ALIGN - 1, &size)) {
        return NULL;
    }
    size &= ~(size_t)(ALIGN - 1);
    heft__arena_block_t *block = arena->head;
    if (block == NULL || block->cap - block->used < size) {
        block = add_block(arena, size);
        if (block == NULL) {
            return NULL;
        }
    }
    void *ptr = (char *)(block + 1) + block->used;
    block->used += size;
    arena->used_bytes += size;
    return ptr;
}

void *heft__arena_calloc(heft__arena_t *arena, size_t count, size_t bytes)
{
    size_t size;
    if (!heft__size_mul(count, bytes, &size)) {
        return NULL;
    }
    void *ptr = heft__arena_alloc(arena, size);
    if (ptr != NULL) {
        memset(ptr, 0, size);
    }
    return ptr;
}

char *heft__arena_strndup(heft__arena_t *arena, const char *text, size_t n)
{
    size_t total;
    if (!heft__size_add(n, 1, &total)) {
        return NULL;
    }
    char *copy = heft__arena_alloc(arena, total);
    if (copy != NULL) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}
