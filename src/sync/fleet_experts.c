/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of experts across the ranks of an engine. Each rank declares in its manifest which table
 * it holds its slots by; a trace of its loader says no more than what stands in them.
 */
#include "sync/fleet.h"

#include <stdio.h>
#include <string.h>

#include "heft/experts.h"

void heft__family_note_table(heft__family_t *family, uint32_t rank, const heft_manifest_t *manifest)
{
    const char *table = heft_manifest_get_attr(manifest, HEFT_EXPERT_TABLE_ATTR);
    (void)snprintf(family->tables[rank], sizeof family->tables[rank], "%s",
                   table != NULL ? table : "");
}

static const char *table_of(const heft__fleet_t *fleet, const heft__link_t *link)
{
    return fleet->families[link->family].tables[link->rank];
}

/* Of "destination.JOB.REPLICA.RANK" all but the rank is equal. */
static bool is_one_engine(const heft__link_t *a, const heft__link_t *b)
{
    const char *dot = strrchr(a->id, '.');
    const size_t n = dot != NULL ? (size_t)(dot - a->id) + 1 : 0;
    return n > 0 && strncmp(a->id, b->id, n) == 0 && strchr(b->id + n, '.') == NULL;
}

/* The first of the same engine that declares a table; `link` itself, if no other does. */
static const heft__link_t *find_first(const heft__fleet_t *fleet, const heft__link_t *link)
{
    for (uint32_t i = 0; &fleet->links[i] != link; i++) {
        const heft__link_t *other = &fleet->links[i];
        if (table_of(fleet, other)[0] != '\0' && is_one_engine(link, other)) {
            return other;
        }
    }
    return link;
}

heft_status_t heft__fleet_check_tables(const heft__fleet_t *fleet, heft__problems_t *problems,
                                       heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        const char *table = table_of(fleet, link);
        const heft__link_t *first = table[0] != '\0' ? find_first(fleet, link) : link;
        if (strcmp(table_of(fleet, first), table) == 0) {
            continue;
        }
        char text[400];
        (void)snprintf(text, sizeof text,
                       "%s and %s are of one engine and have different tables of experts (%.8s, "
                       "%.8s): a rank has not announced the new one",
                       first->id, link->id, table_of(fleet, first), table);
        (void)!heft__problems_add(problems, HEFT__PROBLEM_MANIFEST, NULL, "%s", text);
        status = heft__error_set(err, HEFT_ERR_MISMATCH, "%.230s", text);
    }
    return status;
}
