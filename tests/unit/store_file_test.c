/* The store's file: encrypted, damaged, of other versions, and how large and how quick it is with many conversations.
 */
#include "store_stage.h"
#include "support/random.h"

#include "base/health.h"
#include "session/db_sqlite.h"
#include "session/store_internal.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- keys ---- */

static struct hearth_seal *make_seal(const char *name, char fill) {
    char file[128];
    struct hearth_seal *seal;
    snprintf(file, sizeof file, "%s/%s", directory, name);
    int fd = open(file, O_CREAT | O_WRONLY | O_EXCL, 0600);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(write(fd, &fill, 1), 1);
    }
    close(fd);
    assert_int_equal(hearth_seal_create(file, &seal, NULL), HEARTH_OK);
    return seal;
}

/* What the file and its log hold. */
static bool holds(const void *what, size_t len) {
    bool found = false;
    static const char *const suffixes[] = {"", "-wal"};
    for (int i = 0; i < 2; i++) {
        char name[128];
        struct stat st;
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        int fd = open(name, O_RDONLY);
        if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
            uint8_t *bytes = malloc((size_t)st.st_size);
            assert_int_equal(read(fd, bytes, (size_t)st.st_size), st.st_size);
            found = found || memmem(bytes, (size_t)st.st_size, what, len) != NULL;
            free(bytes);
        }
        close(fd);
    }
    return found;
}

static void with_a_key_nothing_is_told(void **state) {
    (void)state;
    struct hearth_seal *seal = make_seal("key", 'k'), *wrong = make_seal("wrong", 'w');
    struct hearth_errmsg msg;
    struct hearth_session_store *store = open_with(path, seal, 0);
    uint8_t secret[32];
    struct said said = {.owner = alice,
                        .id = hearth_turn_new_id(),
                        .session = "Xq7-session-Zk2",
                        .text = "Jv9wPq3xBody",
                        .config = "Hf5rLm1cConfig"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    struct hearth_session session = {.name = "Ty8-other-Ub4", .owner = alice};
    assert_true(hearth_buf_text(&session.metadata, "Gd6nSw0eMeta"));
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK);
    hearth_buf_finish(&session.metadata);
    hearth_session_store_secret(store, secret);
    static const char *const plain[] = {"Xq7", "Zk2", "Jv9", "Pq3x", "Hf5", "Lm1c", "Ty8", "Gd6", "Sw0e"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        assert_false(holds(plain[i], strlen(plain[i])));
    }
    assert_false(holds(secret, 8));
    struct hearth_turn turn = turn_of(&said);
    uint8_t numbers[6] = {0}; /* the first two tokens as they would stand there */
    for (int i = 0; i < 2; i++) {
        uint32_t token = (uint32_t)turn.tokens.v[i];
        for (int j = 0; j < 3; j++, token >>= 7) {
            numbers[3 * i + j] = (uint8_t)((token & 0x7F) | (token > 0x7F ? 0x80 : 0));
        }
    }
    assert_false(holds(numbers, sizeof numbers));
    turn.path = hearth_turn_path_id(store, model, salt, turn.tokens.v, turn.tokens.n);
    struct hearth_session_store *plain_store = open_with(NULL, NULL, 0);
    assert_false(hearth_digest_equal(turn.path, path_of(plain_store, said.text))); /* nobody can try guesses */
    hearth_session_store_destroy(plain_store);
    hearth_turn_finish(&turn);
    assert_text(store, said.id, said.text);
    hearth_session_store_destroy(store);

    const struct hearth_session_store_params params[] = {{.path = path, .seal = wrong}, {.path = path}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hearth_session_store_create(&params[i], &store, &msg), HEARTH_ERR_STATE);
        assert_null(store);
        assert_non_null(strstr(msg.text, "encrypted"));
    }
    store = open_with(path, seal, 0);
    assert_text(store, said.id, said.text);
    assert_same(head_of(store, "Xq7-session-Zk2"), said.id);
    assert_int_equal(hearth_turn_delete(store, alice, said.id), HEARTH_OK);
    assert_false(holds(numbers, sizeof numbers));
    assert_forget(store, said.text, 0);
    hearth_session_store_destroy(store);
    hearth_seal_destroy(seal);
    hearth_seal_destroy(wrong);
    assert_int_equal(warnings, 0);
}

/* ---- damage ---- */

static void spoil(long at, const char *text, size_t len) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, len, at), (ssize_t)len);
    close(fd);
}

/* Nothing is moved out of the way, and nothing is begun in its place. */
static void a_damaged_database_stays(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest turn = say(store, none, "work", "a");
    hearth_session_store_destroy(store);
    char first[4096];
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, first, sizeof first), sizeof first);
    close(fd);
    spoil(0, "This is no database", 19); /* nor is it known whose it was */
    assert_int_equal(fails_to_open("is no database of hearth's"), HEARTH_ERR_INVALID);
    spoil(0, first, sizeof first);
    spoil(200, "damage", 6); /* the tables' names are on the first page */
    assert_int_equal(fails_to_open("hearth sessions recover"), HEARTH_ERR_STATE);
    spoil(0, first, sizeof first);
    store = open_plain();
    assert_text(store, turn, "a");
    hearth_session_store_destroy(store);
    assert_int_equal(warnings, 0);
}

/* What is on a bad page is an error, every time; the rest is read and written as before. */
static void damage_is_found_while_serving(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest at = none;
    for (int i = 0; i < 300; i++) {
        at = say(store, none, "work", "a text");
    }
    hearth_session_store_destroy(store);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char zeros[4096] = {0};
    uint8_t *whole = malloc((size_t)st.st_size);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, whole, (size_t)st.st_size), st.st_size);
    close(fd);
    for (int zero = 0; zero < 2; zero++) {
        spoil(0, (const char *)whole, (size_t)st.st_size);
        store = open_plain();
        for (long page = 4096; page < st.st_size; page += 4096) {
            spoil(page, zero ? zeros : "damage", zero ? sizeof zeros : 6); /* all but the first page */
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(find(store, at), HEARTH_ERR_STATE);
            struct hearth_session session;
            assert_int_equal(hearth_session_get(store, alice, "work", &session), HEARTH_ERR_STATE);
        }
        const struct said said = {.owner = alice, .id = hearth_turn_new_id(), .session = "work", .text = "anew"};
        assert_int_equal(try_put(store, &said), HEARTH_ERR_STATE);
        assert_true(hearth_health_raised(HEARTH_HEALTH_SESSION_DB, NULL, 0));
        hearth_session_store_destroy(store);
    }
    free(whole);
    assert_int_equal(files_like("*.bad-*"), 0);
    hearth_health_clear(HEARTH_HEALTH_SESSION_DB);
}

static void one_bad_page_costs_what_is_on_it(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest turns[300];
    for (int i = 0; i < 300; i++) {
        turns[i] = say(store, none, NULL, "a text");
    }
    hearth_session_store_destroy(store);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    uint8_t *whole = malloc((size_t)st.st_size);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, whole, (size_t)st.st_size), st.st_size);
    close(fd);
    long row =
        -1; /* of its own, behind the copies of the id in indexes: where the id and the owner's row stand together */
    for (long i = 0; i + 40 < st.st_size; i++) {
        if (whole[i / 4096 * 4096] == 13 && memcmp(whole + i, &turns[150], 16) == 0) {
            row = i;
        }
    }
    free(whole);
    assert_true(row > 4096);
    spoil(row, "X", 1);
    store = open_plain();
    int lost = 0;
    for (int i = 0; i < 300; i++) {
        int err = find(store, turns[i]);
        lost += err == HEARTH_ERR_STATE;
        assert_true(err == HEARTH_OK || err == HEARTH_ERR_STATE);
    }
    printf("%d of 300 turns were on the bad page\n", lost);
    assert_true(lost > 0 && lost < 100);
    (void)say(store, none, "work", "goes on");
    assert_int_equal(hearth_session_store_sweep(store, 10), 0); /* looks through the file */
    assert_true(hearth_health_raised(HEARTH_HEALTH_SESSION_DB, NULL, 0));
    hearth_health_clear(HEARTH_HEALTH_SESSION_DB);
    hearth_session_store_destroy(store);
}

/* Single bits anywhere: what comes back is what was put, or an error. */
static void a_flipped_bit_is_never_read(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "the first one of them"),
                         two = say(store, one, "work", "and two");
    hearth_session_store_destroy(store);
    struct rng rng = {seed_announced(20261125)};
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    uint8_t *whole = malloc((size_t)st.st_size);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, whole, (size_t)st.st_size), st.st_size);
    close(fd);
    /* About the turn's row, where most of what matters is, and anywhere. */
    uint8_t *row = memmem(whole, (size_t)st.st_size, &two, sizeof two);
    assert_non_null(row);
    const long about = row - whole - 32;
    int wrong = 0, misses = 0;
    for (int i = 0; i < 400; i++) {
        long at = i % 2 == 0 ? about + (long)rng_below(&rng, 160) : (long)rng_below(&rng, (uint32_t)st.st_size);
        char command[256];
        snprintf(command, sizeof command, "rm -f %s*", path);
        assert_int_equal(system(command), 0);
        fd = open(path, O_CREAT | O_WRONLY, 0600);
        whole[at] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(write(fd, whole, (size_t)st.st_size), st.st_size);
        whole[at] ^= (uint8_t)(1u << i % 8);
        close(fd);
        const struct hearth_session_store_params params = {.path = path};
        if (hearth_session_store_create(&params, &store, NULL) != HEARTH_OK) {
            misses++;
            continue;
        }
        struct hearth_turn got;
        struct hearth_line line;
        if (hearth_turn_get(store, alice, two, &got) == HEARTH_OK) {
            wrong += strcmp((const char *)got.body.data, "and two") != 0 || !hearth_digest_equal(got.parent, one) ||
                     got.status != HEARTH_TURN_COMPLETED || got.base_tokens != 21 || got.tokens.n != 7;
        } else {
            misses++;
        }
        if (hearth_line_get(store, alice, two, &line) == HEARTH_OK) {
            wrong += line.count != 2 || strcmp((const char *)line.turns[0].body.data, "the first one of them") != 0;
        }
        hearth_turn_finish(&got);
        hearth_line_finish(&line);
        (void)hearth_turn_delete(store, alice, two);
        hearth_session_store_destroy(store);
    }
    printf("%d of 400 flipped bits made a miss\n", misses);
    assert_int_equal(wrong, 0);
    assert_true(misses > 0);
    free(whole);
}

static void a_row_that_does_not_verify_is_an_error(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "one"), two = say(store, one, "work", "two");
    sql("UPDATE turns SET body = CAST(substr(body, 1, 5) || X'00' || substr(body, 7) AS BLOB) WHERE id = 1");
    struct hearth_line line;
    assert_int_equal(find(store, one), HEARTH_ERR_STATE);
    assert_int_equal(hearth_line_get(store, alice, two, &line), HEARTH_ERR_STATE);
    assert_int_equal(find(store, two), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, two), HEARTH_OK); /* it can go all the same */
    assert_int_equal(hearth_turn_delete(store, alice, one), HEARTH_OK);
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, none, NULL, "b");
    sql("UPDATE turns SET body = (SELECT body FROM turns ORDER BY id LIMIT 1)"); /* in another's place */
    assert_int_equal(find(store, a), HEARTH_OK);
    assert_int_equal(find(store, b), HEARTH_ERR_STATE);
    hearth_session_store_destroy(store);
}

static void a_removed_database_is_begun_anew(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest turn = say(store, none, "work", "a");
    char command[128];
    snprintf(command, sizeof command, "rm %s*", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(find(store, turn), HEARTH_ERR_NOT_FOUND);
    turn = say(store, none, "work", "b");
    hearth_session_store_destroy(store);
    store = open_plain();
    assert_text(store, turn, "b");
    hearth_session_store_destroy(store);
}

/* ---- versions ---- */

static void another_file_is_refused(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_errmsg msg;
    const struct hearth_session_store_params params = {.path = path};
    struct hearth_digest turn = say(store, none, "work", "a");
    hearth_session_store_destroy(store);
    sql("PRAGMA user_version = 9999");
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_ERR_INVALID);
    assert_non_null(strstr(msg.text, "newer"));
    assert_non_null(strstr(msg.text, path));
    char text[64];
    snprintf(text, sizeof text, "PRAGMA user_version = %d", hearth_session_db_kind.version);
    sql(text);
    store = open_plain();
    assert_text(store, turn, "a");
    hearth_session_store_destroy(store);
    assert_int_equal(remove(path), 0);
    sql("CREATE TABLE shopping (what TEXT)");
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_ERR_INVALID);
    assert_int_equal(sql_number("SELECT count(*) FROM shopping"), 0);
    assert_int_equal(files_like("*.bad-*"), 0);
    assert_int_equal(warnings, 0);
}

static void an_older_version_is_brought_up_to_date(void **state) {
    (void)state;
    static const char *const steps[] = {"CREATE TABLE a (x); INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN y",
                                        "UPDATE a SET y = x + 1; CREATE TABLE b (z)"};
    static const char *const select[] = {"SELECT y FROM a"};
    static const char *const failing[] = {"", "", "", "CREATE TABLE c (v); INSERT INTO nowhere VALUES (1)"};
    struct hearth_db_kind kind = {.label = "test", .application = 7, .steps = steps, .version = 1};
    struct hearth_errmsg why;
    struct hearth_db db;
    snprintf(path, sizeof path, "%s/versions.db", directory);
    hearth_db_init(&db, &hearth_db_sqlite, &kind, path, 1000, NULL);
    assert_int_equal(hearth_db_open(&db, &why), SQLITE_OK);
    hearth_db_close(&db);
    assert_int_equal(sql_number("PRAGMA user_version"), 1);
    kind.version = 3;
    kind.statements = select;
    kind.statement_count = 1;
    assert_int_equal(hearth_db_open(&db, &why), SQLITE_OK);
    assert_int_equal(hearth_db_query(&db, 0, ""), 1);
    assert_int_equal(hearth_db_column_number(&db, 0, 0), 2);
    hearth_db_close(&db);
    assert_int_equal(sql_number("PRAGMA user_version"), 3);
    kind.steps = failing;
    kind.version = 4;
    assert_int_equal(hearth_db_open(&db, &why), SQLITE_ERROR);
    assert_null(db.handle);
    assert_int_equal(sql_number("PRAGMA user_version"), 3); /* whole or not at all */
    assert_int_equal(sql_number("SELECT count(*) FROM sqlite_master WHERE name = 'c'"), 0);
    kind.version = 2;
    assert_int_equal(hearth_db_open(&db, &why), HEARTH_DB_NEWER);
    kind.application = 8;
    assert_int_equal(hearth_db_open(&db, &why), HEARTH_DB_ALIEN);
    hearth_db_finish(&db);
}

/* ---- many conversations ---- */

/* No statement goes through a table, but those that count, those about the few requests that are kept, and lists by an
 * index. */
static void every_statement_is_indexed(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    hearth_session_store_destroy(store);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (size_t i = 0; i < hearth_session_db_kind.statement_count; i++) {
        char text[4096];
        sqlite3_stmt *statement;
        if (i == PAGES_USED || i == COUNT_TURNS || i == COUNT_HIDDEN || i == COUNT_SESSIONS || i == COUNT_FORGETS ||
            i == COUNT_USES || i == COUNT_REQUESTS || i == REQUESTS_ALL || i == REQUESTS_TRIM) {
            continue;
        }
        snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", hearth_session_db_kind.statements[i]);
        assert_int_equal(sqlite3_prepare_v2(db, text, -1, &statement, NULL), SQLITE_OK);
        while (sqlite3_step(statement) == SQLITE_ROW) {
            const char *plan = (const char *)sqlite3_column_text(statement, 3);
            bool scans = strncmp(plan, "SCAN", 4) == 0 && strcmp(plan, "SCAN CONSTANT ROW") != 0;
            if (scans || strstr(plan, "TEMP B-TREE") != NULL || strstr(plan, "AUTOMATIC") != NULL) {
                fail_msg("%s\n%s", hearth_session_db_kind.statements[i], plan);
            }
        }
        sqlite3_finalize(statement);
    }
    sqlite3_close(db);
}

static const char *const words[] = {
    "the",       "of",      "and",       "to",       "a",       "in",       "is",        "it",      "you",
    "that",      "server",  "request",   "cache",    "token",   "function", "returns",   "when",    "value",
    "error",     "message", "which",     "would",    "there",   "their",    "question",  "answer",  "file",
    "line",      "change",  "test",      "because",  "however", "between",  "another",   "without", "through",
    "possible",  "really",  "something", "nothing",  "river",   "mountain", "breakfast", "painter", "velocity",
    "harvest",   "copper",  "lantern",   "orchard",  "tunnel",  "quickly",  "slowly",    "never",   "always",
    "sometimes", "perhaps", "finally",   "before",   "after",   "during",   "measure",   "explain", "compare",
    "build",     "remove",  "replace",   "consider", "decide",  "discover", "imagine"};

/* Text of about `len` bytes as people write it: common words often, rare ones seldom, names and numbers in between. */
static void write_text(struct rng *rng, struct hearth_buf *out, size_t len) {
    const uint32_t count = sizeof words / sizeof words[0];
    for (size_t end = out->len + len; out->len < end;) {
        uint32_t a = rng_below(rng, count), b = rng_below(rng, count);
        if (rng_once_in(rng, 6)) {
            char name[12] = {0};
            for (uint32_t i = 0, n = 4 + rng_below(rng, 7); i < n; i++) {
                name[i] = "etaoinshrdlucmfwypvbgkqjxz"[rng_below(rng, 1 + rng_below(rng, 26))];
            }
            assert_true(hearth_buf_printf(out, "%s ", name));
        } else if (rng_once_in(rng, 25)) {
            assert_true(hearth_buf_printf(out, "%u ", rng_below(rng, 10000)));
        } else {
            assert_true(hearth_buf_printf(out, "%s%s", words[a < b ? a : b], rng_once_in(rng, 9) ? ". " : " "));
        }
    }
}

static size_t put_long_turn(struct hearth_session_store *store, struct rng *rng, struct hearth_turn *turn) {
    const uint64_t number = rng_next(rng); /* no two paths are equal */
    struct hearth_buf question = {0}, answer = {0};
    write_text(rng, &question, 100 + rng_below(rng, 300));
    write_text(rng, &answer, 200 + rng_below(rng, 500));
    turn->body.len = turn->tokens.n = 0;
    assert_true(hearth_buf_printf(
        &turn->body,
        "{\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"%s\"}]}],"
        "\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{\"type\":"
        "\"output_text\",\"text\":\"%s\",\"annotations\":[]}]}],\"response\":{\"model\":\"smollm2\",\"usage\":"
        "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
        "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%u}}}",
        (const char *)question.data, (const char *)answer.data, turn->base_tokens + rng_below(rng, 100),
        turn->base_tokens, rng_below(rng, 200), turn->base_tokens + rng_below(rng, 300)));
    size_t text = question.len + answer.len;
    for (size_t i = 0; i < text / 4; i++) { /* a token is about four letters; the most usual are small numbers */
        uint32_t most = 1 + rng_below(rng, 150000);
        assert_true(hearth_tokens_push(&turn->tokens, (hearth_token)rng_below(rng, most)));
    }
    turn->path = hearth_digest_bytes(&number, sizeof number);
    assert_int_equal(hearth_turn_put(store, turn, NULL), HEARTH_OK);
    hearth_buf_finish(&question);
    hearth_buf_finish(&answer);
    return text;
}

/* Conversations of 50 turns each. */
static void measure(const struct hearth_seal *seal, size_t conversations) {
    enum { TURNS = 50 };
    struct rng rng = {seed_announced(20261126)};
    struct hearth_session_store *store = open_with(path, seal, 0);
    struct hearth_digest *heads = calloc(conversations, sizeof heads[0]);
    uint32_t *tokens = calloc(conversations, sizeof tokens[0]);
    size_t text = 0;
    for (int i = 0; i < TURNS; i++) { /* all of them a little at a time, as it is in life */
        for (size_t j = 0; j < conversations; j++) {
            char name[64];
            snprintf(name, sizeof name, "conv_%032zx", j * 7919);
            struct hearth_turn turn = {.id = hearth_turn_new_id(),
                                       .owner = alice,
                                       .parent = heads[j],
                                       .status = HEARTH_TURN_COMPLETED,
                                       .session = strdup(name),
                                       .model = model,
                                       .salt = salt,
                                       .base_tokens = tokens[j]};
            assert_true(hearth_buf_printf(&turn.config, "{\"instructions\":\"You are agent %zu.\"}", j % 10));
            text += put_long_turn(store, &rng, &turn);
            heads[j] = turn.id;
            tokens[j] += (uint32_t)turn.tokens.n;
            hearth_turn_finish(&turn);
        }
    }
    struct hearth_line line;
    assert_int_equal(hearth_line_get(store, alice, heads[conversations / 2], &line), HEARTH_OK);
    assert_int_equal(line.count, TURNS);
    assert_int_equal(line.tokens_turns, TURNS);
    hearth_line_finish(&line);
    uint64_t used = stats_of(store).bytes;
    hearth_session_store_destroy(store); /* the log goes into the file */
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    printf("%zu conversations: %zu bytes of text, %lld of file, %.2f times the text\n", conversations, text,
           (long long)st.st_size, (double)st.st_size / (double)text);
    assert_true((uint64_t)st.st_size < text * 3);
    assert_true(used <= (uint64_t)st.st_size);
    free(heads);
    free(tokens);
}

static void the_file_is_small(void **state) {
    (void)state;
    measure(NULL, (size_t)env_number("HEARTH_CONVERSATIONS", 80));
}

static void the_file_is_small_with_a_key(void **state) {
    (void)state;
    struct hearth_seal *seal = make_seal("key", 'k');
    measure(seal, 20);
    hearth_seal_destroy(seal);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(with_a_key_nothing_is_told),
        TEST(a_damaged_database_stays),
        TEST(one_bad_page_costs_what_is_on_it),
        TEST(damage_is_found_while_serving),
        TEST(a_flipped_bit_is_never_read),
        TEST(a_row_that_does_not_verify_is_an_error),
        TEST(a_removed_database_is_begun_anew),
        TEST(another_file_is_refused),
        TEST(an_older_version_is_brought_up_to_date),
        TEST(every_statement_is_indexed),
        TEST(the_file_is_small),
        TEST(the_file_is_small_with_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
