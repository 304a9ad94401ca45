/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of a whole side: what all of them begin and end with is taken away and declared, leaves
 * that are no weights are set aside with a reason, and where the declarations do not give a native
 * name back byte for byte, the tensor records it.
 */
#include "format/manifest_impl.h"

#include <stdlib.h>
#include <string.h>

static const char value_suffix[] = ".value";

/* ---- what a manifest declares ---- */

static const char *attr_or(const heft_manifest_t *manifest, const char *key, const char *missing)
{
    const char *value = heft_manifest_get_attr(manifest, key);
    return value != NULL ? value : missing;
}

heft_name_form_t heft_manifest_get_name_form(const heft_manifest_t *manifest)
{
    const char *form = attr_or(manifest, "name_form", "");
    return strcmp(form, "keystr") == 0   ? HEFT_NAME_FORM_KEYSTR
           : strcmp(form, "dotted") == 0 ? HEFT_NAME_FORM_DOTTED
                                         : HEFT_NAME_FORM_NONE;
}

heft_layer_form_t heft_manifest_get_layer_form(const heft_manifest_t *manifest)
{
    const char *form = attr_or(manifest, "layer_form", "");
    return strcmp(form, "scanned") == 0    ? HEFT_LAYER_FORM_SCANNED
           : strcmp(form, "unrolled") == 0 ? HEFT_LAYER_FORM_UNROLLED
                                           : HEFT_LAYER_FORM_NONE;
}

static void rebuild(const heft_manifest_t *manifest, const char *name, heft__text_t *out)
{
    heft__name_rebuild(heft_manifest_get_name_form(manifest), attr_or(manifest, "root", ""), name,
                       attr_or(manifest, "leaf_suffix", ""), out);
}

/* The name that an entry has in the model: a part's is that of the whole tensor. */
static const char *model_name(const heft_manifest_t *manifest, size_t i)
{
    const char *name = manifest->tensors[i].name;
    const heft_part_t *part = heft__part_of(manifest, name);
    return part != NULL ? part->tensor : name;
}

heft_status_t heft_manifest_get_native(const heft_manifest_t *manifest, const char *canonical,
                                       char **native_out, heft_error_t *err)
{
    if (!manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is not finished");
    }
    heft__text_t text;
    uint32_t index;
    heft__text_init(&text);
    const char *recorded = NULL;
    if (heft_manifest_find(manifest, canonical, &index, NULL) == HEFT_OK) {
        recorded = heft_manifest_get_tensor_attr(manifest, index, "native");
        canonical = model_name(manifest, index);
    }
    if (recorded != NULL) {
        heft__text_put(&text, recorded);
    } else {
        rebuild(manifest, canonical, &text);
    }
    char *native = heft__text_take(&text);
    if (native == NULL) {
        return heft__error_nomem(err, strlen(canonical));
    }
    *native_out = native;
    return HEFT_OK;
}

heft_status_t heft__manifest_copy_natives(const heft_manifest_t *names, heft_manifest_t *to,
                                          heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < to->n_tensors && status == HEFT_OK; i++) {
        char *native = NULL;
        const char *name = to->tensors[i].name;
        status = heft_manifest_get_native(names, name, &native, err);
        if (status == HEFT_OK && strcmp(native, name) != 0) {
            status = heft_manifest_set_tensor_attr(to, name, "native", native, err);
        }
        heft_string_free(native);
    }
    return status;
}

/* ---- roots and leaves ---- */

static const char *root_token(const char *side)
{
    return strcmp(side, "source") == 0 ? "base" : "model";
}

/* Bytes of `root.` in front of a name that goes on behind it, or 0. */
static size_t root_length(const char *name, const char *root)
{
    size_t n = strlen(root);
    return strncmp(name, root, n) == 0 && name[n] == '.' && name[n + 1] != '\0' ? n + 1 : 0;
}

/* Why a leaf of this name is no weight, or NULL; *token_out: the token that says so. */
static const char *state_reason(const char *name)
{
    static const struct {
        const char *word;
        const char *reason;
    } kinds[] = { { "cache", "a token begins with cache: state of a cache, not a weight" },
                  { "rngs", "a token begins with rngs: state of a random generator, not a weight" },
                  { "intermediates",
                    "a token begins with intermediates: values of a run, not a weight" } };
    for (const char *at = name;; at++) {
        at += strspn(at, "_");
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            if (strncmp(at, kinds[i].word, strlen(kinds[i].word)) == 0) {
                return kinds[i].reason;
            }
        }
        at += strcspn(at, ".");
        if (*at == '\0') {
            return NULL;
        }
    }
}

/* ---- a whole side ---- */

typedef struct leaf {
    const char *native;
    char *canonical;    /* of the job's arena */
    const char *reason; /* NULL: a weight */
} leaf_t;

typedef struct naming {
    const heft_manifest_t *native;
    heft_name_opts_t opts;
    heft_manifest_t *out;
    heft__arena_t arena;
    heft__map_t seen; /* canonical name -> leaf */
    heft__text_t text;
    leaf_t *leaves;
    size_t n;
    heft_error_t *err;
} naming_t;

static heft_status_t make_leaves(naming_t *job)
{
    job->n = job->native->n_tensors;
    job->leaves = heft__calloc(job->n + 1, sizeof job->leaves[0]);
    if (job->leaves == NULL) {
        return heft__error_nomem(job->err, job->n * sizeof job->leaves[0]);
    }
    for (size_t i = 0; i < job->n; i++) {
        leaf_t *leaf = &job->leaves[i];
        leaf->native = job->native->tensors[i].name;
        heft_status_t status =
            heft__name_canonicalize(leaf->native, &job->opts, &job->text, job->err);
        if (status != HEFT_OK) {
            return status;
        }
        leaf->canonical = heft__arena_strndup(&job->arena, job->text.data, job->text.len);
        if (leaf->canonical == NULL) {
            return heft__error_nomem(job->err, job->text.len);
        }
        leaf->reason = job->opts.types_lost != 0 ? state_reason(leaf->canonical) : NULL;
    }
    return HEFT_OK;
}

/* Take the root away while every weight has one. Leaves that are excluded lose theirs, too. */
static heft_status_t strip_roots(naming_t *job)
{
    const char *token = root_token(job->native->side);
    heft__text_reset(&job->text);
    for (;;) {
        size_t n_weights = 0;
        size_t n_rooted = 0;
        for (size_t i = 0; i < job->n; i++) {
            bool is_weight = job->leaves[i].reason == NULL;
            n_weights += is_weight ? 1 : 0;
            n_rooted += is_weight && root_length(job->leaves[i].canonical, token) > 0 ? 1 : 0;
        }
        if (n_weights == 0 || n_rooted < n_weights) {
            break;
        }
        for (size_t i = 0; i < job->n; i++) {
            job->leaves[i].canonical += root_length(job->leaves[i].canonical, token);
        }
        heft__text_put(&job->text, job->text.len > 0 ? "." : "");
        heft__text_put(&job->text, token);
    }
    return job->text.len > 0 ? heft_manifest_set_attr(job->out, "root", job->text.data, job->err)
                             : HEFT_OK;
}

/* The suffix that all weights share; the others record their native name. */
static heft_status_t set_suffix(naming_t *job)
{
    bool all = true;
    for (size_t i = 0; i < job->n && all; i++) {
        size_t n = strlen(job->leaves[i].native);
        size_t k = sizeof value_suffix - 1;
        all = job->leaves[i].reason != NULL ||
              (n > k && strcmp(job->leaves[i].native + n - k, value_suffix) == 0);
    }
    return heft_manifest_set_attr(job->out, "leaf_suffix", all ? value_suffix : "", job->err);
}

static heft_status_t declare(naming_t *job)
{
    heft_manifest_t *out = job->out;
    heft_status_t status = heft_manifest_set_attr(
        out, "name_form", heft_name_form_get_name(job->opts.name_form), job->err);
    if (status != HEFT_OK || job->opts.name_form == HEFT_NAME_FORM_DOTTED) {
        return status;
    }
    status = heft_manifest_set_attr(out, "layer_form",
                                    heft_layer_form_get_name(job->opts.layer_form), job->err);
    if (status == HEFT_OK && strcmp(job->opts.container, HEFT__CONTAINER) != 0) {
        status = heft_manifest_set_attr(out, "container", job->opts.container, job->err);
    }
    if (status == HEFT_OK) {
        status = strip_roots(job);
    }
    return status == HEFT_OK ? set_suffix(job) : status;
}

static heft_status_t copy_tensor_attrs(naming_t *job, uint32_t i, const char *name)
{
    const char *key;
    const char *value;
    heft_status_t status = HEFT_OK;
    for (uint32_t k = 0; status == HEFT_OK && heft_manifest_query_tensor_attr(
                                                  job->native, i, k, &key, &value, NULL) == HEFT_OK;
         k++) {
        status = heft_manifest_set_tensor_attr(job->out, name, key, value, job->err);
    }
    return status;
}

static heft_status_t add_leaf(naming_t *job, uint32_t i)
{
    const leaf_t *leaf = &job->leaves[i];
    const heft_tensor_info_t *t = &job->native->tensors[i];
    heft_status_t status = heft__map_put(&job->seen, leaf->canonical, strlen(leaf->canonical), i);
    if (status == HEFT_ERR_EXISTS) {
        uint32_t other = heft__map_get(&job->seen, leaf->canonical, strlen(leaf->canonical));
        return heft__error_set(job->err, status, "\"%.70s\" and \"%.70s\" have one name: \"%.60s\"",
                               job->leaves[other].native, leaf->native, leaf->canonical);
    }
    if (status != HEFT_OK) {
        return heft__error_nomem(job->err, strlen(leaf->canonical));
    }
    if (leaf->reason != NULL) {
        return heft_manifest_exclude(job->out, leaf->canonical, leaf->reason, job->err);
    }
    status = heft_manifest_add(job->out, leaf->canonical, t->dtype, &t->shape, job->err);
    if (status == HEFT_OK) {
        status = copy_tensor_attrs(job, i, leaf->canonical);
    }
    rebuild(job->out, leaf->canonical, &job->text);
    if (status == HEFT_OK && job->text.failed) {
        return heft__error_nomem(job->err, strlen(leaf->native));
    }
    if (status == HEFT_OK && strcmp(job->text.data, leaf->native) != 0) {
        status = heft_manifest_set_tensor_attr(job->out, leaf->canonical, "native", leaf->native,
                                               job->err);
    }
    return status;
}

static heft_status_t copy_side(naming_t *job)
{
    heft_status_t status = heft_manifest_create(job->native->side, &job->out, job->err);
    if (status == HEFT_OK) {
        job->out->is_of_files = job->native->is_of_files;
    }
    for (size_t i = 0; i < job->native->n_attrs && status == HEFT_OK; i++) {
        const heft__attr_t *attr = &job->native->attrs[i];
        status = heft_manifest_set_attr(job->out, attr->key, attr->value, job->err);
    }
    for (size_t i = 0; i < job->native->n_excluded && status == HEFT_OK; i++) {
        const heft__excluded_t *excluded = &job->native->excluded[i];
        status = heft_manifest_exclude(job->out, excluded->name, excluded->reason, job->err);
    }
    return status;
}

static heft_status_t canonicalize(naming_t *job)
{
    heft_status_t status = copy_side(job);
    if (status == HEFT_OK) {
        status = make_leaves(job);
    }
    if (status == HEFT_OK) {
        status = declare(job);
    }
    for (size_t i = 0; i < job->n && status == HEFT_OK; i++) {
        status = add_leaf(job, (uint32_t)i);
    }
    return status == HEFT_OK ? heft_manifest_finish(job->out, job->err) : status;
}

heft_status_t heft_manifest_canonicalize(const heft_manifest_t *native,
                                         const heft_name_opts_t *opts,
                                         heft_manifest_t **manifest_out, heft_error_t *err)
{
    naming_t job = { .native = native, .err = err };
    heft_status_t status = heft__name_opts_load(opts, &job.opts, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (!native->is_finished || heft_manifest_get_name_form(native) != HEFT_NAME_FORM_NONE) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest %s",
                               native->is_finished ? "has canonical names already (name_form)"
                                                   : "is not finished");
    }
    if (native->n_parts > 0) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "\"%.140s\" is a part: parts are set under canonical names",
                               native->parts[0].entry);
    }
    heft__arena_init(&job.arena, 1u << 16);
    heft__map_init(&job.seen);
    heft__text_init(&job.text);
    status = canonicalize(&job);
    heft__text_fini(&job.text);
    heft__map_fini(&job.seen);
    heft__arena_fini(&job.arena);
    heft__free(job.leaves);
    if (status != HEFT_OK) {
        heft_manifest_destroy(job.out);
        return status;
    }
    *manifest_out = job.out;
    return HEFT_OK;
}

/* ---- checking ---- */

static heft_status_t check_words(const heft_manifest_t *manifest, heft_error_t *err)
{
    const char *form = heft_manifest_get_attr(manifest, "name_form");
    const char *layers = heft_manifest_get_attr(manifest, "layer_form");
    heft_name_form_t name_form = heft_manifest_get_name_form(manifest);
    if (form != NULL && name_form == HEFT_NAME_FORM_NONE) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "attribute name_form is \"%.40s\": keystr or dotted wanted", form);
    }
    if (layers != NULL && heft_manifest_get_layer_form(manifest) == HEFT_LAYER_FORM_NONE) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "attribute layer_form is \"%.40s\": scanned or unrolled wanted",
                               layers);
    }
    if (name_form == HEFT_NAME_FORM_KEYSTR && layers == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "attribute name_form is keystr and layer_form is missing");
    }
    static const char *const of_keystr[] = { "root", "leaf_suffix", "container" };
    for (size_t i = 0; i < 3 && name_form != HEFT_NAME_FORM_KEYSTR; i++) {
        if (heft_manifest_get_attr(manifest, of_keystr[i]) != NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "attribute %s needs name_form to be keystr", of_keystr[i]);
        }
    }
    return HEFT_OK;
}

static heft_status_t not_canonical(const char *name, const char *native, const char *canonical,
                                   heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_NAME,
                           "tensor \"%.60s\": not canonical: its native name \"%.70s\" comes to "
                           "\"%.60s\"",
                           name, native, canonical);
}

static heft_status_t check_tensor(const heft_manifest_t *manifest, const heft_name_opts_t *opts,
                                  size_t index, heft__text_t *text, heft_error_t *err)
{
    size_t n;
    const char *name = model_name(manifest, index);
    const heft__tensor_attr_t *attrs =
        heft__tensor_attrs_of(manifest, manifest->tensors[index].name, &n);
    const char *native = NULL;
    for (size_t i = 0; i < n; i++) {
        native = strcmp(attrs[i].key, "native") == 0 ? attrs[i].value : native;
    }
    heft__text_t rebuilt;
    heft__text_init(&rebuilt);
    if (native == NULL) {
        rebuild(manifest, name, &rebuilt);
        native = rebuilt.data;
    }
    heft_status_t status = rebuilt.failed ? heft__error_nomem(err, strlen(name))
                                          : heft__name_canonicalize(native, opts, text, err);
    if (status == HEFT_OK) {
        const char *root = attr_or(manifest, "root", "");
        size_t skip = strlen(root) + (root[0] != '\0' ? 1 : 0);
        bool has_root = text->len > skip && strncmp(text->data, root, strlen(root)) == 0;
        if (!has_root || strcmp(text->data + skip, name) != 0) {
            status = not_canonical(name, native, text->data, err);
        }
    }
    heft__text_fini(&rebuilt);
    return status;
}

/* Roots are taken away as long as all names have one: none may be left. */
static heft_status_t check_root(const heft_manifest_t *manifest, heft_error_t *err)
{
    const char *token = root_token(manifest->side);
    for (size_t i = 0; i < manifest->n_tensors; i++) {
        if (root_length(model_name(manifest, i), token) == 0) {
            return HEFT_OK;
        }
    }
    return manifest->n_tensors == 0
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_NAME,
                                 "tensor \"%.100s\": not canonical: every name of the %s begins "
                                 "with \"%s\", which belongs into attribute root",
                                 model_name(manifest, 0), manifest->side, token);
}

heft_status_t heft__manifest_check_names(const heft_manifest_t *manifest, heft_error_t *err)
{
    heft_status_t status = check_words(manifest, err);
    if (status != HEFT_OK || heft_manifest_get_name_form(manifest) != HEFT_NAME_FORM_KEYSTR) {
        return status;
    }
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    heft_name_opts_t known;
    opts.name_form = HEFT_NAME_FORM_KEYSTR;
    opts.layer_form = heft_manifest_get_layer_form(manifest);
    opts.container = heft_manifest_get_attr(manifest, "container");
    status = heft__name_opts_load(&opts, &known, err);
    heft__text_t text;
    heft__text_init(&text);
    for (size_t i = 0; i < manifest->n_tensors && status == HEFT_OK; i++) {
        heft_error_t cause = HEFT_ERROR_INIT;
        status = check_tensor(manifest, &known, i, &text, &cause);
        if (status != HEFT_OK) {
            status = heft__problems_take(manifest->problems, status, &cause)
                         ? HEFT_OK
                         : heft__error_set(err, status, "%s", cause.message);
        }
    }
    heft__text_fini(&text);
    return status == HEFT_OK ? check_root(manifest, err) : status;
}
