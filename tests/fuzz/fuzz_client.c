/* Fuzzes what the commands read from a server that may be anybody's: `stream` a streamed reply (hearth chat), `top` the
 * server's numbers (hearth top), `items` a stored conversation. What is printed cannot command the terminal. */
#include "fuzz.h"

#include "base/utf8.h"
#include "client/top.h"
#include "console/show_items.h"

static void add_text(void *user, enum client_text kind, const char *text) {
    struct hearth_buf *sums = user;
    HEARTH_ASSERT(hearth_buf_text(&sums[kind], text));
}

static bool same(const struct hearth_buf *a, const struct hearth_buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* The size of pieces, and the stream. */
FUZZ_TARGET(stream) {
    struct fuzz_input input = {data, size};
    struct hearth_buf sums[2] = {{0}, {0}}, line = {0};
    struct client_reply pieces = {.on_text = add_text, .user = sums}, whole = {0};
    const size_t step = 1 + fuzz_byte(&input) % 64;
    const char *text = (const char *)input.at;
    bool ok = true;
    for (size_t at = 0; at < input.left && ok; at += step) {
        ok = hearth_client_reply_feed(&pieces, text + at, input.left - at < step ? input.left - at : step);
    }
    HEARTH_ASSERT(input.left == 0 || hearth_client_reply_feed(&whole, text, input.left) == ok);
    HEARTH_ASSERT(same(&pieces.content, &whole.content) && same(&pieces.reasoning, &whole.reasoning));
    HEARTH_ASSERT(same(&pieces.error, &whole.error) && pieces.done == whole.done);
    HEARTH_ASSERT(strcmp(pieces.finish, whole.finish) == 0 &&
                  json_equal(pieces.receipt, whole.receipt) == (pieces.receipt != NULL));
    HEARTH_ASSERT(same(&sums[CLIENT_CONTENT], &pieces.content) && same(&sums[CLIENT_REASONING], &pieces.reasoning));
    HEARTH_ASSERT(hearth_client_reply_status(&pieces, 0, "s", &line) && line.len > 0);
    HEARTH_ASSERT(hearth_client_error_text(text, input.left, 500, &line));
    hearth_client_reply_finish(&pieces);
    hearth_client_reply_finish(&whole);
    hearth_buf_finish(&sums[0]);
    hearth_buf_finish(&sums[1]);
    hearth_buf_finish(&line);
}

/* Text for a terminal: valid UTF-8, and no control characters but newlines and tabs. */
static void check_printed(const char *text, size_t len) {
    HEARTH_ASSERT(hearth_utf8_valid(text, len));
    for (size_t i = 0; i < len; i++) {
        const unsigned char byte = (unsigned char)text[i];
        HEARTH_ASSERT(byte >= 0x20 || byte == '\n' || byte == '\t');
        HEARTH_ASSERT(byte != 0x7F);
        HEARTH_ASSERT(byte != 0xC2 || (unsigned char)text[i + 1] >= 0xA0); /* C1 */
    }
}

static json_t *take_member(const json_t *object, const char *name, json_type type) {
    json_t *member = json_object_get(object, name);
    return member != NULL && json_typeof(member) == type ? json_incref(member) : NULL;
}

static struct top_sample make_sample(const json_t *object, int64_t at_us) {
    return (struct top_sample){.at_us = at_us,
                               .props = take_member(object, "props", JSON_OBJECT),
                               .health = take_member(object, "health", JSON_OBJECT),
                               .slots = take_member(object, "slots", JSON_ARRAY),
                               .queue = take_member(object, "queue", JSON_OBJECT),
                               .metrics = take_member(object, "metrics", JSON_OBJECT),
                               .requests = take_member(object, "requests", JSON_OBJECT)};
}

/* A frame as a terminal of that size gets it: no line is wider, and there are no more of them. */
static void check_frame(const struct top_sample *before, const struct top_sample *now, const struct top_view *view) {
    char *printed = NULL;
    size_t len;
    int columns = 0, rows = 1;
    FILE *out = open_memstream(&printed, &len);
    HEARTH_ASSERT(out != NULL);
    hearth_client_top_print(out, "http://127.0.0.1:8080", before, now, view);
    HEARTH_ASSERT(fclose(out) == 0);
    check_printed(printed, len);
    for (size_t i = 0; i < len; i++) {
        columns = printed[i] == '\n' ? 0 : columns + (((unsigned char)printed[i] & 0xC0) != 0x80);
        rows += printed[i] == '\n' && i + 1 < len;
        HEARTH_ASSERT(columns <= view->columns && (view->rows == 0 || rows <= view->rows));
    }
    free(printed);
}

/* Two objects of what the server says, one after the other. */
FUZZ_TARGET(top) {
    struct fuzz_input input = {data, size};
    json_t *objects[2];
    size_t len;
    for (int i = 0; i < 2; i++) {
        char *text = fuzz_part(&input, &len);
        objects[i] = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
        free(text);
    }
    struct top_sample before = make_sample(objects[1], 1000000), now = make_sample(objects[0], 2000000);
    struct top_view view = {.columns = 100000};
    check_frame(objects[1] != NULL ? &before : NULL, &now, &view);
    view = (struct top_view){.columns = 80, .rows = 24, .keys = true, .sort = TOP_SORT_RATE};
    for (int i = 0; i < 3; i++) {
        hearth_client_top_move(&now, &view, 1);
        check_frame(NULL, &now, &view);
        view.open = !view.open;
        hearth_client_top_follow(&before, &view);
    }
    json_t *json = hearth_client_top_json("http://127.0.0.1:8080", objects[1] != NULL ? &before : NULL, &now);
    HEARTH_ASSERT(json != NULL);
    json_decref(json);
    hearth_client_top_finish(&before);
    hearth_client_top_finish(&now);
    json_decref(objects[0]);
    json_decref(objects[1]);
}

/* An array. */
FUZZ_TARGET(items) {
    char *printed = NULL;
    size_t len;
    json_t *items = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (json_is_array(items)) {
        struct hearth_show_items print = {.out = open_memstream(&printed, &len)};
        HEARTH_ASSERT(print.out != NULL);
        hearth_show_items(&print, items);
        HEARTH_ASSERT(fclose(print.out) == 0);
        hearth_show_items_finish(&print);
        check_printed(printed, len);
        free(printed);
        free(hearth_show_last_text(items, "user"));
    }
    json_decref(items);
}
