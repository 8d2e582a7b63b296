/* Which files the store takes: its own, of this version or an older one, and nobody else's; copies of it, and what an
 * owner may have there. */
#include "store_stage.h"

#include "session/store_internal.h"
#include "session/store_recover.h"

#include <fcntl.h>
#include <sys/stat.h>

/* Its bytes, and what stands beside it, stay as they are. */
static void assert_left_alone(const char *says) {
    struct stat st;
    char bytes[16384], again[sizeof bytes];
    int fd = open(path, O_RDONLY);
    const ssize_t n = read(fd, bytes, sizeof bytes);
    close(fd);
    const size_t files = files_like("*");
    assert_int_equal(fails_to_open(says), HEARTH_ERR_INVALID);
    fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, again, sizeof again), n);
    close(fd);
    assert_memory_equal(bytes, again, (size_t)n);
    assert_int_equal(files_like("*"), files);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void write_text_file(const char *text) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(chmod(path, 0644), 0);
}

static void what_is_not_ours_is_left_alone(void **state) {
    (void)state;
    snprintf(path, sizeof path, "%s/deep", directory);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/deep/er", directory);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/deep/er/notes.txt", directory);
    write_text_file("my notes");
    assert_left_alone("notes.txt is no database of hearth's");
    write_text_file("1");
    assert_left_alone("notes.txt is no database of hearth's");
    char *long_text = malloc(9000);
    memset(long_text, 'x', 8999);
    long_text[8999] = '\0';
    write_text_file(long_text);
    free(long_text);
    assert_left_alone("notes.txt is no database of hearth's");
    assert_int_equal(remove(path), 0);
    sql("PRAGMA journal_mode = WAL; CREATE TABLE shopping (what TEXT); INSERT INTO shopping VALUES ('milk')");
    assert_int_equal(chmod(path, 0644), 0);
    assert_left_alone("is no database of hearth's");
    /* One whose tables all stand in its log still. */
    assert_int_equal(remove(path), 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "PRAGMA journal_mode = WAL; CREATE TABLE a (x); INSERT INTO a VALUES (1)", NULL, NULL, NULL),
        SQLITE_OK);
    assert_int_equal(chmod(path, 0644), 0);
    assert_left_alone("is no database of hearth's");
    sqlite3_close(db);
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_int_equal(fails_to_open("symbolic link"), HEARTH_ERR_IO);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fails_to_open("not a regular file"), HEARTH_ERR_IO);
}

static void write_file(const char *name, const char *text) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void assert_file(const char *name, const void *bytes, size_t len) {
    char *there = malloc(len + 1);
    int fd = open(name, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, there, len + 1), len);
    close(fd);
    assert_memory_equal(there, bytes, len);
    free(there);
}

/* SQLite would delete some of these, and write others. */
static void what_stands_beside_is_left_alone(void **state) {
    (void)state;
    static const char *const suffixes[] = {"-wal", "-journal", "-shm", ".lock"};
    static const char text[] = "a diary of mine";
    char beside[160];
    hearth_session_store_destroy(open_plain());
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            snprintf(beside, sizeof beside, "%s%s", path, suffixes[i]);
            write_file(beside, text);
            assert_true(fails_to_open("is no file of hearth's") < 0);
            assert_file(beside, text, sizeof text - 1);
            assert_int_equal(remove(beside), 0);
            assert_int_equal(mkdir(beside, 0700), 0);
            assert_true(fails_to_open(i == 3 ? beside : "is no file of hearth's") < 0);
            assert_int_equal(rmdir(beside), 0);
        }
        hearth_session_store_destroy(open_plain());
        assert_int_equal(remove(path), 0); /* and once more without a database */
        snprintf(beside, sizeof beside, "%s.lock", path);
        assert_int_equal(remove(beside), 0);
    }
}

/* Bytes of a file; *len is how many. */
static char *bytes_of(const char *name, size_t *len) {
    struct stat st;
    int fd = open(name, O_RDONLY);
    assert_int_equal(fstat(fd, &st), 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    *len = (size_t)read(fd, bytes, (size_t)st.st_size);
    close(fd);
    return bytes;
}

/* A database as it stands in its log, which goes to `log`. */
static void make_log(const char *at, const char *text, const char *log) {
    sqlite3 *db;
    char from[200];
    assert_int_equal(sqlite3_open(at, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    snprintf(from, sizeof from, "%s-wal", at);
    assert_int_equal(link(from, log), 0);
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(db);
}

/* SQLite would carry it into the file, whatever it is the log of. */
static void a_log_of_another_database_is_not_taken(void **state) {
    (void)state;
    char other[100], log[160], lock[160];
    size_t file_len, log_len;
    struct hearth_session_store *store = open_plain();
    const struct hearth_digest at = say(store, none, "work", "one");
    hearth_session_store_destroy(store);
    snprintf(other, sizeof other, "%s/other.db", directory);
    snprintf(log, sizeof log, "%s-wal", path);
    make_log(other, "PRAGMA journal_mode = WAL; CREATE TABLE a (x); INSERT INTO a VALUES (randomblob(99999))", log);
    char *file_bytes = bytes_of(path, &file_len), *log_bytes = bytes_of(log, &log_len);
    assert_int_equal(fails_to_open("the log beside it"), HEARTH_ERR_INVALID);
    assert_file(path, file_bytes, file_len);
    assert_file(log, log_bytes, log_len);
    free(file_bytes);
    assert_int_equal(remove(log), 0);
    snprintf(lock, sizeof lock, "%s-shm", path);
    assert_int_equal(remove(lock), 0);
    store = open_plain();
    assert_text(store, at, "one");
    /* What was recovered or copied, in the place of a database that left its log. */
    struct hearth_errmsg msg;
    char copy[2][160];
    snprintf(copy[0], sizeof copy[0], "%s/saved.db", directory);
    snprintf(copy[1], sizeof copy[1], "%s/backup.db", directory);
    assert_int_equal(hearth_session_store_backup(store, copy[1], &msg), HEARTH_OK);
    hearth_session_store_destroy(store);
    const struct hearth_recovery_params recovery = {.from = path, .to = copy[0]};
    struct hearth_recovery found;
    assert_int_equal(hearth_session_recover(&recovery, &found, &msg), HEARTH_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rename(copy[i], path), 0);
        int fd = open(log, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        assert_int_equal(write(fd, log_bytes, log_len), log_len);
        close(fd);
        file_bytes = bytes_of(path, &file_len);
        assert_int_equal(fails_to_open("of the database that stood here before"), HEARTH_ERR_IO);
        assert_file(path, file_bytes, file_len);
        assert_file(log, log_bytes, log_len);
        free(file_bytes);
        assert_int_equal(remove(log), 0);
        store = open_plain();
        assert_text(store, at, "one");
        hearth_session_store_destroy(store);
    }
    free(log_bytes);
}

static void put_bytes(const char *name, const char *bytes, size_t len) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, len), len);
    close(fd);
}

/* SQLite would delete the log and begin anew. */
static void a_log_without_its_file_is_an_error(void **state) {
    (void)state;
    char log[160];
    size_t file_len, log_len;
    struct hearth_session_store *store = open_plain();
    const struct hearth_digest at = say(store, none, "work", "one");
    snprintf(log, sizeof log, "%s-wal", path);
    char *file_bytes = bytes_of(path, &file_len), *log_bytes = bytes_of(log, &log_len); /* as kill -9 leaves them */
    hearth_session_store_destroy(store);
    assert_true(log_len > 0);
    for (int empty = 0; empty < 2; empty++) {
        assert_int_equal(remove(path), 0);
        if (empty) {
            put_bytes(path, "", 0);
        }
        put_bytes(log, log_bytes, log_len);
        assert_int_equal(fails_to_open("gone or empty"), HEARTH_ERR_IO);
        assert_file(log, log_bytes, log_len);
        put_bytes(path, file_bytes, file_len);
        store = open_plain();
        assert_text(store, at, "one");
        hearth_session_store_destroy(store);
    }
    free(file_bytes);
    free(log_bytes);
}

/* SQLite takes a frame that does not verify for the end of the log, and what was told behind it would be gone. */
static void a_log_with_a_gap_is_an_error(void **state) {
    (void)state;
    enum { TURNS = 12, FRAME = 24 + 4096 };
    char log[160], saved[100];
    size_t file_len, log_len;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest at[TURNS];
    for (int i = 0; i < TURNS; i++) {
        at[i] = say(store, i > 0 ? at[i - 1] : none, "work", "x");
    }
    snprintf(log, sizeof log, "%s-wal", path);
    snprintf(saved, sizeof saved, "%s/saved.db", directory);
    char *file_bytes = bytes_of(path, &file_len), *log_bytes = bytes_of(log, &log_len); /* as kill -9 leaves them */
    hearth_session_store_destroy(store);
    const size_t frames = (log_len - 32) / FRAME;
    assert_true(frames > 2 * TURNS);
    /* The salt of the head, its page size, its sum; then each part of a frame in the middle. */
    const size_t middle = 32 + frames / 2 * FRAME;
    const size_t places[] = {16, 9, 25, middle + 3, middle + 9, middle + 17, middle + 24 + 2000, 32 + 24 + 5};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        put_bytes(path, file_bytes, file_len);
        log_bytes[places[i]] ^= 4;
        put_bytes(log, log_bytes, log_len);
        assert_int_equal(fails_to_open("is damaged; it stays as it is"), HEARTH_ERR_STATE);
        assert_file(log, log_bytes, log_len);
        assert_file(path, file_bytes, file_len);
        const struct hearth_recovery_params recovery = {.from = path, .to = saved};
        struct hearth_recovery found;
        struct hearth_errmsg msg;
        if (places[i] != 9) {
            assert_int_equal(hearth_session_recover(&recovery, &found, &msg), HEARTH_OK);
            assert_int_equal(found.turns + found.lost_turns, TURNS);
            assert_true(found.turns >= TURNS - 2);
            assert_int_equal(remove(saved), 0);
        }
        log_bytes[places[i]] ^= 4;
    }
    /* What a crash leaves is an end: the last transaction may be there in part. */
    for (size_t cut = 1; cut < 3 * FRAME; cut += 1000) {
        put_bytes(path, file_bytes, file_len);
        put_bytes(log, log_bytes, log_len - cut);
        store = open_plain();
        assert_text(store, at[TURNS - 4], "x");
        hearth_session_store_destroy(store);
    }
    put_bytes(path, file_bytes, file_len);
    log_bytes[log_len - FRAME / 2] ^= 4;
    put_bytes(log, log_bytes, log_len);
    store = open_plain();
    assert_text(store, at[TURNS - 2], "x");
    hearth_session_store_destroy(store);
    free(file_bytes);
    free(log_bytes);
}

static void an_emptied_file_is_not_begun(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    (void)say(store, none, "work", "a");
    hearth_session_store_destroy(store);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(fails_to_open("is empty, and it was not"), HEARTH_ERR_STATE);
    char lock[128];
    snprintf(lock, sizeof lock, "%s.lock", path);
    assert_int_equal(remove(lock), 0);
    store = open_plain(); /* an empty file alone is nobody's */
    (void)say(store, none, "work", "a");
    hearth_session_store_destroy(store);
}

/* The first version as it was, from its own step, with the rows of this one. */
static void the_first_version_is_brought_up(void **state) {
    (void)state;
    static const char rows[] =
        "PRAGMA application_id = 1752331379; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;"
        "ATTACH '%s.v2' AS v2; INSERT INTO meta SELECT key, value FROM v2.meta WHERE key <> 'age';"
        "INSERT INTO owners SELECT id, owner FROM v2.owners;"
        "INSERT INTO models SELECT * FROM v2.models; INSERT INTO uses SELECT * FROM v2.uses;"
        "INSERT INTO configs SELECT id, key, body FROM v2.configs;"
        "INSERT INTO turns SELECT * FROM v2.turns;"
        "INSERT INTO sessions SELECT id, key, owner, head, created, used, body FROM v2.sessions";
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "one"), two = say(store, one, "work", "two");
    struct hearth_session_quota was, now;
    assert_int_equal(hearth_session_owner_usage(store, alice, &was), HEARTH_OK);
    hearth_session_store_destroy(store);
    char other[128], *filled = sqlite3_mprintf(rows, path), *why = NULL;
    snprintf(other, sizeof other, "%s.v2", path);
    assert_int_equal(rename(path, other), 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, hearth_session_db_kind.steps[0], NULL, NULL, NULL), SQLITE_OK);
    if (sqlite3_exec(db, filled, NULL, NULL, &why) != SQLITE_OK) {
        fail_msg("%s", why);
    }
    sqlite3_free(filled);
    sqlite3_close(db);
    snprintf(other, sizeof other, "%s.before-v4", path);
    write_file(other, "notes");
    assert_true(fails_to_open("is no file of hearth's") < 0); /* the copy would take its place */
    assert_file(other, "notes", 5);
    assert_int_equal(sql_number("PRAGMA user_version"), 1);
    assert_int_equal(remove(other), 0);
    store = open_plain();
    assert_letters(store, two, "onetwo");
    assert_same(head_of(store, "work"), two);
    assert_int_equal(hearth_session_owner_usage(store, alice, &now), HEARTH_OK);
    assert_int_equal(now.bytes, was.bytes);
    assert_int_equal(now.sessions, 1);
    assert_int_equal(now.tokens, was.tokens);
    assert_true(now.tokens > 0);
    hearth_session_store_destroy(store);
    uint8_t head[21];
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, head, sizeof head), sizeof head);
    close(fd);
    assert_true(hearth_db_head_has_sums(head)); /* its pages have checksums now */
    assert_int_equal(sql_number("SELECT count(*) FROM requests"), 0);
    strcat(path, ".before-v4");
    assert_int_equal(sql_number("PRAGMA user_version"), 1);
    assert_int_equal(sql_number("SELECT count(*) FROM turns"), 2);
}

static void a_backup_is_a_database(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_errmsg msg;
    struct hearth_digest at = none;
    for (int i = 0; i < 50; i++) {
        at = say(store, at, "work", "x");
    }
    char copy[128];
    snprintf(copy, sizeof copy, "%s.copy", path);
    assert_int_equal(hearth_session_store_backup(store, copy, &msg), HEARTH_OK);
    assert_int_equal(hearth_session_store_backup(store, copy, &msg), HEARTH_ERR_IO); /* it is there */
    assert_int_equal(hearth_turn_delete(store, alice, at), HEARTH_OK);
    hearth_session_store_destroy(store);
    assert_int_equal(files_like("*.new-*"), 0);
    store = open_with(copy, NULL, 0);
    assert_text(store, at, "x");
    hearth_session_store_destroy(store);
}

/* So that what is there can be read on a disk that is full. */
static void opening_writes_nothing(void **state) {
    (void)state;
    char log[160];
    struct stat before, after;
    struct hearth_session_store *store = open_plain(), *again;
    const struct hearth_digest at = say(store, none, "work", "one");
    snprintf(log, sizeof log, "%s-wal", path);
    assert_int_equal(stat(log, &before), 0);
    again = open_plain();
    assert_text(again, at, "one");
    hearth_session_store_destroy(again);
    assert_int_equal(stat(log, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    assert_int_equal(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
    assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    hearth_session_store_destroy(store);
    assert_int_equal(sql_number("PRAGMA auto_vacuum"), 2);
}

static void a_quota_is_kept(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_errmsg msg;
    struct hearth_session_quota has, most = {.sessions = 2};
    struct hearth_session session = {.name = "a", .owner = alice, .quota = most};
    assert_int_equal(hearth_session_put(store, &session, false, &msg), HEARTH_OK);
    (void)say(store, none, "b", "text");
    session.name = "c";
    assert_int_equal(hearth_session_put(store, &session, false, &msg), HEARTH_ERR_QUOTA);
    assert_non_null(strstr(msg.text, "2 conversations"));
    const struct said said = {.owner = alice, .id = hearth_turn_new_id(), .session = "d", .text = "more"};
    struct hearth_turn turn = turn_of(&said);
    turn.quota = most;
    assert_int_equal(hearth_turn_put(store, &turn, &msg), HEARTH_ERR_QUOTA);
    assert_int_equal(hearth_session_owner_usage(store, alice, &has), HEARTH_OK);
    turn.quota = (struct hearth_session_quota){.tokens = has.tokens};
    assert_int_equal(hearth_turn_put(store, &turn, &msg), HEARTH_ERR_QUOTA);
    assert_non_null(strstr(msg.text, "tokens"));
    turn.quota = (struct hearth_session_quota){.bytes = 10};
    assert_int_equal(hearth_turn_put(store, &turn, &msg), HEARTH_ERR_QUOTA);
    assert_int_equal(hearth_session_owner_check(store, alice, &turn.quota, false, &msg), HEARTH_ERR_QUOTA);
    assert_int_equal(hearth_session_owner_check(store, bob, &turn.quota, false, &msg), HEARTH_OK);
    hearth_turn_finish(&turn);
    assert_int_equal(hearth_session_delete(store, alice, "a"), HEARTH_OK);
    assert_int_equal(hearth_session_put(store, &session, false, &msg), HEARTH_OK);
    assert_int_equal(hearth_session_delete(store, alice, "b"), HEARTH_OK);
    assert_int_equal(hearth_session_delete(store, alice, "c"), HEARTH_OK);
    assert_int_equal(hearth_session_owner_usage(store, alice, &has), HEARTH_OK);
    assert_int_equal(has.sessions, 0);
    assert_int_equal(has.bytes, 0); /* counted to the byte */
    assert_int_equal(has.tokens, 0);
    hearth_session_store_destroy(store);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(what_is_not_ours_is_left_alone),
        TEST(what_stands_beside_is_left_alone),
        TEST(a_log_of_another_database_is_not_taken),
        TEST(a_log_without_its_file_is_an_error),
        TEST(a_log_with_a_gap_is_an_error),
        TEST(an_emptied_file_is_not_begun),
        TEST(the_first_version_is_brought_up),
        TEST(a_backup_is_a_database),
        TEST(opening_writes_nothing),
        TEST(a_quota_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
