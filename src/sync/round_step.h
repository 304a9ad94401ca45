/* SPDX-License-Identifier: Apache-2.0 */
/* Round, inside: what its files share. round.c: events; round_step.c: facts, preparing, staging;
 * round_flip.c: decision and flip; round_end.c: resume, release, abort, time. */
#ifndef HEFT_SYNC_ROUND_STEP_H
#define HEFT_SYNC_ROUND_STEP_H

#include "sync/round.h"

/* Every participant. NOLINTBEGIN(bugprone-macro-parentheses): m is declared here */
#define EACH_MEMBER(round, m)                                                                   \
    for (heft__round_member_t *m = (round)->members; m < (round)->members + (round)->n_members; \
         m++)                                                                                   \
        if (m->used && m->in_round)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Move on as far as the members' reports allow. */
void heft__round_advance(heft__round_t *round, int64_t now_ns);
void heft__round_enter(heft__round_t *round, heft__round_state_t state, heft__phase_t phase,
                       int64_t now_ns);
void heft__round_order(heft__round_t *round, heft__round_member_t *member, heft__phase_t target);
/* Record the cause (the first one stays) and leave the state by its failure edge. */
void heft__round_fail(heft__round_t *round, int32_t slot, const heft__wire_error_t *cause,
                      int64_t now_ns);
void heft__round_warn(heft__round_t *round, int32_t slot, const char *fmt, ...) HEFT_PRINTF(3, 4);
void heft__round_start(heft__round_t *round, int64_t now_ns);
void heft__round_abort(heft__round_t *round, int64_t now_ns);
void heft__round_commit(heft__round_t *round, int64_t now_ns);
void heft__round_flip(heft__round_t *round, int64_t now_ns);
void heft__round_ask_write(heft__round_t *round, bool wait);
bool heft__round_source_stopped(const heft__round_t *round, const heft__round_member_t *source);
bool heft__round_dest_quiet(const heft__round_t *round, const heft__round_member_t *dest);
/* The member's report is of this round and life. */
bool heft__round_is_current(const heft__round_t *round, const heft__round_member_t *member);
/* The member has to do something in the present phase. */
bool heft__round_acts(const heft__round_t *round, const heft__round_member_t *member);

/* The same, from a status and a text; member may be NULL. */
/* The process of m has ended. */
void heft__round_fail_gone(heft__round_t *round, const heft__round_member_t *m, int64_t now_ns);
void heft__round_fail_with(heft__round_t *round, const heft__round_member_t *member,
                           heft_status_t status, const char *text, int64_t now_ns);
/* The phase has taken too long because of m. */
void heft__round_fail_late(heft__round_t *round, const heft__round_member_t *m, int64_t now_ns);
/* While staging: one that has not sent all, where others have; NULL: there is none. */
const heft__round_member_t *heft__round_late_sender(const heft__round_t *round);
/* Before the decision, from the first order on, and not stopping: a failure aborts. */
bool heft__round_is_early(const heft__round_t *round);
/* A destination that receives in this round. */
bool heft__round_is_moving(const heft__round_member_t *member);
/* Its bytes go to staging, before the decision. */
bool heft__round_is_staged(const heft__round_member_t *member);
/* Does anyone receive inside the flip? */
bool heft__round_has_in_place(const heft__round_t *round);
/* Reported `ok` for this phase of this round. */
bool heft__round_is_done(const heft__round_t *round, const heft__round_member_t *member,
                         heft__phase_t phase);
/* Failed in carrying out its present order. */
bool heft__round_is_bad(const heft__round_member_t *member);
/* FEED: the request names those who may send and those who need it. */
HEFT_MUST_CHECK heft_status_t heft__round_check_feed(const heft__round_t *round,
                                                     const heft__round_request_t *request,
                                                     int64_t now_ns, heft_error_t *err);
/* Bound, and through with earlier rounds. */
bool heft__round_is_ready(const heft__round_member_t *member);
bool heft__round_all_done(const heft__round_t *round);
/* Give the order to everyone who acts in the present phase. */
void heft__round_order_all(heft__round_t *round, heft__phase_t target);
void heft__round_end(heft__round_t *round, heft__round_state_t outcome, int64_t now_ns);
/* UNKNOWN or PARTIAL: the caller gets this as the outcome; the round stays. */
void heft__round_doubt(heft__round_t *round, heft__round_state_t state, heft__round_state_t origin,
                       int64_t now_ns);
void heft__round_doubt_transfers(heft__round_t *round, int64_t now_ns);
void heft__round_doubt_decision(heft__round_t *round, const char *why, int64_t now_ns);
void heft__round_release(heft__round_t *round, int64_t now_ns);
/* One step of the loop in each group of states; true: something moved. */
bool heft__round_step_preparing(heft__round_t *round, int64_t now_ns);
bool heft__round_step_staging(heft__round_t *round, int64_t now_ns);
bool heft__round_step_stopping(heft__round_t *round, int64_t now_ns);
bool heft__round_step_staged(heft__round_t *round, int64_t now_ns);
bool heft__round_step_flipping(heft__round_t *round, int64_t now_ns);
/* A report that shows a round of before the record was lost; and what is done about it. */
void heft__round_find(heft__round_t *round, const heft__round_member_t *member, int64_t now_ns);
bool heft__round_step_found(heft__round_t *round, int64_t now_ns);

#endif
