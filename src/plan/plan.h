/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: what the files of this part share, and what exec and sync may see of a plan.
 *
 * A plan is built in one go by create.c and is const from then on. Everything it points to lies in
 * its arena: names, pieces, groups. Ranks are numbered from 0 within the plan (rank index);
 * messages show first_rank + index. Parameters of all ranks have one running number (slot), in
 * (rank, name) order.
 */
#ifndef HEFT_PLAN_PLAN_H
#define HEFT_PLAN_PLAN_H

#include "heft/placement.h"
#include "heft/plan.h"
#include "heft/routes.h"
#include "plan/cover.h"
#include "tape/tape.h"

/* ---- the plan ---- */

typedef struct heft__plan_rank {
    heft_tensor_info_t *params; /* by name */
    uint32_t n_params;
    uint32_t first_slot;
    heft_piece_t *pieces; /* by (param, dst_offset) */
    const char **notes;   /* of each piece; never NULL */
    uint64_t n_pieces;
    uint64_t *first_piece; /* n_params + 1 */
    heft_piece_t *checks;  /* by (param, dst_offset) */
    const char **check_notes;
    uint64_t n_checks;
    uint64_t *first_check; /* n_params + 1; NULL without checks */
    heft_opaque_t *opaques;
    heft_piece_t *input_pieces; /* of all inputs of all operations */
    uint64_t n_input_pieces;
    uint32_t n_opaques;
    uint32_t first_opaque; /* operations of the ranks before */
    char digest[65];
    char whole_digest[65]; /* of a placed tape: of the rank as it reads whole tensors; else "" */
} heft__plan_rank_t;

typedef struct heft__plan_group {
    heft_group_info_t info;
    heft_plan_member_t *members;
    uint32_t *sources;
} heft__plan_group_t;

struct heft_plan {
    heft__arena_t arena;
    uint32_t n_ranks;
    uint32_t first_rank;
    uint32_t n_sources;
    uint32_t n_slots;   /* parameters of all ranks */
    uint32_t n_opaques; /* operations of all ranks */
    uint32_t n_groups;
    uint64_t n_pieces;
    int64_t n_bytes;
    int64_t n_constant_bytes;
    heft_tensor_info_t *sources; /* by name */
    heft__plan_rank_t *ranks;
    heft__plan_group_t *groups;
    uint32_t *group_of; /* slot -> group, or HEFT_GROUP_NONE */
    uint32_t *together; /* slot -> one slot of those that are declared together */
    int64_t *n_kept;    /* by slot: elements that no piece of a parameter with pieces writes */
    /* by source: unused as a whole, and a recipe of a chain ignores what would be made of it */
    uint8_t *is_left_out;
    char digest[65];
};

/* Sums of sizes that each fit may not fit together; such a sum stays at the largest number. */
static inline void heft__sum(int64_t *total, int64_t more)
{
    if (!heft__add(*total, more, total)) {
        *total = INT64_MAX;
    }
}

static inline int64_t heft__piece_count(const heft_piece_t *piece)
{
    int64_t n = 1;
    for (int32_t i = 0; i < piece->rank; i++) {
        n *= piece->extent[i];
    }
    return n;
}

/* The digest of a rank as it reads whole tensors, whatever boxes they are held in. Borrowed. */
const char *heft__plan_get_whole_digest(const heft_plan_t *plan, uint32_t rank_index);

/* ---- operations.c ---- */

/* Whether a piece reads what an operation left: a known kernel, or the engine's loader. */
bool heft__piece_is_computed(const heft_piece_t *piece);
/* Whether one of those operations is none that heft runs itself, or reads what such a one leaves.
 */
bool heft__piece_needs_loader(const heft_plan_t *plan, uint32_t rank_index,
                              const heft_piece_t *piece);
/* Whether it is a known kernel that reads tensors alone, some for each input, so that whoever is
 * given its inputs can run it. */
bool heft__operation_is_plain(const heft_opaque_t *op);
/* The operation behind source s of a piece, or NULL. */
const heft_opaque_t *heft__piece_operation(const heft_plan_t *plan, uint32_t rank_index,
                                           const heft_piece_t *piece, uint32_t s);
/* Calls fn for each source tensor that a piece reads, those of its operations included; some more
 * than once, in a fixed order. */
typedef void (*heft__source_fn_t)(void *arg, uint32_t source);
void heft__piece_each_source(const heft_plan_t *plan, uint32_t rank_index,
                             const heft_piece_t *piece, heft__source_fn_t fn, void *arg);

/* ---- gathered.c ---- */

/*
 * Known kernels of a rank whose inputs lie with several senders: nobody can run them but the rank
 * itself, to which their inputs are sent.
 */
typedef struct heft__gathered {
    uint32_t n_ops;
    /* Over whole tensors: a parameter for each input of such a kernel. NULL: there are none. */
    heft_tape_t *inputs;
    /* From these, as sources of the same names, to what those kernels write of the rank's
     * parameters; all of these are there. */
    heft_tape_t *local;
} heft__gathered_t;

/* whole: a plan over whole tensors, those of the placement. */
heft_status_t heft__gathered_init(const heft_plan_t *whole, uint32_t rank_index,
                                  const heft_placement_t *placement, heft__gathered_t *gathered_out,
                                  heft_error_t *err);
void heft__gathered_fini(heft__gathered_t *gathered);

/* ---- report.c ---- */

enum { HEFT__REPORT_MAX_LISTED = 40, HEFT__N_FINDING_KINDS = 12 };

typedef struct heft__finding_total {
    int64_t n;
    int64_t n_elems;
} heft__finding_total_t;

struct heft_report {
    heft__arena_t arena;
    heft_finding_t *findings;
    size_t n;
    size_t cap;
    heft__finding_total_t total[HEFT__N_FINDING_KINDS][2]; /* [kind][is_error] */
    char *summary;
};

heft_status_t heft__report_create(heft_report_t **report_out, heft_error_t *err);
/* Log the warnings, for who makes a plan and shows no report. */
void heft__report_log_warnings(const heft_report_t *report, const char *part, const char *whose);
/* Whether one more finding of this kind is listed; if not, heft__report_add only counts it. */
bool heft__report_has_room(const heft_report_t *report, heft_finding_kind_t kind, bool is_error);
/* Add a finding; name and text are copied, spot may be NULL (no range). */
heft_status_t heft__report_add(heft_report_t *report, heft_finding_kind_t kind, bool is_error,
                               int32_t rank, const char *name, int64_t n_elems,
                               const heft__spot_t *spot, int32_t n_dims, const char *text,
                               heft_error_t *err);
/* Sort, add the totals of what is not listed, and write the summary. */
heft_status_t heft__report_finish(heft_report_t *report, uint64_t n_pieces, int64_t n_planned,
                                  int64_t n_expected, heft_error_t *err);
/* Add whose it is to the summary of a finished report. False: no memory. */
bool heft__report_set_title(heft_report_t *report, const char *title);
/* Append "[4..6, 0..4)" (half-open per dimension), or "[]" for a scalar. */
void heft__report_put_range(heft__text_t *text, int32_t n_dims, const int64_t *begin,
                            const int64_t *end);

/* ---- sources.c, pieces.c: tapes to sources and ranks ---- */

/* What is needed only while a plan is made. */
typedef struct heft__plan_builder {
    heft_plan_t *plan;
    uint32_t max_pieces;
    heft__map_t sources;     /* name -> index within the plan */
    heft__map_t notes;       /* text -> index in note_texts */
    const char **note_texts; /* in the plan's arena */
    size_t n_notes;
    size_t cap_notes;
} heft__plan_builder_t;

void heft__plan_builder_fini(heft__plan_builder_t *builder);

/* The sources of all tapes, by name; tapes must agree on those they share (HEFT_ERR_SHAPE). */
heft_status_t heft__plan_add_sources(heft__plan_builder_t *builder, const heft_tape_t *const *tapes,
                                     heft_error_t *err);

/* Fold one tape. The fold is left to the caller, for the overwrites it saw; *buffers_out are the
 * tape's ids of the parameters, in the plan's arena. */
heft_status_t heft__plan_add_rank(heft__plan_builder_t *builder, uint32_t rank_index,
                                  const heft_tape_t *tape, heft__fold_t **fold_out,
                                  const uint32_t **buffers_out, heft_error_t *err);

/* An overwrite of the fold that an exception `equal` excuses. */
typedef struct heft__check_ref {
    uint32_t param;
    uint32_t overwrite; /* its earlier piece is there */
} heft__check_ref_t;

/* Keep the earlier pieces of n overwrites, by parameter, as checks of the rank. */
heft_status_t heft__plan_add_checks(heft__plan_builder_t *builder, uint32_t rank_index,
                                    const heft_tape_t *tape, const heft__fold_t *fold,
                                    const heft__check_ref_t *refs, size_t n, heft_error_t *err);

/* ---- readers.c: who reads which elements of each source ---- */

typedef enum heft__reader_kind {
    HEFT__READER_PIECE = 0, /* a parameter's piece or check: counts as use, and ties */
    HEFT__READER_INPUT = 1, /* an input of an operation: counts as use */
    HEFT__READER_WHOLE = 2  /* an operation: ties everything that reads the tensor */
} heft__reader_kind_t;

/* Claims on sources, sorted by source. The owner of a claim is a node: the slot of a parameter, or
 * n_slots + number of an operation (those of the ranks before first). */
typedef struct heft__readers {
    heft__claim_t *claims;
    uint8_t *kinds;    /* heft__reader_kind_t of each claim */
    uint64_t *first;   /* n_sources + 1: claims of source s are [s] up to [s + 1] */
    uint8_t *used_ops; /* by operation: a parameter needs it, maybe through other operations */
} heft__readers_t;

heft_status_t heft__readers_create(const heft_plan_t *plan, heft__readers_t **readers_out,
                                   heft_error_t *err);
void heft__readers_destroy(heft__readers_t *readers);

/* Claims of a source that count as use (is_use) or that tie, gathered in *claims (grown). */
heft_status_t heft__readers_gather(const heft__readers_t *readers, uint32_t source, bool is_use,
                                   heft__claim_t **claims, size_t *cap, size_t *n_out,
                                   heft_error_t *err);

/* ---- groups.c ---- */

typedef struct heft__excuse heft__excuse_t;

/*
 * Scan every source: unused_out[n_sources] gets the elements that nothing uses. Groups are made and
 * numbered, with what the exceptions declare together, and every piece and operation gets its
 * group.
 */
heft_status_t heft__plan_make_groups(heft_plan_t *plan, const heft__readers_t *readers,
                                     heft__cover_t *cover, heft__excuse_t *excuses,
                                     uint32_t n_excuses, int64_t *unused_out, heft_error_t *err);

/* ---- together.c ---- */

/* The nodes of a union-find; join(parent, a, b) of groups.c. */
typedef void (*heft__join_t)(uint32_t *parent, uint32_t a, uint32_t b);
/* Join the parameters that an exception `together` declares one group. */
heft_status_t heft__plan_join_together(const heft_plan_t *plan, heft__excuse_t *excuse,
                                       heft__join_t join, uint32_t *parent, heft_error_t *err);
/* One and the same parameter of the rank for all that are declared together; `param` itself where
 * nothing is declared of it. What they read does not matter here. */
uint32_t heft__plan_get_together(const heft_plan_t *plan, uint32_t rank_index, uint32_t param);
/* Whether the patterns are sound: parts of a name in braces stand for whole tokens, and each occurs
 * in every pattern. */
heft_status_t heft__together_check(const char *patterns, heft_error_t *err);

/* ---- proof.c, excuses.c, overwrites.c, unused.c ---- */

/* What became of one exception. */
struct heft__excuse {
    const heft_exception_t *exception;
    int64_t n_matched; /* names that its pattern matches */
    int64_t n_excused; /* those with something to excuse */
    int64_t n_elems;   /* excused */
    const char *first; /* the first name excused, or else matched; borrowed from the plan */
    int32_t owner;     /* `elsewhere`: the first rank that reads the first name, or -1 */
    /* the first tensor in which its box does not lie; NULL: it lies in all */
    const heft_tensor_info_t *misfit;
    const char *idle; /* `together`: a pattern of it that matches nothing; in the exception */
    uint32_t idle_len;
    int64_t extent[HEFT_MAX_DIMS]; /* of the box as a claim on the tensor at hand */
    int64_t stride[HEFT_MAX_DIMS];
};

typedef struct heft__proof {
    heft_plan_t *plan;
    const heft_plan_opts_t *opts;
    heft_report_t *report;
    heft__cover_t *cover;
    heft__readers_t *readers;
    heft__excuse_t *excuses;         /* one for each exception */
    const heft__map_t *const *names; /* NULL, or of each exception the names it is of, or NULL */
    bool has_rules;                  /* the tapes are a recipe's, not a traced loader's */
    heft__claim_t *claims;           /* scratch */
    size_t cap_claims;
    int64_t *uncovered;        /* by slot */
    uint8_t *excused;          /* by slot: an exception matches it */
    int64_t *boxed;            /* by slot: elements that exceptions with boxes excuse */
    int64_t *unused;           /* by source */
    heft__check_ref_t *checks; /* of the rank judged last */
    size_t n_checks;
    size_t cap_checks;
    int64_t n_expected; /* bytes of the parameters that something must write */
    heft__text_t text;  /* scratch */
} heft__proof_t;

/* plan and opts are borrowed; proof->report is the caller's from then on, also on failure. */
heft_status_t heft__proof_init(heft__proof_t *proof, heft_plan_t *plan,
                               const heft_plan_opts_t *opts, heft_error_t *err);
void heft__proof_fini(heft__proof_t *proof);
/* Room for the results, and the readers of every source: all ranks are in the plan. */
heft_status_t heft__proof_load(heft__proof_t *proof, heft_error_t *err);

/* Judge what fold saw overwritten in one rank; proof->checks is what must be checked in runs. */
heft_status_t heft__proof_add_overwrites(heft__proof_t *proof, uint32_t rank_index,
                                         const heft_tape_t *tape, const heft__fold_t *fold,
                                         const uint32_t *buffers, heft_error_t *err);
/* Cover of every parameter, use of every source, exceptions: the report is finished. proof->unused
 * is filled (heft__plan_make_groups). */
heft_status_t heft__proof_run(heft__proof_t *proof, heft_error_t *err);
/* The sources' part of it. */
heft_status_t heft__proof_add_unused(heft__proof_t *proof, heft_error_t *err);

/* Match the exceptions of the given kinds (bits 1u << kind) against a name; n_elems > 0: there is
 * something to excuse. True when an exception matches. */
bool heft__excuses_apply(heft__proof_t *proof, uint32_t kinds, const char *name, int64_t n_elems,
                         int32_t owner);
/* One of the names, or where names is NULL by pattern. */
bool heft__names_match(const heft__map_t *names, const char *pattern, const char *name);
/* The same of exceptions with boxes. proof->claims hold n_claims of what is there of a tensor, and
 * *n_missing elements are not: the boxes come behind them, and what they excuse is taken off. */
heft_status_t heft__excuses_apply_boxes(heft__proof_t *proof, uint32_t kinds,
                                        const heft_tensor_info_t *info, size_t n_claims,
                                        int64_t *n_missing, heft_error_t *err);
/* Append the boxes to proof->claims, for a look at what they leave. */
heft_status_t heft__excuses_add_boxes(heft__proof_t *proof, uint32_t kinds,
                                      const heft_tensor_info_t *info, size_t *n_claims,
                                      heft_error_t *err);
/* Notes for the exceptions that excused something, errors for the stale ones. */
heft_status_t heft__excuses_report(heft__proof_t *proof, heft_error_t *err);

/* The first of n_claims disjoint claims in proof->claims, as boxes; n_boxes counts them all. */
heft_status_t heft__proof_spot_claims(heft__proof_t *proof, const heft_shape_t *shape,
                                      size_t n_claims, heft__spot_t *spot_out, heft_error_t *err);
/* Append ", at [4..6, 0..4)" to proof->text, or ", first of 3 boxes [..)". */
void heft__proof_put_spot(heft__proof_t *proof, const heft_shape_t *shape,
                          const heft__spot_t *spot);
/* Add a finding whose text is proof->text; spot may be NULL. */
/* Warnings: what is right and slow. */
heft_status_t heft__proof_add_costs(heft__proof_t *proof, heft_error_t *err);
heft_status_t heft__proof_add(heft__proof_t *proof, heft_finding_kind_t kind, bool is_error,
                              int32_t rank, const heft_tensor_info_t *tensor, int64_t n_elems,
                              const heft__spot_t *spot, heft_error_t *err);
/* The number that messages show for a rank index. */
static inline int32_t heft__proof_rank(const heft__proof_t *proof, uint32_t rank_index)
{
    return (int32_t)(proof->plan->first_rank + rank_index);
}

/* ---- nearest.c ---- */

/* Whether two names are at most *limit edits apart; *limit then becomes one less than their
 * distance, so that a later name must be nearer. Common beginnings and ends cost nothing. */
bool heft__proof_nearer(const char *a, const char *b, uint32_t *limit);

/* ---- create.c, stages.c ---- */

/* A plan as the tapes stand, whatever they were joined of. names: for each exception the names it
 * is of, or NULL where its pattern says so; NULL: all by pattern. The report is given as in
 * heft_plan_create. */
heft_status_t heft__plan_create_one(const heft_tape_t *const *tapes, uint32_t n_tapes,
                                    uint32_t first_rank, const heft_plan_opts_t *opts,
                                    const heft__map_t *const *names, heft_plan_t **plan_out,
                                    heft_report_t **report_out, heft_error_t *err);
/* heft_plan_create behind its checks: joined tapes are proven part by part first. */
heft_status_t heft__plan_prove(const heft_tape_t *const *tapes, uint32_t n_tapes,
                               uint32_t first_rank, const heft_plan_opts_t *opts,
                               heft_plan_t **plan_out, heft_report_t **report_out,
                               heft_error_t *err);
/* Put what and the name before the message of a failure. */
heft_status_t heft__plan_name_error(heft_error_t *err, heft_status_t status, const char *what,
                                    const char *name);

/* ---- plan_digest.c ---- */

heft_status_t heft__plan_make_digests(heft_plan_t *plan, heft_error_t *err);

/* ---- routes.c, routes_query.c ---- */

const heft_plan_t *heft__routes_get_plan(const heft_routes_t *routes);
/* The pieces of a parameter that belong to a sender, as numbers among those of the rank
 * (heft_plan_get_pieces), ascending; borrowed. */
const uint64_t *heft__routes_get_pieces(const heft_routes_t *routes, uint32_t sender,
                                        uint32_t rank_index, uint32_t param, uint64_t *n_out);
/* The sender of check i of a rank (heft_plan_get_checks). */
uint32_t heft__routes_get_check_sender(const heft_routes_t *routes, uint32_t rank_index,
                                       uint64_t i);

/* Who sends what: all cuts, in hex. */
void heft__placement_digest(const heft_placement_t *placement, char out[65]);
/* heft_placement_apply for a partial plan of this rank alone: of the boxes it has only those that
 * something is sent from, of tensors that are read. The plan's rank, its digest and its routes are
 * the same. */
HEFT_MUST_CHECK heft_status_t heft__placement_apply_read(const heft_placement_t *placement,
                                                         heft_tape_t *tape,
                                                         heft_tape_t **placed_out,
                                                         heft_error_t *err);

#endif
