/* Damage of every kind: what comes back is what was put, or an error; never another text, never a conversation that is
 * shorter than it was, and never "there is none". Whatever is left can be recovered. */
#include "store_stage.h"
#include "support/random.h"

#include "base/health.h"
#include "session/db.h"
#include "session/store_recover.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { SESSIONS = 12, TURNS = 8, PAGE = 4096 };

static uint8_t *whole;
static size_t whole_len;

static void text_of(char *out, size_t size, int session, int turn) {
    int n = snprintf(out, size, "session %d turn %d ", session, turn);
    for (int i = 0; i < (turn * 900 + session * 37) % 6000 && (size_t)n + 2 < size;
         i++) { /* some go on overflow pages */
        out[n++] = (char)('a' + (i * 7 + session * 3 + turn) % 26);
    }
    out[n] = '\0';
}

static void name_of(char out[32], int session) {
    snprintf(out, 32, "session-%d", session);
}

static void build(void) {
    struct hearth_session_store *store = open_plain();
    char name[32], text[8192];
    struct hearth_digest at[SESSIONS] = {{0}};
    for (int turn = 0; turn < TURNS; turn++) {
        for (int session = 0; session < SESSIONS; session++) {
            name_of(name, session);
            text_of(text, sizeof text, session, turn);
            const struct said said = {.owner = alice,
                                      .id = hearth_turn_new_id(),
                                      .parent = at[session],
                                      .session = name,
                                      .text = text,
                                      .config = session % 2 ? "{\"system\":1}" : NULL,
                                      .status = HEARTH_TURN_COMPLETED};
            assert_int_equal(try_put(store, &said), HEARTH_OK);
            at[session] = said.id;
        }
    }
    hearth_session_store_destroy(store);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    whole_len = (size_t)st.st_size;
    whole = malloc(whole_len);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, whole, whole_len), whole_len);
    close(fd);
}

static void write_file(const char *file, const uint8_t *bytes, size_t len) {
    int fd = open(file, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), len);
    close(fd);
}

static void remove_all(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -f %s*", path);
    assert_int_equal(system(command), 0);
}

/* Spoils a copy of the bytes; its length is returned. */
static size_t spoil(struct rng *rng, uint8_t *bytes) {
    const uint32_t pages = (uint32_t)(whole_len / PAGE);
    uint8_t *page = bytes + PAGE * rng_below(rng, pages), *other = bytes + PAGE * rng_below(rng, pages), keep[PAGE];
    switch (rng_below(rng, 8)) {
    case 0: bytes[rng_below(rng, (uint32_t)whole_len)] ^= (uint8_t)(1u << rng_below(rng, 8)); break;
    case 1:
        for (uint32_t i = 0, n = 1 + rng_below(rng, 60); i < n; i++) {
            page[rng_below(rng, PAGE)] = (uint8_t)rng_next(rng);
        }
        break;
    case 2: memset(page, 0, PAGE); break;
    case 3:
        memcpy(keep, page, PAGE);
        memcpy(page, other, PAGE);
        memcpy(other, keep, PAGE);
        break;
    case 4: memcpy(page, other, PAGE); break;
    case 5:
        for (uint32_t i = 0; i < PAGE; i++) {
            page[i] = (uint8_t)rng_next(rng);
        }
        break;
    case 6:
        memset(page + rng_below(rng, PAGE / 2), 0, PAGE / 2); /* half of a write */
        break;
    default: return rng_once_in(rng, 2) ? PAGE * rng_below(rng, pages) : rng_below(rng, (uint32_t)whole_len);
    }
    return whole_len;
}

/* How many turns of a session are as they were, -1 for an error; fails on anything that is not the truth. What was
 * recovered may be shorter, which is told, or gone. */
static int check_session(struct hearth_session_store *store, int session, bool recovered) {
    struct hearth_session got;
    struct hearth_line line;
    char name[32], text[8192];
    name_of(name, session);
    int err = hearth_session_get(store, alice, name, &got);
    if (err != HEARTH_OK) {
        assert_true(recovered || err != HEARTH_ERR_NOT_FOUND); /* it would be begun anew */
        return -1;
    }
    assert_string_equal(got.name, name);
    assert_false(hearth_digest_equal(got.head, none));
    err = hearth_line_get(store, alice, got.head, &line);
    hearth_session_finish(&got);
    if (err != HEARTH_OK) {
        assert_true(!recovered && err != HEARTH_ERR_NOT_FOUND);
        return -1;
    }
    assert_true(line.count == TURNS || (recovered && line.count > 0 && line.count < TURNS));
    for (int turn = 0; turn < (int)line.count; turn++) {
        text_of(text, sizeof text, session, turn);
        assert_string_equal((const char *)line.turns[turn].body.data, text);
    }
    const int count = (int)line.count;
    hearth_line_finish(&line);
    return count;
}

static void check_list(struct hearth_session_store *store) {
    struct hearth_session *list = NULL;
    const struct hearth_session_query query = {.owner = alice};
    size_t count = 0;
    if (hearth_session_list(store, &query, &list, &count) == HEARTH_OK) {
        assert_in_range(count, 0, SESSIONS);
        for (size_t i = 0; i < count; i++) {
            assert_true(strncmp(list[i].name, "session-", 8) == 0);
            hearth_session_finish(&list[i]);
        }
        free(list);
    }
}

static void use(struct hearth_session_store *store, int *good, int *bad) {
    (void)hearth_turn_fail_orphans(store, 0);
    check_list(store);
    for (int session = 0; session < SESSIONS; session++) {
        const int turns = check_session(store, session, false);
        *good += turns > 0;
        *bad += turns < 0;
    }
    const struct said said = {.owner = alice, .id = hearth_turn_new_id(), .session = "new", .text = "a new one"};
    if (try_put(store, &said) == HEARTH_OK) {
        struct hearth_turn turn;
        if (hearth_turn_get(store, alice, said.id, &turn) == HEARTH_OK) {
            assert_string_equal((const char *)turn.body.data, "a new one");
        }
        hearth_turn_finish(&turn);
    }
    (void)hearth_session_store_sweep(store, 10);
    (void)hearth_session_delete(store, alice, "session-3");
    struct hearth_session_store_stats stats;
    (void)hearth_session_store_stats(store, &stats);
}

static void whatever_is_damaged(void **state) {
    (void)state;
    struct rng rng = {seed_announced(20261201)};
    int good = 0, bad = 0, closed = 0;
    build();
    uint8_t *bytes = malloc(whole_len);
    const uint64_t variants = env_number("HEARTH_DAMAGES", 200);
    for (uint64_t i = 0; i < variants; i++) {
        const struct hearth_session_store_params params = {.path = path};
        struct hearth_session_store *store = NULL;
        memcpy(bytes, whole, whole_len);
        for (uint32_t k = 0, n = 1 + rng_below(&rng, 2); k < n; k++) {
            const size_t len = spoil(&rng, bytes);
            if (len < whole_len || k + 1 == n) {
                remove_all();
                char lock[128];
                snprintf(lock, sizeof lock, "%s.lock", path);
                write_file(lock, (const uint8_t *)"h", 1); /* it was begun here */
                if (i % 3 == 0) {                          /* while it is open */
                    write_file(path, whole, whole_len);
                    store = open_plain();
                }
                write_file(path, bytes, len);
                if (getenv("HEARTH_TEST_LOG") != NULL) {
                    printf("variant %llu: %zu of %zu bytes\n", (unsigned long long)i, len, whole_len);
                }
                break;
            }
        }
        if (store == NULL && hearth_session_store_create(&params, &store, NULL) != HEARTH_OK) {
            closed++;
        } else {
            use(store, &good, &bad);
        }
        hearth_session_store_destroy(store);
        assert_int_equal(files_like("*.bad-*"), 0);
    }
    hearth_health_clear(HEARTH_HEALTH_SESSION_DB);
    printf("of %d conversations %d were whole and %d errors; %d databases did not open\n", good + bad, good, bad,
           closed);
    assert_true(good > 0 && bad > 0 && closed > 0);
    free(bytes);
    free(whole);
}

static void what_is_left_is_recovered(void **state) {
    (void)state;
    struct rng rng = {seed_announced(20261202)};
    char to[128];
    uint64_t turns = 0, failed = 0;
    build();
    snprintf(to, sizeof to, "%s.recovered", path);
    uint8_t *bytes = malloc(whole_len);
    const uint64_t variants = env_number("HEARTH_DAMAGES", 200) / 8;
    for (uint64_t i = 0; i < variants; i++) {
        struct hearth_recovery found;
        struct hearth_errmsg msg = {.text = ""};
        memcpy(bytes, whole, whole_len);
        const size_t len = spoil(&rng, bytes);
        remove_all();
        write_file(path, bytes, len);
        const struct hearth_recovery_params params = {.from = path, .to = to};
        if (hearth_session_recover(&params, &found, &msg) != HEARTH_OK) {
            failed++;
            continue;
        }
        struct hearth_session_store *store = open_with(to, NULL, 0);
        uint64_t sessions = 0;
        for (int session = 0; session < SESSIONS; session++) {
            sessions += check_session(store, session, true) > 0;
        }
        assert_int_equal(sessions, found.sessions);
        assert_int_equal(stats_of(store).turns, found.turns);
        turns += found.turns;
        (void)say(store, none, "session-1", "goes on");
        hearth_session_store_destroy(store);
    }
    printf("%.1f of %d turns were saved on average; %llu files had nothing\n", (double)turns / (double)variants,
           SESSIONS * TURNS, (unsigned long long)failed);
    assert_true(failed < variants / 4);
    assert_true(turns > variants * SESSIONS * TURNS / 2);
    free(bytes);
    free(whole);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(whatever_is_damaged),
        TEST(what_is_left_is_recovered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
