/* Patterns for --strip-line: each matches the line that changed, then and now, and no other line of the system text; it
 * says what stays the same, and can stand in single quotes. */
#include "api/strip.h"
#include "api/volatile.h"
#include "base/cancel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The pattern for a line of a system text, or NULL. */
static const char *pattern_of(const char *then, const char *now, const char *text, char out[128]) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_SYSTEM);
    const struct hearth_line_change change = {.then = then,
                                              .now = now,
                                              .then_len = then != NULL ? strlen(then) : 0,
                                              .now_len = now != NULL ? strlen(now) : 0};
    assert_non_null(message);
    message->content = strdup(text);
    message->content_len = strlen(text);
    const struct hearth_chat_request request = {.messages = &message, .message_count = 1};
    const bool found = hearth_volatile_pattern(&change, &request, out, 128);
    hearth_message_unref(message);
    return found ? out : NULL;
}

static void the_plainest_pattern_that_is_right_is_taken(void **state) {
    static const struct {
        const char *then, *now, *others, *pattern; /* NULL: none is right */
    } rows[] = {
        {"Today: Monday", "Today: Tuesday", "Rule 1\nRule 2", "^Today:"},
        {"Branch: feature/y", "Branch: feature/x", "", "^Branch:"},
        {"The time is 11:29", "The time is 12:30", "", "^The time is"},
        {"$HOME is (a.a)", "$HOME is (a.b)", "", "^\\$HOME is \\(a\\."},
        {"It's 12:30", "It's 12:31", "", "^It.s"},
        /* the words in front are those of other lines, too */
        {"Rule 7: it is 12:30 now", "Rule 7: it is 12:31 now", "Rule 1\nRule 2: be brief",
         "^Rule [0-9]+: it is [0-9]+:"},
        {"- cwd: /a", "- cwd: /b", "- cwd is shown\n- shell: sh", "^- cwd:"},
        /* nothing stands in front */
        {"11:29 is the time", "12:30 is the time", "Rule 1", "^.* is the time$"},
        {"2026-11-25 10:00", "2026-11-26 11:30", "Rule 1", "^[0-9]+-[0-9]+-"},
        {NULL, "Note: the disk is nearly full.", "Rule 1", "^Note: the disk is nearly full\\."},
        {"Note: the disk is nearly full.", NULL, "Rule 1", "^Note: the disk is nearly full\\."},
        {"9fc2b7de", "e01a77b3", "Rule 1", "^[0-9A-Za-z]+$"},
        /* any pattern would take an instruction with it */
        {"alpha", "omega", "be brief\nbrief", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[128], text[512];
        snprintf(text, sizeof text, "You are an agent.\n%s\n%s", rows[i].now != NULL ? rows[i].now : "",
                 rows[i].others);
        const char *pattern = pattern_of(rows[i].then, rows[i].now, text, out);
        if ((pattern == NULL) != (rows[i].pattern == NULL) ||
            (pattern != NULL && strcmp(pattern, rows[i].pattern) != 0)) {
            fail_msg("%s: %s", rows[i].now != NULL ? rows[i].now : rows[i].then, pattern != NULL ? pattern : "none");
        }
    }
}

/* ---- paragraphs ---- */

/* The pattern for the first change between two system texts, or NULL. */
static const char *paragraph_of(const char *then, const char *now, char out[128]) {
    struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX];
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_SYSTEM);
    size_t begin = 0;
    assert_non_null(message);
    message->content = strdup(now);
    message->content_len = strlen(now);
    for (size_t i = 0; then[i] == now[i]; i++) {
        begin = now[i] == '\n' ? i + 1 : begin;
    }
    assert_true(hearth_line_changes(then + begin, strlen(then + begin), now + begin, strlen(now + begin), changes) > 0);
    const struct hearth_chat_request request = {.messages = &message, .message_count = 1};
    const bool found = hearth_volatile_paragraph(now, &changes[0], &request, out, 128);
    hearth_message_unref(message);
    return found ? out : NULL;
}

static void a_list_is_taken_out_with_its_heading(void **state) {
#define FRONT "You are an agent. These are the rules:\nRule 1\n\nBranch: main\n\n"
#define REST "\n\nAnd that is all there is to know of this folder. Never ask twice, and never guess at a name.\n"
    static const struct {
        const char *then, *now, *pattern; /* NULL: none is right */
    } rows[] = {
        {FRONT "Status:\n M a.c\n?? b" REST, FRONT "Status:\n M a.c\n M d.c\nA  e" REST, "^Status:$"},
        {FRONT "Status:\n(clean)" REST, FRONT "Status:\n M a.c\n M d.c" REST, "^Status:$"},
        {FRONT "Open files:\na.c" REST, FRONT "Open files:\na.c\nb.c" REST, "^Open files:$"},
        {FRONT "Open files:\na.c\nb.c" REST, FRONT "Open files:\na.c" REST, "^Open files:$"},
        {FRONT "Status:\n M a.c\n\nCommits:\n1a b" REST, FRONT "Status:\n M b.c\n\nCommits:\n2b c" REST,
         "^Status:$|^Commits:$"},
        /* a list that has come with its heading, one without, and a paragraph of which the first line changes */
        {FRONT "Be brief." REST, FRONT "Be brief.\n\nStatus:\n M a.c" REST, NULL},
        {FRONT "Some files\n M a.c" REST, FRONT "Some files\n M b.c" REST, NULL},
        {FRONT "Status of today:\n M a.c" REST, FRONT "Status of Monday:\n M a.c" REST, NULL},
        /* another paragraph has this heading, too */
        {FRONT "Status:\n M a.c" REST "\nStatus:\n", FRONT "Status:\n M b.c" REST "\nStatus:\n", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[128];
        const char *pattern = paragraph_of(rows[i].then, rows[i].now, out);
        if ((pattern == NULL) != (rows[i].pattern == NULL) ||
            (pattern != NULL && strcmp(pattern, rows[i].pattern) != 0)) {
            fail_msg("%s: %s", rows[i].now, pattern != NULL ? pattern : "none");
        }
    }
}

/* ---- lines ---- */

static size_t changes_of(const char *then, const char *now, struct hearth_line_change *changes) {
    return hearth_line_changes(then, strlen(then), now, strlen(now), changes);
}

static void lines_that_differ_are_found(void **state) {
    struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX];
    (void)state;
    assert_int_equal(changes_of("a: 1\nand so it goes on and on", "a: 2\nand so it goes on and on", changes), 1);
    assert_int_equal(changes[0].alike, strlen("and so it goes on and on"));
    assert_memory_equal(changes[0].now, "a: 2", changes[0].now_len);
    assert_int_equal(changes_of("and so it goes on and on", "new\nand so it goes on and on", changes), 1);
    assert_null(changes[0].then);
    assert_int_equal(changes_of("old\nand so it goes on and on", "and so it goes on and on", changes), 1);
    assert_null(changes[0].now);
    assert_int_equal(changes_of("a: 1\nand so it goes on and on\nb: 1\nuntil its very end", /* two of them */
                                "a: 2\nand so it goes on and on\nb: 2\nuntil its very end", changes),
                     2);
    assert_memory_equal(changes[1].then, "b: 1", changes[1].then_len);
    const char *rest = "\nand behind it both go on alike, for long enough that it is no accident at all"; /* in a row */
    char then[256], now[256];
    snprintf(then, sizeof then, "M a.c\n?? notes.txt%s", rest);
    snprintf(now, sizeof now, "M a.c\nM b.c\nM c.c%s", rest);
    assert_int_equal(changes_of(then + 6, now + 6, changes), 1);
    assert_memory_equal(changes[0].now, "M b.c\nM c.c", changes[0].now_len);
    assert_int_equal(changes[0].then_len, strlen("?? notes.txt"));
    assert_int_equal(changes_of("a\nquite another text than that", "b\nwhich has nothing in common", changes), 0);
}

static int unwanted(void *user) {
    (void)user;
    return HEARTH_ERR_CANCELLED;
}

/* Comparing many lines with long ones takes long; it ends when the request does. */
static void lines_are_looked_for_while_they_are_wanted(void **state) {
    static const char now[] = "Today: Tuesday\nand so it goes on and on\n";
    char then[] = "Monday\nand so it goes on and on\n";
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_SYSTEM);
    struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX];
    struct hearth_cancel cancel = {.wanted = unwanted};
    size_t fixed_bytes;
    (void)state;
    assert_non_null(message);
    message->content = strdup(now);
    message->content_len = strlen(now);
    const struct hearth_chat_request request = {.messages = &message, .message_count = 1};
    const struct hearth_transcript_prompt prompt = {.text = now, .len = strlen(now)};
    const struct hearth_transcript_fork fork = {.offset = strlen("Today: "), .then = then, .then_len = strlen(then)};
    assert_int_equal(hearth_volatile_find(&prompt, &fork, &request, lines, &fixed_bytes), 1);
    assert_string_equal(lines[0].pattern, "^Today:");
    hearth_cancel_enter(&cancel);
    assert_int_equal(hearth_cancel_check(), HEARTH_ERR_CANCELLED);
    assert_int_equal(hearth_volatile_find(&prompt, &fork, &request, lines, &fixed_bytes), 0);
    hearth_cancel_leave();
    hearth_message_unref(message);
}

/* A text is as long as it says: a NUL in it ends nothing. */
static void lines_behind_a_nul_stay(void **state) {
    const char *const lines[] = {"^Now:"}, *const paragraphs[] = {"^List:$"};
    char text[] = "a\0b\nNow: 1\0\nc\nList:\n- d\0\n\nx-anthropic-billing-header: e\nf\0";
    static const char left[] = "a\0b\nc\n\nf\0";
    size_t len = sizeof text - 1;
    struct hearth_strip strip;
    struct hearth_errmsg msg;
    (void)state;
    assert_int_equal(hearth_strip_init(&strip, lines, 1, paragraphs, 1, &msg), HEARTH_OK);
    hearth_strip_text(&strip, text, &len);
    hearth_strip_finish(&strip);
    assert_int_equal(len, sizeof left - 1);
    assert_memory_equal(text, left, sizeof left);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_behind_a_nul_stay),
        cmocka_unit_test(the_plainest_pattern_that_is_right_is_taken),
        cmocka_unit_test(a_list_is_taken_out_with_its_heading),
        cmocka_unit_test(lines_that_differ_are_found),
        cmocka_unit_test(lines_are_looked_for_while_they_are_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
