/* Tool sets of conversations: found by what was said, shared between turns, and gone when there is no room. */
#include "session/toolsets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct hearth_digest no_salt;

static struct hearth_message *say(const char *text) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    message->content = strdup(text);
    message->content_len = strlen(text);
    assert_true(hearth_message_seal(message));
    return message;
}

static struct hearth_digest chain(struct hearth_digest salt, const char *text) {
    struct hearth_message *message = say(text);
    const struct hearth_digest said = hearth_message_chain(hearth_toolsets_begin(salt), message);
    hearth_message_unref(message);
    return said;
}

/* About 100 bytes of JSON. */
static struct hearth_toolset *make(int number) {
    json_t *head = json_pack("[{s:s, s:i, s:s}]", "name", "a_tool_of_some_length_that_has_a_number", "number", number,
                             "description", "It does what such tools do, and more.");
    json_t *late = json_array();
    struct hearth_toolset *set = hearth_toolset_create(head, late);
    json_decref(head);
    json_decref(late);
    assert_non_null(set);
    return set;
}

static int number_of(struct hearth_toolset *set) {
    const int number = (int)json_integer_value(json_object_get(json_array_get(set->head, 0), "number"));
    hearth_toolset_unref(set);
    return number;
}

static void sets_are_found_by_what_was_said(void **state) {
    struct hearth_toolsets *toolsets = hearth_toolsets_create(1 << 20);
    struct hearth_toolset *one = make(1), *two = make(2);
    const struct hearth_digest salt = {7, 7};
    (void)state;
    hearth_toolsets_put(toolsets, chain(no_salt, "one"), one);
    hearth_toolsets_put(toolsets, chain(no_salt, "two"), two);
    assert_int_equal(number_of(hearth_toolsets_get(toolsets, chain(no_salt, "one"))), 1);
    assert_int_equal(number_of(hearth_toolsets_get(toolsets, chain(no_salt, "two"))), 2);
    assert_null(hearth_toolsets_get(toolsets, chain(no_salt, "three")));
    assert_null(hearth_toolsets_get(toolsets, chain(salt, "one")));
    /* The last one counts, and outlives its table while it is held. */
    hearth_toolsets_put(toolsets, chain(no_salt, "one"), two);
    struct hearth_toolset *held = hearth_toolsets_get(toolsets, chain(no_salt, "one"));
    hearth_toolset_unref(one);
    hearth_toolset_unref(two);
    hearth_toolsets_destroy(toolsets);
    assert_int_equal(number_of(held), 2);
}

static void room_is_bounded(void **state) {
    enum { SETS = 200, KEPT = 50 };
    struct hearth_toolset *sets[SETS];
    char text[32];
    (void)state;
    sets[0] = make(0);
    struct hearth_toolsets *toolsets = hearth_toolsets_create(KEPT * (sets[0]->bytes + 128));
    for (int i = 0; i < SETS; i++) {
        sets[i] = i > 0 ? make(i) : sets[0];
        snprintf(text, sizeof text, "reply %d", i);
        hearth_toolsets_put(toolsets, chain(no_salt, text), sets[i]);
        hearth_toolset_unref(hearth_toolsets_get(toolsets, chain(no_salt, "reply 0"))); /* in use */
    }
    int found = 0;
    for (int i = 0; i < SETS; i++) {
        snprintf(text, sizeof text, "reply %d", i);
        struct hearth_toolset *set = hearth_toolsets_get(toolsets, chain(no_salt, text));
        assert_true(set == NULL || i == 0 || i >= SETS - 2 * KEPT); /* the latest, and the one in use */
        assert_true(set != NULL || (i > 0 && i < SETS - KEPT / 2));
        found += set != NULL;
        hearth_toolset_unref(set);
        hearth_toolset_unref(sets[i]);
    }
    assert_in_range(found, KEPT / 2, 2 * KEPT);
    hearth_toolsets_destroy(toolsets);
}

static void turns_share_a_set(void **state) {
    enum { TURNS = 200 };
    struct hearth_toolset *set = make(1);
    char text[32];
    (void)state;
    struct hearth_toolsets *toolsets = hearth_toolsets_create(set->bytes + TURNS * 128);
    for (int i = 0; i < TURNS; i++) {
        struct hearth_toolset *equal = make(1);
        snprintf(text, sizeof text, "reply %d", i);
        hearth_toolsets_put(toolsets, chain(no_salt, text), i % 2 == 0 ? set : equal);
        hearth_toolset_unref(equal);
    }
    assert_int_equal(number_of(hearth_toolsets_get(toolsets, chain(no_salt, "reply 0"))), 1);
    hearth_toolset_unref(set);
    hearth_toolsets_destroy(toolsets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_found_by_what_was_said),
        cmocka_unit_test(room_is_bounded),
        cmocka_unit_test(turns_share_a_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
