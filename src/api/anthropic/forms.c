/* The forms of this dialect: ids of calls, and what a block is, as far as that can be told without its context. */
#include "api/anthropic/anthropic.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE_US ((int64_t)60 * 1000000)

bool hearth_anthropic_fail(struct hearth_anthropic_reading *reading, const char *format, ...) {
    struct hearth_errmsg what;
    va_list args;
    va_start(args, format);
    vsnprintf(what.text, sizeof what.text, format, args);
    va_end(args);
    return hearth_api_fail(reading->error, 400, "invalid_value", reading->place, "%s%s%s", reading->place,
                           reading->place[0] != '\0' ? ": " : "", what.text);
}

bool hearth_anthropic_fail_at(struct hearth_anthropic_reading *reading, const char *place, const char *what) {
    snprintf(reading->place, sizeof reading->place, "%s", place);
    return hearth_anthropic_fail(reading, "%s", what);
}

bool hearth_anthropic_read_cache_control(struct hearth_anthropic_reading *reading, const json_t *object, size_t index,
                                         size_t upto) {
    const json_t *control = hearth_api_json_get(object, "cache_control");
    const json_t *ttl = hearth_api_json_get(control, "ttl");
    struct hearth_generation *generation = &reading->out->generation;
    const char *word = ttl != NULL ? json_string_value(ttl) : "5m";
    if (control == NULL) {
        return true;
    }
    if (!hearth_api_type_is(control, "ephemeral")) {
        return hearth_anthropic_fail(reading, "cache_control.type: Input should be 'ephemeral'");
    }
    if (word == NULL || (strcmp(word, "5m") != 0 && strcmp(word, "1h") != 0)) {
        return hearth_anthropic_fail(reading, "cache_control.ttl: Input should be '5m' or '1h'");
    }
    if (reading->breakpoints++ < HEARTH_BREAKPOINTS_MAX) {
        generation->breakpoints[generation->breakpoint_count++] = (struct hearth_breakpoint){
            .message = index, .upto = upto, .ttl_us = strcmp(word, "1h") == 0 ? 60 * MINUTE_US : 5 * MINUTE_US};
    }
    return true;
}

/* ---- ids ---- */

#define OWN_ID "call_"
#define THEIR_ID "toolu_"
/* Some templates want short ids; what stands behind OWN_ID is longer. */
#define SHORT_ID_CHARS 9
/* Some models write ids of their own ("functions.read:0"), which did not begin with OWN_ID. */
#define MODEL_ID_CHARS ".:"

static char *exchange(const char *id, const char *from, const char *to) {
    const size_t len = strlen(from);
    char *out;
    return asprintf(&out, "%s%s", to, strncmp(id, from, len) == 0 ? id + len : id) >= 0 ? out : NULL;
}

char *hearth_anthropic_id_printed(const char *id) {
    return exchange(id, OWN_ID, THEIR_ID);
}

char *hearth_anthropic_id_read(const char *id) {
    if (strncmp(id, THEIR_ID, strlen(THEIR_ID)) != 0) {
        return strdup(id);
    }
    const char *rest = id + strlen(THEIR_ID);
    const bool of_model = strpbrk(rest, MODEL_ID_CHARS) != NULL;
    return exchange(id, THEIR_ID, of_model || strlen(rest) == SHORT_ID_CHARS ? "" : OWN_ID);
}

/* ---- blocks ---- */

bool hearth_anthropic_is_text(const json_t *block) {
    const json_t *source = hearth_api_json_get(block, "source");
    return hearth_api_type_is(source, "text") || hearth_api_type_is(source, "content");
}

static bool ends_with(const char *text, const char *ending) {
    const size_t len = strlen(text), ending_len = strlen(ending);
    return len >= ending_len && strcmp(text + len - ending_len, ending) == 0;
}

bool hearth_anthropic_is_left_out(const char *type) {
    static const char *const types[] = {"redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_listing",
                                        "fallback"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(type, types[i]) == 0) {
            return true;
        }
    }
    return strcmp(type, "tool_result") != 0 && ends_with(type, "_tool_result");
}

bool hearth_anthropic_is_empty(const json_t *content) {
    size_t i;
    const json_t *block;
    json_array_foreach(content, i, block) {
        const json_t *text = json_object_get(block, "text");
        if (!hearth_api_type_is(block, "text") || !json_is_string(text) || json_string_length(text) > 0) {
            return false;
        }
    }
    return json_string_length(content) == 0;
}
