/* SPDX-License-Identifier: Apache-2.0 */
/* A problem that cannot be kept for want of memory is left out: the status says that it failed. */
#include "sync/findings.h"

heft__problem_kind_t heft__problem_kind_of(heft_status_t status)
{
    switch ((int)status) {
    case HEFT_ERR_NAME:
        return HEFT__PROBLEM_NAME;
    case HEFT_ERR_SHAPE:
        return HEFT__PROBLEM_SHAPE;
    case HEFT_ERR_NOSPACE:
        return HEFT__PROBLEM_STAGING;
    case HEFT_ERR_UNSUPPORTED:
        return HEFT__PROBLEM_SIDE;
    case HEFT_ERR_PROOF:
        return HEFT__PROBLEM_PROOF;
    default:
        return HEFT__PROBLEM_MANIFEST;
    }
}

void heft__problems_add_report(heft__problems_t *problems, const heft_report_t *report)
{
    for (uint32_t i = 0; report != NULL && i < heft_report_get_n_findings(report); i++) {
        const heft_finding_t *f = heft_report_get_finding(report, i);
        if (f->is_error) {
            const heft__problem_kind_t kind =
                f->kind == HEFT_FINDING_NAME ? HEFT__PROBLEM_NAME : HEFT__PROBLEM_PROOF;
            (void)!heft__problems_add(problems, kind, NULL, "%s", f->text);
        }
    }
}

static void add(heft__problems_t *problems, heft_status_t status, const char *member,
                const char *text)
{
    (void)!heft__problems_add(problems, heft__problem_kind_of(status), NULL, "%s%s%s",
                              member != NULL ? member : "", member != NULL ? ": " : "", text);
}

static void add_issues(heft__problems_t *problems, const heft_issues_t *issues, const char *member)
{
    uint32_t n_listed = 0;
    heft__problem_kind_t kind = HEFT__PROBLEM_MANIFEST;
    for (uint32_t i = 0; i < heft_issues_get_n(issues); i++) {
        const heft_issue_t *issue = heft_issues_get(issues, i);
        if (issue->status != HEFT_OK) {
            kind = heft__problem_kind_of(issue->status);
            add(problems, issue->status, member, issue->text);
            n_listed++;
        }
    }
    const uint32_t n = heft_issues_get_n_errors(issues);
    problems->kinds[kind].total += n > n_listed ? n - n_listed : 0; /* counted, not listed */
}

heft_status_t heft__compile_rank(heft__compiler_t *compiler, uint32_t rank,
                                 const heft_manifest_t *destination, bool takes_read_alone,
                                 const char *member, heft__problems_t *problems,
                                 heft_tape_t **tape_out, heft_error_t *err)
{
    heft_error_t why = HEFT_ERROR_INIT;
    heft_issues_t *issues = NULL;
    heft_status_t status = heft_issues_create(&issues, &why);
    if (status == HEFT_OK) {
        status = heft__compiler_run(compiler, rank, destination, takes_read_alone, issues, tape_out,
                                    &why);
    }
    if (status != HEFT_OK) {
        if (issues != NULL && heft_issues_get_n_errors(issues) > 0) {
            add_issues(problems, issues, member);
        } else {
            add(problems, status, member, why.message);
        }
        if (err != NULL) {
            *err = why;
        }
    }
    heft_issues_destroy(issues);
    return status;
}
