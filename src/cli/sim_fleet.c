/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers and engines by their degrees of parallelism. */
#include "cli/sim_fleet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEGREE = 65536, MAX_SHARDS = 1 << 24 };

typedef struct degree {
    const char *name;
    int64_t *value;
} degree_t;

/* ---- parsing ---- */

static degree_t *find(degree_t *degrees, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(degrees[i].name) == length && strncmp(degrees[i].name, name, length) == 0) {
            return &degrees[i];
        }
    }
    return NULL;
}

static int parse_one(const cli_args_t *args, const char *option, const char *item, size_t length,
                     degree_t *degrees, size_t n)
{
    const char *equals = memchr(item, '=', length);
    const size_t name = equals != NULL ? (size_t)(equals - item) : length;
    degree_t *degree = find(degrees, n, item, name);
    char *end = NULL;
    if (equals == NULL || degree == NULL) {
        return cli_fail(args, CLI_USAGE, "--%s: \"%.*s\" is not NAME=NUMBER of a degree (%s, ..)",
                        option, (int)length, item, degrees[0].name);
    }
    if (*degree->value != 0) {
        return cli_fail(args, CLI_USAGE, "--%s: %s is given twice: %lld, and \"%.*s\"", option,
                        degree->name, (long long)*degree->value, (int)length, item);
    }
    const bool is_digit = equals[1] >= '0' && equals[1] <= '9'; /* strtol skips blanks */
    const long value = is_digit ? strtol(equals + 1, &end, 10) : 0;
    if (end != item + length || value < 1 || value > MAX_DEGREE) {
        return cli_fail(args, CLI_USAGE, "--%s: \"%.*s\" is no number from 1 to %d", option,
                        (int)length, item, MAX_DEGREE);
    }
    *degree->value = value;
    return CLI_OK;
}

static int parse(const cli_args_t *args, const char *option, const char *text, degree_t *degrees,
                 size_t n)
{
    for (size_t i = 0; i < n; i++) {
        *degrees[i].value = 0;
    }
    int code = CLI_OK;
    for (const char *item = text; code == CLI_OK && item != NULL && *text != '\0';) {
        const size_t length = strcspn(item, ",");
        code = parse_one(args, option, item, length, degrees, n);
        item = item[length] == ',' ? item + length + 1 : NULL;
    }
    for (size_t i = 0; i < n; i++) {
        *degrees[i].value = *degrees[i].value > 0 ? *degrees[i].value : 1;
    }
    return code;
}

/* n: ranks; share: those that experts are dealt to, which `what` is. */
static int check_ranks(const cli_args_t *args, const char *option, int64_t n, const char *what,
                       int64_t share, int64_t ep)
{
    if (n > MAX_DEGREE) {
        return cli_fail(args, CLI_USAGE, "--%s: %" PRId64 " ranks, at most %d", option, n,
                        MAX_DEGREE);
    }
    if (share % ep != 0) {
        return cli_fail(args, CLI_USAGE, "--%s: %s = %" PRId64 " does not divide by ep = %" PRId64,
                        option, what, share, ep);
    }
    return CLI_OK;
}

int sim_trainer_parse(const cli_args_t *args, const char *text, sim_trainer_t *trainer)
{
    degree_t degrees[] = { { "fsdp", &trainer->fsdp },
                           { "hsdp", &trainer->hsdp },
                           { "tp", &trainer->tp },
                           { "ep", &trainer->ep },
                           { "pp", &trainer->pp } };
    int code = parse(args, "trainer", text, degrees, CLI_COUNT(degrees));
    if (code != CLI_OK) {
        return code;
    }
    const int64_t replica = trainer->fsdp * trainer->tp;
    const int64_t n = replica <= MAX_DEGREE ? replica * trainer->hsdp * trainer->pp : replica;
    trainer->n_ranks = (uint32_t)n;
    return check_ranks(args, "trainer", n, "fsdp * tp", replica, trainer->ep);
}

int sim_engine_parse(const cli_args_t *args, const char *text, sim_engine_t *engine)
{
    degree_t degrees[] = { { "tp", &engine->tp },
                           { "dp", &engine->dp },
                           { "ep", &engine->ep },
                           { "replicas", &engine->replicas } };
    int code = parse(args, "engine", text, degrees, CLI_COUNT(degrees));
    if (code != CLI_OK) {
        return code;
    }
    const int64_t n = engine->tp * engine->dp;
    engine->n_ranks = (uint32_t)n;
    return check_ranks(args, "engine", n * engine->replicas, "tp * dp", n, engine->ep);
}

/* ---- shards ---- */

typedef struct dealer {
    const sim_trainer_t *trainer;
    const sim_model_t *model;
    heft_shard_t *shards;
    size_t n, cap;
    bool is_full; /* no memory, or too many */
} dealer_t;

/* One part of n, one after the other, each as long as the first but for the last ones. */
static void cut(int64_t begin, int64_t end, int64_t n, int64_t i, int64_t *from, int64_t *to)
{
    const int64_t length = end - begin;
    const int64_t chunk = (length + n - 1) / n;
    *from = begin + (i * chunk < length ? i * chunk : length);
    *to = begin + ((i + 1) * chunk < length ? (i + 1) * chunk : length);
}

static void add(dealer_t *d, const sim_tensor_t *tensor, int64_t rank, const heft_shard_t *box)
{
    const int last = tensor->shape.rank - 1; /* of one dimension, or of two */
    if (box->begin[0] == box->end[0] || box->begin[last] == box->end[last] || d->is_full) {
        return;
    }
    if (d->n == d->cap) {
        d->cap = d->cap == 0 ? 4096 : d->cap * 2;
        heft_shard_t *grown = d->n < MAX_SHARDS ? realloc(d->shards, d->cap * sizeof *grown) : NULL;
        d->is_full = grown == NULL;
        if (grown == NULL) {
            return;
        }
        d->shards = grown;
    }
    d->shards[d->n] = *box;
    d->shards[d->n].tensor = tensor->name;
    d->shards[d->n++].rank = (uint32_t)rank;
}

static heft_shard_t whole(const sim_tensor_t *tensor)
{
    heft_shard_t box = { .tensor = NULL };
    for (int d = 0; d < tensor->shape.rank; d++) {
        box.end[d] = tensor->shape.extent[d];
    }
    return box;
}

static int64_t stage_of(const dealer_t *d, const sim_tensor_t *tensor)
{
    const int64_t layers = d->model->shape.layers;
    const int64_t layer = tensor->layer < layers ? tensor->layer : layers - 1;
    return layer < 0 ? 0 : layer * d->trainer->pp / layers;
}

/* The box of the rank at (f, t) of a replica. */
static heft_shard_t dense_box(const sim_trainer_t *trainer, const sim_tensor_t *tensor, int64_t f,
                              int64_t t)
{
    heft_shard_t box = whole(tensor);
    if (tensor->split != SIM_WHOLE) {
        const int64_t extent = tensor->shape.extent[tensor->split];
        cut(0, extent, trainer->tp, t, &box.begin[tensor->split], &box.end[tensor->split]);
    }
    cut(box.begin[0], box.end[0], trainer->fsdp, f, &box.begin[0], &box.end[0]);
    return box;
}

/* The same of an expert's tensor; empty where the rank has none of it. */
static heft_shard_t expert_box(const dealer_t *d, const sim_tensor_t *tensor, int64_t f, int64_t t)
{
    const sim_trainer_t *trainer = d->trainer;
    const int64_t at = f * trainer->tp + t;
    const int64_t sharers = trainer->fsdp * trainer->tp / trainer->ep;
    int64_t first;
    int64_t end;
    heft_shard_t box = whole(tensor);
    cut(0, d->model->shape.experts, trainer->ep, at % trainer->ep, &first, &end);
    const bool by_rows = trainer->ep > 1 && end - first < sharers;
    if (by_rows) {
        cut(0, box.end[0], sharers, at / trainer->ep, &box.begin[0], &box.end[0]);
    } else {
        cut(first, end, sharers, at / trainer->ep, &first, &end);
    }
    if (tensor->expert < first || tensor->expert >= end) {
        box.end[0] = box.begin[0];
    }
    return box;
}

static void deal(dealer_t *d, const sim_tensor_t *tensor)
{
    const sim_trainer_t *trainer = d->trainer;
    const int64_t replica = trainer->fsdp * trainer->tp;
    const int64_t first = stage_of(d, tensor) * trainer->hsdp * replica;
    for (int64_t f = 0; f < trainer->fsdp; f++) {
        for (int64_t t = 0; t < trainer->tp; t++) {
            const heft_shard_t box = tensor->expert >= 0 ? expert_box(d, tensor, f, t)
                                                         : dense_box(trainer, tensor, f, t);
            for (int64_t h = 0; h < trainer->hsdp; h++) {
                add(d, tensor, first + h * replica + f * trainer->tp + t, &box);
            }
        }
    }
}

int sim_trainer_shards(const cli_args_t *args, const sim_trainer_t *trainer,
                       const sim_model_t *model, heft_shard_t **shards_out, uint32_t *n_out)
{
    dealer_t d = { .trainer = trainer, .model = model };
    for (uint32_t i = 0; i < model->n_tensors && !d.is_full; i++) {
        deal(&d, &model->tensors[i]);
    }
    if (d.is_full) {
        const bool is_many = d.n >= MAX_SHARDS;
        free(d.shards);
        return is_many ? cli_fail(args, CLI_DATA, "the trainer's ranks hold more than %d boxes",
                                  MAX_SHARDS)
                       : cli_out_of_memory(args);
    }
    *shards_out = d.shards;
    *n_out = (uint32_t)d.n;
    return CLI_OK;
}
