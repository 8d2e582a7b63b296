/* What comes of the schemas of the JSON-Schema-Test-Suite (draft 2020-12) when a reply must follow them. The page
 * docs/schemas.md has the table, which must be what this test finds; with --table the program prints it.
 *
 * A schema is refused, or its grammar follows the instances: a valid one can be a reply, or cannot, because the grammar
 * is stronger than the schema; an invalid one must never be a reply. An instance is tried as compact JSON with the
 * members of its objects in every order, since a grammar fixes the order in which they are written.
 *
 * Environment: HEARTH_SUITE, the folder of the suite (scripts/deps.sh suite); HEARTH_PAGE, the page. */
#include "base/buf.h"
#include "chat/chat.h"
#include "grammar/matcher.h"

#include <ctype.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ORDERS = 5040 };

/* ---- instances ---- */

/* In how many orders the members of all objects in a value can be written; ORDERS at most. */
static size_t orders_of(const json_t *value) {
    size_t orders = 1, i;
    const char *name;
    json_t *part;
    for (i = 2; i <= json_object_size(value) && orders < ORDERS; i++) {
        orders *= i;
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, part) {
        orders = orders < ORDERS ? orders * orders_of(part) : orders;
    }
    json_array_foreach(value, i, part) {
        orders = orders < ORDERS ? orders * orders_of(part) : orders;
    }
    return orders < ORDERS ? orders : ORDERS;
}

static void write_scalar(const json_t *value, struct hearth_buf *out) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    assert_non_null(text);
    assert_true(hearth_buf_text(out, text));
    free(text);
}

/* One of the orders: its number, of which each object takes its part. */
static void write_value(const json_t *value, size_t *order, struct hearth_buf *out) {
    size_t i, left = json_object_size(value);
    const char *name, **names = calloc(left + 1, sizeof *names);
    json_t *part;
    assert_non_null(names);
    if (!json_is_object(value) && !json_is_array(value)) {
        write_scalar(value, out);
    }
    i = 0;
    json_object_foreach((json_t *)(uintptr_t)value, name, part) {
        names[i++] = name;
    }
    for (; left > 0; left--) {
        size_t pick = *order % left;
        *order /= left;
        assert_true(hearth_buf_text(out, left == json_object_size(value) ? "{" : ","));
        json_t *key = json_string(names[pick]);
        write_scalar(key, out);
        json_decref(key);
        assert_true(hearth_buf_text(out, ":"));
        write_value(json_object_get(value, names[pick]), order, out);
        memmove(names + pick, names + pick + 1, (left - pick) * sizeof *names);
    }
    free(names);
    if (json_is_object(value)) {
        assert_true(hearth_buf_text(out, json_object_size(value) > 0 ? "}" : "{}"));
    }
    json_array_foreach(value, i, part) {
        assert_true(hearth_buf_text(out, i == 0 ? "[" : ","));
        write_value(part, order, out);
    }
    if (json_is_array(value)) {
        assert_true(hearth_buf_text(out, json_array_size(value) > 0 ? "]" : "[]"));
    }
}

/* ---- the engine ---- */

/* NULL: refused, and `msg` says why. */
static struct hearth_grammar_matcher *matcher_of(const json_t *schema, struct hearth_errmsg *msg) {
    struct hearth_buf grammar = {0};
    struct hearth_grammar_gbnf *gbnf;
    struct hearth_grammar_matcher *matcher = NULL;
    if (hearth_chat_schema_check(schema, msg) && hearth_chat_schema_grammar(schema, &grammar, msg) == HEARTH_OK &&
        hearth_grammar_gbnf_parse((const char *)grammar.data, NULL, NULL, &gbnf, msg) == HEARTH_OK) {
        (void)hearth_grammar_matcher_create(gbnf, &matcher, msg);
    }
    hearth_buf_finish(&grammar);
    return matcher;
}

static bool follows(struct hearth_grammar_matcher *matcher, struct hearth_grammar_matcher_point start,
                    const struct hearth_buf *text) {
    struct hearth_grammar_matcher_point point = start;
    for (size_t i = 0; i < text->len; i++) {
        if (!hearth_grammar_matcher_byte(matcher, &point, text->data[i])) {
            assert_false(hearth_grammar_matcher_overflowed(matcher));
            return false;
        }
    }
    return hearth_grammar_matcher_complete(matcher, &point);
}

/* ---- the table ---- */

struct row {
    unsigned schemas, refused, valid, taken, invalid, kept_out;
    char why[1024]; /* keywords that schemas were refused for */
};

/* "properties.tags.uniqueItems: only …" is for uniqueItems, "oneOf.0: …" for oneOf. */
static void note_reason(struct row *row, const char *text) {
    const char *end = strstr(text, ": "), *from = end;
    char word[96], all[sizeof row->why + 2];
    if (end == NULL) {
        snprintf(word, sizeof word, "%s", strstr(text, "no value") != NULL ? "no valid value" : "no object");
    } else {
        while (from > text && (from[-1] != '.' || *from == '.' || isdigit((unsigned char)*from))) {
            from--;
            end = *from == '.' ? from : end;
        }
        snprintf(word, sizeof word, "`%.*s`", (int)(end - from), from);
    }
    snprintf(all, sizeof all, "%s, ", row->why);
    if (strstr(all, word) == NULL) {
        size_t len = strlen(row->why);
        snprintf(row->why + len, sizeof row->why - len, "%s%s", len > 0 ? ", " : "", word);
    }
}

static void try_instances(const json_t *group, struct hearth_grammar_matcher *matcher, struct row *row) {
    const json_t *tests = json_object_get(group, "tests");
    struct hearth_grammar_matcher_point start = hearth_grammar_matcher_start(matcher);
    for (size_t i = 0; i < json_array_size(tests); i++) {
        const json_t *test = json_array_get(tests, i), *data = json_object_get(test, "data");
        bool valid = json_is_true(json_object_get(test, "valid")), ok = false;
        size_t orders = orders_of(data);
        for (size_t n = 0; n < orders && !ok; n++) {
            struct hearth_buf text = {0};
            size_t order = n;
            write_value(data, &order, &text);
            ok = follows(matcher, start, &text);
            hearth_buf_finish(&text);
        }
        row->valid += valid;
        row->taken += valid && ok;
        row->invalid += !valid;
        row->kept_out += !valid && !ok;
        if (!valid && ok) {
            print_error("invalid, but can be a reply: %s: %s\n",
                        json_string_value(json_object_get(group, "description")),
                        json_string_value(json_object_get(test, "description")));
        }
    }
}

static void try_keyword(const char *path, struct row *row) {
    json_error_t error;
    json_t *groups = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (groups == NULL) {
        fail_msg("%s: %s", path, error.text);
    }
    for (size_t i = 0; i < json_array_size(groups); i++) {
        const json_t *group = json_array_get(groups, i);
        struct hearth_errmsg msg = {""};
        struct hearth_grammar_matcher *matcher = matcher_of(json_object_get(group, "schema"), &msg);
        row->schemas++;
        if (matcher == NULL) {
            assert_true(msg.text[0] != '\0');
            row->refused++;
            note_reason(row, msg.text);
        } else {
            try_instances(group, matcher, row);
        }
        hearth_grammar_matcher_destroy(matcher);
    }
    json_decref(groups);
}

static void print_row(struct hearth_buf *out, const char *name, const struct row *row) {
    assert_true(hearth_buf_printf(out, "| %s | %u | %u | %u of %u | %u of %u | %s |\n", name, row->schemas,
                                  row->refused, row->taken, row->valid, row->kept_out, row->invalid, row->why));
}

static int is_json(const struct dirent *entry) {
    size_t len = strlen(entry->d_name);
    return len > 5 && strcmp(entry->d_name + len - 5, ".json") == 0;
}

/* The table of the whole suite; returns the sum of its rows. */
static struct row make_table(const char *folder, struct hearth_buf *out) {
    struct dirent **files;
    struct row all = {0};
    int count = scandir(folder, &files, is_json, alphasort);
    if (count <= 0) {
        fail_msg("%s: no suite", folder);
    }
    assert_true(hearth_buf_text(out, "| Keyword | Schemas | Refused | Valid, can be replies "
                                     "| Invalid, cannot be replies | Refused for |\n|---|---|---|---|---|---|\n"));
    for (int i = 0; i < count; i++) {
        struct row row = {0};
        char path[4096], name[280];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name);
        snprintf(name, sizeof name, "`%.*s`", (int)strlen(files[i]->d_name) - 5, files[i]->d_name);
        try_keyword(path, &row);
        print_row(out, name, &row);
        all.schemas += row.schemas, all.refused += row.refused, all.valid += row.valid;
        all.taken += row.taken, all.invalid += row.invalid, all.kept_out += row.kept_out;
        free(files[i]);
    }
    free(files);
    print_row(out, "all", &all);
    return all;
}

/* ---- tests ---- */

static const char *suite(void) {
    const char *folder = getenv("HEARTH_SUITE");
    if (folder == NULL || folder[0] == '\0') {
        print_message("no HEARTH_SUITE (scripts/deps.sh suite)\n");
        skip();
    }
    return folder;
}

static void no_invalid_instance_is_a_reply(void **state) {
    (void)state;
    struct hearth_buf table = {0};
    struct row all = make_table(suite(), &table);
    assert_true(all.schemas > 300 && all.valid > 100 && all.invalid > 100);
    assert_int_equal(all.kept_out, all.invalid);
    hearth_buf_finish(&table);
}

static void page_has_the_table(void **state) {
    (void)state;
    struct hearth_buf table = {0};
    make_table(suite(), &table);
    const char *path = getenv("HEARTH_PAGE");
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    assert_non_null(file);
    static char page[65536];
    size_t len = fread(page, 1, sizeof page - 1, file);
    page[len] = '\0';
    fclose(file);
    if (strstr(page, (const char *)table.data) == NULL) {
        fail_msg("the table in %s is out of date; schema_suite_test --table prints it:\n%s", path, table.data);
    }
    hearth_buf_finish(&table);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--table") == 0 && getenv("HEARTH_SUITE") != NULL) {
        struct hearth_buf table = {0};
        make_table(getenv("HEARTH_SUITE"), &table);
        printf("%s", (const char *)table.data);
        hearth_buf_finish(&table);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_invalid_instance_is_a_reply),
        cmocka_unit_test(page_has_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
