/* A stage for tests of the store: a directory, a database in it, and turns whose tokens are the letters of their text.
 *
 * With HEARTH_TEST_PG, the URL of a PostgreSQL server (tests/client/postgres.py), the database is there, and tests that
 * are about a file are skipped. */
#ifndef HEARTH_TESTS_STORE_STAGE_H
#define HEARTH_TESTS_STORE_STAGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "session/db_sums.h"
#include "session/store.h"

#include <glob.h>
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[64], path[96];
static atomic_int warnings;
static const struct hearth_digest none, alice = {1, 1}, bob = {2, 2}, model = {7, 8}, salt = {9, 9};

static inline void count_warnings(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    warnings += level >= HEARTH_LOG_WARN;
    if (getenv("HEARTH_TEST_LOG") != NULL) {
        fprintf(stderr, "%s\n", line);
    }
}

static inline bool on_server(void) {
    return getenv("HEARTH_TEST_PG") != NULL;
}

/* The first column of the first row, as a number; 0 for none. */
static inline int64_t server_sql(const char *text) {
    PGconn *conn = PQconnectdb(getenv("HEARTH_TEST_PG"));
    PQclear(PQexec(conn, "SET search_path = hearth; SET client_min_messages = warning"));
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK) {
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    }
    const int64_t number = PQntuples(result) > 0 ? strtoll(PQgetvalue(result, 0, 0), NULL, 10) : 0;
    PQclear(result);
    PQfinish(conn);
    return number;
}

static inline int set_up(void **state) {
    (void)state;
    /* Where nothing is lost by a crash of the machine there is no disk to wait for. */
    const bool in_memory = getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0;
    strcpy(directory, in_memory ? "/dev/shm/hearth-store-XXXXXX" : "/tmp/hearth-store-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/deep/er/hearth.db", directory);
    if (on_server()) {
        snprintf(path, sizeof path, "%s", getenv("HEARTH_TEST_PG"));
        (void)server_sql("DROP SCHEMA IF EXISTS hearth CASCADE");
    }
    warnings = 0;
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_INFO);
    return 0;
}

static inline int tear_down(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static inline struct hearth_session_store *open_with(const char *at, const struct hearth_seal *seal, int64_t ttl_us) {
    const struct hearth_session_store_params params = {
        .path = at, .seal = seal, .ttl_us = ttl_us, .model = model, .place = {3, 4}};
    struct hearth_session_store *store;
    struct hearth_errmsg msg = {.text = ""};
    int err = hearth_session_store_create(&params, &store, &msg);
    if (err != HEARTH_OK) {
        fail_msg("%d: %s", err, msg.text);
    }
    return store;
}

static inline struct hearth_session_store *open_plain(void) {
    return open_with(path, NULL, 0);
}

static inline void assert_same(struct hearth_digest a, struct hearth_digest b) {
    assert_int_equal(a.lo, b.lo);
    assert_int_equal(a.hi, b.hi);
}

static inline size_t files_like(const char *pattern) {
    char full[160];
    glob_t found;
    snprintf(full, sizeof full, "%s/deep/er/%s", directory, pattern);
    size_t n = glob(full, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

/* SQL from outside, by a program that keeps the pages' sums. */
#define HOW (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)

static inline void sql(const char *text) {
    sqlite3 *db;
    char *why = NULL;
    if (on_server()) {
        (void)server_sql(text);
        return;
    }
    assert_int_equal(sqlite3_open_v2(path, &db, HOW, hearth_db_vfs()), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK) {
        fail_msg("%s: %s", text, why);
    }
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static inline int64_t sql_number(const char *text) {
    sqlite3 *db;
    sqlite3_stmt *statement;
    if (on_server()) {
        return server_sql(text);
    }
    assert_int_equal(sqlite3_open_v2(path, &db, HOW, hearth_db_vfs()), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return number;
}

/* The error of opening, which says so; nothing was moved away. */
static inline int fails_to_open(const char *says) {
    const struct hearth_session_store_params params = {.path = path};
    struct hearth_session_store *store;
    struct hearth_errmsg msg = {.text = ""};
    int err = hearth_session_store_create(&params, &store, &msg);
    assert_null(store);
    if (strstr(msg.text, says) == NULL) {
        fail_msg("%s", msg.text);
    }
    assert_int_equal(files_like("*.bad-*"), 0);
    return err;
}

/* ---- turns ---- */

struct said {
    struct hearth_digest owner, id, parent;
    const char *session, *text, *config;
    enum hearth_turn_status status;
    uint32_t base; /* of the parent's tokens */
    bool no_tokens;
    const char *path; /* all letters up to and with it; NULL: it has none */
};

static inline struct hearth_digest path_of(struct hearth_session_store *store, const char *letters) {
    struct hearth_tokens tokens = {0};
    for (const char *at = letters; *at != '\0'; at++) {
        assert_true(hearth_tokens_push(&tokens, (hearth_token)*at * 1000));
    }
    struct hearth_digest id = hearth_turn_path_id(store, model, salt, tokens.v, tokens.n);
    hearth_tokens_finish(&tokens);
    return id;
}

static inline struct hearth_turn turn_of(const struct said *said) {
    struct hearth_turn turn = {.id = said->id,
                               .owner = said->owner,
                               .parent = said->parent,
                               .status = said->status,
                               .session = said->session != NULL ? strdup(said->session) : NULL,
                               .model = said->no_tokens ? none : model,
                               .salt = said->no_tokens ? none : salt,
                               .base_tokens = said->base};
    assert_true(hearth_buf_text(&turn.body, said->text));
    assert_true(said->config == NULL || hearth_buf_text(&turn.config, said->config));
    for (const char *at = said->text; *at != '\0' && !said->no_tokens; at++) {
        assert_true(hearth_tokens_push(&turn.tokens, (hearth_token)*at * 1000));
    }
    return turn;
}

static inline int try_put(struct hearth_session_store *store, const struct said *said) {
    struct hearth_errmsg msg = {.text = ""};
    struct hearth_turn turn = turn_of(said);
    turn.path = said->path != NULL ? path_of(store, said->path) : none;
    int err = hearth_turn_put(store, &turn, &msg);
    hearth_turn_finish(&turn);
    return err;
}

/* The tokens up to and with a turn, as letters; "" when they are not known. */
static inline void letters_of(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                              char *out, size_t cap) {
    struct hearth_line line;
    assert_int_equal(hearth_line_get(store, owner, id, &line), HEARTH_OK);
    size_t n = line.tokens_turns == line.count ? line.tokens.n : 0;
    assert_true(n < cap);
    for (size_t i = 0; i < n; i++) {
        out[i] = (char)(line.tokens.v[i] / 1000);
    }
    out[n] = '\0';
    hearth_line_finish(&line);
}

/* A turn that goes on from all of its parent. */
static inline struct hearth_digest say(struct hearth_session_store *store, struct hearth_digest parent,
                                       const char *session, const char *text) {
    char before[4096] = "", all[4096];
    if (parent.lo != 0 || parent.hi != 0) {
        letters_of(store, alice, parent, before, sizeof before);
    }
    assert_true(snprintf(all, sizeof all, "%s%s", before, text) < (int)sizeof all);
    const struct said said = {.owner = alice,
                              .id = hearth_turn_new_id(),
                              .parent = parent,
                              .session = session,
                              .text = text,
                              .config = "{\"instructions\":\"be kind\"}",
                              .status = HEARTH_TURN_COMPLETED,
                              .base = (uint32_t)strlen(before),
                              .path = all};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    return said.id;
}

static inline int find(struct hearth_session_store *store, struct hearth_digest id) {
    struct hearth_turn turn;
    int err = hearth_turn_get(store, alice, id, &turn);
    hearth_turn_finish(&turn);
    return err;
}

static inline void assert_text(struct hearth_session_store *store, struct hearth_digest id, const char *text) {
    struct hearth_turn turn;
    assert_int_equal(hearth_turn_get(store, alice, id, &turn), HEARTH_OK);
    assert_string_equal((const char *)turn.body.data, text);
    hearth_turn_finish(&turn);
}

static inline void assert_letters(struct hearth_session_store *store, struct hearth_digest id, const char *letters) {
    char found[4096];
    letters_of(store, alice, id, found, sizeof found);
    assert_string_equal(found, letters);
}

static inline struct hearth_digest head_of(struct hearth_session_store *store, const char *name) {
    struct hearth_session session;
    assert_int_equal(hearth_session_get(store, alice, name, &session), HEARTH_OK);
    struct hearth_digest head = session.head;
    hearth_session_finish(&session);
    return head;
}

static inline void make_session(struct hearth_session_store *store, const char *name, struct hearth_digest head) {
    const struct hearth_session session = {.name = (char *)(uintptr_t)name, .owner = alice, .head = head};
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK);
}

static inline struct hearth_session_store_stats stats_of(struct hearth_session_store *store) {
    struct hearth_session_store_stats stats;
    assert_int_equal(hearth_session_store_stats(store, &stats), HEARTH_OK);
    return stats;
}

/* Takes the oldest forget: its letters, and how many of them are kept. */
static inline void assert_forget(struct hearth_session_store *store, const char *letters, size_t kept) {
    struct hearth_forget forget;
    assert_int_equal(hearth_forget_next(store, model, 0, &forget), HEARTH_OK);
    assert_int_equal(forget.tokens.n, strlen(letters));
    for (size_t i = 0; i < forget.tokens.n; i++) {
        assert_int_equal(forget.tokens.v[i], letters[i] * 1000);
    }
    assert_int_equal(forget.keep_tokens, kept);
    assert_same(forget.salt, salt);
    assert_int_equal(hearth_forget_done(store, forget.id), HEARTH_OK);
    hearth_forget_finish(&forget);
}

static inline void assert_no_forget(struct hearth_session_store *store) {
    struct hearth_forget forget;
    assert_int_equal(hearth_forget_next(store, model, 0, &forget), HEARTH_ERR_NOT_FOUND);
}

#endif
