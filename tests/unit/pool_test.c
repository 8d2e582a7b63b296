/* The workers (api/pool.c) and cancel points (base/cancel.h): which jobs wait for which, and which are told to end.
 * Jobs wait at gates, so that nothing here depends on how fast a machine is. */
#include "api/job.h"
#include "base/cancel.h"
#include "base/health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4, MANY = 300 }; /* more than are compared when one is chosen */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t begun, ended;
static bool open_gate;

static const struct hearth_route reply = {.flags = HEARTH_ROUTE_REPLY}, count = {.flags = HEARTH_ROUTE_COUNT};

static void pass_gate(struct hearth_job *job) {
    (void)job;
    pthread_mutex_lock(&mutex);
    begun++;
    pthread_cond_broadcast(&changed);
    while (!open_gate) {
        pthread_cond_wait(&changed, &mutex);
    }
    ended++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static atomic_bool spin;

static void spin_on(struct hearth_job *job) {
    (void)job;
    while (atomic_load(&spin)) {
    }
}

static bool short_ran;

static void run_short(struct hearth_job *job) {
    (void)job;
    pthread_mutex_lock(&mutex);
    short_ran = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_begun(size_t n) {
    pthread_mutex_lock(&mutex);
    while (begun < n) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void reset(void) {
    begun = ended = 0;
    open_gate = short_ran = false;
}

static void release_gate(void) {
    pthread_mutex_lock(&mutex);
    open_gate = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* Pushes jobs that fill all workers they may have; then a short one runs while they are still there. */
static void keeps_one(const struct hearth_job *like, size_t most) {
    static struct hearth_job jobs[MANY];
    struct hearth_job brief = {.route = &reply, .pool_run = run_short};
    struct hearth_api_pool *pool = hearth_api_pool_create(THREADS);
    assert_non_null(pool);
    reset();
    brief.caller.tenant.id = like->caller.tenant.id + 1;
    for (size_t i = 0; i < MANY; i++) {
        jobs[i] = *like;
        jobs[i].pool_run = pass_gate;
        hearth_api_pool_push(pool, &jobs[i]);
    }
    wait_begun(most);
    hearth_api_pool_push(pool, &brief);
    pthread_mutex_lock(&mutex);
    while (!short_ran) { /* for ever, where no worker is kept for it */
        pthread_cond_wait(&changed, &mutex);
    }
    assert_int_equal(begun, most);
    pthread_mutex_unlock(&mutex);
    release_gate();
    hearth_api_pool_destroy(pool); /* runs what is queued */
    assert_int_equal(ended, MANY);
}

static void a_worker_is_kept_for_what_is_short(void **state) {
    (void)state;
    keeps_one(&(struct hearth_job){.route = &reply, .is_long = true}, THREADS - 1);
}

static void two_are_kept_from_those_that_count(void **state) {
    (void)state;
    keeps_one(&(struct hearth_job){.route = &count}, THREADS - 2);
}

static void a_worker_is_kept_for_another_key(void **state) {
    (void)state;
    keeps_one(&(struct hearth_job){.route = &reply, .caller.tenant.id = 7}, THREADS - 1);
}

/* ---- stacks ---- */

static uintptr_t deepest;

/* Fills so many frames of 64 KiB. */
static size_t dig(size_t depth) {
    volatile char frame[65536];
    for (size_t i = 0; i < sizeof frame; i += 1024) {
        frame[i] = (char)depth;
    }
    deepest = (uintptr_t)__builtin_frame_address(0);
    return depth > 0 ? dig(depth - 1) + (size_t)frame[1024] : 0;
}

static void dig_deep(struct hearth_job *job) {
    (void)job;
    (void)dig(256);
}

static unsigned char resident = 1;

static void look_down(struct hearth_job *job) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)job;
    assert_int_equal(mincore((void *)(deepest / page * page), page, &resident), 0);
}

static void a_stack_that_was_deep_is_given_back(void **state) {
    struct hearth_job jobs[] = {{.route = &reply, .pool_run = dig_deep}, {.route = &reply, .pool_run = look_down}};
    struct hearth_api_pool *pool = hearth_api_pool_create(1);
    (void)state;
    assert_non_null(pool);
    hearth_api_pool_push(pool, &jobs[0]);
    hearth_api_pool_push(pool, &jobs[1]);
    hearth_api_pool_destroy(pool);
    assert_int_equal(resident & 1, 0);
}

static void health_tells_of_a_job_that_does_not_end(void **state) {
    struct hearth_job job = {.route = &reply, .pool_run = spin_on};
    struct hearth_api_pool *pool = hearth_api_pool_create(1);
    char message[256];
    (void)state;
    assert_non_null(pool);
    atomic_store(&spin, true);
    hearth_api_pool_push(pool, &job);
    hearth_api_pool_watch(pool, 0); /* it may take any time */
    assert_false(hearth_health_raised(HEARTH_HEALTH_PREPARATION, NULL, 0));
    while (!hearth_health_raised(HEARTH_HEALTH_PREPARATION, message, sizeof message)) {
        usleep(10000);
        hearth_api_pool_watch(pool, 1);
    }
    assert_non_null(strstr(message, "1 of 1 workers"));
    atomic_store(&spin, false);
    while (hearth_health_raised(HEARTH_HEALTH_PREPARATION, message, sizeof message)) {
        usleep(10000);
        hearth_api_pool_watch(pool, 1);
    }
    hearth_api_pool_destroy(pool);
}

/* ---- cancel points ---- */

static int answer(void *user) {
    return *(const int *)user;
}

static void work_is_told_to_end_and_stays_told(void **state) {
    int verdict = HEARTH_OK;
    struct hearth_cancel cancel = {.wanted = answer, .user = &verdict};
    (void)state;
    verdict = HEARTH_ERR_CANCELLED;
    assert_int_equal(hearth_cancel_check(), HEARTH_OK); /* nobody has entered anything */
    verdict = HEARTH_OK;
    hearth_cancel_enter(&cancel);
    assert_int_equal(hearth_cancel_check(), HEARTH_OK);
    verdict = HEARTH_ERR_CANCELLED;
    int polled = HEARTH_OK;
    for (int i = 0; i < 256; i++) {
        polled = hearth_cancel_poll() != HEARTH_OK ? HEARTH_ERR_CANCELLED : polled;
    }
    assert_int_equal(polled, HEARTH_ERR_CANCELLED);
    verdict = HEARTH_OK;
    assert_int_equal(hearth_cancel_check(), HEARTH_ERR_CANCELLED);
    assert_int_equal(hearth_cancel_poll(), HEARTH_ERR_CANCELLED);
    hearth_cancel_leave();
    assert_int_equal(hearth_cancel_check(), HEARTH_OK);
}

static void work_ends_when_its_cpu_time_is_used_up(void **state) {
    struct hearth_cancel cancel = {.cpu_us = 2000};
    (void)state;
    hearth_cancel_enter(&cancel);
    const int64_t begun_us = hearth_cancel_cpu_us();
    while (hearth_cancel_check() == HEARTH_OK) {
    }
    assert_int_equal(hearth_cancel_check(), HEARTH_ERR_EFFORT);
    assert_true(hearth_cancel_cpu_us() - begun_us >= 2000);
    hearth_cancel_leave();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_is_kept_for_what_is_short),
        cmocka_unit_test(two_are_kept_from_those_that_count),
        cmocka_unit_test(a_worker_is_kept_for_another_key),
        cmocka_unit_test(a_stack_that_was_deep_is_given_back),
        cmocka_unit_test(health_tells_of_a_job_that_does_not_end),
        cmocka_unit_test(work_is_told_to_end_and_stays_told),
        cmocka_unit_test(work_ends_when_its_cpu_time_is_used_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
