/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading libucp. What it does to the process as it is loaded is undone where that is the process's
 * own business: its handlers for SIGSEGV and the like are taken out again unless the user asks for
 * them (UCX_HANDLE_ERRORS), and what it has to say goes to heft's log instead of standard output,
 * which belongs to results.
 */
#include "transport/ucx_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int fault_signals[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT };
enum { N_FAULT_SIGNALS = sizeof fault_signals / sizeof fault_signals[0] };

/* Written once, by `load` under pthread_once: the state of a library that stays loaded. */
static heft__ucx_api_t api;
static heft_error_t load_error = HEFT_ERROR_INIT;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static heft_log_level_t level_of(ucs_log_level_t level)
{
    if (level <= UCS_LOG_LEVEL_ERROR) {
        return HEFT_LOG_WARN; /* what it means for a round is said by heft's own error */
    }
    return level <= UCS_LOG_LEVEL_WARN ? HEFT_LOG_INFO : HEFT_LOG_DEBUG;
}

HEFT_PRINTF(6, 0)
static ucs_log_func_rc_t on_log(const char *file, unsigned line, const char *function,
                                ucs_log_level_t level, const ucs_log_component_config_t *component,
                                const char *format, va_list args)
{
    (void)function;
    (void)component;
    if (level == UCS_LOG_LEVEL_PRINT) {
        return UCS_LOG_FUNC_RC_CONTINUE; /* what was asked for by name */
    }
    char text[512];
    const char *base = strrchr(file, '/');
    (void)vsnprintf(text, sizeof text, format, args);
    heft__log(level_of(level), "ucx", "%s (UCX, %s:%u)", text, base != NULL ? base + 1 : file,
              line);
    return UCS_LOG_FUNC_RC_STOP;
}

static bool find(void *library, const char *name, void *function_out)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        (void)heft__error_set(&load_error, HEFT_ERR_UNSUPPORTED,
                              "ucx: libucp.so.0 of this host has no %s", name);
        return false;
    }
    memcpy(function_out, &symbol, sizeof symbol); /* ISO C has no cast from data to function */
    return true;
}

static void load(void)
{
    struct sigaction before[N_FAULT_SIGNALS];
    for (int i = 0; i < N_FAULT_SIGNALS; i++) {
        (void)sigaction(fault_signals[i], NULL, &before[i]);
    }
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        (void)heft__error_set(&load_error, HEFT_ERR_UNSUPPORTED,
                              "ucx: OpenUCX is not on this host (%s)", dlerror());
        return;
    }
    for (int i = 0; i < N_FAULT_SIGNALS && getenv("UCX_HANDLE_ERRORS") == NULL; i++) {
        (void)sigaction(fault_signals[i], &before[i], NULL);
    }
    heft__ucx_api_t found;
    bool ok = true;
#define FIND(name) ok = ok && find(library, #name, &found.name);
    HEFT__UCX_CALLS(FIND)
#undef FIND
    if (ok) {
        api = found;
        if (getenv("UCX_LOG_LEVEL") == NULL && getenv("UCX_LOG_FILE") == NULL) {
            api.ucs_log_push_handler(on_log);
        }
    }
}

heft_status_t heft__ucx_api_load(const heft__ucx_api_t **api_out, heft_error_t *err)
{
    (void)pthread_once(&once, load);
    if (load_error.status != HEFT_OK) {
        return heft__error_set(err, load_error.status, "%s", load_error.message);
    }
    *api_out = &api;
    return HEFT_OK;
}
