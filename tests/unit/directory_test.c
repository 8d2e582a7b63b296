/* The state directory: rights, models, names, what is published, used, and quarantined. */
#include "directory_stage.h"

/* ---- opening ---- */

static void is_made_for_its_user_alone(void **state) {
    (void)state;
    const mode_t masks[] = {0, 022, 0777};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const mode_t before = umask(masks[i]);
        char path[128];
        (void)snprintf(path, sizeof path, "%s/parent%zu/kv", root, i);
        struct hearth_directory *directory = open_at(path);
        assert_string_equal(hearth_directory_path(directory), path);
        assert_int_equal(hearth_directory_add_model(directory, model(1), "a model"), HEARTH_OK);
        struct hearth_file_draft draft;
        assert_int_equal(hearth_file_create(directory, model(1), &draft), HEARTH_OK);
        (void)umask(before);
        assert_int_equal(mode_of(path), 0700);
        assert_int_equal(mode_of(at("parent%zu", i)), 0700);
        assert_int_equal(mode_of(at("parent%zu/kv/lock", i)), 0600);
        assert_int_equal(mode_of(at("parent%zu/kv/%s", i, model(1).hex)), 0700);
        assert_int_equal(mode_of(at("parent%zu/kv/%s/tmp", i, model(1).hex)), 0700);
        assert_int_equal(mode_of(at("parent%zu/kv/%s/about", i, model(1).hex)), 0600);
        assert_int_equal(mode_of(at("parent%zu/kv/%s/tmp/%s", i, model(1).hex, draft.name)), 0600);
        hearth_file_discard(directory, &draft);
        assert_int_equal(entries(at("parent%zu/kv/%s/tmp", i, model(1).hex)), 0);
        assert_true(hearth_directory_free_bytes(directory) > 0);
        hearth_directory_close(directory);
    }
}

static void refuses_what_is_not_its_own(void **state) {
    (void)state;
    struct hearth_directory *directory;
    struct hearth_errmsg msg = {""};
    assert_int_equal(hearth_directory_open(at("kv"), false, &directory, &msg), HEARTH_ERR_NOT_FOUND);
    assert_null(directory);
    assert_non_null(strstr(msg.text, "no such directory"));
    assert_int_equal(hearth_directory_open("", true, &directory, &msg), HEARTH_ERR_NOT_FOUND);
    /* a file */
    assert_int_equal(close(open(at("file"), O_CREAT | O_WRONLY, 0600)), 0);
    assert_int_equal(hearth_directory_open(at("file"), true, &directory, &msg), HEARTH_ERR_IO);
    assert_int_equal(hearth_directory_open(at("file/below"), true, &directory, &msg), HEARTH_ERR_IO);
    /* an empty directory with rights for others loses them; one with other things in it is not touched */
    assert_int_equal(mkdir(at("open"), 0700) | chmod(at("open"), 0755), 0);
    hearth_directory_close(open_at(at("open")));
    assert_int_equal(mode_of(at("open")), 0700);
    assert_int_equal(chmod(at("open"), 0770), 0); /* again: it is known by now */
    hearth_directory_close(open_at(at("open")));
    assert_int_equal(mode_of(at("open")), 0700);
    assert_int_equal(mkdir(at("home"), 0700) | chmod(at("home"), 0755) | mkdir(at("home/pictures"), 0700), 0);
    assert_int_equal(hearth_directory_open(at("home"), true, &directory, &msg), HEARTH_ERR_IO);
    assert_non_null(strstr(msg.text, "other things"));
    assert_int_equal(mode_of(at("home")), 0755);
    assert_false(there(at("home/lock")));
    if (geteuid() == 0) { /* only root can make one of another user */
        assert_int_equal(mkdir(at("theirs"), 0700) | chown(at("theirs"), 12345, 12345), 0);
        assert_int_equal(hearth_directory_open(at("theirs"), true, &directory, &msg), HEARTH_ERR_IO);
        assert_non_null(strstr(msg.text, "12345"));
    }
}

static bool note_model(void *user, struct hearth_model_id found) {
    struct hearth_model_id *models = user;
    int i = 0;
    while (models[i].hex[0]) {
        i++;
    }
    models[i] = found;
    return i < 1;
}

static void knows_its_models(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    char about[64];
    const struct hearth_digest fingerprint = {.lo = 1, .hi = 7};
    assert_string_not_equal(hearth_model_id(fingerprint, 256).hex, hearth_model_id(fingerprint, 255).hex);
    hearth_directory_about(directory, model(1), about, sizeof about);
    assert_string_equal(about, "");
    assert_int_equal(hearth_directory_add_model(directory, model(1), "SmolLM2\nmore"), HEARTH_OK);
    hearth_directory_about(directory, model(1), about, sizeof about);
    assert_string_equal(about, "SmolLM2");
    assert_int_equal(hearth_directory_add_model(directory, model(1), "renamed"), HEARTH_OK);
    hearth_directory_about(directory, model(1), about, sizeof about);
    assert_string_equal(about, "renamed");
    hearth_directory_about(directory, model(1), about, 4);
    assert_string_equal(about, "ren");
    for (int i = 2; i < 5; i++) {
        assert_int_equal(hearth_directory_add_model(directory, model(i), "x"), HEARTH_OK);
    }
    assert_int_equal(mkdir(at("kv/notamodel"), 0700) | mkdir(at("kv/%033d", 0), 0700), 0);
    assert_int_equal(close(open(at("kv/%032d", 0), O_CREAT | O_WRONLY, 0600)), 0); /* the name, but a file */
    struct hearth_model_id found[8] = {{""}};
    assert_int_equal(hearth_directory_models(directory, note_model, found), HEARTH_OK);
    assert_true(found[1].hex[0] && !found[2].hex[0]); /* it stopped when told to */
    assert_string_not_equal(found[0].hex, found[1].hex);
    hearth_directory_close(directory);
}

/* ---- files ---- */

static bool keep_file(void *user, const struct hearth_file *file) {
    *(struct hearth_file *)user = *file;
    return false;
}

static void publishes_and_finds(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    assert_int_equal(hearth_directory_add_model(directory, model(1), ""), HEARTH_OK);
    const struct hearth_file_id page = item(1, 1), snapshot = item(1, 3);
    int fd = -2;
    assert_int_equal(hearth_file_open(directory, &page, &fd), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(fd, -1);
    assert_int_equal(hearth_file_remove(directory, &page), HEARTH_ERR_NOT_FOUND);
    char hex[33];
    hearth_digest_hex(page.name, hex);
    const int shard = (int)(page.name.hi >> 56);
    assert_int_equal(hearth_directory_shard_time(directory, page.model, shard), 0);
    assert_int_equal(publish(directory, &page, 5000, T0), HEARTH_OK);
    assert_int_equal(publish(directory, &snapshot, 1, T0), HEARTH_OK);
    assert_true(hearth_directory_shard_time(directory, page.model, shard) > 0);
    assert_int_equal(mode_of(file_path(&page)), 0600);
    assert_int_equal(entries(at("kv/%s/tmp", page.model.hex)), 0);
    struct hearth_file file = {0};
    assert_int_equal(hearth_directory_walk(directory, page.model, shard, keep_file, &file), HEARTH_OK);
    assert_string_equal(file.id.model.hex, page.model.hex);
    assert_true(hearth_digest_equal(file.id.name, page.name) && file.id.kind == page.kind);
    assert_int_equal(file.bytes, 8192);
    assert_int_equal(file.stamp_us, T0);
    assert_int_equal(files_of(directory, 1), 2);
    assert_int_equal(files_of(directory, 2), 0);
    uint32_t hits = 77;
    assert_int_equal(hearth_file_stat(directory, &page, &file, &hits), HEARTH_OK);
    assert_int_equal(hits, 0);
    /* again, with other bytes: it replaces, also what is a directory, a link or a FIFO */
    assert_int_equal(publish(directory, &page, 9000, T0 + 1), HEARTH_OK);
    assert_int_equal(hearth_file_stat(directory, &page, &file, NULL), HEARTH_OK);
    assert_int_equal(file.bytes, 12288);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hearth_file_remove(directory, &page), HEARTH_OK);
        const char *path = file_path(&page);
        assert_int_equal(i == 0   ? mkdir(path, 0700)
                         : i == 1 ? symlink("/etc/passwd", path)
                         : i == 2 ? mkfifo(path, 0600)
                                  : mkdir(path, 0700) | close(open(at("%s/x", path + strlen(root) + 1), O_CREAT, 0600)),
                         0);
        assert_int_equal(publish(directory, &page, 10, T0), HEARTH_OK);
        assert_int_equal(hearth_file_open(directory, &page, &fd), HEARTH_OK);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(hearth_directory_bad(directory), 2); /* the directories */
    /* and what is in the place of a directory of ours */
    const char *const strange[] = {"touch", "mkfifo", "ln -s /nowhere", "ln -s tmp"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        char command[256];
        (void)snprintf(command, sizeof command, "cd %s/kv/%s && rm -rf %.2s tmp && %s %.2s && %s tmp", root,
                       page.model.hex, hex, i == 3 ? strange[2] : strange[i], hex, strange[i]);
        assert_int_equal(system(command), 0);
        assert_int_equal(hearth_file_open(directory, &page, &fd), HEARTH_ERR_NOT_FOUND);
        assert_int_equal(publish(directory, &page, 10, T0), HEARTH_OK);
        assert_int_equal(hearth_directory_bad(directory), 2 + 2 * (i + 1));
    }
    /* names that are no items' */
    assert_int_equal(mkdir(at("kv/%s/zz", page.model.hex), 0700), 0);
    const char *const strangers[] = {"x.page", "0123456789abcdef0123456789abcd", "0123456789abcdef0123456789abcd.pages",
                                     "0123456789ABCDEF0123456789abcd.page", "0123456789abcdef0123456789abc.snap"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        assert_int_equal(close(open(at("kv/%s/%.2s/%s", page.model.hex, hex, strangers[i]), O_CREAT, 0600)), 0);
    }
    assert_int_equal(files_of(directory, 1), 2);
    hearth_directory_close(directory);
}

static void counts_uses(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    assert_int_equal(hearth_directory_add_model(directory, model(1), ""), HEARTH_OK);
    const struct hearth_file_id id = item(1, 1);
    assert_int_equal(publish(directory, &id, 1, T0), HEARTH_OK);
    const struct timespec stamp = hearth_file_stamp(T0 + 5000000, 100, false);
    struct hearth_file file;
    uint32_t hits;
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(hearth_file_touch(directory, &id, &stamp, i), HEARTH_OK);
    }
    assert_int_equal(hearth_file_stat(directory, &id, &file, &hits), HEARTH_OK);
    assert_int_equal(file.stamp_us, T0 + 5000000 - 100);
    assert_true(hits == 6 || hits == 0); /* 0: this file system has no attributes */
    assert_int_equal(hearth_file_touch(directory, &id, &stamp, UINT32_MAX), HEARTH_OK);
    assert_int_equal(hearth_file_stat(directory, &id, &file, &hits), HEARTH_OK);
    assert_true(hits == UINT32_MAX || hits == 0);
    const struct hearth_file_id other = item(1, 2);
    assert_int_equal(hearth_file_touch(directory, &other, &stamp, 1), HEARTH_ERR_NOT_FOUND);
    /* deeper is older, superseded much older, and time does not begin before 1970 */
    assert_true(hearth_file_stamp(T0, 5, false).tv_nsec == hearth_file_stamp(T0, 4, false).tv_nsec - 1000);
    assert_int_equal(hearth_file_stamp(T0, 5, true).tv_sec, hearth_file_stamp(T0, 5, false).tv_sec - 86400);
    assert_int_equal(hearth_file_stamp(3, 5, true).tv_sec, 0);
    assert_int_equal(hearth_file_stamp(3, 5, true).tv_nsec, 0);
    hearth_directory_close(directory);
}

static void quarantines_whatever_it_is(void **state) {
    (void)state;
    struct hearth_directory *directory = open_root();
    assert_int_equal(hearth_directory_add_model(directory, model(1), ""), HEARTH_OK);
    const struct hearth_file_id id = item(1, 1);
    char hex[33];
    hearth_digest_hex(id.name, hex);
    assert_int_equal(publish(directory, &id, 1, T0), HEARTH_OK);
    const int kinds = geteuid() == 0 ? 6 : 5;
    int kept = 0; /* links and pipes are removed */
    for (int i = 0; i < kinds; i++) {
        (void)unlink(file_path(&id));
        const char *path = file_path(&id);
        assert_int_equal(close(open(at("target"), O_CREAT, 0600)), 0);
        assert_int_equal(i == 0   ? mkdir(path, 0700)
                         : i == 1 ? symlink(at("target"), path)
                         : i == 2 ? symlink("nowhere", path)
                         : i == 3 ? mkfifo(path, 0600)
                         : i == 4 ? mkdir(path, 0700) | close(open(at("%s/x", path + strlen(root) + 1), O_CREAT, 0600))
                                  : close(open(path, O_CREAT | O_RDWR, 0644)) | chown(path, 12345, 12345),
                         0);
        int fd;
        assert_int_equal(hearth_file_open(directory, &id, &fd), HEARTH_ERR_STATE);
        assert_int_equal(hearth_file_touch(directory, &id, &(struct timespec){0}, 1), HEARTH_ERR_STATE);
        hearth_file_quarantine(directory, &id, "strange");
        assert_int_equal(lines, i + 1);
        assert_int_equal(hearth_directory_bad(directory), i + 1);
        assert_non_null(strstr(last_line, "strange"));
        assert_non_null(strstr(last_line, hex + 2));
        assert_false(there(file_path(&id)));
        assert_true(there(at("target")));
        kept += i == 0 || i > 3;
        assert_int_equal(entries(at("kv/bad")), kept);
    }
    DIR *stream = opendir(at("kv/bad"));
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        assert_true(entry->d_name[0] == '.' || (strstr(entry->d_name, hex) && strstr(entry->d_name, id.model.hex)));
    }
    (void)closedir(stream);
    hearth_file_quarantine(directory, &id, "gone"); /* nothing there: not a word */
    assert_int_equal(lines, kinds);
    for (uint64_t i = 0; i < 80; i++) {
        const struct hearth_file_id more = item(1, 3 * i + 1);
        assert_int_equal(publish(directory, &more, 1, T0), HEARTH_OK);
        hearth_file_quarantine(directory, &more, "damaged");
        if (i == 79) {
            hearth_digest_hex(more.name, hex);
        }
    }
    assert_int_equal(entries(at("kv/bad")), 65); /* 64, and a directory with something in it is left */
    bool newest = false;
    stream = opendir(at("kv/bad"));
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        newest = newest || strstr(entry->d_name, hex);
    }
    (void)closedir(stream);
    assert_true(newest);
    /* bad/ cannot be had: what is bad is removed */
    assert_int_equal(rename(at("kv/bad"), at("bad")) | close(open(at("kv/bad"), O_CREAT, 0600)), 0);
    assert_int_equal(publish(directory, &id, 1, T0), HEARTH_OK);
    hearth_file_quarantine(directory, &id, "damaged");
    hearth_directory_close(directory);
}

/* Who unpacks somebody else's cache: links in the places of our own directories lead nowhere. */
static void follows_no_links(void **state) {
    (void)state;
    static const char *const places[] = {"tmp", "shard", "bad", "model"};
    const struct hearth_file_id id = item(1, 1);
    char hex[33];
    hearth_digest_hex(id.name, hex);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct hearth_directory *directory = open_root();
        assert_int_equal(mkdir(at("elsewhere"), 0700), 0);
        assert_int_equal(close(open(at("elsewhere/%s.page", hex + 2), O_CREAT, 0600)), 0);
        if (i == 3) { /* files in shards there that have names as ours have, and one that has not */
            assert_int_equal(mkdir(at("elsewhere/%.2s", hex), 0700), 0);
            assert_int_equal(rename(at("elsewhere/%s.page", hex + 2), at("elsewhere/%.2s/%s.page", hex, hex + 2)), 0);
            assert_int_equal(symlink(at("elsewhere"), at("kv/%s", id.model.hex)), 0);
            assert_int_equal(hearth_directory_add_model(directory, id.model, "about"), HEARTH_ERR_IO);
        } else {
            assert_int_equal(hearth_directory_add_model(directory, id.model, "about"), HEARTH_OK);
            const char *place = i == 0   ? at("kv/%s/tmp", id.model.hex)
                                : i == 1 ? at("kv/%s/%.2s", id.model.hex, hex)
                                         : at("kv/bad");
            (void)remove(place);
            assert_int_equal(symlink(at("elsewhere"), place), 0);
        }
        int fd;
        struct hearth_file seen;
        struct hearth_gc gc = {.budget_bytes = 0};
        assert_int_equal(hearth_file_open(directory, &id, &fd), HEARTH_ERR_NOT_FOUND);
        assert_int_equal(hearth_file_stat(directory, &id, &seen, NULL), HEARTH_ERR_NOT_FOUND);
        assert_int_equal(hearth_file_remove(directory, &id), HEARTH_ERR_NOT_FOUND);
        hearth_file_quarantine(directory, &id, "damaged");
        assert_int_equal(hearth_directory_gc(directory, &gc), HEARTH_OK);
        assert_int_equal(gc.files + gc.removed_files, 0);
        if (i == 3) {
            assert_int_equal(publish(directory, &id, 1, T0), HEARTH_ERR_IO);
            assert_int_not_equal(hearth_directory_remove_model(directory, id.model), HEARTH_OK);
            assert_true(there(at("elsewhere/%.2s/%s.page", hex, hex + 2)));
            assert_int_equal(entries(at("elsewhere")), 1);
        } else { /* what is in the way goes out of it, and there is a file */
            assert_int_equal(publish(directory, &id, 1, T0), HEARTH_OK);
            assert_int_equal(hearth_file_open(directory, &id, &fd), HEARTH_OK);
            assert_int_equal(close(fd), 0);
            hearth_file_quarantine(directory, &id, "damaged");
            (void)hearth_directory_empty_bad(directory);
            assert_true(there(at("elsewhere/%s.page", hex + 2)));
            assert_int_equal(entries(at("elsewhere")), 1);
        }
        hearth_directory_close(directory);
        char command[256];
        (void)snprintf(command, sizeof command, "rm -rf %s/kv %s/elsewhere", root, root);
        assert_int_equal(system(command), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(is_made_for_its_user_alone),
        TEST(refuses_what_is_not_its_own),
        TEST(knows_its_models),
        TEST(publishes_and_finds),
        TEST(counts_uses),
        TEST(quarantines_whatever_it_is),
        TEST(follows_no_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
