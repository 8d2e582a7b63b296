/* The state directory with others at it: drafts and their locks, the budget, several processes at once. */
#include "directory_stage.h"

#include "base/clock.h"
#include "tier/share.h"

/* ---- drafts ---- */

static void leaves_a_draft(void) {
    struct hearth_directory *directory = open_root();
    struct hearth_file_draft draft;
    if (hearth_file_create(directory, model(1), &draft) != HEARTH_OK || write(draft.fd, "half", 4) != 4) {
        _exit(1);
    }
    (void)kill(getpid(), SIGKILL);
}

static bool no_locks;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation) {
    errno = no_locks ? ENOTSUP : 0;
    return no_locks ? -1 : __real_flock(fd, operation);
}

static int64_t draft_age_s(const struct hearth_file_draft *draft, int64_t age_s) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = hearth_clock_unix() - age_s}};
    return futimens(draft->fd, times);
}

/* Where there are no locks a draft goes by its age: nothing is written for a day. */
static void old_drafts_go_where_there_are_no_locks(void **state) {
    (void)state;
    enum { HOUR_S = 3600 };
    struct hearth_directory *directory = open_root();
    struct hearth_file_draft drafts[2];
    struct hearth_gc gc = {.budget_bytes = UINT64_MAX};
    no_locks = true;
    assert_int_equal(hearth_directory_add_model(directory, model(1), ""), HEARTH_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hearth_file_create(directory, model(1), &drafts[i]), HEARTH_OK);
        assert_int_equal(draft_age_s(&drafts[i], i == 0 ? 12 * HOUR_S : 48 * HOUR_S), 0);
    }
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_int_equal(entries(at("kv/%s/tmp", model(1).hex)), 1);
    for (int i = 0; i < 2; i++) {
        hearth_file_discard(directory, &drafts[i]);
    }
    no_locks = false;
    hearth_directory_close(directory);
}

static void drafts_of_the_dead_go(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    assert_int_equal(hearth_directory_add_model(directory, model(1), ""), HEARTH_OK);
    struct hearth_file_draft draft;
    assert_int_equal(hearth_file_create(directory, model(1), &draft), HEARTH_OK);
    assert_true(WIFSIGNALED(in_child(leaves_a_draft)));
    assert_true(WIFSIGNALED(in_child(leaves_a_draft)));
    assert_int_equal(mkdir(at("kv/%s/tmp/dir", model(1).hex), 0700), 0);
    assert_int_equal(symlink("/", at("kv/%s/tmp/link", model(1).hex)), 0);
    assert_int_equal(entries(at("kv/%s/tmp", model(1).hex)), 5);
    struct hearth_gc gc = {.budget_bytes = UINT64_MAX};
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_int_equal(entries(at("kv/%s/tmp", model(1).hex)), 1);
    const struct hearth_file_id id = item(1, 1);
    assert_int_equal(hearth_file_publish(directory, &draft, &id, &(struct timespec){.tv_sec = 1}), HEARTH_OK);
    assert_int_equal(draft.fd, -1);
    assert_int_equal(entries(at("kv/%s/tmp", model(1).hex)), 0);
    assert_int_equal(files_of(directory, 1), 1);
    /* somebody removes everything under a server */
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf %s/kv/*", root);
    assert_int_equal(system(command), 0);
    assert_int_equal(publish(directory, &id, 1, T0), HEARTH_OK);
    assert_int_equal(files_of(directory, 1), 1);
    hearth_directory_close(directory);
}

/* ---- the budget ---- */

struct removals {
    int n;
    int64_t last;
    uint64_t seen, total;
    struct hearth_directory *directory;
    const struct hearth_file_id *use;
};

static void on_removed(void *user, const struct hearth_file *file) {
    struct removals *removals = user;
    assert_true(file->stamp_us >= removals->last);
    removals->last = file->stamp_us;
    removals->n++;
}

static void on_progress(void *user, uint64_t done, uint64_t total) {
    struct removals *removals = user;
    removals->seen = done;
    removals->total = total;
    if (removals->use && total > 0) { /* a use between the walk and the removal */
        const struct timespec now = hearth_file_stamp(T0 + 1000000, 0, false);
        assert_int_equal(hearth_file_touch(removals->directory, removals->use, &now, 1), HEARTH_OK);
        removals->use = NULL;
    }
}

static void oldest_go_first(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    for (int m = 1; m < 4; m++) {
        assert_int_equal(hearth_directory_add_model(directory, model(m), ""), HEARTH_OK);
    }
    for (uint64_t i = 0; i < 60; i++) { /* stamps in another order than names and models */
        const struct hearth_file_id id = item(1 + (int)(i % 3), i);
        assert_int_equal(publish(directory, &id, 4000 + i, T0 + (int64_t)(i * 37 % 60)), HEARTH_OK);
    }
    char stranger[128];
    (void)snprintf(stranger, sizeof stranger, "kv/%s/00", model(1).hex);
    (void)mkdir(at("%s", stranger), 0700);
    assert_int_equal(close(open(at("%s/notes.txt", stranger), O_CREAT, 0600)), 0);
    struct removals removals = {.directory = directory};
    struct hearth_gc gc = {
        .budget_bytes = 60 * 4096, .removed = on_removed, .progress = on_progress, .user = &removals};
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_int_equal(gc.removed_files, 0);
    assert_int_equal(gc.files, 60);
    assert_int_equal(gc.bytes, 60 * 4096);
    assert_true(removals.seen == 60 && removals.total == 60);
    gc.budget_bytes = 50 * 4096 + 1;
    gc.need_bytes = 2;
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_true(removals.n == 11 && removals.last == T0 + 10 && gc.removed_files == 11);
    assert_true(gc.files == 49 && gc.bytes == 49 * 4096 && gc.removed_bytes == 11 * 4096);
    /* what is used at the last moment stays; the next older one goes instead */
    const struct hearth_file_id *used = NULL;
    struct hearth_file_id id;
    for (uint64_t i = 0; i < 60; i++) {
        if (i * 37 % 60 == 11) {
            id = item(1 + (int)(i % 3), i);
            used = &id;
        }
    }
    removals.use = used;
    gc.budget_bytes = 48 * 4096;
    gc.need_bytes = 0;
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_true(gc.removed_files == 1 && removals.last == T0 + 12);
    assert_true(there(file_path(used)));
    gc.need_bytes = UINT64_MAX;
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_true(gc.files == 0 && gc.bytes == 0);
    assert_true(there(at("%s/notes.txt", stranger)));
    hearth_directory_close(directory);
}

/* Files of an owner, one block each: the first one used at `first_us`, each a second after the one before. */
static void publish_of(struct hearth_directory *directory, uint64_t owner, uint64_t n, int64_t first_us) {
    for (uint64_t i = 0; i < n; i++) {
        const struct hearth_file_id id = item(1, owner * 1000 + i);
        const struct timespec stamp = hearth_file_stamp(first_us + (int64_t)i * 1000000, 0, false);
        struct hearth_file_draft draft;
        assert_int_equal(hearth_file_create(directory, id.model, &draft), HEARTH_OK);
        hearth_file_own(&draft, owner);
        assert_int_equal(ftruncate(draft.fd, 4096), 0);
        assert_int_equal(hearth_file_publish(directory, &draft, &id, &stamp), HEARTH_OK);
    }
}

/* How many of these are left. */
static int left_of(uint64_t owner, uint64_t n) {
    int left = 0;
    for (uint64_t i = 0; i < n; i++) {
        const struct hearth_file_id id = item(1, owner * 1000 + i);
        left += there(file_path(&id));
    }
    return left;
}

/* A quiet owner's files, the oldest ones, a flood of another one's, and a budget for so many of them. */
static void flood(double share, int64_t quiet_us, uint64_t files, int left[2]) {
    struct hearth_directory *directory = open_root();
    const int64_t now_us = hearth_clock_unix_us();
    publish_of(directory, 1, 10, quiet_us);
    publish_of(directory, 2, 40, now_us - INT64_C(3600000000));
    struct hearth_gc gc = {.budget_bytes = files * 4096, .share = share};
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_true(gc.files == files && gc.removed_files == 50 - files && gc.bytes == files * 4096);
    left[0] = left_of(1, 10);
    left[1] = left_of(2, 40);
    gc.budget_bytes = 0;
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_int_equal(gc.files, 0);
    hearth_directory_close(directory);
}

static void an_owner_keeps_its_share(void **state) {
    (void)state;
    const int64_t day_us = INT64_C(86400000000), now_us = hearth_clock_unix_us();
    struct hearth_directory *directory = open_root();
    const struct hearth_file_id id = item(1, 1000);
    publish_of(directory, 1, 1, T0);
    const bool known = hearth_file_owner(directory, &id) == 1;
    assert_int_equal(hearth_file_remove(directory, &id), HEARTH_OK);
    hearth_directory_close(directory);
    if (!known) {
        print_message("/tmp has no extended attributes: nothing says whose a file is\n");
        skip();
    }
    int left[2];
    flood(0, now_us - day_us, 20, left);
    assert_true(left[0] == 0 && left[1] == 20);
    flood(0.75, now_us - day_us, 20, left); /* its share are ten files */
    assert_true(left[0] == 10 && left[1] == 10);
    flood(0.75, now_us - day_us, 12, left); /* six, and what is older of its own goes for them */
    assert_true(left[0] == 6 && left[1] == 6);
    flood(0.75, now_us - 5 * day_us, 20, left); /* it may come once a week */
    assert_true(left[0] == 10 && left[1] == 10);
    flood(0.75, now_us - 8 * day_us, 20, left); /* it has not come for a week */
    assert_true(left[0] == 0 && left[1] == 20);
}

/* Room for all comes from the owner that holds more than it may, then from those above their share, then from any. */
static void room_is_made_in_passes(void **state) {
    (void)state;
    const size_t held[] = {80, 25, 5, 5, 5};
    const int first[] = {0, 1, 2, 2, 2}; /* the pass in which each gives */
    struct hearth_shares shares;
    assert_true(hearth_shares_init(&shares, 0.75, HEARTH_SHARE_DISK_US));
    for (uint16_t i = 0; i < 5; i++) {
        assert_int_equal(hearth_share_find(&shares, i), i);
        hearth_share_used(&shares, i, T0);
        hearth_share_count(&shares, i, 0, held[i]);
    }
    hearth_share_divide(&shares, 100, T0);
    for (uint16_t i = 0; i < 5; i++) {
        for (int pass = 0; pass < HEARTH_SHARE_PASSES; pass++) {
            assert_int_equal(hearth_share_gives(&shares, i, pass), pass >= first[i]);
        }
    }
    hearth_shares_finish(&shares);
}

static void empty_models_go_unless_used(void **state) {
    (void)state;
    struct hearth_directory *server = open_root(), *other = open_root();
    const struct hearth_file_id id = item(2, 1);
    assert_int_equal(hearth_directory_add_model(server, model(1), "in use"), HEARTH_OK);
    assert_int_equal(hearth_directory_add_model(other, model(2), "not in use"), HEARTH_OK);
    assert_int_equal(hearth_directory_add_model(other, model(3), "with transcripts"), HEARTH_OK);
    assert_int_equal(publish(other, &id, 1, T0), HEARTH_OK);
    assert_int_equal(close(open(at("kv/%s/transcripts.db", model(3).hex), O_CREAT, 0600)), 0);
    hearth_directory_close(other);
    other = open_root();
    struct hearth_gc gc = {.budget_bytes = 0};
    assert_int_equal(hearth_directory_gc(other, &gc), HEARTH_OK);
    assert_int_equal(gc.removed_files, 1);
    assert_true(there(at("kv/%s/about", model(1).hex)));
    assert_false(there(at("kv/%s", model(2).hex)));
    assert_true(there(at("kv/%s/transcripts.db", model(3).hex)) && there(at("kv/%s/about", model(3).hex)));
    assert_int_equal(hearth_directory_gc(server, &gc), HEARTH_OK); /* its own */
    assert_true(there(at("kv/%s", model(1).hex)));
    hearth_directory_close(server);
    assert_int_equal(hearth_directory_gc(other, &gc), HEARTH_OK);
    assert_false(there(at("kv/%s", model(1).hex)));
    hearth_directory_close(other);
}

static void a_model_goes_with_everything_unless_used(void **state) {
    (void)state;
    struct hearth_directory *server = open_root(), *other = open_root();
    struct hearth_directory_rest rest;
    assert_int_equal(hearth_directory_remove_model(other, model(1)), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(hearth_directory_add_model(server, model(1), "a model"), HEARTH_OK);
    for (uint64_t i = 0; i < 5; i++) {
        const struct hearth_file_id id = item(1, i);
        assert_int_equal(publish(server, &id, 5000, T0), HEARTH_OK);
    }
    const struct hearth_file_id bad = item(1, 3);
    hearth_file_quarantine(server, &bad, "damaged");
    assert_int_equal(mkdir(at("kv/%s/mine", model(1).hex), 0700), 0);
    assert_int_equal(symlink(root, at("kv/%s/mine/link", model(1).hex)), 0);
    assert_int_equal(truncate(at("kv/%s/about", model(1).hex), 9000), 0);
    struct hearth_file_draft draft;
    assert_int_equal(hearth_file_create(server, model(1), &draft), HEARTH_OK);
    hearth_directory_rest(other, &rest);
    assert_true(rest.bad_files == 1 && rest.bad_bytes == 8192 && rest.draft_files == 1 && rest.draft_bytes == 0);
    assert_int_equal(rest.other_bytes, 12288);
    hearth_file_discard(server, &draft);
    assert_int_equal(hearth_directory_remove_model(other, model(1)), HEARTH_ERR_BUSY);
    assert_int_equal(files_of(other, 1), 4);
    hearth_directory_close(server);
    assert_int_equal(hearth_directory_remove_model(other, model(1)), HEARTH_OK);
    assert_false(there(at("kv/%s", model(1).hex)));
    assert_true(there(at("kv/lock")) && there(root));
    assert_int_equal(hearth_directory_empty_bad(other), 1);
    assert_int_equal(hearth_directory_empty_bad(other), 0);
    hearth_directory_rest(other, &rest);
    assert_true(rest.bad_files == 0 && rest.draft_files == 0 && rest.other_bytes == 0);
    hearth_directory_close(other);
}

/* ---- many at once ---- */

static int directories(const char *path) {
    DIR *stream = opendir(path);
    int n = 0;
    for (const struct dirent *entry; stream && (entry = readdir(stream)) != NULL;) {
        n += entry->d_type == DT_DIR && entry->d_name[0] != '.';
    }
    if (stream) {
        (void)closedir(stream);
    }
    return n;
}

static void dies_with_the_lock(void) {
    const int fd = open(at("kv/lock"), O_RDWR);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        _exit(1);
    }
    (void)kill(getpid(), SIGKILL);
}

/* Publishes, uses, reads, quarantines, evicts: whatever the others do meanwhile, nothing fails. */
static void works(int which) {
    struct hearth_directory *directory = open_root();
    for (uint64_t i = 0; i < 300; i++) {
        const struct hearth_file_id id = item(1 + (int)(i / 7 % 3), (i * (uint64_t)(2 * which + 1)) % 64);
        struct hearth_file file;
        const struct timespec stamp = hearth_file_stamp(T0 + (int64_t)i, 0, false);
        int fd = -1;
        const int err = hearth_directory_add_model(directory, id.model, "busy");
        if (err != HEARTH_OK || publish(directory, &id, 100, T0 + (int64_t)i) != HEARTH_OK) {
            _exit(2);
        }
        const int results[] = {hearth_file_open(directory, &id, &fd), hearth_file_stat(directory, &id, &file, NULL),
                               hearth_file_touch(directory, &id, &stamp, 1),
                               i % 5 == 0 ? hearth_file_remove(directory, &id) : HEARTH_OK};
        (void)close(fd);
        for (size_t k = 0; k < sizeof results / sizeof *results; k++) {
            if (results[k] != HEARTH_OK && results[k] != HEARTH_ERR_NOT_FOUND) {
                _exit(3);
            }
        }
        if (i % 11 == 0) {
            hearth_file_quarantine(directory, &id, "a test");
        }
        struct hearth_gc gc = {.budget_bytes = 20 * 4096};
        if (i % 13 == 0 && hearth_directory_gc(directory, &gc) != HEARTH_OK) {
            _exit(4);
        }
        if (i % 50 == 49) { /* a server that goes and comes: its models may be removed */
            hearth_directory_close(directory);
            directory = open_root();
        }
    }
    hearth_directory_close(directory);
    _exit(0);
}

static void processes_do_not_disturb_each_other(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    assert_true(WIFSIGNALED(in_child(dies_with_the_lock)));
    pid_t pids[6];
    for (int i = 0; i < 6; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            works(i);
        }
        assert_true(pids[i] > 0);
    }
    for (int i = 0; i < 6; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    struct hearth_gc gc = {.budget_bytes = 20 * 4096};
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    assert_true(gc.files <= 20);
    assert_true(entries(at("kv/bad")) <= 64);
    assert_int_equal(directories(at("kv/bad")), 0); /* files were quarantined, and no shard that had just been made */
    gc.budget_bytes = 0;
    assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
    for (int m = 1; m < 4; m++) {
        assert_false(there(at("kv/%s", model(m).hex)));
    }
    hearth_directory_close(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(drafts_of_the_dead_go),
        TEST(old_drafts_go_where_there_are_no_locks),
        TEST(oldest_go_first),
        TEST(an_owner_keeps_its_share),
        TEST(room_is_made_in_passes),
        TEST(empty_models_go_unless_used),
        TEST(a_model_goes_with_everything_unless_used),
        TEST(processes_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
