/* Memory that fails: SQLite's n-th allocation, for each n until an operation needs no more of them. It fails, or it has
 * done its work; and the store goes on. */
#include "store_stage.h"

#include "base/health.h"

#include <limits.h>

static sqlite3_mem_methods real;
static atomic_long left; /* allocations until they fail; negative: they do not */
static atomic_bool failed;

static bool fails(void) {
    if (left < 0) {
        return false;
    }
    if (left == 0) {
        failed = true;
        return true; /* and all that follow, until the operation is over */
    }
    left--;
    return false;
}

static void *get(int n) {
    return fails() ? NULL : real.xMalloc(n);
}

static void *grow(void *old, int n) {
    return fails() ? NULL : real.xRealloc(old, n);
}

static struct hearth_session_store *store;
static struct hearth_digest first, last;
static int number;

static int put(void) {
    char name[32];
    snprintf(name, sizeof name, "s%d", number++);
    const struct said said = {
        .owner = alice, .id = hearth_turn_new_id(), .session = name, .text = "text", .config = "{}"};
    const int err = try_put(store, &said);
    if (err == HEARTH_OK) {
        last = said.id;
    }
    return err;
}

static int get_turn(void) {
    struct hearth_turn turn;
    const int err = hearth_turn_get(store, alice, first, &turn);
    if (err == HEARTH_OK) {
        assert_string_equal((const char *)turn.body.data, "the first");
    }
    hearth_turn_finish(&turn);
    return err;
}

static int get_line(void) {
    struct hearth_line line;
    const int err = hearth_line_get(store, alice, first, &line);
    if (err == HEARTH_OK) {
        assert_int_equal(line.count, 1);
    }
    hearth_line_finish(&line);
    return err;
}

static int list(void) {
    const struct hearth_session_query query = {.owner = alice};
    struct hearth_session *all;
    size_t count;
    const int err = hearth_session_list(store, &query, &all, &count);
    assert_true(err != HEARTH_OK || count > 0);
    for (size_t i = 0; i < count; i++) {
        hearth_session_finish(&all[i]);
    }
    free(all);
    return err;
}

static int delete_one(void) {
    const int err = hearth_turn_delete(store, alice, last);
    return err == HEARTH_ERR_NOT_FOUND ? HEARTH_OK : err;
}

static int sweep(void) {
    const int count = hearth_session_store_sweep(store, 10);
    return count < 0 ? count : HEARTH_OK;
}

static int reopen(void) {
    hearth_session_store_destroy(store);
    const struct hearth_session_store_params params = {.path = path};
    return hearth_session_store_create(&params, &store, NULL);
}

/* Fails every allocation of an operation, the first one first; of thousands of them, one in `sparse` of those so far.
 */
static void every_one(const char *name, int (*operation)(void), long sparse) {
    long n = 0;
    for (bool more = true; more; n += 1 + n / sparse) {
        failed = false;
        left = n;
        int err = operation();
        left = -1;
        more = failed;
        assert_true(err == HEARTH_OK || (failed && (err == HEARTH_ERR_NOMEM || err == HEARTH_ERR_IO)));
        if (store == NULL) {
            assert_int_equal(reopen(), HEARTH_OK);
        }
        assert_int_equal(get_turn(), HEARTH_OK); /* no transaction is left open */
        assert_int_equal(put(), HEARTH_OK);
        assert_text(store, last, "text");
    }
    printf("%s: %ld allocations\n", name, n);
    assert_true(n > 1);
}

static void every_allocation(bool in_memory) {
    store = open_with(in_memory ? NULL : path, NULL, 0);
    first = say(store, none, "work", "the first");
    every_one("put", put, LONG_MAX);
    every_one("get", get_turn, LONG_MAX);
    every_one("line", get_line, LONG_MAX);
    every_one("list", list, LONG_MAX);
    every_one("delete", delete_one, LONG_MAX);
    every_one("sweep", sweep, LONG_MAX);
    if (!in_memory) {
        every_one("open", reopen, 20);
    }
    assert_text(store, first, "the first");
    hearth_session_store_destroy(store);
    assert_false(hearth_health_raised(HEARTH_HEALTH_SESSION_DB, NULL, 0));
}

static void on_disk(void **state) {
    (void)state;
    every_allocation(false);
    assert_int_equal(sql_number("SELECT count(*) FROM pragma_quick_check WHERE quick_check <> 'ok'"), 0);
}

static void in_memory(void **state) {
    (void)state;
    every_allocation(true);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(on_disk),
        TEST(in_memory),
    };
    left = -1;
    sqlite3_mem_methods own;
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real) != SQLITE_OK) {
        return 1;
    }
    own = real;
    own.xMalloc = get;
    own.xRealloc = grow;
    return sqlite3_config(SQLITE_CONFIG_MALLOC, &own) != SQLITE_OK ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
