/* Databases of PostgreSQL servers, by libpq.
 *
 * One writer at a time, as with a file: a transaction that writes takes an advisory lock of the schema first, so that
 * what it reads is what is there when it writes, whatever other servers do. Readers do not wait: a transaction that
 * reads sees the moment at which it began (REPEATABLE READ). The lock ends with the transaction, and a transaction ends
 * with its connection; one that stands still is ended by the server (idle_in_transaction_session_timeout).
 *
 * Nothing is waited for without an end: connecting, statements and locks have times of their own, at the server and
 * here. A connection that did not answer in time is closed, since what comes later would be taken for the answer to
 * the next question. What was open on it (a transaction, a session's locks) is gone with it: `generation` counts
 * connections, and a lost one is an error of whatever was under way, never repeated here.
 *
 * Statements are the kind's, in which ?1 becomes $1; those that differ are in `server_statements`. Each is prepared
 * with its first use on a connection, with the types of its arguments. Arguments and results are binary. A result is
 * held whole until its statement is reset.
 *
 * Locks of a session, and prepared statements, need a connection that is the same server process from one transaction
 * to the next. A pool that lends one for a transaction only is found by asking through it twice at once, and refused.
 *
 * The schema holds a table of one row, which says which kind of database it is and how many steps were taken. Steps are
 * transactions under the writer's lock, as the first one is. */
#include "session/db_pg.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <libpq-fe.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TYPE_BYTES = 17,
    TYPE_NUMBER = 20,
    TYPE_TEXT = 25,
    CONNECT_S = 3,           /* for each host of the URL */
    LATER_MS = 5000,         /* after the server's own limit */
    RETRY_US = 500000,       /* how long to leave a server alone that cannot be reached */
    RETRY_SLOW_US = 5000000, /* how long to leave one alone that does not even refuse */
    POOL_US = 1000000,       /* a pool that lends its only connection lets a second one wait longer */
    POOL_TRIES = 3,          /* another client may get the connection in between */
};

struct hearth_db_server {
    PGconn *conn; /* NULL: closed */
    bool in_transaction;
    int64_t changes;
    int64_t not_before_us; /* no new attempt before this time */
    int refusal;           /* code of the last failed attempt */
    bool pool_is_checked;
    bool prepared[HEARTH_DB_STATEMENTS_MAX];
    struct {
        PGresult *result;
        int row;
    } at[HEARTH_DB_STATEMENTS_MAX];
};

/* ---- names ---- */

bool hearth_db_is_pg(const char *path) {
    return path != NULL && (strncmp(path, "postgresql://", 13) == 0 || strncmp(path, "postgres://", 11) == 0);
}

char *hearth_db_pg_name(const char *url) {
    static const char *const shown[] = {"user", "host", "port", "dbname"};
    const char *values[4] = {"", "", "", ""};
    char *name = NULL;
    PQconninfoOption *options = PQconninfoParse(url, NULL); /* libpq's complaint might contain the password */
    for (PQconninfoOption *at = options; at != NULL && at->keyword != NULL; at++) {
        for (size_t i = 0; i < 4; i++) {
            values[i] = at->val != NULL && strcmp(at->keyword, shown[i]) == 0 ? at->val : values[i];
        }
    }
    if (options != NULL && asprintf(&name, "postgresql://%s%s%s%s%s/%s", values[0], values[0][0] != '\0' ? "@" : "",
                                    values[1], values[2][0] != '\0' ? ":" : "", values[2], values[3]) < 0) {
        name = NULL;
    }
    PQconninfoFree(options);
    return name;
}

static char *find_setting(PQconninfoOption *options, const char *keyword) {
    char *value = NULL;
    for (PQconninfoOption *at = options; at != NULL && at->keyword != NULL; at++) {
        if (strcmp(at->keyword, keyword) == 0 && at->val != NULL) {
            value = strdup(at->val);
        }
    }
    PQconninfoFree(options);
    return value;
}

char *hearth_db_pg_setting(const char *url, const char *keyword) {
    char *value = find_setting(PQconninfoParse(url, NULL), keyword);
    return value != NULL ? value : find_setting(PQconndefaults(), keyword);
}

static bool is_open(const struct hearth_db *db) {
    return db->pg != NULL && db->pg->conn != NULL;
}

/* ---- failures ---- */

static int code_of_state(const char *state) {
    static const struct {
        const char *begins;
        int code;
    } codes[] = {{"08", HEARTH_DB_LOST},       {"57P0", HEARTH_DB_LOST},     {"25P03", HEARTH_DB_LOST},
                 {"53100", HEARTH_DB_NO_ROOM}, {"53", HEARTH_DB_LOST},       {"55P03", HEARTH_DB_SLOW},
                 {"57014", HEARTH_DB_SLOW},    {"40", HEARTH_DB_CONFLICT},   {"25006", HEARTH_DB_READ_ONLY},
                 {"28", HEARTH_DB_REFUSED},    {"3D000", HEARTH_DB_REFUSED}, {"42501", HEARTH_DB_REFUSED},
                 {"42P01", HEARTH_DB_ALIEN},   {"42703", HEARTH_DB_ALIEN}};
    for (size_t i = 0; state != NULL && i < sizeof codes / sizeof codes[0]; i++) {
        if (strncmp(state, codes[i].begins, strlen(codes[i].begins)) == 0) {
            return codes[i].code;
        }
    }
    return HEARTH_DB_OTHER;
}

/* Keeps the first line of a message, and what to do about it. `state` may be NULL. */
static void keep_reason(struct hearth_db *db, const char *text, const char *state) {
    static const struct {
        const char *begins, *words;
    } advice[] = {
        {"28",
         "user, password and certificates are those of the URL, of ~/.pgpass or PGPASSFILE, and of PGSSLROOTCERT"},
        {"3D000", "createdb makes it"},
        {"42501", "the user needs CREATE on the database, or has to own the schemas hearth and hearth_transcripts"},
        {"25006", "a standby, or a user that only reads: give the address of the primary"},
        {"53300", "a box holds up to five"}};
    const char *words = NULL;
    for (size_t i = 0; state != NULL && i < sizeof advice / sizeof advice[0]; i++) {
        words = strncmp(state, advice[i].begins, strlen(advice[i].begins)) == 0 ? advice[i].words : words;
    }
    const int len = (int)strcspn(text, "\n");
    (void)hearth_fail(&db->said, HEARTH_ERR_STORE, words != NULL ? "%.*s (%s)" : "%.*s", len, text, words);
}

/* Closes a connection that is no longer usable. */
static int lose(struct hearth_db *db, int code, const char *text) {
    keep_reason(db, text, NULL);
    hearth_db_close(db);
    return code;
}

/* The code of a failed result, which is freed. */
static int fail_result(struct hearth_db *db, PGresult *result) {
    const char *text = result != NULL ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *state = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    int code = state != NULL ? code_of_state(state) : HEARTH_DB_OTHER;
    keep_reason(db, text != NULL ? text : PQerrorMessage(db->pg->conn), state);
    PQclear(result);
    if (PQstatus(db->pg->conn) != CONNECTION_OK) {
        code = HEARTH_DB_LOST;
    }
    if (code == HEARTH_DB_LOST || code == HEARTH_DB_READ_ONLY) { /* another of its hosts may take writes */
        hearth_db_close(db);
    }
    return code;
}

/* ---- waiting ---- */

/* poll() on a connection up to a time; 0: it has come. */
static int poll_until(PGconn *conn, int events, int64_t until_us) {
    struct pollfd at = {.fd = PQsocket(conn), .events = (short)events};
    int rc;
    do {
        const int64_t left_us = until_us - hearth_clock_us();
        rc = left_us > 0 ? poll(&at, 1, (int)(left_us / 1000) + 1) : 0;
    } while (rc < 0 && errno == EINTR);
    return rc;
}

/* Waits until the server has sent something, which is read, or with `writes` takes more. Returns a code. */
static int wait_for(struct hearth_db *db, bool writes, int64_t until_us) {
    const int rc = poll_until(db->pg->conn, POLLIN | (writes ? POLLOUT : 0), until_us);
    if (rc <= 0) {
        return rc == 0 ? lose(db, HEARTH_DB_SLOW, "it did not answer in time")
                       : lose(db, HEARTH_DB_LOST, strerror(errno));
    }
    return PQconsumeInput(db->pg->conn) != 0 ? HEARTH_DB_OK : lose(db, HEARTH_DB_LOST, PQerrorMessage(db->pg->conn));
}

static int flush(struct hearth_db *db, int64_t until_us) {
    int left, code = HEARTH_DB_OK;
    while (code == HEARTH_DB_OK && (left = PQflush(db->pg->conn)) != 0) {
        code = left > 0 ? wait_for(db, true, until_us) : lose(db, HEARTH_DB_LOST, PQerrorMessage(db->pg->conn));
    }
    return code;
}

/* The result of a command; of several the last one, or the first that failed. */
static int receive_last(struct hearth_db *db, bool sent, PGresult **out) {
    const int later_ms = db->busy_ms < LATER_MS ? db->busy_ms : LATER_MS;
    const int64_t until_us = hearth_clock_us() + (int64_t)(db->busy_ms + later_ms) * 1000;
    PGresult *last = NULL;
    bool failed = false;
    *out = NULL;
    if (!sent) {
        return lose(db, HEARTH_DB_LOST, PQerrorMessage(db->pg->conn));
    }
    int code = flush(db, until_us);
    while (code == HEARTH_DB_OK) {
        while (code == HEARTH_DB_OK && PQisBusy(db->pg->conn) != 0) {
            code = wait_for(db, false, until_us);
        }
        PGresult *result = code == HEARTH_DB_OK ? PQgetResult(db->pg->conn) : NULL;
        if (result == NULL) {
            break;
        }
        const ExecStatusType status = PQresultStatus(result);
        if (failed) {
            PQclear(result);
            continue;
        }
        PQclear(last);
        last = result;
        failed = status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK;
    }
    if (code != HEARTH_DB_OK) {
        PQclear(last);
        return code;
    }
    if (last == NULL || failed) {
        return fail_result(db, last);
    }
    *out = last;
    return HEARTH_DB_OK;
}

static int receive(struct hearth_db *db, bool sent, PGresult **out) {
    atomic_store(&db->asked_us, hearth_clock_us());
    const int code = receive_last(db, sent, out);
    atomic_store(&db->asked_us, 0);
    return code;
}

static int64_t number_at(const PGresult *result, int row, int column) {
    const uint8_t *bytes = (const uint8_t *)PQgetvalue(result, row, column);
    const int len = PQgetlength(result, row, column);
    if (PQgetisnull(result, row, column) != 0 || len < 1 || len > 8) {
        return 0;
    }
    uint64_t value = len > 1 && (bytes[0] & 0x80) != 0 ? UINT64_MAX : 0; /* extends the sign */
    for (int i = 0; i < len; i++) {
        value = value << 8 | bytes[i];
    }
    return (int64_t)value;
}

/* ---- SQL by its text ---- */

static int exec(struct hearth_db *db, const char *sql) {
    PGresult *result;
    if (!is_open(db)) {
        return HEARTH_DB_LOST;
    }
    const int code = receive(db, PQsendQuery(db->pg->conn, sql) != 0, &result);
    PQclear(result);
    return code;
}

/* The first column of the first row; 0 for none. */
static int read_number(struct hearth_db *db, const char *sql, int64_t *out) {
    PGresult *result;
    if (!is_open(db)) {
        return HEARTH_DB_LOST;
    }
    const bool sent = PQsendQueryParams(db->pg->conn, sql, 0, NULL, NULL, NULL, NULL, 1) != 0;
    const int code = receive(db, sent, &result);
    *out = code == HEARTH_DB_OK && PQntuples(result) > 0 ? number_at(result, 0, 0) : 0;
    PQclear(result);
    return code;
}

/* ---- transactions ---- */

/* The number of the schema's lock. */
static int64_t lock_of(const struct hearth_db *db) {
    return (int64_t)hearth_digest_bytes(db->kind->schema, strlen(db->kind->schema)).lo;
}

static int begin(struct hearth_db *db, bool write) {
    char sql[96] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    if (write) { /* the lock comes first, so that later reads see the present */
        snprintf(sql, sizeof sql, "BEGIN; SELECT pg_advisory_xact_lock(%lld)", (long long)lock_of(db));
    }
    const int code = exec(db, sql);
    if (is_open(db)) {
        db->pg->in_transaction = code == HEARTH_DB_OK;
        if (code != HEARTH_DB_OK) {
            (void)exec(db, "ROLLBACK");
        }
    }
    return code;
}

static int end(struct hearth_db *db, bool commit) {
    PGresult *result;
    if (!is_open(db) || !db->pg->in_transaction) {
        return HEARTH_DB_LOST; /* the transaction is gone with the connection */
    }
    db->pg->in_transaction = false;
    const int code = receive(db, PQsendQuery(db->pg->conn, commit ? "COMMIT" : "ROLLBACK") != 0, &result);
    /* The server answers COMMIT of a failed transaction with ROLLBACK. */
    const bool committed = code == HEARTH_DB_OK && (!commit || strcmp(PQcmdStatus(result), "COMMIT") == 0);
    PQclear(result);
    return code != HEARTH_DB_OK || committed ? code : HEARTH_DB_CONFLICT;
}

static bool is_in_transaction(const struct hearth_db *db) {
    return is_open(db) && db->pg->in_transaction;
}

static int64_t changes(const struct hearth_db *db) {
    return db->pg != NULL ? db->pg->changes : 0;
}

/* ---- statements ---- */

static const char *text_of(const struct hearth_db *db, int which) {
    const char *own = db->kind->server_statements[which];
    return own != NULL ? own : db->kind->statements[which];
}

/* ?1 becomes $1. NULL: out of memory. */
static char *translate(const char *sql) {
    char *out = strdup(sql);
    for (char *at = out; at != NULL && *at != '\0'; at++) {
        *at = *at == '?' ? '$' : *at;
    }
    return out;
}

static int prepare(struct hearth_db *db, int which, const struct hearth_db_value *args, size_t count) {
    static const Oid types[] = {
        [HEARTH_DB_ARG_NUMBER] = TYPE_NUMBER, [HEARTH_DB_ARG_BYTES] = TYPE_BYTES, [HEARTH_DB_ARG_TEXT] = TYPE_TEXT};
    Oid oids[HEARTH_DB_ARGS_MAX];
    char name[16], *sql = translate(text_of(db, which));
    PGresult *result;
    if (sql == NULL) {
        return HEARTH_DB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        oids[i] = types[args[i].type];
    }
    snprintf(name, sizeof name, "s%d", which);
    const int code = receive(db, PQsendPrepare(db->pg->conn, name, sql, (int)count, oids) != 0, &result);
    PQclear(result);
    free(sql);
    if (code == HEARTH_DB_OK) {
        db->pg->prepared[which] = true;
    }
    return code;
}

static bool send(struct hearth_db *db, int which, const struct hearth_db_value *args, size_t count) {
    const char *values[HEARTH_DB_ARGS_MAX];
    int lengths[HEARTH_DB_ARGS_MAX], formats[HEARTH_DB_ARGS_MAX];
    uint8_t numbers[HEARTH_DB_ARGS_MAX][8];
    char name[16];
    for (size_t i = 0; i < count; i++) {
        const struct hearth_db_value *arg = &args[i];
        for (int byte = 0; byte < 8; byte++) {
            numbers[i][byte] = (uint8_t)((uint64_t)arg->number >> (56 - 8 * byte));
        }
        const bool number = arg->type == HEARTH_DB_ARG_NUMBER;
        values[i] = arg->is_null ? NULL : number ? (const char *)numbers[i] : arg->bytes;
        lengths[i] = number ? 8 : arg->len <= INT_MAX ? (int)arg->len : -1;
        formats[i] = 1;
        if (lengths[i] < 0) {
            return false;
        }
    }
    snprintf(name, sizeof name, "s%d", which);
    return PQsendQueryPrepared(db->pg->conn, name, (int)count, values, lengths, formats, 1) != 0;
}

static void reset(struct hearth_db *db, int which) {
    if (db->pg != NULL) {
        PQclear(db->pg->at[which].result);
        db->pg->at[which].result = NULL;
    }
}

static int stand(struct hearth_db *db, int which) {
    if (db->pg->at[which].row < PQntuples(db->pg->at[which].result)) {
        return 1;
    }
    reset(db, which);
    return 0;
}

static int query(struct hearth_db *db, int which, const struct hearth_db_value *args, size_t count) {
    PGresult *result;
    if (!is_open(db)) {
        return hearth_db_fail(db, HEARTH_DB_LOST);
    }
    reset(db, which);
    int code = db->pg->prepared[which] ? HEARTH_DB_OK : prepare(db, which, args, count);
    code = code == HEARTH_DB_OK ? receive(db, send(db, which, args, count), &result) : code;
    if (code != HEARTH_DB_OK) {
        return hearth_db_fail(db, code);
    }
    if (strncmp(PQcmdStatus(result), "SELECT", 6) != 0) {
        db->pg->changes += strtoll(PQcmdTuples(result), NULL, 10);
    }
    db->pg->at[which].result = result;
    db->pg->at[which].row = 0;
    return stand(db, which);
}

static int next(struct hearth_db *db, int which) {
    if (db->pg == NULL || db->pg->at[which].result == NULL) {
        return hearth_db_fail(db, HEARTH_DB_LOST);
    }
    db->pg->at[which].row++;
    return stand(db, which);
}

static struct hearth_db_value column(const struct hearth_db *db, int which, int at) {
    const PGresult *result = db->pg->at[which].result;
    const int row = db->pg->at[which].row;
    const bool is_null = PQgetisnull(result, row, at) != 0;
    return (struct hearth_db_value){.is_null = is_null,
                                    .number = number_at(result, row, at),
                                    .bytes = is_null ? NULL : PQgetvalue(result, row, at), /* libpq puts a NUL behind */
                                    .len = (size_t)PQgetlength(result, row, at)};
}

/* ---- opening ---- */

/* Ignores notices of the server. */
static void ignore(void *user, const char *text) {
    (void)user;
    (void)text;
}

/* The SQLSTATE in a verbose message such as "FATAL:  28P01: password …"; NULL: none. */
static const char *find_state(const char *text) {
    for (const char *at = text; (at = strstr(at, ":  ")) != NULL; at++) {
        if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && at[8] == ':') {
            return at + 3;
        }
    }
    return NULL;
}

/* The SQLSTATE with which a server refuses connections. libpq tells it only if the connection was verbose from the
 * beginning, so a second attempt is made. */
static int code_of_refusal(const char *const *keys, const char *const *values, char sqlstate[6]) {
    const int64_t until_us = hearth_clock_us() + (int64_t)CONNECT_S * 1000000;
    PGconn *conn = PQconnectStartParams(keys, values, 1);
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    if (conn == NULL) {
        return HEARTH_DB_NO_MEMORY;
    }
    (void)PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    while (PQstatus(conn) != CONNECTION_BAD && (next == PGRES_POLLING_WRITING || next == PGRES_POLLING_READING)) {
        if (poll_until(conn, next == PGRES_POLLING_WRITING ? POLLOUT : POLLIN, until_us) <= 0) {
            break;
        }
        next = PQconnectPoll(conn);
    }
    const char *text = PQerrorMessage(conn), *state = find_state(text);
    const bool ours = PQconnectionNeedsPassword(conn) != 0 || strstr(text, "certificate") != NULL ||
                      strstr(text, "does not support SSL") != NULL;
    const int code = state != NULL ? code_of_state(state) : ours ? HEARTH_DB_REFUSED : HEARTH_DB_LOST;
    snprintf(sqlstate, 6, "%.5s", state != NULL ? state : ours ? "28000" : "");
    PQfinish(conn);
    return code == HEARTH_DB_REFUSED ? code : HEARTH_DB_LOST;
}

static const char *const connect_keys[] = {
    "connect_timeout", "keepalives_idle",           "keepalives_interval", "keepalives_count",
    "dbname",          "fallback_application_name", "client_encoding",     NULL};

static int connect_to(struct hearth_db *db) {
    char seconds[16], sqlstate[6] = "";
    const char *values[] = {seconds, "10", "5", "3", db->path, "hearth", "UTF8", NULL};
    const int64_t began_us = hearth_clock_us();
    if (began_us < db->pg->not_before_us) {
        return db->pg->refusal; /* `said` describes that attempt, too */
    }
    snprintf(seconds, sizeof seconds, "%d", CONNECT_S);
    db->pg->conn = PQconnectdbParams(connect_keys, values, 1);
    if (db->pg->conn == NULL) {
        return HEARTH_DB_NO_MEMORY;
    }
    if (PQstatus(db->pg->conn) == CONNECTION_OK && PQsetnonblocking(db->pg->conn, 1) == 0) {
        (void)PQsetNoticeProcessor(db->pg->conn, ignore, NULL);
        db->pg->not_before_us = 0;
        db->generation++;
        return HEARTH_DB_OK;
    }
    const int64_t now_us = hearth_clock_us();
    const bool slow = now_us - began_us > RETRY_US;
    db->pg->not_before_us = now_us + (slow ? RETRY_SLOW_US : RETRY_US);
    db->pg->refusal = slow ? HEARTH_DB_SLOW : code_of_refusal(connect_keys, values, sqlstate);
    keep_reason(db, PQerrorMessage(db->pg->conn), sqlstate);
    hearth_db_close(db);
    return db->pg->refusal;
}

/* The server process behind a second connection; 0: the pool did not lend one in time. */
static int64_t ask_process(PGconn *conn) {
    const int64_t until_us = hearth_clock_us() + POOL_US;
    bool sent = PQsendQueryParams(conn, "SELECT pg_backend_pid()", 0, NULL, NULL, NULL, NULL, 1) != 0;
    while (sent && PQisBusy(conn) != 0) {
        sent = poll_until(conn, POLLIN, until_us) > 0 && PQconsumeInput(conn) != 0;
    }
    PGresult *result = sent ? PQgetResult(conn) : NULL;
    const int64_t process = result != NULL && PQntuples(result) > 0 ? number_at(result, 0, 0) : 0;
    PQclear(result);
    for (; sent && result != NULL; PQclear(result)) { /* until the connection can be used again */
        result = PQgetResult(conn);
    }
    return process;
}

/* Refuses a pool that lends a connection for one transaction: it answers with other server processes. */
static int check_pool(struct hearth_db *db) {
    const char *values[] = {"3", "10", "5", "3", db->path, "hearth", "UTF8", NULL};
    int64_t process = 0, other = 0;
    int code = read_number(db, "SELECT pg_backend_pid()", &process);
    if (code != HEARTH_DB_OK || db->pg->pool_is_checked || process == PQbackendPID(db->pg->conn)) {
        return code;
    }
    PGconn *second = PQconnectdbParams(connect_keys, values, 1);
    for (int i = 0; i < POOL_TRIES && PQstatus(second) == CONNECTION_OK && other != process; i++) {
        other = ask_process(second);
    }
    PQfinish(second);
    db->pg->pool_is_checked = true;
    return other != process
               ? code
               : lose(db, HEARTH_DB_REFUSED,
                      "a pool stands in between that lends connections for a transaction, which loses locks "
                      "(PgBouncer: pool_mode = session)");
}

static int apply_settings(struct hearth_db *db) {
    char sql[800];
    snprintf(sql, sizeof sql,
             "SET statement_timeout = %d; SET lock_timeout = %d; SET idle_in_transaction_session_timeout = %d;"
             "SET search_path = %s; SET client_min_messages = warning;"
             /* A box that has vanished soon loses its locks. */
             "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;"
             /* What is acknowledged is on disk; the server's own stronger settings stay. */
             "SELECT set_config('synchronous_commit', 'on', false)"
             " WHERE current_setting('synchronous_commit') = 'off'",
             db->busy_ms, db->busy_ms, db->busy_ms + LATER_MS, db->kind->schema);
    return exec(db, sql);
}

/* Finds how many steps were taken; -1: none, the database is new. In a transaction. */
static int find_version(struct hearth_db *db, int64_t *version) {
    char sql[160];
    int64_t there = 0, application = 0;
    *version = -1;
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = '%s'", db->kind->schema);
    int code = read_number(db, sql, &there);
    if (code != HEARTH_DB_OK || there == 0) {
        return code;
    }
    code = read_number(db, "SELECT application FROM steps", &application);
    code = code == HEARTH_DB_OK ? read_number(db, "SELECT taken FROM steps", version) : code;
    return code == HEARTH_DB_OK && application != db->kind->application  ? HEARTH_DB_ALIEN
           : code == HEARTH_DB_OK && *version > db->kind->server_version ? HEARTH_DB_NEWER
                                                                         : code;
}

static int make_schema(struct hearth_db *db) {
    char sql[256];
    int64_t there = 0;
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = '%s'", db->kind->schema);
    int code = read_number(db, sql, &there);
    if (code == HEARTH_DB_OK && there == 0) { /* IF NOT EXISTS would need the right to create it even if it exists */
        snprintf(sql, sizeof sql, "CREATE SCHEMA %s", db->kind->schema);
        code = exec(db, sql);
    }
    if (code != HEARTH_DB_OK) {
        return code;
    }
    snprintf(sql, sizeof sql,
             "CREATE TABLE steps (application BIGINT NOT NULL, taken BIGINT NOT NULL);"
             "INSERT INTO steps VALUES (%d, 0)",
             db->kind->application);
    return exec(db, sql);
}

static int take_step(struct hearth_db *db, int64_t *version) {
    char sql[64];
    int code = begin(db, true);
    if (code != HEARTH_DB_OK) {
        return code;
    }
    code = find_version(db, version); /* another server may have created it meanwhile */
    if (code == HEARTH_DB_OK && *version < 0) {
        code = make_schema(db);
        *version = 0;
    }
    if (code == HEARTH_DB_OK && *version < db->kind->server_version) {
        snprintf(sql, sizeof sql, "UPDATE steps SET taken = %lld", (long long)*version + 1);
        code = exec(db, db->kind->server_steps[*version]);
        code = code == HEARTH_DB_OK ? exec(db, sql) : code;
        *version += 1;
    }
    const int ended = end(db, code == HEARTH_DB_OK);
    return code == HEARTH_DB_OK ? ended : code;
}

static int open_server(struct hearth_db *db, struct hearth_errmsg *reason) {
    int64_t version = -1;
    HEARTH_ASSERT(db->kind->schema != NULL);
    db->pg = db->pg != NULL ? db->pg : calloc(1, sizeof *db->pg);
    if (db->pg == NULL) {
        return HEARTH_DB_NO_MEMORY;
    }
    atomic_store(&db->asked_us, hearth_clock_us());
    int code = connect_to(db);
    atomic_store(&db->asked_us, 0);
    code = code == HEARTH_DB_OK ? check_pool(db) : code;
    code = code == HEARTH_DB_OK ? apply_settings(db) : code;
    code = code == HEARTH_DB_OK ? find_version(db, &version) : code;
    while (code == HEARTH_DB_OK && version < db->kind->server_version) {
        code = take_step(db, &version);
    }
    if (hearth_db_is_outage(code)) {
        (void)hearth_fail(reason, HEARTH_ERR_STORE, "%s", db->said.text);
    }
    return code;
}

static void close_server(struct hearth_db *db) {
    if (db->pg == NULL) {
        return;
    }
    for (int i = 0; i < HEARTH_DB_STATEMENTS_MAX; i++) {
        reset(db, i);
        db->pg->prepared[i] = false;
    }
    PQfinish(db->pg->conn);
    db->pg->conn = NULL;
    db->pg->in_transaction = false;
}

static void finish_server(struct hearth_db *db) {
    close_server(db);
    free(db->pg);
    db->pg = NULL;
}

/* Whether the server has closed the connection; between statements it says nothing else. */
static bool is_lost(const struct hearth_db *db) {
    struct pollfd at = {.fd = PQsocket(db->pg->conn), .events = POLLIN};
    return poll(&at, 1, 0) > 0 && (PQconsumeInput(db->pg->conn) == 0 || PQstatus(db->pg->conn) != CONNECTION_OK ||
                                   (poll(&at, 1, 0) > 0 && PQconsumeInput(db->pg->conn) == 0));
}

const struct hearth_db_driver hearth_db_pg = {.open = open_server,
                                              .close = close_server,
                                              .finish = finish_server,
                                              .is_open = is_open,
                                              .has_moved = is_lost,
                                              .query = query,
                                              .next = next,
                                              .reset = reset,
                                              .column = column,
                                              .exec = exec,
                                              .read_number = read_number,
                                              .begin = begin,
                                              .end = end,
                                              .is_in_transaction = is_in_transaction,
                                              .changes = changes};
