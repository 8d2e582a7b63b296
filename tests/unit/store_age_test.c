/* The store's own time: conversations go by the time that passes, and no clock deletes them. */
#include "store_stage.h"

#include "base/health.h"

#define SECOND ((int64_t)1000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)

static int64_t wall, elapsed;

static int64_t wall_us(void) {
    return wall;
}

static int64_t elapsed_us(void) {
    return elapsed;
}

static const struct hearth_session_clock clock_here = {.unix_us = wall_us, .elapsed_us = elapsed_us};

static struct hearth_session_store *open_here(void) {
    const struct hearth_session_store_params params = {
        .path = path, .ttl_us = 30 * DAY, .grace_us = 7 * DAY, .clock = &clock_here};
    struct hearth_session_store *store;
    struct hearth_errmsg msg = {.text = ""};
    if (hearth_session_store_create(&params, &store, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return store;
}

static int begin(void **state) {
    wall = (int64_t)1800000000 * SECOND;
    elapsed = 5 * DAY;
    hearth_health_clear(HEARTH_HEALTH_CLOCK);
    return set_up(state);
}

/* Time passes on both clocks, and the server sweeps. Returns how much it has deleted. */
static int pass(struct hearth_session_store *store, int64_t us) {
    int deleted = 0;
    for (int64_t left = us; left > 0; left -= HOUR) {
        const int64_t step = left < HOUR ? left : HOUR;
        wall += step;
        elapsed += step;
        for (int n = 1; n > 0; deleted += n) {
            n = hearth_session_store_sweep(store, 64);
            assert_true(n >= 0);
        }
    }
    return deleted;
}

static bool clock_is_told(void) {
    return hearth_health_raised(HEARTH_HEALTH_CLOCK, NULL, 0);
}

static size_t listed(struct hearth_session_store *store, bool expired) {
    const struct hearth_session_query query = {.owner = alice, .expired = expired};
    struct hearth_session *list;
    size_t count, found = 0;
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    for (size_t i = 0; i < count; i++) {
        found += list[i].expired == expired;
        hearth_session_finish(&list[i]);
    }
    free(list);
    return found;
}

static void fill(struct hearth_session_store *store, int count) {
    char name[32];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "s%d", i);
        (void)say(store, none, name, "a");
    }
}

static void a_clock_that_jumps_deletes_nothing(void **state) {
    (void)state;
    static const int64_t jumps[] = {31 * DAY, 4000 * DAY, -31 * DAY, -20000 * DAY};
    struct hearth_session_store *store = open_here();
    fill(store, 5);
    for (size_t i = 0; i < sizeof jumps / sizeof jumps[0]; i++) {
        wall += jumps[i];
        assert_int_equal(pass(store, 20 * SECOND), 0);
        assert_true(clock_is_told());
        assert_int_equal(pass(store, 2 * HOUR), 0); /* believed by now, and still nobody is older */
        assert_false(clock_is_told());
        wall += jumps[i];
        hearth_session_store_destroy(store); /* and from one life to the next */
        store = open_here();
        assert_true(clock_is_told());
        assert_int_equal(pass(store, 2 * HOUR), 0);
        assert_false(clock_is_told());
        assert_int_equal(listed(store, false), 5);
    }
    hearth_session_store_destroy(store);
}

static void what_was_said_under_a_wrong_clock_stays(void **state) {
    (void)state;
    wall = 1000 * SECOND; /* 1970 */
    struct hearth_session_store *store = open_here();
    fill(store, 3);
    wall += 20000 * DAY; /* set right */
    assert_int_equal(pass(store, 10 * DAY), 0);
    hearth_session_store_destroy(store);
    store = open_here();
    assert_int_equal(pass(store, 10 * DAY), 0);
    assert_int_equal(listed(store, false), 3);
    assert_int_equal(pass(store, 11 * DAY), 0);
    assert_int_equal(listed(store, false), 0);
    assert_true(pass(store, 7 * DAY) > 0);
    assert_int_equal(stats_of(store).sessions, 0);
    hearth_session_store_destroy(store);
}

static void the_week_before_it_is_deleted(void **state) {
    (void)state;
    struct hearth_session_store *store = open_here();
    fill(store, 4);
    assert_int_equal(pass(store, 30 * DAY + 2 * HOUR), 0);
    assert_int_equal(listed(store, false), 0);
    assert_int_equal(listed(store, true), 4);
    assert_int_equal(hearth_session_restore(store, alice, "s1"), 1);
    assert_int_equal(hearth_session_restore(store, alice, "nobody"), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_restore(store, bob, "s2"), HEARTH_ERR_NOT_FOUND);
    struct hearth_session session;
    assert_int_equal(hearth_session_get(store, alice, "s2", &session), HEARTH_OK); /* use is enough */
    assert_true(session.expired);
    hearth_session_finish(&session);
    assert_int_equal(pass(store, HOUR), 0);
    assert_int_equal(listed(store, false), 2);
    assert_true(pass(store, 7 * DAY) > 0);
    assert_int_equal(listed(store, true), 0);
    assert_int_equal(stats_of(store).sessions, 2);
    assert_int_equal(stats_of(store).turns, 2); /* what was restored holds up nothing behind it */
    assert_int_equal(pass(store, 24 * DAY), 0);
    assert_int_equal(hearth_session_restore(store, none, NULL), 2);
    assert_int_equal(listed(store, false), 2);
    assert_int_equal(pass(store, 36 * DAY), 0);
    assert_true(pass(store, 2 * DAY) > 0);
    assert_int_equal(stats_of(store).turns, 0);
    hearth_session_store_destroy(store);
}

static void a_day_takes_a_share(void **state) {
    (void)state;
    struct hearth_session_store *store = open_here();
    fill(store, 250);
    assert_int_equal(pass(store, 37 * DAY - 2 * HOUR), 0);
    assert_true(pass(store, 12 * HOUR) > 0);
    assert_int_equal(stats_of(store).sessions, 150);
    hearth_session_store_destroy(store);
    store = open_here(); /* counted in the database */
    assert_int_equal(pass(store, HOUR), 0);
    assert_int_equal(stats_of(store).sessions, 150);
    for (int day = 0; day < 6; day++) { /* sessions and turns each count */
        const uint64_t before = stats_of(store).sessions;
        (void)pass(store, DAY);
        assert_true(before - stats_of(store).sessions <= 100);
    }
    assert_int_equal(stats_of(store).sessions, 0);
    assert_int_equal(stats_of(store).turns, 0);
    hearth_session_store_destroy(store);
}

static void time_off_counts_a_day_at_most(void **state) {
    (void)state;
    struct hearth_session_store *store = open_here();
    fill(store, 2);
    for (int i = 0; i < 29; i++) { /* off at night */
        assert_int_equal(pass(store, 12 * HOUR), 0);
        hearth_session_store_destroy(store);
        wall += 12 * HOUR;
        elapsed += i % 2 ? 12 * HOUR : -elapsed + 1; /* also when the machine was off */
        store = open_here();
        assert_false(clock_is_told());
    }
    assert_int_equal(listed(store, false), 2);
    assert_int_equal(pass(store, 2 * DAY), 0);
    assert_int_equal(listed(store, false), 0);
    hearth_session_store_destroy(store);
}

static void two_processes_do_not_age_twice(void **state) {
    (void)state;
    struct hearth_session_store *store = open_here(), *other = open_here();
    fill(store, 2);
    for (int i = 0; i < 28; i++) {
        assert_int_equal(pass(store, 12 * HOUR), 0);
        assert_int_equal(pass(other, 12 * HOUR), 0);
    }
    assert_int_equal(listed(store, false), 2);
    assert_int_equal(listed(other, false), 2);
    assert_true(hearth_health_raised(HEARTH_HEALTH_SESSION_SHARED, NULL, 0));
    hearth_session_store_destroy(other);
    assert_int_equal(pass(store, HOUR), 0);
    assert_false(hearth_health_raised(HEARTH_HEALTH_SESSION_SHARED, NULL, 0));
    hearth_session_store_destroy(store);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_clock_that_jumps_deletes_nothing), TEST(what_was_said_under_a_wrong_clock_stays),
        TEST(the_week_before_it_is_deleted),      TEST(a_day_takes_a_share),
        TEST(time_off_counts_a_day_at_most),      TEST(two_processes_do_not_age_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
