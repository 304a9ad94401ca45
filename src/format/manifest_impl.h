/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest's inside, private to this part: what manifest.c fills, and what the files beside it
 * (attributes of tensors, native names) keep in it.
 */
#ifndef HEFT_FORMAT_MANIFEST_IMPL_H
#define HEFT_FORMAT_MANIFEST_IMPL_H

#include "format/format.h"
#include "heft/names.h"

typedef struct heft__attr {
    const char *key;
    const char *value;
} heft__attr_t;

/* An attribute of one tensor. After finish: sorted by (tensor, key), one for each pair. */
typedef struct heft__tensor_attr {
    const char *tensor; /* the manifest's own text */
    const char *key;    /* of the table in tensor_attrs.c: static */
    const char *value;
    size_t seq; /* the later one replaces */
} heft__tensor_attr_t;

/* That a tensor is a box of a whole one. After finish: sorted by entry. */
typedef struct heft__part {
    const char *entry; /* the manifest's own text, as that of the part's tensor */
    heft_part_t part;
} heft__part_t;

typedef struct heft__excluded {
    const char *name;
    const char *reason;
} heft__excluded_t;

/* All that is wrong with a manifest that is being decoded, not only the first of it. */
typedef struct heft__problems {
    heft__text_t lines; /* one for each, at most 40 */
    uint32_t n;
    heft_error_t first;
} heft__problems_t;

/* Count a failure. True: one can go on (problems are wanted, and memory is there). */
bool heft__problems_take(heft__problems_t *problems, heft_status_t status,
                         const heft_error_t *cause);

struct heft_manifest {
    heft__arena_t arena;
    const char *side;
    heft_tensor_info_t *tensors;
    size_t n_tensors, cap_tensors;
    heft__attr_t *attrs;
    size_t n_attrs, cap_attrs;
    heft__tensor_attr_t *tensor_attrs;
    size_t n_tensor_attrs, cap_tensor_attrs;
    heft__part_t *parts;
    size_t n_parts, cap_parts;
    heft__excluded_t *excluded; /* sorted by name after finish */
    size_t n_excluded, cap_excluded;
    heft__map_t names; /* empty after finish */
    int64_t n_bytes;
    int64_t n_elems;
    heft__problems_t *problems; /* while it is decoded, else NULL */
    bool is_strict;             /* being decoded: what a writer resolves is refused */
    bool is_finished;
    bool is_of_files; /* read from a checkpoint, which has no place for layouts */
    char digest[65];
};

/* ---- attributes of tensors ---- */

/* Sort, drop what was replaced, and check each tensor's; a `lane` that does not divide its shard
 * becomes `per_shard`, or is refused in a strict manifest. */
heft_status_t heft__tensor_attrs_finish(heft_manifest_t *manifest, heft_error_t *err);
/* Those of one tensor after finish. */
const heft__tensor_attr_t *heft__tensor_attrs_of(const heft_manifest_t *manifest, const char *name,
                                                 size_t *n_out);
/* What a key's value is in JSON. */
typedef enum heft__attr_form { ATTR_UNKNOWN = 0, ATTR_NUMBER, ATTR_STRING } heft__attr_form_t;
heft__attr_form_t heft__tensor_attr_form(const char *key);

/* ---- parts ---- */

/* Sort; an entry with two parts is refused. */
heft_status_t heft__parts_finish(heft_manifest_t *manifest, heft_error_t *err);
/* What an entry is a part of, once they are sorted; NULL: it is whole. */
const heft_part_t *heft__part_of(const heft_manifest_t *manifest, const char *name);

/* ---- names ---- */

/* Empty, reserved or with characters that no name has. */
heft_status_t heft__name_check(const char *name, heft_error_t *err);

#define HEFT__CONTAINER "layers" /* the token that holds the layers, unless another is declared */

/* Checks, and fills in the container. */
heft_status_t heft__name_opts_load(const heft_name_opts_t *opts, heft_name_opts_t *out,
                                   heft_error_t *err);
/* One name, its root still in front, into *out, which is emptied before. */
heft_status_t heft__name_canonicalize(const char *native, const heft_name_opts_t *opts,
                                      heft__text_t *out, heft_error_t *err);
/* The native name of a canonical one: keys of the root, keys of the name, suffix. */
void heft__name_rebuild(heft_name_form_t form, const char *root, const char *name,
                        const char *suffix, heft__text_t *out);

/* The side's declarations of names are known words that belong together, and every name is the
 * canonical form of its native one. */
heft_status_t heft__manifest_check_names(const heft_manifest_t *manifest, heft_error_t *err);

#endif
