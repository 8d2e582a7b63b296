/* The threads that compute: pools that live as long as the context, as llama-server has them (without one ggml may
 * start threads anew for every graph), and the CPUs and the priority that they run with. */
#include "engine/llama_engine.h"

#include <stdlib.h>
#include <string.h>

/* Adds the CPUs of a mask such as "ff" to `cpus`; the last digit stands for the CPUs 0 to 3. */
static bool add_mask(const char *text, bool cpus[GGML_MAX_N_THREADS]) {
    text += strncmp(text, "0x", 2) == 0 ? 2 : 0;
    const size_t len = strlen(text);
    bool any = false;
    if (len > GGML_MAX_N_THREADS / 4 || text[strspn(text, "0123456789abcdefABCDEF")] != '\0') {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        const char digit[2] = {text[len - 1 - i], '\0'};
        const unsigned long bits = strtoul(digit, NULL, 16);
        for (size_t bit = 0; bit < 4; bit++) {
            cpus[4 * i + bit] = cpus[4 * i + bit] || (bits >> bit & 1) != 0;
        }
        any = any || bits != 0;
    }
    return any;
}

/* Adds the CPUs of a range such as "2-5". */
static bool add_range(const char *text, bool cpus[GGML_MAX_N_THREADS]) {
    char *end;
    const unsigned long first = strtoul(text, &end, 10);
    if (end == text || *end != '-' || end[1] < '0' || end[1] > '9') {
        return false;
    }
    const unsigned long last = strtoul(end + 1, &end, 10);
    if (*end != '\0' || first > last || last >= GGML_MAX_N_THREADS) {
        return false;
    }
    for (unsigned long i = first; i <= last; i++) {
        cpus[i] = true;
    }
    return true;
}

int hearth_llama_cpus_check(const struct hearth_llama_params *params, struct hearth_errmsg *msg) {
    bool cpus[GGML_MAX_N_THREADS] = {false};
    if (params->cpu_mask != NULL && !add_mask(params->cpu_mask, cpus)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "--cpu-mask: \"%s\" is no mask of CPUs in hexadecimal",
                           params->cpu_mask);
    }
    if (params->cpu_range != NULL && !add_range(params->cpu_range, cpus)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "--cpu-range: \"%s\" is no range of CPUs such as 0-3",
                           params->cpu_range);
    }
    return HEARTH_OK;
}

static struct ggml_threadpool_params pool_params(const struct hearth_llama_params *params, int32_t threads) {
    struct ggml_threadpool_params p = ggml_threadpool_params_default(threads);
    if (params->cpu_mask != NULL) {
        (void)add_mask(params->cpu_mask, p.cpumask);
    }
    if (params->cpu_range != NULL) {
        (void)add_range(params->cpu_range, p.cpumask);
    }
    p.strict_cpu = params->cpu_strict;
    p.prio = (enum ggml_sched_priority)params->priority;
    return p;
}

void hearth_llama_attach_threads(struct hearth_llama *llama, const struct hearth_llama_params *params) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == NULL) {
        return;
    }
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu);
    /* ISO C has no conversion from an object pointer to a function pointer; POSIX has. */
    union {
        void *object;
        struct ggml_threadpool *(*create)(struct ggml_threadpool_params *params);
        void (*destroy)(struct ggml_threadpool *pool);
    } create = {ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new")},
      destroy = {ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_free")};
    if (create.object == NULL || destroy.object == NULL) {
        return;
    }
    llama->pool_free = destroy.destroy;
    struct ggml_threadpool_params p = pool_params(params, params->threads);
    if (params->threads_batch != params->threads) {
        struct ggml_threadpool_params batch = pool_params(params, params->threads_batch);
        llama->pool_batch = create.create(&batch);
        if (llama->pool_batch == NULL) {
            return;
        }
        p.paused = true;
    }
    llama->pool = create.create(&p);
    if (llama->pool != NULL) {
        llama_attach_threadpool(llama->ctx, llama->pool, llama->pool_batch);
    }
}
