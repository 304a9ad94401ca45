/* SPDX-License-Identifier: Apache-2.0 */
/* Waits by the monotonic clock, and threads without signals. */
#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

int heft__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc == 0) {
        (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        rc = pthread_cond_init(cond, &attr);
        (void)pthread_condattr_destroy(&attr);
    }
    return rc;
}

bool heft__cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_mono_ns)
{
    const struct timespec ts = { .tv_sec = (time_t)(until_mono_ns / 1000000000),
                                 .tv_nsec = (long)(until_mono_ns % 1000000000) };
    return pthread_cond_timedwait(cond, lock, &ts) != ETIMEDOUT;
}

int heft__thread_create(pthread_t *thread_out, void *(*run)(void *arg), void *arg)
{
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(thread_out, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}
