/* What is deleted from the store: what others need stays hidden, what nobody needs goes and leaves a forget. */
#include "store_stage.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- one turn ---- */

static void the_last_turn_goes_at_once(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "one"), two = say(store, one, "work", "two");
    assert_int_equal(hearth_turn_delete(store, alice, two), HEARTH_OK);
    assert_int_equal(find(store, two), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_turn_delete(store, alice, two), HEARTH_ERR_NOT_FOUND);
    assert_same(head_of(store, "work"), one);
    assert_forget(store, "onetwo", 3);
    assert_int_equal(hearth_turn_delete(store, alice, one), HEARTH_OK);
    assert_same(head_of(store, "work"), none);
    assert_forget(store, "one", 0);
    assert_no_forget(store);
    assert_int_equal(stats_of(store).turns + stats_of(store).hidden, 0);
    assert_int_equal(sql_number("SELECT (SELECT count(*) FROM uses) + (SELECT count(*) FROM configs)"), 0);
    assert_int_equal(stats_of(store).sessions, 1);
    hearth_session_store_destroy(store);
}

static void an_inner_turn_is_hidden_until_the_last_needs_it(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, a, NULL, "b"), c = say(store, b, NULL, "c");
    struct hearth_digest d = say(store, c, NULL, "d"), side = say(store, b, NULL, "x");
    struct hearth_line line;
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, c), HEARTH_OK);
    assert_int_equal(hearth_line_get(store, alice, b, &line), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(find(store, b), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(stats_of(store).hidden, 2);
    assert_letters(store, d, "abcd"); /* and it goes on */
    assert_letters(store, say(store, d, NULL, "e"), "abcde");
    assert_no_forget(store);
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .parent = b, .text = "y", .base = 2};
    assert_int_equal(try_put(store, &said), HEARTH_OK); /* a request that was under way when b was deleted */
    assert_int_equal(hearth_turn_delete(store, alice, said.id), HEARTH_OK);
    assert_forget(store, "aby", 2);
    assert_int_equal(hearth_turn_delete(store, alice, d), HEARTH_OK); /* hidden too: e goes on from it */
    assert_letters(store, side, "abx");
    hearth_session_store_destroy(store);
}

static void a_chain_goes_as_one(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, a, NULL, "b"), c = say(store, b, NULL, "c");
    struct hearth_digest d = say(store, c, NULL, "d"), side = say(store, a, NULL, "x");
    assert_int_equal(hearth_turn_delete(store, alice, c), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, d), HEARTH_OK);
    assert_forget(store, "abcd", 1);
    assert_no_forget(store);
    assert_int_equal(hearth_turn_delete(store, alice, a), HEARTH_OK);
    assert_int_equal(stats_of(store).hidden, 1);
    assert_int_equal(hearth_turn_delete(store, alice, side), HEARTH_OK);
    assert_forget(store, "ax", 0);
    assert_int_equal(stats_of(store).hidden, 0);
    hearth_session_store_destroy(store);
}

/* Two replies to one question: what they have in common is still needed. */
static void a_sibling_keeps_what_it_shares(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, a, NULL, "why? so");
    (void)say(store, a, NULL, "why? not");
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_forget(store, "awhy? so", 6);
    hearth_session_store_destroy(store);
}

/* A template took back the end of a turn: its tokens are no part of what came after. */
static void what_was_rewritten_is_forgotten_too(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "think; yes");
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .parent = a, .text = "more", .base = 3};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, a), HEARTH_OK);
    assert_no_forget(store);
    assert_int_equal(hearth_turn_delete(store, alice, said.id), HEARTH_OK);
    assert_forget(store, "thimore", 0);
    assert_forget(store, "think; yes", 0);
    assert_no_forget(store);
    hearth_session_store_destroy(store);
}

/* ---- conversations that came to the same tokens ---- */

static void equal_roots_share_their_state(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "one", "hello"), two = say(store, none, "two", "hello");
    (void)say(store, one, "one", "more");
    assert_int_equal(hearth_session_delete(store, alice, "one"), HEARTH_OK);
    assert_forget(store, "hellomore", 5);
    assert_letters(store, two, "hello");
    one = say(store, none, "one", "hello");
    assert_int_equal(hearth_turn_delete(store, alice, one), HEARTH_OK);
    assert_no_forget(store); /* all of it is needed */
    assert_int_equal(hearth_session_delete(store, alice, "two"), HEARTH_OK);
    assert_forget(store, "hello", 0);
    assert_no_forget(store);
    hearth_session_store_destroy(store);
}

static void after_an_equal_turn_each_keeps_its_own(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "one", "hello"), two = say(store, none, "two", "hello");
    struct hearth_digest here = say(store, one, "one", "here"), there = say(store, two, "two", "there");
    struct hearth_digest away = say(store, say(store, one, NULL, "go "), NULL, "away");
    /* Others that have the same letters in a turn, but not the same path. */
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .text = "here"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, one), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, away), HEARTH_OK);
    assert_forget(store, "hellogo away", 8);
    assert_int_equal(hearth_session_delete(store, alice, "one"), HEARTH_OK);
    assert_forget(store, "hellohere", 5);
    assert_int_equal(find(store, here), HEARTH_ERR_NOT_FOUND);
    assert_letters(store, there, "hellothere");
    assert_int_equal(hearth_session_delete(store, alice, "two"), HEARTH_OK);
    assert_forget(store, "hellothere", 5); /* "hellogo " goes on from it */
    assert_no_forget(store);
    hearth_session_store_destroy(store);
}

/* Turns need not lie alike: one said in a turn what the other one said in two, and went on from one that is hidden. */
static void an_equal_path_of_other_turns_counts(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, a, NULL, "b"), c = say(store, b, NULL, "c");
    struct hearth_digest ab = say(store, none, NULL, "ab"), abd = say(store, ab, NULL, "d");
    assert_int_equal(hearth_turn_delete(store, alice, ab), HEARTH_OK); /* hidden, and needed */
    assert_int_equal(hearth_turn_delete(store, alice, a), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_no_forget(store);
    assert_int_equal(hearth_turn_delete(store, alice, c), HEARTH_OK);
    assert_forget(store, "abc", 2);
    assert_int_equal(stats_of(store).hidden, 1);
    assert_int_equal(hearth_turn_delete(store, alice, abd), HEARTH_OK);
    assert_forget(store, "abd", 0);
    assert_int_equal(stats_of(store).turns + stats_of(store).hidden, 0);
    hearth_session_store_destroy(store);
}

/* Two branches of one session: the one that goes last takes what they had in common. */
static void equals_that_go_together_keep_nothing(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "hello");
    (void)say(store, one, "work", "more");
    struct said said = {
        .owner = alice, .id = hearth_turn_new_id(), .session = "work", .text = "hello", .path = "hello"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_forget(store, "hellomore", 0);
    assert_no_forget(store);
    assert_int_equal(stats_of(store).turns + stats_of(store).hidden, 0);
    hearth_session_store_destroy(store);
}

/* State is shared by salt, not by owner; and what is of another salt, or was not told, is not shared. */
static void an_equal_path_may_be_anybodys(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct said bobs = {.owner = bob, .id = hearth_turn_new_id(), .session = "one", .text = "hello", .path = "hello"};
    struct said unknown = {
        .owner = bob, .id = hearth_turn_new_id(), .text = "other", .no_tokens = true, .path = "other"};
    struct hearth_turn elsewhere = turn_of(&bobs);
    assert_int_equal(try_put(store, &bobs), HEARTH_OK);
    assert_int_equal(try_put(store, &unknown), HEARTH_OK);
    elsewhere.id = hearth_turn_new_id();
    elsewhere.salt = bob;
    free(elsewhere.session);
    elsewhere.session = NULL;
    elsewhere.path = hearth_turn_path_id(store, model, bob, elsewhere.tokens.v, elsewhere.tokens.n);
    assert_int_equal(hearth_turn_put(store, &elsewhere, NULL), HEARTH_OK);
    (void)say(store, say(store, none, "one", "hello"), "one", "more");
    (void)say(store, none, "two", "other");
    assert_int_equal(hearth_session_delete(store, alice, "one"), HEARTH_OK);
    assert_forget(store, "hellomore", 5);
    assert_int_equal(hearth_session_delete(store, alice, "two"), HEARTH_OK);
    assert_forget(store, "other", 0);
    assert_int_equal(hearth_session_delete(store, bob, "one"), HEARTH_OK);
    assert_forget(store, "hello", 0); /* though another salt has the same */
    hearth_turn_finish(&elsewhere);
    hearth_session_store_destroy(store);
}

/* ---- which model's ---- */

static void forgets_are_of_a_model_and_wait(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, none, NULL, "b");
    struct said unknown = {.owner = alice, .id = hearth_turn_new_id(), .text = "c", .no_tokens = true};
    struct hearth_forget forget, next;
    assert_int_equal(try_put(store, &unknown), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, a), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, unknown.id), HEARTH_OK);
    hearth_session_store_destroy(store);
    store = open_plain();
    assert_int_equal(stats_of(store).forgets, 2);
    assert_int_equal(hearth_forget_next(store, salt, 0, &forget), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_forget_next(store, model, 0, &forget), HEARTH_OK);
    assert_int_equal(hearth_forget_next(store, model, forget.id, &next), HEARTH_OK);
    assert_int_equal(next.tokens.v[0], 'b' * 1000);
    assert_int_equal(hearth_forget_done(store, next.id), HEARTH_OK);
    assert_int_equal(hearth_forget_done(store, next.id), HEARTH_OK);
    hearth_forget_finish(&next);
    assert_int_equal(hearth_forget_next(store, model, forget.id, &next), HEARTH_ERR_NOT_FOUND);
    hearth_forget_finish(&forget);
    hearth_session_store_destroy(store);
}

/* ---- sessions ---- */

static void a_session_goes_with_its_turns(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest before = say(store, none, NULL, "b"), at = before, ids[10];
    for (int i = 0; i < 10; i++) {
        char text[2] = {(char)('0' + i), '\0'};
        ids[i] = at = say(store, at, "work", text);
    }
    struct hearth_digest side = say(store, ids[4], "work", "s"); /* a second end of the same session */
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_ERR_NOT_FOUND);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(find(store, ids[i]), HEARTH_ERR_NOT_FOUND);
    }
    assert_int_equal(find(store, side), HEARTH_ERR_NOT_FOUND);
    assert_text(store, before, "b"); /* it was put without it */
    assert_forget(store, "b01234s", 6);
    assert_forget(store, "b0123456789", 1);
    assert_no_forget(store);
    assert_int_equal(stats_of(store).turns, 1);
    hearth_session_store_destroy(store);
}

static void a_fork_outlives_what_it_forked_from(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, "work", "a"), b = say(store, a, "work", "b");
    struct hearth_digest c = say(store, b, "work", "c");
    make_session(store, "fork", b);
    make_session(store, "twin", c);
    assert_int_equal(hearth_session_delete(store, alice, "twin"), HEARTH_OK);
    assert_same(head_of(store, "work"), c); /* a fork that only looked */
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_int_equal(find(store, c), HEARTH_ERR_NOT_FOUND);
    assert_forget(store, "abc", 2);
    assert_same(head_of(store, "fork"), b);
    assert_letters(store, b, "ab");
    assert_int_equal(find(store, b), HEARTH_ERR_NOT_FOUND); /* it was deleted, but for the fork */
    (void)say(store, none, "work", "new");                  /* of the same name, but another one */
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_forget(store, "new", 0);
    assert_letters(store, b, "ab");
    struct hearth_digest d = say(store, b, "fork", "d");
    make_session(store, "second", d);
    assert_int_equal(hearth_session_delete(store, alice, "fork"), HEARTH_OK);
    assert_letters(store, d, "abd");
    assert_int_equal(hearth_session_delete(store, alice, "second"), HEARTH_OK);
    assert_forget(store, "abd", 0);
    assert_int_equal(stats_of(store).turns + stats_of(store).hidden, 0);
    hearth_session_store_destroy(store);
}

static void a_deleted_turn_stays_where_a_fork_stands(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, "work", "a"), b = say(store, a, "work", "b");
    make_session(store, "fork", b);
    make_session(store, "other", b);
    assert_int_equal(hearth_turn_delete(store, alice, b), HEARTH_OK);
    assert_same(head_of(store, "work"), a);
    assert_same(head_of(store, "fork"), b);
    assert_int_equal(find(store, b), HEARTH_ERR_NOT_FOUND);
    assert_letters(store, b, "ab"); /* by its name the fork goes on */
    struct hearth_session session = {.name = "new", .owner = alice, .head = b};
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK); /* a fork of the fork */
    assert_int_equal(hearth_session_delete(store, alice, "new"), HEARTH_OK);
    session = (struct hearth_session){.name = "fork", .owner = alice, .head = a};
    assert_int_equal(hearth_session_put(store, &session, true, NULL), HEARTH_OK);
    assert_no_forget(store);
    assert_int_equal(hearth_session_delete(store, alice, "other"), HEARTH_OK);
    assert_forget(store, "ab", 1);
    assert_int_equal(stats_of(store).hidden, 0);
    hearth_session_store_destroy(store);
}

/* ---- space ---- */

static bool is_in(const char *suffix, const void *bytes, size_t len) {
    char name[300];
    struct stat st;
    snprintf(name, sizeof name, "%s%s", path, suffix);
    int fd = open(name, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *all = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, all, (size_t)st.st_size), st.st_size);
    bool found = memmem(all, (size_t)st.st_size, bytes, len) != NULL;
    free(all);
    close(fd);
    return found;
}

static void what_is_deleted_is_not_in_the_file(void **state) {
    (void)state;
    if (on_server()) {
        skip();
    }
    struct hearth_session_store *store = open_plain();
    struct hearth_digest first = say(store, none, "stays", "a");
    uint64_t empty = stats_of(store).bytes;
    struct hearth_digest ids[100], at = none;
    for (int i = 0; i < 100; i++) {
        struct hearth_turn turn = {.id = ids[i] = hearth_turn_new_id(), .owner = alice, .parent = at};
        for (int j = 0; j < 1000; j++) {
            struct hearth_digest noise = hearth_turn_new_id();
            assert_true(hearth_buf_append(&turn.body, &noise, sizeof noise));
        }
        turn.session = strdup("goes");
        assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
        hearth_turn_finish(&turn);
        at = ids[i];
    }
    uint64_t full = stats_of(store).bytes;
    assert_true(full > empty + 1000000);
    assert_true(is_in("", &ids[50], sizeof ids[50]) || is_in("-wal", &ids[50], sizeof ids[50]));
    assert_int_equal(hearth_session_delete(store, alice, "goes"), HEARTH_OK);
    for (int i = 0; i < 100; i++) {
        assert_false(is_in("", &ids[i], sizeof ids[i]));
        assert_false(is_in("-wal", &ids[i], sizeof ids[i]));
    }
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true((uint64_t)st.st_size < empty + 65536);
    assert_text(store, first, "a");
    hearth_session_store_destroy(store);
}

/* ---- time to live ---- */

#define HOUR ((int64_t)3600 * 1000000)

static void age(const char *table, int hours) {
    char text[128];
    const char *column = strcmp(table, "sessions") == 0 ? "aged" : "used";
    snprintf(text, sizeof text, "UPDATE %s SET %s = %s - %lld", table, column, column, hours * (long long)HOUR);
    sql(text);
}

static void what_is_not_used_expires(void **state) {
    (void)state;
    struct hearth_session_store *store = open_with(path, NULL, 10 * HOUR);
    struct hearth_digest a = say(store, none, "old", "a"), b = say(store, a, "old", "b");
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    age("uses", 11);
    age("sessions", 11);
    struct hearth_digest c = say(store, none, "new", "c"), d = say(store, b, NULL, "d");
    age("uses", 1);
    assert_int_equal(hearth_session_store_sweep(store, 100), 1); /* the name alone: d keeps what it goes on from */
    struct hearth_session session;
    assert_int_equal(hearth_session_get(store, alice, "old", &session), HEARTH_ERR_NOT_FOUND);
    assert_letters(store, d, "abd");
    age("uses", 10);
    age("sessions", 10);
    assert_text(store, c, "c"); /* counts as use */
    age("uses", 1);             /* d was read a moment ago */
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    age("uses", 11);
    assert_text(store, c, "c");
    assert_int_equal(hearth_session_store_sweep(store, 100), 3);
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    assert_int_equal(find(store, d), HEARTH_ERR_NOT_FOUND);
    assert_text(store, c, "c");
    assert_same(head_of(store, "new"), c);
    assert_forget(store, "abd", 0);
    hearth_session_store_destroy(store);
}

static void a_sweep_is_a_slice(void **state) {
    (void)state;
    struct hearth_session_store *store = open_with(path, NULL, 10 * HOUR);
    struct hearth_digest at = none;
    for (int i = 0; i < 10; i++) {
        at = say(store, at, NULL, "x");
    }
    age("uses", 11);
    assert_int_equal(hearth_session_store_sweep(store, 4), 4);
    assert_int_equal(stats_of(store).turns, 6);
    assert_forget(store, "xxxxxxxxxx", 6);
    assert_int_equal(hearth_session_store_sweep(store, 4), 4);
    assert_int_equal(hearth_session_store_sweep(store, 4), 2);
    assert_int_equal(hearth_session_store_sweep(store, 4), 0);
    hearth_session_store_destroy(store);
}

static void a_session_keeps_its_turn(void **state) {
    (void)state;
    struct hearth_session_store *store = open_with(path, NULL, 10 * HOUR);
    struct hearth_digest a = say(store, none, "work", "a");
    age("uses", 11);
    age("sessions", 1);
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    assert_text(store, a, "a");
    age("uses", 11);
    age("sessions", 11);
    (void)head_of(store, "work"); /* counts as use */
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    assert_text(store, a, "a");
    hearth_session_store_destroy(store);
}

static void what_was_read_is_remembered_over_a_restart(void **state) {
    (void)state;
    struct hearth_session_store *store = open_with(path, NULL, 10 * HOUR);
    struct hearth_digest a = say(store, none, NULL, "a"), b = say(store, none, NULL, "b");
    age("uses", 11);
    struct hearth_line line;
    assert_int_equal(hearth_line_get(store, alice, a, &line), HEARTH_OK);
    hearth_line_finish(&line);
    hearth_session_store_destroy(store);
    store = open_with(path, NULL, 10 * HOUR);
    assert_int_equal(hearth_session_store_sweep(store, 100), 1);
    assert_text(store, a, "a");
    assert_int_equal(find(store, b), HEARTH_ERR_NOT_FOUND);
    hearth_session_store_destroy(store);
}

static void without_a_time_nothing_expires(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest a = say(store, none, "work", "a");
    age("uses", 1000000);
    age("sessions", 1000000);
    assert_int_equal(hearth_session_store_sweep(store, 100), 0);
    assert_text(store, a, "a");
    hearth_session_store_destroy(store);
}

/* ---- what is told of requests ---- */

static void keep_request(struct hearth_session_store *store, const char *id, const char *session,
                         struct hearth_digest turn, bool is_kept) {
    struct hearth_session_request row = {.id = id, .owner = alice, .session = session, .turn = turn, .created_us = 7};
    assert_true(hearth_buf_text(&row.body, "told of "));
    assert_true(hearth_buf_text(&row.body, id));
    assert_int_equal(hearth_session_requests_put(store, &row, 1, 100, 1 << 20), HEARTH_OK);
    assert_int_equal(row.written, is_kept);
    hearth_buf_finish(&row.body);
}

static bool append_request(void *user, const struct hearth_session_request *row) {
    struct hearth_buf *all = user;
    return hearth_buf_printf(all, "%s:%.*s ", row->id, (int)row->body.len, (const char *)row->body.data);
}

static void assert_requests(struct hearth_session_store *store, const char *wanted) {
    struct hearth_buf all = {0};
    assert_true(hearth_buf_text(&all, ""));
    assert_int_equal(hearth_session_requests_each(store, true, append_request, &all), HEARTH_OK);
    assert_true(hearth_buf_append(&all, "", 1));
    assert_string_equal((const char *)all.data, wanted);
    hearth_buf_finish(&all);
}

static void requests_go_with_what_they_are_about(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest one = say(store, none, "work", "one"), two = say(store, one, "work", "two");
    struct hearth_digest other = say(store, none, NULL, "x");
    keep_request(store, "a", "work", one, true);
    keep_request(store, "b", "work", two, true);
    keep_request(store, "c", NULL, other, true);
    keep_request(store, "d", NULL, none, true);
    keep_request(store, "e", "play", none, false);                      /* there is no such session, */
    keep_request(store, "f", NULL, hearth_turn_new_id(), false);        /* and no such turn */
    assert_int_equal(hearth_turn_delete(store, alice, one), HEARTH_OK); /* hidden: another one goes on from it */
    keep_request(store, "g", "work", one, false);
    assert_requests(store, "b:told of b c:told of c d:told of d ");
    assert_int_equal(hearth_turn_delete(store, alice, other), HEARTH_OK);
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_requests(store, "d:told of d ");
    assert_int_equal(hearth_session_requests_count(store), 1);
    hearth_session_store_destroy(store);
}

static void requests_are_bounded_and_checked(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    keep_request(store, "a", NULL, none, true);
    keep_request(store, "b", NULL, none, true);
    keep_request(store, "c", NULL, none, true);
    assert_int_equal(hearth_session_requests_put(store, NULL, 0, 2, 1 << 20), HEARTH_OK);
    assert_requests(store, "b:told of b c:told of c ");
    sql(on_server() ? "UPDATE requests SET owner = '\\x00000000000000000000000000000000' WHERE request = 'b'"
                    : "UPDATE requests SET owner = zeroblob(16) WHERE request = 'b'"); /* it may not become another's */
    assert_requests(store, "c:told of c ");
    assert_int_equal(hearth_session_requests_put(store, NULL, 0, 2, 10), HEARTH_OK); /* bytes */
    assert_requests(store, "");
    hearth_session_store_destroy(store);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_last_turn_goes_at_once),
        TEST(an_inner_turn_is_hidden_until_the_last_needs_it),
        TEST(a_chain_goes_as_one),
        TEST(a_sibling_keeps_what_it_shares),
        TEST(what_was_rewritten_is_forgotten_too),
        TEST(equal_roots_share_their_state),
        TEST(after_an_equal_turn_each_keeps_its_own),
        TEST(an_equal_path_of_other_turns_counts),
        TEST(equals_that_go_together_keep_nothing),
        TEST(an_equal_path_may_be_anybodys),
        TEST(forgets_are_of_a_model_and_wait),
        TEST(a_session_goes_with_its_turns),
        TEST(a_fork_outlives_what_it_forked_from),
        TEST(a_deleted_turn_stays_where_a_fork_stands),
        TEST(what_is_deleted_is_not_in_the_file),
        TEST(what_is_not_used_expires),
        TEST(a_sweep_is_a_slice),
        TEST(a_session_keeps_its_turn),
        TEST(what_was_read_is_remembered_over_a_restart),
        TEST(without_a_time_nothing_expires),
        TEST(requests_go_with_what_they_are_about),
        TEST(requests_are_bounded_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
