/* The remote tier over a real redis-server that lies: whatever stands in place of one value, what is read is what was
 * written, or a miss; and what the tier tells of is what it was asked for.
 *
 * HEARTH_LIES is how often (default 400 for each way of writing). */
#include "support/disk_room.h"
#include "support/random.h"
#include "tier/remote.h"

#include <hiredis.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ITEMS = 8, CHUNK = 1 << 20 };

/* ---- a store ---- */

struct store {
    struct room *room;
    pid_t process;
    redisContext *context;
    char path[128], url[160];
};

static redisReply *ask(struct store *store, int argc, const char **argv, const size_t *lens) {
    redisReply *reply = redisCommandArgv(store->context, argc, argv, lens);
    assert_non_null(reply);
    assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
    return reply;
}

static void start_server(struct store *store) {
    char *const argv[] = {"redis-server", "--port", "0",     "--unixsocket",   store->path,
                          "--save",       "",       "--dir", store->room->dir, NULL};
    store->process = fork();
    if (store->process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!freopen("/dev/null", "w", stdout);
        (void)execvp("redis-server", argv);
        (void)execvp("redis-check-rdb", argv); /* Debian's redis-tools holds the server under this name */
        _exit(127);
    }
}

/* False: there is none here. */
static bool open_store(struct store *store, struct room *room) {
    *store = (struct store){.room = room};
    (void)snprintf(store->path, sizeof store->path, "%s/socket", room->dir);
    (void)snprintf(store->url, sizeof store->url, "unix://%s", store->path);
    start_server(store);
    const int64_t until_us = hearth_clock_us() + PATIENCE_S * INT64_C(1000000);
    for (;;) {
        int status;
        store->context = redisConnectUnix(store->path);
        assert_non_null(store->context);
        if (!store->context->err) {
            return true;
        }
        redisFree(store->context);
        if (waitpid(store->process, &status, WNOHANG) == store->process) {
            return false;
        }
        assert_true(hearth_clock_us() < until_us);
        (void)usleep(10000);
    }
}

static void close_store(struct store *store) {
    redisFree(store->context);
    (void)kill(store->process, SIGKILL);
    (void)waitpid(store->process, NULL, 0);
}

static struct hearth_backing *open_tier_with(const struct store *store, struct hearth_digest model,
                                             const char *key_file, size_t known_bytes, int64_t ttl_s) {
    const struct hearth_remote_params params = {.url = store->url,
                                                .fingerprint = model,
                                                .page_tokens = PAGE,
                                                .key_file = key_file,
                                                .timeout_us = 10000000,
                                                .state_bytes = 4 << 20,
                                                .known_bytes = known_bytes,
                                                .ttl_s = ttl_s};
    struct hearth_backing *backing = NULL;
    struct hearth_errmsg msg = {""};
    if (hearth_remote_create(&params, &backing, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return backing;
}

static struct hearth_backing *open_tier(const struct store *store, struct hearth_digest model, const char *key_file) {
    return open_tier_with(store, model, key_file, 0, 0);
}

/* ---- values ---- */

/* A value of the store: the header of an item in its index, or a part of its state. */
struct value {
    char key[160], field[33]; /* field "": a string */
    char *bytes;              /* as it was written */
    size_t len;
};

static void read_value(struct store *store, struct value *value) {
    const char *argv[] = {value->field[0] ? "HGET" : "GET", value->key, value->field};
    redisReply *reply = ask(store, value->field[0] ? 3 : 2, argv, NULL);
    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    value->len = reply->len;
    value->bytes = malloc(reply->len + 1);
    assert_non_null(value->bytes);
    memcpy(value->bytes, reply->str, reply->len);
    freeReplyObject(reply);
}

static void write_value(struct store *store, const struct value *value, const char *bytes, size_t len) {
    const char *field[] = {"HSET", value->key, value->field, bytes}, *plain[] = {"SET", value->key, bytes};
    const size_t field_lens[] = {4, strlen(value->key), 32, len}, plain_lens[] = {3, strlen(value->key), len};
    redisReply *reply = value->field[0] ? ask(store, 4, field, field_lens) : ask(store, 3, plain, plain_lens);
    freeReplyObject(reply);
}

/* The values of all items in the order of the items: header, parts. Returns how many. */
static size_t read_values(struct store *store, struct hearth_digest model, const struct item *items,
                          struct value *values) {
    const struct hearth_model_id id = hearth_model_id(model, PAGE);
    size_t n = 0;
    for (int i = 0; i < ITEMS; i++) {
        char base[33], name[33];
        hearth_digest_hex(items[i].record.base, base);
        hearth_digest_hex(items[i].record.name, name);
        values[n] = (struct value){.len = 0};
        (void)snprintf(values[n].key, sizeof values[n].key, "hearth:%s:i:{%s}", id.hex, base);
        (void)snprintf(values[n].field, sizeof values[n].field, "%s", name);
        read_value(store, &values[n++]);
        for (size_t k = 0; k * CHUNK < items[i].bytes; k++) {
            values[n] = (struct value){.len = 0};
            (void)snprintf(values[n].key, sizeof values[n].key, "hearth:%s:s:{%s}:%s:%zu", id.hex, base, name, k);
            read_value(store, &values[n++]);
        }
    }
    return n;
}

static void free_values(struct value *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(values[i].bytes);
    }
}

static void put_all(struct hearth_backing *backing, const struct item *items) {
    for (int i = 0; i < ITEMS; i++) {
        assert_true(put(backing, &items[i], NULL));
    }
    for (int i = 0; i < ITEMS; i++) {
        expect(backing, HEARTH_BACKING_WRITTEN, &items[i]);
    }
}

/* ---- lies ---- */

enum lie { FLIPPED, SWAPPED, OTHER_MODEL, TRUNCATED, OLDER_KEY, REPLAYED, LONGER, LIES };

/* What of other tiers is at hand: the same items of another model, with an older key, and written another time. */
struct others {
    struct value *by[LIES];
};

static void tell_a_lie(struct store *store, const struct value *values, size_t n, const struct others *others,
                       size_t which, enum lie lie, struct rng *rng) {
    const struct value *value = &values[which];
    const struct value *instead = others->by[lie] ? &others->by[lie][which] : &values[rng_below(rng, (uint32_t)n)];
    char *bytes = malloc(value->len + 16);
    size_t len = value->len;
    assert_non_null(bytes);
    memcpy(bytes, value->bytes, len);
    memset(bytes + len, 7, 16);
    switch (lie) {
    case FLIPPED: bytes[rng_below(rng, (uint32_t)len)] ^= (char)(1 << rng_below(rng, 8)); break;
    case TRUNCATED: len = rng_below(rng, (uint32_t)len); break;
    case LONGER: len += 1 + rng_below(rng, 15); break;
    default:
        free(bytes);
        write_value(store, value, instead->bytes, instead->len);
        return;
    }
    write_value(store, value, bytes, len);
    free(bytes);
}

/* Asks what hangs on an item's base, and checks what is told. */
static void seek(struct hearth_backing *backing, const struct item *items, const struct item *about) {
    const struct hearth_backing_place place = {.base = about->record.base,
                                               .base_pos = about->record.base_pos,
                                               .tokens = about->record.tokens,
                                               .n = hearth_record_tokens(&about->record)};
    const uint64_t ticket = backing->ops->seek(backing, &place, 1);
    assert_true(ticket > 0);
    for (bool over = false; !over;) {
        struct hearth_backing_event event = next(backing);
        over = event.type == HEARTH_BACKING_SOUGHT && event.ticket == ticket;
        if (event.type == HEARTH_BACKING_FOUND) {
            const struct item *found = NULL;
            for (int i = 0; i < ITEMS; i++) {
                found = hearth_digest_equal(event.name, items[i].record.name) ? &items[i] : found;
            }
            assert_non_null(found);
            assert_true(hearth_digest_equal(hearth_record_name(event.record), event.name));
            assert_true(hearth_digest_equal(event.record->base, about->record.base));
            assert_int_equal(event.record->state_bytes, found->bytes);
            assert_memory_equal(event.record->tokens, found->tokens,
                                hearth_record_tokens(event.record) * sizeof(hearth_token));
        }
        hearth_backing_event_finish(&event);
    }
}

/* What the tier does about a bad value has been done: the writer's operations keep their order. */
static void wait_discarded(struct hearth_backing *backing) {
    const struct hearth_digest none = {1, 1};
    assert_true(backing->ops->remove(backing, none, HEARTH_RECORD_PAGE));
    struct hearth_backing_event event = until(backing, HEARTH_BACKING_REMOVED, &none);
    hearth_backing_event_finish(&event);
}

static const struct item *item_of(const struct item *items, size_t which) {
    for (int i = 0; i < ITEMS; i++) {
        const size_t n = 1 + (items[i].bytes + CHUNK - 1) / CHUNK;
        if (which < n) {
            return &items[i];
        }
        which -= n;
    }
    fail_msg("no item");
    return NULL;
}

static void lie_about(struct store *store, const char *key_file, const char *older_key_file) {
    enum { MOST = ITEMS * 4 };
    static struct value values[MOST], model_values[MOST], key_values[MOST], old_values[MOST];
    const struct hearth_digest other_model = {33, 44};
    struct rng rng = {seed_announced(20261125)};
    struct item items[ITEMS];
    uint64_t hits = 0, misses = 0, rounds = env_number("HEARTH_LIES", 400);
    for (int i = 0; i < ITEMS; i++) { /* two parts; small ones; what hangs on the same base; nothing but tokens */
        make_item(&items[i], i % 2 ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE, 1 + i / 4, i / 2, i == 6 ? 5 : PAGE,
                  i == 0   ? CHUNK + 500
                  : i == 4 ? 0
                           : 300 + 977 * (size_t)i);
    }
    const struct {
        struct hearth_digest model;
        const char *key_file;
        struct value *values;
    } writers[] = {{other_model, key_file, model_values},
                   {fingerprint, older_key_file, key_values},
                   {fingerprint, key_file, old_values},
                   {fingerprint, key_file, values}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        freeReplyObject(ask(store, 1, (const char *[]){"FLUSHALL"}, NULL));
        struct hearth_backing *backing = open_tier(store, writers[i].model, writers[i].key_file);
        put_all(backing, items);
        n = read_values(store, writers[i].model, items, writers[i].values);
        backing->ops->destroy(backing);
    }
    for (size_t i = 0; i < n; i++) { /* the same place in the model's own name */
        memcpy(model_values[i].key, values[i].key, sizeof values[i].key);
    }
    const struct others others = {
        .by = {[OTHER_MODEL] = model_values, [OLDER_KEY] = key_values, [REPLAYED] = old_values}};
    struct hearth_backing *backing = open_tier(store, fingerprint, key_file);
    for (uint64_t round = 0; round < rounds; round++) {
        const size_t which = rng_below(&rng, (uint32_t)n);
        const struct item *item = item_of(items, which);
        const bool late = rng_once_in(&rng, 2); /* between the seek and the read, or before both */
        if (late) {
            seek(backing, items, item);
        }
        tell_a_lie(store, values, n, &others, which, (enum lie)(round % LIES), &rng);
        if (!late) {
            seek(backing, items, item);
        }
        *(get(backing, item) == HEARTH_OK ? &hits : &misses) += 1; /* which checks the bytes */
        wait_discarded(backing);
        for (size_t i = 0; i < n; i++) { /* all that a bad value took along */
            if (item_of(items, i) == item || i == which) {
                write_value(store, &values[i], values[i].bytes, values[i].len);
            }
        }
    }
    for (int i = 0; i < ITEMS; i++) {
        seek(backing, items, &items[i]);
        assert_int_equal(get(backing, &items[i]), HEARTH_OK);
    }
    print_message("%llu lies: %llu misses, %llu right all the same\n", (unsigned long long)rounds,
                  (unsigned long long)misses, (unsigned long long)hits);
    assert_true(misses > rounds / 2 && stats(backing).bad > rounds / 2);
    backing->ops->destroy(backing);
    free_values(values, n);
    free_values(model_values, n);
    free_values(key_values, n);
    free_values(old_values, n);
}

static void write_key(const struct room *room, const char *name, uint8_t byte, char path[128]) {
    uint8_t key[32];
    memset(key, byte, sizeof key);
    (void)snprintf(path, 128, "%s/%s", room->dir, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, key, sizeof key) == sizeof key);
    (void)close(fd);
}

static void a_store_that_lies(void **state) {
    struct store store;
    char key[128], older[128];
    if (!open_store(&store, *state)) {
        print_message("redis-server is not installed\n");
        skip();
    }
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_WARN);
    write_key(*state, "key", 1, key);
    write_key(*state, "older", 2, older);
    lie_about(&store, NULL, key);
    lie_about(&store, key, older);
    close_store(&store);
}

/* ---- a popular head ---- */

enum { BRANCHES = 5000, SHARED = PAGE / 2 };

/* Branch `i` of the head's page: its tokens from SHARED on are its own. */
static void make_branch(struct item *item, const struct item *head, int i) {
    *item = *head;
    item->bytes = 40;
    item->record.tokens = item->tokens;
    item->record.p0 = head->record.base_pos + SHARED;
    item->record.state_bytes = item->bytes;
    item->record.cover = head->record.name;
    item->tokens[SHARED] = 100000 + i;
    item->record.name = hearth_record_name(&item->record);
}

/* What a seek tells of: how many, and whether `wanted` and `also` are among them. */
static size_t count_found(struct hearth_backing *backing, const struct hearth_backing_place *place,
                          const struct item *wanted, const struct item *also) {
    size_t found = 0, right = 0;
    const uint64_t ticket = backing->ops->seek(backing, place, 1);
    assert_true(ticket > 0);
    for (bool over = false; !over;) {
        struct hearth_backing_event event = next(backing);
        over = event.type == HEARTH_BACKING_SOUGHT && event.ticket == ticket;
        if (event.type == HEARTH_BACKING_FOUND) {
            found++;
            right += hearth_digest_equal(event.name, wanted->record.name) ||
                     hearth_digest_equal(event.name, also->record.name);
        }
        assert_int_not_equal(event.type, HEARTH_BACKING_LOST);
        hearth_backing_event_finish(&event);
    }
    assert_int_equal(right, wanted == also ? 1 : 2);
    return found;
}

/* However many branches hang on a block, a prompt is told of its own one, of what that stands on, and of few others. */
static void a_popular_head(void **state) {
    static struct item head, branch;
    struct store store;
    if (!open_store(&store, *state)) {
        print_message("redis-server is not installed\n");
        skip();
    }
    make_item(&head, HEARTH_RECORD_PAGE, 1, 1, PAGE, 300);
    struct hearth_backing *backing = open_tier(&store, fingerprint, NULL);
    assert_true(put(backing, &head, NULL));
    for (int i = 0; i < BRANCHES; i++) {
        make_branch(&branch, &head, i);
        assert_true(put(backing, &branch, NULL));
    }
    expect(backing, HEARTH_BACKING_WRITTEN, &branch); /* the last: they keep their order */
    for (int round = 0; round < 2; round++) {         /* by the tier that has written them, and by another one */
        for (int i = 0; i < BRANCHES; i += BRANCHES / 7) {
            make_branch(&branch, &head, i);
            const struct hearth_backing_place place = {branch.record.base, branch.record.base_pos, branch.tokens, PAGE};
            assert_in_range(count_found(backing, &place, &branch, &head), 2, BRANCHES / 4);
            assert_int_equal(get(backing, &branch), HEARTH_OK);
        }
        make_branch(&branch, &head, BRANCHES + 1); /* one that is not there */
        const struct hearth_backing_place place = {branch.record.base, branch.record.base_pos, branch.tokens, PAGE};
        assert_in_range(count_found(backing, &place, &head, &head), 1, BRANCHES / 4);
        backing->ops->destroy(backing);
        backing = open_tier(&store, fingerprint, NULL);
    }
    backing->ops->destroy(backing);
    close_store(&store);
}

/* ---- more than a tier may know ---- */

/* A tier that may know few items reports as LOST what it forgets, oldest first, and finds it again. */
static void forgets_what_is_too_much(void **state) {
    enum { WRITTEN = 64 };
    static struct item items[WRITTEN];
    struct store store;
    if (!open_store(&store, *state)) {
        print_message("redis-server is not installed\n");
        skip();
    }
    struct hearth_backing *backing = open_tier_with(&store, fingerprint, NULL, 2048, 0);
    struct hearth_backing_stats stats;
    int lost = 0, written = 0;
    for (int i = 0; i < WRITTEN; i++) {
        make_item(&items[i], HEARTH_RECORD_PAGE, i + 1, 1, PAGE, 300);
        assert_true(put(backing, &items[i], NULL));
    }
    while (written < WRITTEN) {
        struct hearth_backing_event event = next(backing);
        if (event.type == HEARTH_BACKING_LOST) {
            assert_true(hearth_digest_equal(event.name, items[lost++].record.name));
        }
        written += event.type == HEARTH_BACKING_WRITTEN;
        hearth_backing_event_finish(&event);
    }
    backing->ops->stats(backing, &stats);
    assert_in_range(lost, WRITTEN / 2, WRITTEN - 1);
    assert_int_equal(stats.files, WRITTEN - lost);
    const struct hearth_backing_place place = {items[0].record.base, items[0].record.base_pos, items[0].tokens, PAGE};
    assert_true(backing->ops->seek(backing, &place, 1) > 0);
    expect(backing, HEARTH_BACKING_FOUND, &items[0]);
    assert_int_equal(get(backing, &items[0]), HEARTH_OK);
    backing->ops->destroy(backing);
    close_store(&store);
}

/* ---- time to live ---- */

static atomic_int_fast64_t later_us;

int64_t __real_hearth_clock_us(void);
int64_t __wrap_hearth_clock_us(void);

int64_t __wrap_hearth_clock_us(void) {
    return __real_hearth_clock_us() + atomic_load(&later_us);
}

static long long number(struct store *store, int argc, const char **argv) {
    redisReply *reply = ask(store, argc, argv, NULL);
    const long long value = reply->integer;
    freeReplyObject(reply);
    return value;
}

/* So many seconds later the item is used. Returns for how long its block then lives, if that were 100 s. */
static long long lives_s(struct store *store, struct hearth_backing *backing, const struct item *item, int seconds) {
    static int others;
    struct item other;
    char base[33], key[160];
    hearth_digest_hex(item->record.base, base);
    (void)snprintf(key, sizeof key, "hearth:%s:i:{%s}", hearth_model_id(fingerprint, PAGE).hex, base);
    const char *expire[] = {"EXPIRE", key, "100"}, *ttl[] = {"TTL", key};
    assert_int_equal(number(store, 3, expire), 1);
    atomic_fetch_add(&later_us, seconds * INT64_C(1000000));
    backing->ops->touch(backing, &(struct hearth_backing_touch){.name = item->record.name, .pos = PAGE}, 1);
    make_item(&other, HEARTH_RECORD_PAGE, 100 + ++others, 1, PAGE, 300);
    assert_true(put(backing, &other, NULL)); /* behind it */
    expect(backing, HEARTH_BACKING_WRITTEN, &other);
    return number(store, 2, ttl);
}

/* What is used lives on: not each use costs the store a command, but it is told before much of the time has passed. */
static void what_is_used_lives_on(void **state) {
    struct store store;
    struct item item;
    if (!open_store(&store, *state)) {
        print_message("redis-server is not installed\n");
        skip();
    }
    struct hearth_backing *backing = open_tier_with(&store, fingerprint, NULL, 0, 800);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 1, PAGE, 300);
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    assert_in_range(lives_s(&store, backing, &item, 50), 1, 100);
    assert_in_range(lives_s(&store, backing, &item, 150), 700, 800);
    backing->ops->destroy(backing);
    backing = open_tier_with(&store, fingerprint, NULL, 0, 800); /* another box, which cannot know how old it is */
    const struct hearth_backing_place place = {item.record.base, item.record.base_pos, item.tokens, PAGE};
    assert_true(backing->ops->seek(backing, &place, 1) > 0);
    expect(backing, HEARTH_BACKING_FOUND, &item);
    assert_in_range(lives_s(&store, backing, &item, 0), 700, 800);
    assert_in_range(lives_s(&store, backing, &item, 50), 1, 100);
    backing->ops->destroy(backing);
    close_store(&store);
}

/* ---- a store that refuses ---- */

static void limit_memory(struct store *store, const char *bytes) {
    const char *argv[] = {"CONFIG", "SET", "maxmemory", bytes};
    freeReplyObject(ask(store, 4, argv, NULL));
}

/* A store that takes nothing new is not well because it has what is put. */
static void what_is_there_proves_no_writing(void **state) {
    struct store store;
    struct item item, other;
    if (!open_store(&store, *state)) {
        print_message("redis-server is not installed\n");
        skip();
    }
    struct hearth_backing *backing = open_tier(&store, fingerprint, NULL);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 1, PAGE, 300);
    make_item(&other, HEARTH_RECORD_PAGE, 2, 1, PAGE, 300);
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    limit_memory(&store, "1");
    assert_true(put(backing, &other, NULL));
    expect(backing, HEARTH_BACKING_DROPPED, &other);
    atomic_fetch_add(&later_us, INT64_C(60000000)); /* it is tried again */
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    assert_true(stats(backing).failing);
    limit_memory(&store, "0");
    atomic_fetch_add(&later_us, INT64_C(60000000));
    assert_true(put(backing, &other, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &other);
    assert_false(stats(backing).failing);
    backing->ops->destroy(backing);
    close_store(&store);
}

/* What a node of a cluster calls another one, and itself: with no host at all. */
static void names_of_nodes(void **state) {
    static const struct {
        const char *host, *asked, *where;
    } rows[] = {{"b", "a", "b:6379"},
                {"", "a", "a:6379"},
                {"fe80::1", "a", "[fe80::1]:6379"},
                {"", "fe80::1", "[fe80::1]:6379"},
                {"", "[::1]", "[::1]:6379"},
                {"", "127.0.0.1", "127.0.0.1:6379"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char where[HEARTH_REMOTE_WHERE_BYTES];
        hearth_remote_where(rows[i].host, 6379, rows[i].asked, where);
        assert_string_equal(where, rows[i].where);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_of_nodes),
                                       cmocka_unit_test_setup_teardown(a_store_that_lies, enter, leave),
                                       cmocka_unit_test_setup_teardown(a_popular_head, enter, leave),
                                       cmocka_unit_test_setup_teardown(forgets_what_is_too_much, enter, leave),
                                       cmocka_unit_test_setup_teardown(what_is_used_lives_on, enter, leave),
                                       cmocka_unit_test_setup_teardown(what_is_there_proves_no_writing, enter, leave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
