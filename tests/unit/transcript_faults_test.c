/* The transcripts' database when it breaks: whatever happens to it is a miss and one line, never another text; it is
 * begun anew, waited for, and kept within its limit. */
#include "support/random.h"
#include "support/talk.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a database at fault ---- */

static void sql(const char *text) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void assert_begun_anew(void) {
    struct hearth_transcripts *transcripts = open_plain();
    /* Its log and shared memory (-wal, -shm), where there are some, go with it. */
    assert_int_equal(files_like("transcripts.db.bad-*[!lm]", false), 1);
    assert_int_equal(warnings, 1);
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    teach(transcripts, "two", "the second", no_salt);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "two", "the second", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(warnings, 1);
}

static void teach_and_close(void) {
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    close_checked(transcripts);
}

static void another_version_is_quarantined(void **state) {
    (void)state;
    teach_and_close();
    sql("PRAGMA user_version = 9999");
    assert_begun_anew();
}

/* Replies of the first version are deleted, because chains have other names now and no request would find them. The
 * text stays. */
static void the_first_version_is_brought_up(void **state) {
    (void)state;
    teach_and_close();
    sql("DROP INDEX records_past; ALTER TABLE records DROP COLUMN past; PRAGMA user_version = 1");
    struct hearth_transcripts *transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    teach(transcripts, "one", "the first", no_salt);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(files_like("transcripts.db.bad-*", false), 0);
    assert_int_equal(warnings, 0);
}

static void another_database_is_quarantined(void **state) {
    (void)state;
    sql("CREATE TABLE shopping (what TEXT)");
    assert_begun_anew();
}

static void another_file_is_quarantined(void **state) {
    (void)state;
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 4000; i++) {
        fprintf(file, "This is no database. ");
    }
    fclose(file);
    assert_begun_anew();
}

static void an_empty_file_is_begun(void **state) {
    (void)state;
    fclose(fopen(path, "w"));
    teach_and_close();
    struct hearth_transcripts *transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

static void overwrite(const char *file, long at, uint8_t mask) {
    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ mask, f);
    fclose(f);
}

/* Every page spoilt: found out while serving, quarantined, and begun anew without a restart. */
static void damage_is_found_while_serving(void **state) {
    (void)state;
    teach_and_close();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (long at = 4096; at < st.st_size; at++) {
        overwrite(path, at, 0x5A);
    }
    struct hearth_transcripts *transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    teach(transcripts, "two", "the second", no_salt);
    for (int i = 0; i < 3; i++) { /* at most once with the old one, and put again */
        teach(transcripts, "three", "the third", no_salt);
        (void)hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US);
    }
    close_checked(transcripts);
    assert_int_equal(files_like("transcripts.db.bad-*", false), 1);
    transcripts = open_plain();
    assert_known(ask(transcripts, "three", "the third", no_salt), true);
    close_checked(transcripts);
}

/* Single bits anywhere: a miss or what was said, never something else. */
static void a_flipped_bit_is_a_miss(void **state) {
    (void)state;
    teach_and_close();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    struct rng rng = {seed_announced(20261123)};
    char copy[128], command[400];
    snprintf(copy, sizeof copy, "%s/whole", directory);
    snprintf(command, sizeof command, "cp %s %s", path, copy);
    assert_int_equal(system(command), 0);
    int missed = 0;
    for (int i = 0; i < 250; i++) {
        snprintf(command, sizeof command, "rm -f %s*; cp %s %s", path, copy, path);
        assert_int_equal(system(command), 0);
        overwrite(path, (long)rng_below(&rng, (uint32_t)st.st_size), (uint8_t)(1u << rng_below(&rng, 8)));
        struct hearth_transcripts *transcripts = open_plain();
        struct heard heard = ask(transcripts, "one", "the first", no_salt);
        assert_true(heard.right);
        missed += heard.sampled == 0;
        close_checked(transcripts);
    }
    printf("%d of 250 flipped bits made a miss\n", missed);
}

/* Cut short anywhere: what is left is used as far as it is right. */
static void a_cut_file_is_a_miss(void **state) {
    (void)state;
    teach_and_close();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char copy[128], command[400];
    snprintf(copy, sizeof copy, "%s/whole", directory);
    snprintf(command, sizeof command, "cp %s %s", path, copy);
    assert_int_equal(system(command), 0);
    for (long size = 0; size < st.st_size; size += 2048) {
        snprintf(command, sizeof command, "rm -f %s*; cp %s %s", path, copy, path);
        assert_int_equal(system(command), 0);
        assert_int_equal(truncate(path, size), 0);
        struct hearth_transcripts *transcripts = open_plain();
        assert_true(ask(transcripts, "one", "the first", no_salt).right);
        for (int i = 0; i < 2; i++) {
            teach(transcripts, "two", "the second", no_salt);
            (void)hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US);
        }
        close_checked(transcripts);
        transcripts = open_plain();
        assert_known(ask(transcripts, "two", "the second", no_salt), true);
        close_checked(transcripts);
    }
}

/* What is no regular file is neither used nor touched. */
static void what_is_no_file_is_left_alone(void **state) {
    (void)state;
    char target[128];
    struct stat before, after;
    snprintf(target, sizeof target, "%s/target", directory);
    for (int i = 0; i < 3; i++) {
        if (i == 0) {
            assert_int_equal(mkdir(path, 0700), 0);
        } else if (i == 1) {
            assert_int_equal(mkfifo(path, 0600), 0);
        } else {
            assert_int_equal(symlink(target, path), 0);
        }
        assert_int_equal(lstat(path, &before), 0);
        warnings = 0;
        struct hearth_transcripts *transcripts = open_plain();
        teach(transcripts, "one", "the first", no_salt);
        assert_known(ask(transcripts, "one", "the first", no_salt), true);
        assert_int_equal(warnings, 1);
        close_checked(transcripts);
        assert_int_equal(lstat(path, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino);
        assert_int_equal(lstat(target, &after), -1);
        assert_int_equal(remove(path), 0);
    }
}

static void a_removed_database_is_begun_anew(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    assert_true(files_like("transcripts.db*", true) > 0);
    for (int i = 0; i < 2; i++) { /* what was written before is missed the first time */
        assert_known(ask_and_hear(transcripts, "one", "the first", no_salt, "more"), true);
        assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    }
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

/* ---- room ---- */

static void old_rows_go_for_the_limit(void **state) {
    (void)state;
    const uint64_t limit = 400 * 1024;
    char question[3000];
    struct hearth_transcripts_stats stats;
    struct hearth_transcripts *transcripts = open_with(path, NULL, limit);
    for (int i = 0; i < 400; i++) {
        snprintf(question, sizeof question, "%d %02000d", i, i);
        teach(transcripts, question, "the same", no_salt);
        if (i % 20 == 19) {
            assert_true(hearth_transcripts_flush(transcripts, 60 * (int64_t)SECOND_US));
        }
    }
    hearth_transcripts_stats(transcripts, &stats);
    assert_true(stats.archive.evicted > 0);
    close_checked(transcripts);
    struct stat st = {.st_size = 0};
    assert_true(on_server() || stat(path, &st) == 0);
    const uint64_t bytes = on_server() ? (uint64_t)server_sql("SELECT bytes FROM size") : (uint64_t)st.st_size;
    assert_true(bytes > 0 && bytes <= limit + limit / 4);
    transcripts = open_with(path, NULL, limit);
    snprintf(question, sizeof question, "%d %02000d", 399, 399);
    assert_known(ask(transcripts, question, "the same", no_salt), true);
    snprintf(question, sizeof question, "%d %02000d", 0, 0);
    assert_known(ask(transcripts, question, "the same", no_salt), false);
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

static void a_full_disk_is_outlived(void **state) {
    (void)state;
    struct rlimit was, full;
    struct hearth_transcripts_stats stats;
    struct hearth_transcripts *transcripts = open_plain();
    signal(SIGXFSZ, SIG_IGN);
    teach(transcripts, "one", "the first", no_salt);
    assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    full = was;
    full.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    teach(transcripts, "two", "the second", no_salt);
    assert_false(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    assert_known(ask(transcripts, "two", "the second", no_salt), true); /* from memory */
    hearth_transcripts_stats(transcripts, &stats);
    assert_true(stats.archive.failing);
    assert_int_equal(warnings, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    for (int i = 0; i < 100 && !hearth_transcripts_flush(transcripts, SECOND_US); i++) {
    }
    hearth_transcripts_stats(transcripts, &stats);
    assert_false(stats.archive.failing);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    assert_known(ask(transcripts, "two", "the second", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(warnings, 1);
}

static void a_missing_directory_is_waited_for(void **state) {
    (void)state;
    char later[128], file[192];
    snprintf(later, sizeof later, "%s/later", directory);
    snprintf(file, sizeof file, "%s/transcripts.db", later);
    struct hearth_transcripts *transcripts = open_with(file, NULL, 0);
    teach(transcripts, "one", "the first", no_salt);
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    assert_int_equal(warnings, 1);
    assert_int_equal(mkdir(later, 0700), 0);
    for (int i = 0; i < 100 && !hearth_transcripts_flush(transcripts, SECOND_US); i++) {
    }
    close_checked(transcripts);
    transcripts = open_with(file, NULL, 0);
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
    (void)files_like("later/*", true);
    rmdir(later);
}

/* ---- on a server ---- */

static void a_lost_connection_is_outlived(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    for (int i = 0; i < 3; i++) {
        (void)server_sql("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                         " WHERE pid <> pg_backend_pid() AND application_name = 'hearth'");
        assert_true(ask(transcripts, "one", "the first", no_salt).right); /* from memory, or not at all */
        teach(transcripts, "two", "the second", no_salt);
        for (int tries = 0; !hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US); tries++) {
            assert_true(tries < 100);
        }
    }
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    assert_known(ask(transcripts, "two", "the second", no_salt), true);
    close_checked(transcripts);
    /* What is another program's is left alone. */
    (void)server_sql("UPDATE steps SET taken = 1000");
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    close_checked(transcripts);
    assert_int_equal(server_sql("SELECT taken FROM steps"), 1000);
}

static void a_changed_row_is_a_miss(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    close_checked(transcripts);
    (void)server_sql("UPDATE replies SET body = set_byte(body, 9, get_byte(body, 9) # 1)");
    transcripts = open_plain();
    assert_true(ask(transcripts, "one", "the first", no_salt).right);
    close_checked(transcripts);
    assert_int_equal(warnings, 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest shared[] = {
        TEST(old_rows_go_for_the_limit),
        TEST(a_lost_connection_is_outlived),
        TEST(a_changed_row_is_a_miss),
    };
    const struct CMUnitTest tests[] = {
        TEST(another_version_is_quarantined),
        TEST(the_first_version_is_brought_up),
        TEST(another_database_is_quarantined),
        TEST(another_file_is_quarantined),
        TEST(an_empty_file_is_begun),
        TEST(damage_is_found_while_serving),
        TEST(a_flipped_bit_is_a_miss),
        TEST(a_cut_file_is_a_miss),
        TEST(what_is_no_file_is_left_alone),
        TEST(a_removed_database_is_begun_anew),
        TEST(old_rows_go_for_the_limit),
        TEST(a_full_disk_is_outlived),
        TEST(a_missing_directory_is_waited_for),
    };
    return on_server() ? cmocka_run_group_tests(shared, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
