/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ucx window over memory that another window owns (pair.c): that one brings memory and takes it
 * away, this one registers it and knows its senders.
 */
#ifndef HEFT_TRANSPORT_UCX_WINDOW_H
#define HEFT_TRANSPORT_UCX_WINDOW_H

#include "transport/segment.h"
#include "transport/ucx_private.h"

/* ptr: at least params->bytes, borrowed until it is retired. */
HEFT_MUST_CHECK heft_status_t heft__ucx_window_create_over(heft__ucx_t *ucx,
                                                           const heft__window_params_t *params,
                                                           uint8_t *ptr, int64_t page_bytes,
                                                           heft__window_t **window_out,
                                                           heft_error_t *err);
/* Disarm, and ask those that write to stop. Does not wait. */
void heft__ucx_window_cancel(heft__window_t *window);
/* Wait until nobody writes any more, or the deadline. True: nothing of an earlier round can land in
 * the memory. False also when a sender was lost while it wrote: what it had sent may be on its way.
 */
HEFT_MUST_CHECK bool heft__ucx_window_await_quiet(heft__window_t *window, int64_t deadline_mono_ns);
/* Close every connection and take the memory out of the registration. */
void heft__ucx_window_retire(heft__window_t *window);
/* The retired segment goes; its addresses stay reserved: late puts may still be addressed to them.
 */
void heft__ucx_window_strand(heft__window_t *window, heft__segment_t *segment);
/* Register other memory, after retire. */
HEFT_MUST_CHECK heft_status_t heft__ucx_window_adopt(heft__window_t *window, uint8_t *ptr,
                                                     int64_t page_bytes, heft_error_t *err);
/* Others may write to the memory as well, without chunks: what has come by chunks need not be the
 * whole. */
void heft__ucx_window_share(heft__window_t *window);

#endif
