/* The store over PostgreSQL, where that differs from a file: locks, connections that are lost, several boxes. Without a
 * server (HEARTH_TEST_PG) all are skipped. */
#include "store_stage.h"

#include "base/health.h"
#include "session/db_pg.h"
#include "session/store_internal.h"

#include <sys/wait.h>

#define SKIP_WITHOUT_SERVER() \
    do {                      \
        (void)state;          \
        if (!on_server()) {   \
            skip();           \
        }                     \
    } while (0)

/* Ends every connection but our own, as a restart of the server does. */
static void cut(void) {
    (void)server_sql("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                     " WHERE pid <> pg_backend_pid() AND application_name = 'hearth'");
}

static void a_name_tells_no_password(void **state) {
    (void)state;
    static const struct {
        const char *url, *name;
    } cases[] = {
        {"postgresql://box:secret@db.example:5433/talk", "postgresql://box@db.example:5433/talk"},
        {"postgres://db/talk?password=secret&user=box", "postgresql://box@db/talk"},
        {"postgresql:///talk?host=/run/postgresql", "postgresql:///run/postgresql/talk"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = hearth_db_pg_name(cases[i].url);
        assert_true(hearth_db_is_pg(cases[i].url));
        assert_non_null(strstr(name, "talk"));
        assert_null(strstr(name, "secret"));
        assert_string_equal(name, cases[i].name);
        free(name);
    }
    assert_null(hearth_db_pg_name("postgresql://host:port:extra/%zz"));
    assert_false(hearth_db_is_pg("/var/lib/postgresql://x"));
    assert_false(hearth_db_is_pg(NULL));
}

static void a_lost_connection_is_opened_again(void **state) {
    SKIP_WITHOUT_SERVER();
    struct hearth_session_store *store = open_plain();
    const struct hearth_digest first = say(store, none, "work", "one");
    cut();
    assert_text(store, first, "one");
    cut();
    const struct hearth_digest second = say(store, first, "work", "two");
    cut();
    assert_letters(store, second, "onetwo");
    hearth_session_store_destroy(store);
}

static void a_conversation_is_locked_for_other_boxes(void **state) {
    SKIP_WITHOUT_SERVER();
    struct hearth_session_store *store = open_plain(), *other = open_plain();
    struct hearth_session_lock lock, theirs, another;
    assert_int_equal(hearth_session_lock(store, alice, "work", &lock), 1);
    assert_int_equal(hearth_session_lock(other, alice, "work", &theirs), 0);
    assert_int_equal(hearth_session_lock(other, bob, "work", &another), 1);
    hearth_session_unlock(store, &lock);
    assert_int_equal(hearth_session_lock(other, alice, "work", &theirs), 0); /* not yet */
    struct hearth_session_lock again;
    assert_int_equal(hearth_session_lock(store, alice, "work", &again), 1); /* the next turn has it */
    hearth_session_unlock(store, &lock);
    hearth_session_flush_locks(store);
    assert_int_equal(hearth_session_lock(other, alice, "work", &theirs), 0);
    hearth_session_unlock(store, &again);
    hearth_session_flush_locks(store);
    assert_int_equal(hearth_session_lock(other, alice, "work", &theirs), 1);
    hearth_session_unlock(other, &theirs);
    hearth_session_unlock(other, &another);
    hearth_session_store_destroy(store);
    hearth_session_store_destroy(other);
}

static void wait_for_no_lock(void) {
    for (int i = 0; sql_number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") > 0; i++) {
        assert_true(i < 1000);
        usleep(10000);
    }
}

static void a_lock_ends_with_its_process(void **state) {
    SKIP_WITHOUT_SERVER();
    int status;
    hearth_session_store_destroy(open_plain());
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct hearth_session_store *mine = open_plain();
        struct hearth_session_lock lock;
        _exit(hearth_session_lock(mine, alice, "work", &lock) == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    wait_for_no_lock();
    struct hearth_session_store *store = open_plain();
    struct hearth_session_lock lock;
    assert_int_equal(hearth_session_lock(store, alice, "work", &lock), 1);
    hearth_session_unlock(store, &lock);
    hearth_session_store_destroy(store);
}

static int put_with_lock(struct hearth_session_store *store, struct hearth_digest parent,
                         struct hearth_session_lock *lock) {
    const struct said said = {.owner = alice,
                              .id = hearth_turn_new_id(),
                              .parent = parent,
                              .session = "work",
                              .text = "x",
                              .no_tokens = true,
                              .status = HEARTH_TURN_COMPLETED};
    struct hearth_turn turn = turn_of(&said);
    turn.lock = *lock;
    const int err = hearth_turn_put(store, &turn, NULL);
    hearth_turn_finish(&turn);
    hearth_session_unlock(store, lock);
    hearth_session_flush_locks(store);
    return err;
}

static void a_lock_that_was_lost_is_found_out(void **state) {
    SKIP_WITHOUT_SERVER();
    struct hearth_session_store *store = open_plain(), *other = open_plain();
    struct hearth_session_lock lock, theirs;
    const struct hearth_digest first = say(store, none, "work", "one");
    assert_int_equal(hearth_session_lock(store, alice, "work", &lock), 1);
    cut(); /* nothing has happened meanwhile: it is taken again */
    assert_int_equal(put_with_lock(store, first, &lock), HEARTH_OK);
    const struct hearth_digest head = head_of(store, "work");
    assert_int_equal(hearth_session_lock(store, alice, "work", &lock), 1);
    cut(); /* another box has it now */
    assert_int_equal(hearth_session_lock(other, alice, "work", &theirs), 1);
    assert_int_equal(put_with_lock(store, head, &lock), HEARTH_ERR_STORE);
    hearth_session_unlock(other, &theirs);
    hearth_session_flush_locks(other);
    assert_int_equal(hearth_session_lock(store, alice, "work", &lock), 1);
    cut();
    const struct hearth_digest ahead = say(other, head, "work", "ahead"); /* and it was faster */
    assert_int_equal(put_with_lock(store, head, &lock), HEARTH_ERR_STORE);
    assert_same(head_of(store, "work"), ahead);
    hearth_session_store_destroy(store);
    hearth_session_store_destroy(other);
}

/* As every_statement_is_indexed() of a file: with an index there is no plan that reads a table from its beginning. */
static void every_statement_has_an_index(void **state) {
    SKIP_WITHOUT_SERVER();
    hearth_session_store_destroy(open_plain());
    PGconn *conn = PQconnectdb(getenv("HEARTH_TEST_PG"));
    PQclear(PQexec(conn, "SET search_path = hearth; SET enable_seqscan = off; SET enable_hashjoin = off;"
                         "SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan"));
    for (size_t i = 0; i < hearth_session_db_kind.statement_count; i++) {
        const char *own = hearth_session_db_kind.server_statements[i];
        const char *sql = own != NULL ? own : hearth_session_db_kind.statements[i];
        char text[4096], *at;
        int args = 0;
        if (i == PAGES_USED || i == COUNT_TURNS || i == COUNT_HIDDEN || i == COUNT_SESSIONS || i == COUNT_FORGETS ||
            i == COUNT_USES || i == COUNT_REQUESTS || i == REQUESTS_ALL || i == REQUESTS_TRIM || i == BOXES_DROP) {
            continue; /* they count, or are about few rows */
        }
        snprintf(text, sizeof text, "PREPARE s %sAS %s",
                 i == SESSIONS_ALL  ? "(BYTEA) "
                 : i == REQUEST_ADD ? "(TEXT, BYTEA, BYTEA, BYTEA) "
                                    : "",
                 sql);
        while ((at = strchr(text, '?')) != NULL) {
            const int number = atoi(at + 1);
            args = number > args ? number : args;
            *at = '$';
        }
        PGresult *result = PQexec(conn, text);
        if (PQresultStatus(result) != PGRES_COMMAND_OK) {
            fail_msg("%s\n%s", text, PQerrorMessage(conn));
        }
        PQclear(result);
        snprintf(text, sizeof text, "EXPLAIN (COSTS OFF) EXECUTE s%s", args > 0 ? "(" : "");
        for (int arg = 0; arg < args; arg++) {
            strcat(text, arg + 1 < args ? "NULL," : "NULL)");
        }
        result = PQexec(conn, text);
        if (PQresultStatus(result) != PGRES_TUPLES_OK) {
            fail_msg("%s\n%s", sql, PQerrorMessage(conn));
        }
        for (int row = 0; row < PQntuples(result); row++) {
            if (strstr(PQgetvalue(result, row, 0), "Seq Scan") != NULL) {
                fail_msg("%s\n%s", sql, PQgetvalue(result, row, 0));
            }
        }
        PQclear(result);
        PQclear(PQexec(conn, "DEALLOCATE s"));
    }
    PQfinish(conn);
}

static void what_is_of_another_program_is_refused(void **state) {
    SKIP_WITHOUT_SERVER();
    (void)server_sql("CREATE SCHEMA hearth; CREATE TABLE hearth.things (x INT)");
    const struct hearth_session_store_params params = {.path = path};
    struct hearth_session_store *store;
    struct hearth_errmsg msg = {.text = ""};
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_ERR_INVALID);
    (void)server_sql("DROP SCHEMA hearth CASCADE");
    hearth_session_store_destroy(open_plain());
    (void)server_sql("UPDATE hearth.steps SET taken = 1000");
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_ERR_INVALID);
    assert_non_null(strstr(msg.text, "newer"));
}

static void a_database_without_a_server_is_told(void **state) {
    (void)state;
    const struct hearth_session_store_params params = {.path = "postgresql://box:secret@127.0.0.1:9/talk"};
    struct hearth_session_store *store;
    struct hearth_errmsg msg = {.text = ""};
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_ERR_STORE);
    assert_non_null(strstr(msg.text, "postgresql://box@127.0.0.1:9/talk"));
    assert_non_null(strstr(msg.text, "refused"));
    assert_null(strstr(msg.text, "secret"));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_tells_no_password),     TEST(a_lost_connection_is_opened_again),
        TEST(a_conversation_is_locked_for_other_boxes), TEST(a_lock_ends_with_its_process),
        TEST(a_lock_that_was_lost_is_found_out),        TEST(every_statement_has_an_index),
        TEST(what_is_of_another_program_is_refused),    cmocka_unit_test(a_database_without_a_server_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
