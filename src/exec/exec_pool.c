/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread pool of runs: workers sleep on a condition until a run begins, and the caller works
 * along as thread 0. A pool of one thread has no workers and takes no lock.
 *
 * generation counts runs; a worker takes part in each generation exactly once. Signals are blocked
 * in workers, so that a program's handlers run on its own threads.
 */
#include "exec/exec.h"

typedef struct worker {
    heft__pool_t *pool;
    pthread_t thread;
    uint32_t index;
} worker_t;

struct heft__pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* generation or stop changed */
    pthread_cond_t idle; /* n_busy reached 0 */
    heft__pool_fn_t fn;
    void *arg;
    uint64_t generation;
    uint32_t n_busy;
    uint32_t n_threads;
    uint32_t n_workers; /* started */
    bool stop;
    worker_t *workers;
};

static void *worker_main(void *arg)
{
    const worker_t *self = arg;
    heft__pool_t *pool = self->pool;
    uint64_t seen = 0;
    (void)pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->generation == seen) {
            (void)pthread_cond_wait(&pool->wake, &pool->lock);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->generation;
        heft__pool_fn_t fn = pool->fn;
        void *fn_arg = pool->arg;
        (void)pthread_mutex_unlock(&pool->lock);
        fn(fn_arg, self->index);
        (void)pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0) {
            (void)pthread_cond_signal(&pool->idle);
        }
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static heft_status_t start_workers(heft__pool_t *pool, heft_error_t *err)
{
    int rc = 0;
    for (uint32_t i = 0; i + 1 < pool->n_threads && rc == 0; i++) {
        worker_t *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i + 1;
        rc = heft__thread_create(&worker->thread, worker_main, worker);
        pool->n_workers += rc == 0 ? 1 : 0;
    }
    if (rc != 0) {
        return heft__error_set_sys(err, HEFT_ERR_BUSY, rc, "cannot start thread %u of %u",
                                   pool->n_workers + 2, pool->n_threads);
    }
    return HEFT_OK;
}

heft_status_t heft__pool_create(uint32_t n_threads, heft__pool_t **pool_out, heft_error_t *err)
{
    if (n_threads == 0 || n_threads > HEFT__EXEC_MAX_THREADS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "%u threads asked for, 1 to %u are possible",
                               n_threads, HEFT__EXEC_MAX_THREADS);
    }
    heft__pool_t *pool = heft__calloc(1, sizeof *pool);
    if (pool == NULL) {
        return heft__error_nomem(err, sizeof *pool);
    }
    pool->n_threads = n_threads;
    pool->workers = heft__calloc(n_threads, sizeof *pool->workers);
    if (pool->workers == NULL) {
        heft__free(pool);
        return heft__error_nomem(err, n_threads * sizeof *pool->workers);
    }
    /* Default attributes: cannot fail on Linux. */
    (void)pthread_mutex_init(&pool->lock, NULL);
    (void)pthread_cond_init(&pool->wake, NULL);
    (void)pthread_cond_init(&pool->idle, NULL);
    heft_status_t status = start_workers(pool, err);
    if (status != HEFT_OK) {
        heft__pool_destroy(pool);
        return status;
    }
    *pool_out = pool;
    return HEFT_OK;
}

void heft__pool_destroy(heft__pool_t *pool)
{
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->wake);
    (void)pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_workers; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&pool->idle);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    heft__free(pool->workers);
    heft__free(pool);
}

uint32_t heft__pool_get_n_threads(const heft__pool_t *pool)
{
    return pool->n_threads;
}

void heft__pool_run(heft__pool_t *pool, heft__pool_fn_t fn, void *arg)
{
    if (pool->n_workers > 0) {
        (void)pthread_mutex_lock(&pool->lock);
        pool->fn = fn;
        pool->arg = arg;
        pool->n_busy = pool->n_workers;
        pool->generation++;
        (void)pthread_cond_broadcast(&pool->wake);
        (void)pthread_mutex_unlock(&pool->lock);
    }
    fn(arg, 0);
    if (pool->n_workers > 0) {
        (void)pthread_mutex_lock(&pool->lock);
        while (pool->n_busy > 0) {
            (void)pthread_cond_wait(&pool->idle, &pool->lock);
        }
        (void)pthread_mutex_unlock(&pool->lock);
    }
}
