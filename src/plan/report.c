/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report: what the proof found. Every finding is counted; of one kind at most 40 errors and 40
 * notes are listed in full. After heft__report_finish it never changes.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_names[HEFT__N_FINDING_KINDS] = {
    [HEFT_FINDING_UNCOVERED] = "uncovered", [HEFT_FINDING_OVERWRITTEN] = "overwritten",
    [HEFT_FINDING_CONSTANT] = "constant",   [HEFT_FINDING_UNUSED] = "unused",
    [HEFT_FINDING_EXCEPTION] = "exception", [HEFT_FINDING_STALE] = "stale",
    [HEFT_FINDING_EMPTY] = "empty",         [HEFT_FINDING_OPAQUE] = "opaque",
    [HEFT_FINDING_OVERLAP] = "overlap",     [HEFT_FINDING_NAME] = "name",
    [HEFT_FINDING_SLOW] = "slow",
};

const char *heft_finding_kind_get_name(heft_finding_kind_t kind)
{
    size_t i = (size_t)kind;
    return i < HEFT__N_FINDING_KINDS && kind_names[i] != NULL ? kind_names[i] : "unknown";
}

heft_status_t heft__report_create(heft_report_t **report_out, heft_error_t *err)
{
    heft_report_t *report = heft__calloc(1, sizeof *report);
    if (report == NULL) {
        return heft__error_nomem(err, sizeof *report);
    }
    heft__arena_init(&report->arena, 1024);
    *report_out = report;
    return HEFT_OK;
}

void heft_report_destroy(heft_report_t *report)
{
    if (report != NULL) {
        heft__arena_fini(&report->arena);
        heft__free(report->findings);
        heft__free(report);
    }
}

uint32_t heft_report_get_n_findings(const heft_report_t *report)
{
    return (uint32_t)report->n;
}

static int64_t count(const heft_report_t *report, int is_error)
{
    int64_t n = 0;
    for (int kind = 0; kind < HEFT__N_FINDING_KINDS; kind++) {
        n += report->total[kind][is_error].n;
    }
    return n;
}

uint32_t heft_report_get_n_errors(const heft_report_t *report)
{
    return (uint32_t)heft__min_i64(count(report, 1), UINT32_MAX);
}

uint32_t heft_report_get_n_warnings(const heft_report_t *report)
{
    return (uint32_t)heft__min_i64(report->total[HEFT_FINDING_SLOW][0].n, UINT32_MAX);
}

const heft_finding_t *heft_report_get_finding(const heft_report_t *report, uint32_t i)
{
    return i < report->n ? &report->findings[i] : NULL;
}

const char *heft_report_get_summary(const heft_report_t *report)
{
    return report->summary;
}

void heft__report_log_warnings(const heft_report_t *report, const char *part, const char *whose)
{
    for (size_t i = 0; report != NULL && i < report->n; i++) {
        if (report->findings[i].kind == HEFT_FINDING_SLOW) {
            heft__log(HEFT_LOG_WARN, part, "%s: %s", whose, report->findings[i].text);
        }
    }
}

bool heft__report_has_room(const heft_report_t *report, heft_finding_kind_t kind, bool is_error)
{
    return report->total[kind][is_error].n < HEFT__REPORT_MAX_LISTED;
}

static heft_status_t append(heft_report_t *report, const heft_finding_t *finding, const char *name,
                            const char *text, heft_error_t *err)
{
    if (!HEFT__RESERVE(report->findings, report->cap, report->n + 1)) {
        return heft__error_nomem(err, (report->n + 1) * sizeof *report->findings);
    }
    heft_finding_t *to = &report->findings[report->n];
    *to = *finding;
    char *line = heft__arena_strndup(&report->arena, text, strlen(text));
    to->name = heft__arena_strndup(&report->arena, name, strlen(name));
    if (to->name == NULL || line == NULL) {
        return heft__error_nomem(err, strlen(name) + strlen(text));
    }
    for (char *c = line; *c != '\0'; c++) { /* names are anything; a text is one line */
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
    to->text = line;
    report->n++;
    return HEFT_OK;
}

heft_status_t heft__report_add(heft_report_t *report, heft_finding_kind_t kind, bool is_error,
                               int32_t rank, const char *name, int64_t n_elems,
                               const heft__spot_t *spot, int32_t n_dims, const char *text,
                               heft_error_t *err)
{
    heft__finding_total_t *total = &report->total[kind][is_error];
    bool has_room = heft__report_has_room(report, kind, is_error);
    total->n++;
    heft__sum(&total->n_elems, n_elems);
    if (!has_room) {
        return HEFT_OK;
    }
    heft_finding_t finding = {
        .kind = kind, .is_error = is_error, .rank = rank, .n_elems = n_elems
    };
    if (spot != NULL) {
        finding.n_dims = n_dims;
        finding.n_regions = (int32_t)heft__min_i64(spot->n_boxes, INT32_MAX);
        memcpy(finding.begin, spot->begin, sizeof finding.begin);
        memcpy(finding.end, spot->end, sizeof finding.end);
    }
    return append(report, &finding, name, text, err);
}

void heft__report_put_range(heft__text_t *text, int32_t n_dims, const int64_t *begin,
                            const int64_t *end)
{
    heft__text_put(text, "[");
    for (int32_t i = 0; i < n_dims; i++) {
        heft__text_printf(text, "%s%lld..%lld", i > 0 ? ", " : "", (long long)begin[i],
                          (long long)end[i]);
    }
    heft__text_put(text, n_dims > 0 ? ")" : "]");
}

/* Errors first; the order in which they were found otherwise. */
static void errors_first(heft_report_t *report, heft_finding_t *scratch)
{
    size_t n = 0;
    for (int is_error = 1; is_error >= 0; is_error--) {
        for (size_t i = 0; i < report->n; i++) {
            if (report->findings[i].is_error == is_error) {
                scratch[n++] = report->findings[i];
            }
        }
    }
    memcpy(report->findings, scratch, n * sizeof *scratch);
}

static heft_status_t add_totals(heft_report_t *report, heft__text_t *text, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (int is_error = 1; is_error >= 0; is_error--) {
        for (int kind = 0; kind < HEFT__N_FINDING_KINDS && status == HEFT_OK; kind++) {
            const heft__finding_total_t *total = &report->total[kind][is_error];
            if (total->n <= HEFT__REPORT_MAX_LISTED) {
                continue;
            }
            heft__text_reset(text);
            heft__text_printf(text, "%s: %lld findings with %lld elements in all, %d listed",
                              kind_names[kind], (long long)total->n, (long long)total->n_elems,
                              (int)HEFT__REPORT_MAX_LISTED);
            const heft_finding_t finding = { .kind = (heft_finding_kind_t)kind,
                                             .is_error = is_error,
                                             .rank = -1,
                                             .n_elems = total->n_elems,
                                             .n_regions =
                                                 (int32_t)heft__min_i64(total->n, INT32_MAX) };
            status = text->failed ? heft__error_nomem(err, 1)
                                  : append(report, &finding, "", text->data, err);
        }
    }
    return status;
}

static void put_count(heft__text_t *text, int64_t n, const char *what)
{
    heft__text_printf(text, "%lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

heft_status_t heft__report_finish(heft_report_t *report, uint64_t n_pieces, int64_t n_planned,
                                  int64_t n_expected, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = add_totals(report, &text, err);
    if (status == HEFT_OK && report->n > 0) {
        heft_finding_t *scratch = heft__malloc(report->n * sizeof *scratch);
        if (scratch == NULL) {
            status = heft__error_nomem(err, report->n * sizeof *scratch);
        } else {
            errors_first(report, scratch);
        }
        heft__free(scratch);
    }
    if (status == HEFT_OK) {
        heft__text_reset(&text);
        heft__text_put(&text, count(report, 1) > 0 ? "refused: " : "proven: ");
        put_count(&text, count(report, 1), "error");
        heft__text_put(&text, ", ");
        put_count(&text, count(report, 0), "note");
        heft__text_put(&text, "; ");
        put_count(&text, (int64_t)n_pieces, "piece");
        heft__text_printf(&text, ", %lld of %lld bytes planned", (long long)n_planned,
                          (long long)n_expected);
        report->summary = heft__arena_strndup(&report->arena, text.data, text.len);
        if (text.failed || report->summary == NULL) {
            status = heft__error_nomem(err, text.len + 1);
        }
    }
    heft__text_fini(&text);
    return status;
}

bool heft__report_set_title(heft_report_t *report, const char *title)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "%s; in recipe \"%s\"", report->summary, title);
    char *summary = text.failed ? NULL : heft__arena_strndup(&report->arena, text.data, text.len);
    heft__text_fini(&text);
    report->summary = summary != NULL ? summary : report->summary;
    return summary != NULL;
}
