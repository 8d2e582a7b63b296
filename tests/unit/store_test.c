/* The store's turns and sessions: what is put is found again, under its owner, also by another process. */
#include "session/db_file.h"
#include "session/store_internal.h"
#include "store_stage.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- turns ---- */

static void a_turn_comes_back_whole(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    const struct said said = {.owner = alice,
                              .id = hearth_turn_new_id(),
                              .session = "work",
                              .text = "{\"input\":[],\"output\":[]}",
                              .config = "{\"tools\":[]}",
                              .status = HEARTH_TURN_INCOMPLETE};
    struct hearth_turn put = turn_of(&said), got;
    put.tokens.v[0] = -1; /* any number is a token here */
    put.tokens.v[1] = INT32_MAX;
    put.path = hearth_turn_path_id(store, model, salt, put.tokens.v, put.tokens.n);
    assert_false(hearth_digest_equal(put.path, none));
    struct hearth_digest path_id = put.path;
    assert_int_equal(hearth_turn_put(store, &put, NULL), HEARTH_OK);
    assert_true(put.created_us > 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hearth_turn_get(store, alice, put.id, &got), HEARTH_OK);
        assert_same(got.id, put.id);
        assert_same(got.owner, alice);
        assert_same(got.parent, none);
        assert_same(got.model, model);
        assert_same(got.salt, salt);
        assert_same(got.path, path_id);
        assert_same(got.config_id, put.config_id);
        assert_int_equal(got.status, HEARTH_TURN_INCOMPLETE);
        assert_int_equal(got.created_us, put.created_us);
        assert_int_equal(got.base_tokens, 0);
        assert_string_equal(got.session, "work");
        assert_string_equal((const char *)got.config.data, said.config);
        assert_string_equal((const char *)got.body.data, said.text);
        assert_int_equal(got.body.len, strlen(said.text));
        assert_int_equal(got.tokens.n, put.tokens.n);
        assert_memory_equal(got.tokens.v, put.tokens.v, put.tokens.n * sizeof put.tokens.v[0]);
        hearth_turn_finish(&got);
        hearth_session_store_destroy(store);
        store = open_plain(); /* and after a restart */
    }
    put.model = none; /* without its tokens it has no path */
    put.tokens.n = 0;
    assert_int_equal(hearth_turn_put(store, &put, NULL), HEARTH_OK);
    assert_int_equal(hearth_turn_get(store, alice, put.id, &got), HEARTH_OK);
    assert_same(got.path, none);
    hearth_turn_finish(&got);
    hearth_turn_finish(&put);
    hearth_session_store_destroy(store);
    struct stat st;
    if (on_server()) {
        return;
    }
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    *strrchr(path, '/') = '\0';
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(warnings, 0);
}

static void a_body_of_any_size(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    for (size_t len = 0; len < 3000000; len = len * 7 + 1) {
        struct hearth_turn turn = {.id = hearth_turn_new_id(), .owner = alice}, got;
        uint64_t noise = len + 1;
        assert_true(hearth_buf_reserve(&turn.body, len + 1));
        for (size_t i = 0; i < len; i++) { /* what cannot be made smaller */
            noise = noise * 6364136223846793005u + 1442695040888963407u;
            turn.body.data[turn.body.len++] = (uint8_t)(noise >> 56);
        }
        assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
        assert_int_equal(hearth_turn_get(store, alice, turn.id, &got), HEARTH_OK);
        assert_int_equal(got.body.len, len);
        assert_true(len == 0 || memcmp(got.body.data, turn.body.data, len) == 0);
        assert_int_equal(got.tokens.n, 0);
        assert_null(got.session);
        hearth_turn_finish(&got);
        hearth_turn_finish(&turn);
    }
    hearth_session_store_destroy(store);
}

static void nothing_of_another_owner_is_found(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest turn = say(store, none, "work", "secret");
    struct hearth_turn got;
    struct hearth_line line;
    struct hearth_session session, *list;
    size_t count;
    assert_int_equal(hearth_turn_get(store, bob, turn, &got), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_line_get(store, bob, turn, &line), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_turn_delete(store, bob, turn), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_get(store, bob, "work", &session), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_delete(store, bob, "work"), HEARTH_ERR_NOT_FOUND);
    struct hearth_session fork = {.name = "fork", .owner = bob, .head = turn};
    assert_int_equal(hearth_session_put(store, &fork, false, NULL), HEARTH_ERR_NOT_FOUND);
    struct said said = {.owner = bob, .id = hearth_turn_new_id(), .parent = turn, .text = "more"};
    assert_int_equal(try_put(store, &said), HEARTH_ERR_NOT_FOUND);
    said = (struct said){.owner = bob, .id = turn, .text = "over it"};
    assert_int_equal(try_put(store, &said), HEARTH_ERR_INVALID);
    /* The same names and no owner at all are worlds of their own. */
    said = (struct said){.owner = bob, .id = hearth_turn_new_id(), .session = "work", .text = "bob's"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    said = (struct said){.owner = none, .id = hearth_turn_new_id(), .session = "work", .text = "nobody's"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_same(head_of(store, "work"), turn);
    struct hearth_session_query query = {.owner = bob};
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_int_equal(count, 1);
    assert_same(list[0].owner, bob);
    hearth_session_finish(&list[0]);
    free(list);
    query.all_owners = true;
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(list[i].name, "work");
        hearth_session_finish(&list[i]);
    }
    free(list);
    assert_text(store, turn, "secret");
    hearth_session_store_destroy(store);
}

static void a_parent_must_be_there(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .parent = hearth_turn_new_id(), .text = "?"};
    assert_int_equal(try_put(store, &said), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(stats_of(store).turns, 0);
    said.parent = none;
    said.session = "a\nb";
    assert_int_equal(try_put(store, &said), HEARTH_ERR_INVALID);
    assert_int_equal(find(store, said.id), HEARTH_ERR_NOT_FOUND);
    hearth_session_store_destroy(store);
}

static void a_reply_takes_the_place_of_what_was_begun(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest first = say(store, none, "work", "one");
    struct said said = {.owner = alice,
                        .id = hearth_turn_new_id(),
                        .parent = first,
                        .session = "work",
                        .text = "queued",
                        .config = "old",
                        .status = HEARTH_TURN_QUEUED,
                        .no_tokens = true};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    struct hearth_digest later = say(store, said.id, "work", "later");
    said.status = HEARTH_TURN_COMPLETED;
    said.session = NULL;
    said.parent = none;
    said.text = "two";
    said.config = "new";
    said.no_tokens = false;
    said.base = 3;
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    struct hearth_turn got;
    assert_int_equal(hearth_turn_get(store, alice, said.id, &got), HEARTH_OK);
    assert_same(got.parent, first);
    assert_string_equal(got.session, "work");
    assert_int_equal(got.status, HEARTH_TURN_COMPLETED);
    assert_string_equal((const char *)got.config.data, "new");
    hearth_turn_finish(&got);
    said.session = "work";
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_same(head_of(store, "work"), later); /* the conversation went on: its head stays */
    assert_letters(store, said.id, "onetwo");
    assert_int_equal(sql_number("SELECT count(*) FROM configs"), 2); /* "old" is gone */
    said.parent = later;
    assert_int_equal(try_put(store, &said), HEARTH_ERR_INVALID); /* it does not move */
    hearth_session_store_destroy(store);
}

/* ---- lines ---- */

static void what_was_deleted_is_not_brought_back(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    char name[] = "work";
    struct hearth_turn turn = {
        .id = hearth_turn_new_id(), .owner = alice, .status = HEARTH_TURN_CANCELLED, .again = true};
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_ERR_NOT_FOUND);
    turn.again = false;
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
    turn.again = true;
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
    assert_int_equal(hearth_turn_delete(store, alice, turn.id), HEARTH_OK);
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_ERR_NOT_FOUND);
    turn = (struct hearth_turn){
        .id = hearth_turn_new_id(), .owner = alice, .status = HEARTH_TURN_COMPLETED, .session = name, .joins = true};
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_ERR_NOT_FOUND);
    struct hearth_session session = {.name = name, .owner = alice}, got;
    assert_int_equal(hearth_session_get(store, alice, name, &got), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK);
    assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
    assert_same(head_of(store, name), turn.id);
    assert_int_equal(hearth_session_put(store, &session, true, NULL), HEARTH_OK); /* metadata alone */
    assert_same(head_of(store, name), turn.id);
    turn.session = NULL;
    hearth_turn_finish(&turn);
    hearth_session_store_destroy(store);
}

static void a_line_is_all_of_a_conversation(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_digest ids[60], at = none;
    for (int i = 0; i < 60; i++) {
        char text[32];
        snprintf(text, sizeof text, "turn %d;", i);
        at = ids[i] = say(store, at, i < 30 ? "first" : "second", text);
    }
    struct hearth_line line;
    assert_int_equal(hearth_line_get(store, alice, at, &line), HEARTH_OK);
    assert_int_equal(line.count, 60);
    assert_int_equal(line.tokens_turns, 60);
    assert_same(line.model, model);
    size_t tokens = 0;
    for (size_t i = 0; i < 60; i++) {
        char text[32];
        snprintf(text, sizeof text, "turn %zu;", i);
        assert_same(line.turns[i].id, ids[i]);
        assert_string_equal((const char *)line.turns[i].body.data, text);
        assert_string_equal(line.turns[i].session, i < 30 ? "first" : "second");
        assert_int_equal(line.turns[i].config.len > 0, i == 59);
        assert_int_equal(line.turns[i].base_tokens, tokens);
        tokens += strlen(text);
    }
    assert_int_equal(line.tokens.n, tokens);
    hearth_line_finish(&line);
    hearth_session_store_destroy(store);
}

static void tokens_are_known_as_far_as_they_fit(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .text = "hello"};
    struct hearth_line line;
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    said = (struct said){.owner = alice, .id = hearth_turn_new_id(), .parent = said.id, .text = "p!", .base = 3};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_letters(store, said.id, "help!"); /* a template that took back a part */
    said = (struct said){.owner = alice, .id = hearth_turn_new_id(), .parent = said.id, .text = "x", .no_tokens = true};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_int_equal(hearth_line_get(store, alice, said.id, &line), HEARTH_OK);
    assert_int_equal(line.tokens_turns, 2);
    assert_int_equal(line.tokens.n, 5);
    hearth_line_finish(&line);
    said = (struct said){.owner = alice, .id = hearth_turn_new_id(), .parent = said.id, .text = "y", .base = 5};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_int_equal(hearth_line_get(store, alice, said.id, &line), HEARTH_OK);
    assert_int_equal(line.tokens_turns, 2); /* of what its parent is, nothing is known */
    hearth_line_finish(&line);
    said = (struct said){.owner = alice, .id = hearth_turn_new_id(), .parent = said.id, .text = "all of it"};
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    assert_letters(store, said.id, "all of it");
    make_session(store, "work", said.id);
    struct hearth_session session;
    assert_int_equal(hearth_session_get(store, alice, "work", &session), HEARTH_OK);
    assert_int_equal(session.turns, 5);
    assert_int_equal(session.tokens, 9);
    hearth_session_finish(&session);
    hearth_session_store_destroy(store);
}

/* ---- sessions ---- */

static void sessions_are_made_changed_and_listed(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain();
    struct hearth_session session = {.name = (char *)(uintptr_t)"caf\xC3\xA9", .owner = alice}, got, *list;
    size_t count;
    assert_true(hearth_buf_text(&session.metadata, "{\"a\":1}"));
    assert_int_equal(hearth_session_put(store, &session, true, NULL), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK);
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_ERR_INVALID);
    assert_int_equal(hearth_session_get(store, alice, session.name, &got), HEARTH_OK);
    assert_string_equal(got.name, session.name);
    assert_string_equal((const char *)got.metadata.data, "{\"a\":1}");
    assert_same(got.head, none);
    assert_int_equal(got.turns, 0);
    assert_true(got.created_us > 0 && got.used_us >= got.created_us);
    hearth_session_finish(&got);
    session.head = say(store, none, NULL, "alone");
    hearth_buf_finish(&session.metadata);
    assert_int_equal(hearth_session_put(store, &session, true, NULL), HEARTH_OK);
    assert_same(head_of(store, session.name), session.head);
    (void)say(store, session.head, "work", "more");
    (void)say(store, none, session.name, "anew"); /* moves its head */
    struct hearth_session_query query = {.owner = alice};
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_int_equal(count, 2);
    assert_string_equal(list[0].name, session.name);
    assert_string_equal(list[1].name, "work");
    assert_int_equal(list[1].turns, 2);
    assert_int_equal(list[1].tokens, 9);
    assert_true(list[0].used_us > list[1].used_us);
    bool more = true;
    query.after = session.name; /* the next page */
    query.more = &more;
    hearth_session_finish(&list[0]);
    hearth_session_finish(&list[1]);
    free(list);
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_int_equal(count, 1);
    assert_false(more);
    assert_string_equal(list[0].name, "work");
    hearth_session_finish(&list[0]);
    free(list);
    query.after = "nobody";
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_ERR_NOT_FOUND);
    query = (struct hearth_session_query){.owner = alice, .limit = 1, .more = &more};
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_int_equal(count, 1);
    assert_true(more);
    hearth_session_finish(&list[0]);
    free(list);
    char long_name[HEARTH_SESSION_NAME_MAX + 2];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    const char *const bad[] = {"", "a\tb", "\x7F", "\xFF", "\xC2\x85", long_name};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        session.name = (char *)(uintptr_t)bad[i];
        assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_ERR_INVALID);
    }
    long_name[HEARTH_SESSION_NAME_MAX] = '\0';
    session.name = long_name;
    assert_int_equal(hearth_session_put(store, &session, false, NULL), HEARTH_OK);
    hearth_session_store_destroy(store);
}

/* ---- processes ---- */

static void what_a_dead_process_left_has_failed(void **state) {
    (void)state;
    struct hearth_session_store *store = open_plain(), *other;
    struct said said = {.owner = alice, .id = hearth_turn_new_id(), .text = "mine", .status = HEARTH_TURN_IN_PROGRESS};
    struct hearth_digest theirs = hearth_turn_new_id();
    struct hearth_turn got;
    assert_int_equal(try_put(store, &said), HEARTH_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct said left = {.owner = alice, .id = theirs, .text = "theirs", .status = HEARTH_TURN_QUEUED};
        struct hearth_session_store *mine = open_plain();
        _exit(try_put(mine, &left) == HEARTH_OK ? 0 : 1); /* without a word */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    while (on_server() && sql_number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") > 1) {
        usleep(10000); /* until the server has seen it */
    }
    other = open_plain();
    assert_int_equal(hearth_turn_fail_orphans(other, 0), 1); /* ours lives */
    assert_int_equal(hearth_turn_fail_orphans(other, 0), 0);
    assert_int_equal(hearth_turn_get(other, alice, theirs, &got), HEARTH_OK);
    assert_int_equal(got.status, HEARTH_TURN_FAILED);
    assert_string_equal((const char *)got.body.data, "theirs");
    hearth_turn_finish(&got);
    assert_int_equal(hearth_turn_get(other, alice, said.id, &got), HEARTH_OK);
    assert_int_equal(got.status, HEARTH_TURN_IN_PROGRESS);
    hearth_turn_finish(&got);
    hearth_session_store_destroy(store);
    while (on_server() && sql_number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") > 1) {
        usleep(10000);
    }
    assert_int_equal(hearth_turn_fail_orphans(other, 0), 1);
    hearth_session_store_destroy(other);
}

static void two_processes_use_one_database(void **state) {
    (void)state;
    enum { PROCESSES = 4, TURNS = 40 };
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            char name[32], text[48];
            struct hearth_digest at = none;
            struct hearth_session_store *mine = open_plain(); /* all begin the database at once */
            snprintf(name, sizeof name, "session %d", i);
            for (int j = 0; j < TURNS; j++) {
                snprintf(text, sizeof text, "turn %d of %d;", j, i);
                at = say(mine, at, name, text);
            }
            hearth_session_store_destroy(mine);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    struct hearth_session_store *store = open_plain(), *other = open_plain();
    assert_int_equal(stats_of(store).turns, PROCESSES * TURNS);
    struct hearth_line line;
    assert_int_equal(hearth_line_get(store, alice, head_of(store, "session 2"), &line), HEARTH_OK);
    assert_int_equal(line.count, TURNS);
    assert_int_equal(line.tokens_turns, TURNS);
    hearth_line_finish(&line);
    struct hearth_digest turn = say(store, none, "both", "here");
    assert_text(other, turn, "here"); /* at once */
    assert_int_equal(hearth_turn_delete(other, alice, turn), HEARTH_OK);
    assert_int_equal(find(store, turn), HEARTH_ERR_NOT_FOUND);
    hearth_session_store_destroy(store);
    hearth_session_store_destroy(other);
}

/* A look at the file while the database is open leaves the connections' locks alone: else another process that closes
 * the database takes itself for the last one, and deletes the log. That process is forked before anything is open, for
 * SQLite's memory of locks comes with a fork. */
static void a_look_leaves_the_locks_alone(void **state) {
    int go[2], status;
    char byte = 'g';
    (void)state;
    if (on_server()) {
        skip(); /* about the log of a file */
    }
    assert_int_equal(pipe(go), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(go[1]);
        const bool told = read(go[0], &byte, 1) == 1;
        hearth_session_store_destroy(open_plain());
        _exit(told ? 0 : 1);
    }
    struct hearth_session_store *store = open_plain();
    const struct hearth_digest first = say(store, none, "locks", "one");
    uint64_t next = 0;
    assert_int_equal(hearth_db_probe(&hearth_session_db_kind, path), HEARTH_DB_FILE_OURS);
    assert_int_equal(hearth_db_find_bad_page(path, &next, 1000), 0);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    const struct hearth_digest second = say(store, first, "locks", "two");
    struct hearth_session_store *other = open_plain();
    assert_text(other, first, "one");
    assert_text(other, second, "two");
    hearth_session_store_destroy(other);
    hearth_session_store_destroy(store);
    (void)close(go[0]);
    (void)close(go[1]);
}

struct worker {
    struct hearth_session_store *store;
    int number;
    pthread_t thread;
};

/* Talks, reads what it said and what others do, forks and deletes. No assertions: it is not the test's thread. */
static void *work(void *user) {
    const struct worker *worker = user;
    struct hearth_session_store *store = worker->store;
    struct hearth_digest at = none;
    size_t wrong = 0;
    char name[16], fork_name[16];
    snprintf(name, sizeof name, "s%d", worker->number);
    snprintf(fork_name, sizeof fork_name, "f%d", worker->number);
    for (int i = 0; i < 60; i++) {
        struct hearth_turn turn = {.id = hearth_turn_new_id(), .owner = alice, .parent = at, .model = model}, got;
        struct hearth_line line;
        struct hearth_session *list, fork = {.name = fork_name, .owner = alice, .head = turn.id};
        struct hearth_session_store_stats stats;
        size_t count;
        turn.session = strdup(name);
        wrong += !hearth_buf_printf(&turn.body, "turn %d of %d", i, worker->number);
        wrong += hearth_turn_put(store, &turn, NULL) != HEARTH_OK;
        at = turn.id;
        wrong += hearth_turn_get(store, alice, at, &got) != HEARTH_OK || got.body.len != turn.body.len;
        wrong += hearth_line_get(store, alice, at, &line) != HEARTH_OK || line.count != (size_t)i % 20 + 1;
        const struct hearth_session_query query = {.owner = alice};
        wrong += hearth_session_list(store, &query, &list, &count) != HEARTH_OK || count == 0;
        for (size_t j = 0; j < count; j++) {
            hearth_session_finish(&list[j]);
        }
        free(list);
        wrong += hearth_session_store_stats(store, &stats) != HEARTH_OK || stats.turns == 0 || stats.bytes == 0;
        hearth_line_finish(&line);
        hearth_turn_finish(&got);
        hearth_turn_finish(&turn);
        if (i % 20 == 19) {
            wrong += hearth_session_put(store, &fork, false, NULL) != HEARTH_OK;
            wrong += hearth_session_delete(store, alice, name) != HEARTH_OK;
            wrong += hearth_line_get(store, alice, at, &line) != HEARTH_OK || line.count != 20;
            hearth_line_finish(&line);
            wrong += hearth_session_delete(store, alice, fork_name) != HEARTH_OK;
            wrong += hearth_turn_get(store, alice, at, &got) != HEARTH_ERR_NOT_FOUND;
            wrong += hearth_session_store_sweep(store, 10) != 0;
            at = none;
        }
    }
    return (void *)(uintptr_t)wrong;
}

static void threads_share_a_store(void **state) {
    (void)state;
    struct worker workers[4];
    for (int memory = 0; memory < 2; memory++) {
        struct hearth_session_store *store = open_with(memory ? NULL : path, NULL, 0);
        for (int i = 0; i < 4; i++) {
            workers[i] = (struct worker){.store = store, .number = i};
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            void *wrong;
            assert_int_equal(pthread_join(workers[i].thread, &wrong), 0);
            assert_null(wrong);
        }
        assert_int_equal(stats_of(store).turns + stats_of(store).hidden, 0);
        assert_int_equal(stats_of(store).sessions, 0);
        hearth_session_store_destroy(store);
    }
    assert_int_equal(warnings, 0);
}

static void in_memory_nothing_is_written(void **state) {
    (void)state;
    struct hearth_session_store *store = open_with(NULL, NULL, 0), *other = open_with(NULL, NULL, 0);
    struct hearth_digest turn = say(store, say(store, none, "work", "one"), "work", "two");
    assert_letters(store, turn, "onetwo");
    assert_int_equal(find(other, turn), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_session_delete(store, alice, "work"), HEARTH_OK);
    assert_int_equal(find(store, turn), HEARTH_ERR_NOT_FOUND);
    assert_forget(store, "onetwo", 0);
    assert_int_equal(hearth_turn_fail_orphans(store, 0), 0);
    hearth_session_store_destroy(store);
    hearth_session_store_destroy(other);
}

static void the_secret_lasts(void **state) {
    (void)state;
    uint8_t a[32], b[32], other[32];
    struct hearth_session_store *store = open_plain();
    hearth_session_store_secret(store, a);
    hearth_session_store_destroy(store);
    store = open_plain();
    hearth_session_store_secret(store, b);
    hearth_session_store_destroy(store);
    assert_memory_equal(a, b, sizeof a);
    store = open_with(NULL, NULL, 0);
    hearth_session_store_secret(store, other);
    hearth_session_store_destroy(store);
    assert_memory_not_equal(a, other, sizeof a);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_turn_comes_back_whole),
        TEST(a_body_of_any_size),
        TEST(nothing_of_another_owner_is_found),
        TEST(a_parent_must_be_there),
        TEST(a_reply_takes_the_place_of_what_was_begun),
        TEST(what_was_deleted_is_not_brought_back),
        TEST(a_line_is_all_of_a_conversation),
        TEST(tokens_are_known_as_far_as_they_fit),
        TEST(sessions_are_made_changed_and_listed),
        TEST(what_a_dead_process_left_has_failed),
        TEST(two_processes_use_one_database),
        TEST(a_look_leaves_the_locks_alone),
        TEST(threads_share_a_store),
        TEST(in_memory_nothing_is_written),
        TEST(the_secret_lasts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
