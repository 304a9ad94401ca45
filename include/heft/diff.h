/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences: what two checkpoints hold, compared tensor by tensor.
 */
#ifndef HEFT_DIFF_H
#define HEFT_DIFF_H

#include "heft/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The differences of two tensors of one dtype and shape. Elements differ when their bits do. How
 * far apart: in units in the last place, the number of values between the two in the order of the
 * dtype (for integers: the difference); +0 and -0 are 0 apart. NaNs are nowhere in that order:
 * where either is one, the element counts in n_nan and not in the distances. Packed dtypes (F4, F6)
 * are compared byte by byte, without distances.
 */
typedef struct heft_tensor_diff {
    int64_t n_elems; /* compared; bytes of packed dtypes */
    int64_t n_differ;
    int64_t n_nan; /* of these, with a NaN on either side */
    uint64_t max_ulp;
    double mean_ulp;  /* over all that differ and are no NaN; 0 where there are none */
    int64_t first;    /* flat index of the first that differs, or -1 */
    uint64_t first_a; /* its bits on both sides */
    uint64_t first_b;
} heft_tensor_diff_t;

/** Compare n_elems elements (storage units) of two contiguous tensors on this thread. */
HEFT_API void heft_diff_tensors(heft_dtype_t dtype, const void *a, const void *b, int64_t n_elems,
                                heft_tensor_diff_t *diff_out);

/* Tensors of one name; diff is NULL where dtype or shape differ. Non-zero: stop. */
typedef int (*heft_diff_fn_t)(void *arg, const heft_tensor_info_t *a, const heft_tensor_info_t *b,
                              const heft_tensor_diff_t *diff);

typedef struct heft_diff_opts {
    size_t size;
    heft_progress_t progress; /* NULL: none */
    void *progress_arg;
    uint32_t n_threads; /* 0: 1 */
    uint32_t reserved;
} heft_diff_opts_t;
#define HEFT_DIFF_OPTS_INIT              \
    {                                    \
        .size = sizeof(heft_diff_opts_t) \
    }

/**
 * Compare all tensors that two checkpoints have in common, in bytewise name order; fn is called for
 * each, from this thread. Pages are dropped on the way: at most 64 MiB of each file are in the
 * process at a time. HEFT_ERR_CANCELED: progress or fn stopped it.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_diff_checkpoints(const heft_checkpoint_t *a,
                                                             const heft_checkpoint_t *b,
                                                             const heft_diff_opts_t *opts,
                                                             heft_diff_fn_t fn, void *arg,
                                                             heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif
