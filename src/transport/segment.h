/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment: memory behind a file descriptor, so that another process can map it too. It has no
 * name anywhere: the last descriptor and mapping take it along, so none can be left behind.
 */
#ifndef HEFT_TRANSPORT_SEGMENT_H
#define HEFT_TRANSPORT_SEGMENT_H

#include "base/base.h"

typedef struct heft__segment {
    int fd; /* -1: none */
    uint8_t *ptr;
    int64_t bytes;      /* asked for */
    int64_t map_bytes;  /* mapped: rounded up to pages */
    int64_t page_bytes; /* of the pages that back it */
} heft__segment_t;

/*
 * Allocate and prefault. Huge pages are used where the system has enough of them free, else
 * transparent ones where it allows them. bytes == 0 gives a segment of one page. The size is
 * sealed: a mapping of it can never fault for want of file. HEFT_ERR_NOSPACE names bytes needed and
 * available.
 */
HEFT_MUST_CHECK heft_status_t heft__segment_create(int64_t bytes, heft__segment_t *segment_out,
                                                   heft_error_t *err);
/* Map a peer's segment, all pages at once. Takes fd, also on failure. HEFT_ERR_PROTOCOL: not sealed
 * against shrinking, or smaller than bytes. */
HEFT_MUST_CHECK heft_status_t heft__segment_map(int fd, int64_t bytes, heft__segment_t *segment_out,
                                                heft_error_t *err);
/* Unmap and close; a zeroed or finished segment is fine. */
void heft__segment_fini(heft__segment_t *segment);

/*
 * Give the memory back but keep its addresses: what is stored there from now on lands in pages of
 * nobody. For memory that something may still write to by address. *ptr_out, *bytes_out: the range,
 * to be unmapped once nothing can; NULL where there is none. A segment whose addresses cannot be
 * kept without it (no memory for the mapping) keeps its pages too.
 */
void heft__segment_strand(heft__segment_t *segment, void **ptr_out, size_t *bytes_out);

/* Bytes that can be allocated now: the system's estimate, and the memory limits of the control
 * groups this process is in. INT64_MAX when nothing is known. root is "" outside of tests. */
int64_t heft__memory_available(const char *root);

#endif
