/* The store and SIGKILL: what was acknowledged is there, whole, whenever the process dies; nothing is ever torn.
 *
 * A child puts turns, and now and then deletes one, and tells each on a pipe when the call has returned. It is killed
 * from outside at some moment, or kills itself at the nth write of SQLite's to the file system, half of which it still
 * makes: every one of a turn's writes gets its turn. HEARTH_CRASHES: how often from outside (30), and twice as often at
 * a write. */
#include "store_stage.h"
#include "support/random.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

enum { TURNS_MAX = 4096 };

/* What the child says, and what is known of it after many lives. */
struct said_so {
    struct hearth_digest id, parent;
    uint32_t number; /* its text and tokens follow from it */
    bool deleted;
};

static struct said_so told[TURNS_MAX];
static size_t told_count;

/* ---- the writes ---- */

static long writes_left; /* 0: as many as one likes */

static void count_write(int fd, const void *bytes, size_t len, off_t at) {
    if (writes_left > 0 && --writes_left == 0) {
        ssize_t n = at >= 0 ? pwrite(fd, bytes, len / 2, at) : 0; /* torn */
        (void)n;
        raise(SIGKILL);
    }
}

static ssize_t counted_write(int fd, const void *bytes, size_t len) {
    count_write(fd, bytes, len, -1);
    return write(fd, bytes, len);
}

static ssize_t counted_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    count_write(fd, bytes, len, at);
    return pwrite(fd, bytes, len, at);
}

static int counted_ftruncate(int fd, off_t len) {
    count_write(fd, NULL, 0, 0);
    return ftruncate(fd, len);
}

static int counted_unlink(const char *name) {
    count_write(-1, NULL, 0, -1);
    return unlink(name);
}

static void count_writes(void) {
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    assert_int_equal(vfs->xSetSystemCall(vfs, "write", (sqlite3_syscall_ptr)counted_write), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)counted_pwrite), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "ftruncate", (sqlite3_syscall_ptr)counted_ftruncate), SQLITE_OK);
    assert_int_equal(vfs->xSetSystemCall(vfs, "unlink", (sqlite3_syscall_ptr)counted_unlink), SQLITE_OK);
    (void)vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)counted_pwrite); /* where there is one */
}

/* ---- the child ---- */

static struct hearth_turn make_turn(const struct said_so *so) {
    struct rng rng = {so->number};
    struct hearth_turn turn = {.id = so->id, .owner = alice, .parent = so->parent, .model = model, .salt = salt};
    char name[16];
    snprintf(name, sizeof name, "session %u", so->number % 3);
    turn.session = strdup(name);
    turn.status = HEARTH_TURN_COMPLETED;
    for (uint32_t i = 0, n = rng_below(&rng, 400); i < n; i++) {
        assert_true(hearth_tokens_push(&turn.tokens, (hearth_token)rng_below(&rng, 50000)));
    }
    assert_true(hearth_buf_printf(&turn.config, "config %u", so->number % 5));
    for (uint32_t i = 0, n = 1 + rng_below(&rng, rng_once_in(&rng, 8) ? 3000 : 60); i < n; i++) {
        assert_true(hearth_buf_printf(&turn.body, "%u ", rng_below(&rng, 1000000)));
    }
    return turn;
}

static void live(int pipe_fd, struct rng *rng) {
    struct hearth_session_store *store;
    const struct hearth_session_store_params params = {.path = path};
    if (hearth_session_store_create(&params, &store, NULL) != HEARTH_OK) {
        _exit(1);
    }
    for (size_t n = told_count; n < TURNS_MAX; n++) {
        struct said_so so = {.number = (uint32_t)n + 1};
        if (told_count > 4 && rng_once_in(rng, 6)) { /* one of an earlier life goes */
            so = told[rng_below(rng, (uint32_t)told_count)];
            so.deleted = true;
            int err = hearth_turn_delete(store, alice, so.id);
            if (err != HEARTH_OK && err != HEARTH_ERR_NOT_FOUND) {
                _exit(2);
            }
        } else {
            so.id = hearth_turn_new_id();
            const struct said_so *parent = told_count > 0 ? &told[rng_below(rng, (uint32_t)told_count)] : NULL;
            so.parent = parent != NULL && !parent->deleted && rng_once_in(rng, 2) ? parent->id : none;
            struct hearth_turn turn = make_turn(&so);
            int err = hearth_turn_put(store, &turn, NULL);
            hearth_turn_finish(&turn);
            if (err == HEARTH_ERR_NOT_FOUND) { /* its parent has just gone */
                continue;
            }
            if (err != HEARTH_OK) {
                _exit(3);
            }
        }
        if (write(pipe_fd, &so, sizeof so) != sizeof so) {
            _exit(4);
        }
    }
    _exit(0);
}

/* ---- after it ---- */

static void hear(const struct said_so *so) {
    for (size_t i = 0; so->deleted && i < told_count; i++) {
        told[i].deleted = told[i].deleted || hearth_digest_equal(told[i].id, so->id);
    }
    if (!so->deleted && told_count < TURNS_MAX) {
        told[told_count++] = *so;
    }
}

static void check_turn(struct hearth_session_store *store, const struct said_so *so) {
    struct hearth_turn want = make_turn(so), got;
    struct hearth_line line;
    assert_int_equal(hearth_turn_get(store, alice, so->id, &got), HEARTH_OK);
    assert_same(got.parent, so->parent);
    assert_int_equal(got.status, want.status);
    assert_int_equal(got.body.len, want.body.len);
    assert_memory_equal(got.body.data, want.body.data, want.body.len);
    assert_int_equal(got.config.len, want.config.len);
    assert_memory_equal(got.config.data, want.config.data, want.config.len);
    assert_int_equal(got.tokens.n, want.tokens.n);
    assert_true(want.tokens.n == 0 ||
                memcmp(got.tokens.v, want.tokens.v, want.tokens.n * sizeof want.tokens.v[0]) == 0);
    assert_int_equal(hearth_line_get(store, alice, so->id, &line), HEARTH_OK);
    assert_string_equal(line.turns[line.count - 1].session, want.session);
    hearth_line_finish(&line);
    hearth_turn_finish(&got);
    hearth_turn_finish(&want);
}

/* All that was told is there; whatever else is there is whole, too: the one that was put when the child died, and was
 * not told any more. A deletion that was not told may have been made, so of what it named nothing is known. */
static void check_all(void) {
    struct hearth_session_store *store = open_plain();
    size_t gone = 0;
    for (size_t i = 0; i < told_count; i++) {
        if (told[i].deleted) {
            assert_int_equal(find(store, told[i].id), HEARTH_ERR_NOT_FOUND);
        } else if (find(store, told[i].id) == HEARTH_ERR_NOT_FOUND) {
            told[i].deleted = true;
            gone++;
        } else {
            check_turn(store, &told[i]);
        }
    }
    assert_true(gone <= 1);
    struct hearth_session_query query = {.owner = alice};
    struct hearth_session *list;
    size_t count;
    assert_int_equal(hearth_session_list(store, &query, &list, &count), HEARTH_OK);
    assert_true(count <= 3);
    for (size_t i = 0; i < count; i++) {
        struct hearth_line line;
        if (list[i].head.lo != 0 || list[i].head.hi != 0) {
            assert_int_equal(hearth_line_get(store, alice, list[i].head, &line), HEARTH_OK);
            hearth_line_finish(&line);
        }
        hearth_session_finish(&list[i]);
    }
    free(list);
    hearth_session_store_destroy(store);
    if (told_count > 0) { /* one life may end before there is a database */
        assert_int_equal(sql_number("SELECT quick_check = 'ok' FROM pragma_quick_check"), 1);
        assert_int_equal(sql_number("SELECT count(*) FROM turns AS t WHERE parent NOT NULL AND NOT EXISTS"
                                    " (SELECT 1 FROM turns AS p WHERE p.id = t.parent)"),
                         0);
        assert_int_equal(sql_number("SELECT count(*) FROM turns AS t WHERE NOT EXISTS (SELECT 1 FROM turns AS c WHERE"
                                    " c.parent = t.id) AND (hidden = 1 AND NOT EXISTS (SELECT 1 FROM sessions WHERE"
                                    " head = t.id) OR NOT EXISTS (SELECT 1 FROM uses WHERE turn = t.id))"),
                         0);
        assert_int_equal(sql_number("SELECT count(*) FROM sessions AS s WHERE head NOT NULL AND NOT EXISTS"
                                    " (SELECT 1 FROM turns WHERE id = s.head)"),
                         0);
        assert_int_equal(sql_number("SELECT count(*) FROM configs AS c WHERE NOT EXISTS"
                                    " (SELECT 1 FROM turns WHERE config = c.id)"),
                         0);
    }
    assert_int_equal(files_like("*.bad-*"), 0);
}

/* One life. `writes`: it ends at that one; 0: from outside, after `turns` were heard. */
static void one_life(struct rng *rng, long writes, uint32_t turns, uint32_t pause_us) {
    int fds[2], status;
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        if (writes > 0) {
            count_writes();
            writes_left = writes;
        }
        live(fds[1], rng);
    }
    close(fds[1]);
    (void)rng_next(rng); /* the child has used up its own copy */
    struct said_so so;
    for (uint32_t heard = 0; read(fds[0], &so, sizeof so) == sizeof so;) { /* pipes write so little at once */
        hear(&so);
        if (writes == 0 && ++heard == turns) {
            usleep(pause_us);
            assert_int_equal(kill(child, SIGKILL), 0);
        }
    }
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    check_all();
}

static void killed_from_outside(void **state) {
    (void)state;
    struct rng rng = {seed_announced(20261127)};
    told_count = 0;
    for (uint64_t i = 0, n = env_number("HEARTH_CRASHES", 30); i < n && told_count < TURNS_MAX - 64; i++) {
        one_life(&rng, 0, 1 + rng_below(&rng, 12), rng_below(&rng, 3000));
    }
    printf("%zu turns were told\n", told_count);
    assert_true(told_count > 0);
}

static void killed_at_every_write(void **state) {
    (void)state;
    struct rng rng = {seed_announced(20261128)};
    told_count = 0;
    struct hearth_session_store *store = open_plain();
    for (uint32_t i = 0; i < 20; i++) {
        const struct said_so so = {
            .id = hearth_turn_new_id(), .parent = i % 4 > 0 ? told[i - 1].id : none, .number = i + 10000};
        struct hearth_turn turn = make_turn(&so);
        assert_int_equal(hearth_turn_put(store, &turn, NULL), HEARTH_OK);
        hearth_turn_finish(&turn);
        hear(&so);
    }
    hearth_session_store_destroy(store);
    for (uint64_t i = 0, n = 2 * env_number("HEARTH_CRASHES", 30); i < n && told_count < TURNS_MAX - 64; i++) {
        one_life(&rng, 1 + (long)i, 0, 0);
    }
    printf("%zu turns were told\n", told_count);
    assert_true(told_count > 20);
}

/* Lives long enough for the log to be carried into the database, which is where the last writes go to. */
static void killed_in_a_checkpoint(void **state) {
    (void)state;
    struct rng rng = {seed_announced(20261129)};
    told_count = 0;
    for (uint64_t i = 0, n = env_number("HEARTH_CRASHES", 30) / 3; i < n && told_count < TURNS_MAX - 512; i++) {
        one_life(&rng, 200 + (long)rng_below(&rng, 1500), 0, 0);
    }
    printf("%zu turns were told\n", told_count);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(killed_from_outside),
        TEST(killed_at_every_write),
        TEST(killed_in_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
