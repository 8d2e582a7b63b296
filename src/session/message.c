/* Messages: created once, shared by reference, compared by their meaning.
 *
 * `says` is a chain over length-prefixed fields, so two different messages never give the same bytes. A call whose
 * arguments are not JSON is compared by their text. */
#include "session/message.h"

#include "base/assert.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_texts[] = {
#define X(name, text) [HEARTH_ROLE_##name] = text,
    HEARTH_ROLE_TABLE(X)
#undef X
};

#define ROLE_COUNT (sizeof role_texts / sizeof role_texts[0])

const char *hearth_role_text(enum hearth_role role) {
    HEARTH_ASSERT((size_t)role < ROLE_COUNT);
    return role_texts[role];
}

bool hearth_role_from_text(const char *text, enum hearth_role *out) {
    for (size_t i = 0; i < ROLE_COUNT; i++) {
        if (strcmp(text, role_texts[i]) == 0) {
            *out = (enum hearth_role)i;
            return true;
        }
    }
    return false;
}

/* ---- values ---- */

static bool is_integer(double real) {
    return real == floor(real) && fabs(real) < 9007199254740992.0;
}

/* Whether a number is whole. JSON does not distinguish 1 and 1.0, and clients do not preserve it. A real with more than
 * the 15 printed digits is taken as it is printed; otherwise it would be read back as another value. */
static bool is_whole(const json_t *value, double *whole) {
    char text[32];
    *whole = json_real_value(value);
    if (!json_is_real(value)) {
        return false;
    }
    if (!is_integer(*whole)) {
        snprintf(text, sizeof text, "%.15g", *whole);
        *whole = strtod(text, NULL);
    }
    return is_integer(*whole);
}

static bool has_whole_reals(const json_t *value) {
    const char *key;
    json_t *member;
    size_t i;
    double whole;
    json_object_foreach((json_t *)(uintptr_t)value, key, member) {
        if (has_whole_reals(member)) {
            return true;
        }
    }
    json_array_foreach(value, i, member) {
        if (has_whole_reals(member)) {
            return true;
        }
    }
    return is_whole(value, &whole);
}

/* A copy in which whole numbers are integers; NULL: out of memory. */
static json_t *normal_copy(const json_t *value) {
    const char *key;
    json_t *member;
    size_t i;
    double whole;
    if (json_is_object(value)) {
        json_t *copy = json_object();
        json_object_foreach((json_t *)(uintptr_t)value, key, member) {
            if (json_object_set_new(copy, key, normal_copy(member)) < 0) {
                json_decref(copy);
                return NULL;
            }
        }
        return copy;
    }
    if (json_is_array(value)) {
        json_t *copy = json_array();
        json_array_foreach(value, i, member) {
            if (json_array_append_new(copy, normal_copy(member)) < 0) {
                json_decref(copy);
                return NULL;
            }
        }
        return copy;
    }
    return is_whole(value, &whole) ? json_integer((json_int_t)whole) : json_deep_copy(value);
}

/* Skips the number whose first character is at `pos`. *is_large: an integer that json_int_t cannot hold. */
static size_t skip_number(const char *text, size_t len, size_t pos, bool *is_large) {
    char digits[24] = "";
    size_t end = pos;
    while (end < len && strchr("+-.eE0123456789", text[end]) != NULL && text[end] != '\0') {
        end++;
    }
    if (end - pos < sizeof digits) {
        memcpy(digits, text + pos, end - pos);
    }
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    *is_large = (end - pos >= sizeof digits || errno == ERANGE) && memchr(text + pos, '.', end - pos) == NULL &&
                memchr(text + pos, 'e', end - pos) == NULL && memchr(text + pos, 'E', end - pos) == NULL;
    return end;
}

/* The code unit of an escape at text[pos], a backslash; -1: it is not of the form \uXXXX. */
static int32_t unit_at(const char *text, size_t len, size_t pos) {
    int32_t unit = 0;
    if (pos + 6 > len || text[pos] != '\\' || text[pos + 1] != 'u') {
        return -1;
    }
    for (size_t i = pos + 2; i < pos + 6; i++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, tolower((unsigned char)text[i]));
        if (digit == NULL || *digit == '\0') {
            return -1;
        }
        unit = unit * 16 + (int32_t)(digit - digits);
    }
    return unit;
}

/* Skips the escape at `pos`. *is_lone: half of a surrogate pair without its other half. */
static size_t skip_escape(const char *text, size_t len, size_t pos, bool *is_lone) {
    const int32_t unit = unit_at(text, len, pos);
    const bool is_high = unit >= 0xD800 && unit < 0xDC00, is_low = unit >= 0xDC00 && unit < 0xE000;
    const int32_t next = is_high ? unit_at(text, len, pos + 6) : -1;
    const bool is_pair = next >= 0xDC00 && next < 0xE000;
    *is_lone = is_low || (is_high && !is_pair);
    return pos + (is_pair ? 12 : unit >= 0 ? 6 : 2);
}

/* A copy of JSON text that jansson can read: an integer that is too large has an exponent behind it, so that it is read
 * as a real, and in the place of half a surrogate pair stands U+FFFD. Clients that cut text by UTF-16 units leave such
 * halves in a history, and send them with every request of the session. False: out of memory. */
static bool mend(const char *text, size_t len, struct hearth_buf *copy) {
    bool in_string = false, ok = true, is_wrong;
    size_t begin = 0;
    for (size_t pos = 0; ok && pos < len;) {
        const char c = text[pos];
        const size_t at = pos;
        if (in_string && c == '\\') {
            pos = skip_escape(text, len, pos, &is_wrong);
            if (is_wrong) {
                ok = hearth_buf_append(copy, text + begin, at - begin) && hearth_buf_text(copy, "\\ufffd");
                begin = pos;
            }
        } else if (!in_string && (c == '-' || (c >= '0' && c <= '9'))) {
            pos = skip_number(text, len, pos, &is_wrong);
            if (is_wrong) {
                ok = hearth_buf_append(copy, text + begin, pos - begin) && hearth_buf_text(copy, "e0");
                begin = pos;
            }
        } else {
            in_string = in_string != (c == '"');
            pos++;
        }
    }
    return ok && hearth_buf_append(copy, text + begin, len - begin);
}

/* Whether text that jansson refuses may be repaired by mend(). */
static bool is_mendable(const json_error_t *error) {
    return json_error_code(error) == json_error_numeric_overflow ||
           (json_error_code(error) == json_error_invalid_syntax && strstr(error->text, "invalid Unicode") != NULL);
}

json_t *hearth_json_parse(const char *text, size_t len, size_t flags, json_error_t *error) {
    json_error_t own;
    struct hearth_buf copy = {0};
    json_t *value = hearth_json_load(text, len, flags, &own);
    if (value == NULL && is_mendable(&own)) {
        if (mend(text, len, &copy)) {
            value = hearth_json_load((const char *)copy.data, copy.len, flags, &own);
        } else {
            hearth_json_fill_nomem(&own);
        }
        hearth_buf_finish(&copy);
    }
    if (error != NULL) {
        *error = own;
    }
    return value;
}

char *hearth_json_canonical(const json_t *value) {
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    json_t *normal = has_whole_reals(value) ? normal_copy(value) : json_incref((json_t *)(uintptr_t)value);
    char *text = normal != NULL ? hearth_json_dumps(normal, flags) : NULL;
    json_decref(normal);
    return text;
}

static bool same_number(const json_t *a, const json_t *b) {
    char x[32], y[32];
    if (json_is_integer(a) && json_is_integer(b)) {
        return json_integer_value(a) == json_integer_value(b);
    }
    snprintf(x, sizeof x, "%.6g", json_number_value(a) + 0.0); /* -0 becomes 0 */
    snprintf(y, sizeof y, "%.6g", json_number_value(b) + 0.0);
    return strcmp(x, y) == 0;
}

/* The value of a printed text: read as JSON, or as Python writes values. */
static json_t *value_of_text(const json_t *text) {
    static const struct {
        const char *word;
        json_t *(*make)(void);
    } words[] = {{"True", json_true}, {"False", json_false}, {"None", json_null}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(json_string_value(text), words[i].word) == 0) {
            return words[i].make();
        }
    }
    return hearth_json_parse(json_string_value(text), json_string_length(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

/* Whether two values are printed alike; `a` was read from a print. */
static bool same_print(const json_t *a, const json_t *b) {
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_number(a) && json_is_number(b)) {
        return same_number(a, b);
    }
    if (json_is_string(a) && !json_is_string(b)) {
        json_t *value = value_of_text(a);
        bool same = value != NULL && !json_is_string(value) && same_print(value, b);
        json_decref(value);
        return same;
    }
    if (json_is_object(a) && json_is_object(b) && json_object_size(a) == json_object_size(b)) {
        json_object_foreach((json_t *)(uintptr_t)a, key, member) {
            const json_t *other = json_object_get(b, key);
            if (other == NULL || !same_print(member, other)) {
                return false;
            }
        }
        return true;
    }
    if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
        json_array_foreach(a, i, member) {
            if (!same_print(member, json_array_get(b, i))) {
                return false;
            }
        }
        return true;
    }
    return json_equal(a, b) == 1;
}

/* ---- what a message says ---- */

static struct hearth_digest add_field(struct hearth_digest digest, const char *bytes, size_t len) {
    uint64_t size = len;
    digest = hearth_digest_chain(digest, &size, sizeof size);
    return hearth_digest_chain(digest, bytes, len);
}

const char *hearth_message_trim(const char *text, size_t *len) {
    while (*len > 0 && strchr(" \t\r\n\f\v", *text) != NULL && *text != '\0') {
        text++;
        --*len;
    }
    while (*len > 0 && strchr(" \t\r\n\f\v", text[*len - 1]) != NULL && text[*len - 1] != '\0') {
        --*len;
    }
    return text;
}

bool hearth_message_alike(const char *a, size_t na, const char *b, size_t nb) {
    a = hearth_message_trim(a, &na);
    b = hearth_message_trim(b, &nb);
    return na == nb && (na == 0 || memcmp(a, b, na) == 0);
}

static bool add_call(struct hearth_digest *digest, const struct hearth_call *call) {
    char *canonical = call->parsed != NULL ? hearth_json_canonical(call->parsed) : NULL;
    if (call->parsed != NULL && canonical == NULL) {
        return false;
    }
    const char *arguments = canonical != NULL ? canonical : call->arguments;
    *digest = add_field(*digest, call->name, strlen(call->name));
    *digest = add_field(*digest, arguments, strlen(arguments));
    free(canonical);
    return true;
}

static bool digest_what_it_says(struct hearth_message *message) {
    char role = (char)message->role;
    struct hearth_digest digest = hearth_digest_bytes(&role, 1);
    size_t len = message->content_len;
    const char *content = hearth_message_trim(message->content, &len);
    digest = add_field(digest, content, len);
    for (size_t i = 0; i < message->call_count; i++) {
        if (!add_call(&digest, &message->calls[i])) {
            return false;
        }
    }
    message->says = digest;
    return true;
}

/* ---- life ---- */

struct hearth_message *hearth_message_create(enum hearth_role role) {
    struct hearth_message *message = hearth_memory_calloc(1, sizeof *message);
    if (message != NULL) {
        message->refs = 1;
        message->role = role;
    }
    return message;
}

bool hearth_message_alloc_calls(struct hearth_message *message, size_t count) {
    HEARTH_ASSERT(message->calls == NULL);
    message->calls = hearth_memory_calloc(count > 0 ? count : 1, sizeof *message->calls);
    message->call_count = message->calls != NULL ? count : 0;
    return message->calls != NULL;
}

static size_t text_bytes(const char *text) {
    return text != NULL ? strlen(text) + 1 : 0;
}

bool hearth_message_is_empty(const struct hearth_message *message) {
    return message->content_len == 0 && message->role != HEARTH_ROLE_ASSISTANT && message->role != HEARTH_ROLE_TOOL;
}

/* A parsed value takes about a few times the memory of its text, so the text counts twice. */
static size_t memory_of(const struct hearth_message *message) {
    size_t bytes = sizeof *message + message->content_len + 1 + text_bytes(message->reasoning) +
                   text_bytes(message->unseen) + text_bytes(message->name) + text_bytes(message->tool_call_id);
    for (size_t i = 0; i < message->call_count; i++) {
        const struct hearth_call *call = &message->calls[i];
        bytes += sizeof *call + text_bytes(call->id) + text_bytes(call->name) + 3 * text_bytes(call->arguments);
    }
    return bytes;
}

bool hearth_message_seal(struct hearth_message *message) {
    if (message->content == NULL) {
        message->content = hearth_memory_strdup("");
        message->content_len = 0;
        if (message->content == NULL) {
            return false;
        }
    }
    for (size_t i = 0; i < message->call_count; i++) {
        struct hearth_call *call = &message->calls[i];
        if (call->parsed == NULL) {
            call->parsed =
                hearth_json_parse(call->arguments, strlen(call->arguments), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        }
    }
    message->bytes = memory_of(message);
    return digest_what_it_says(message);
}

struct hearth_message *hearth_message_ref(struct hearth_message *message) {
    __atomic_add_fetch(&message->refs, 1, __ATOMIC_RELAXED);
    return message;
}

void hearth_message_unref(struct hearth_message *message) {
    if (message == NULL || __atomic_sub_fetch(&message->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    for (size_t i = 0; i < message->call_count; i++) {
        free(message->calls[i].id);
        free(message->calls[i].name);
        free(message->calls[i].arguments);
        json_decref(message->calls[i].parsed);
    }
    free(message->calls);
    free(message->content);
    free(message->reasoning);
    free(message->unseen);
    free(message->name);
    free(message->tool_call_id);
    free(message);
}

static bool same_reasoning(const char *a, const char *b) {
    if (a == NULL || b == NULL || *a == '\0' || *b == '\0') {
        return true;
    }
    return hearth_message_alike(a, strlen(a), b, strlen(b));
}

uint32_t hearth_message_printed(const struct hearth_message *message) {
    uint64_t sum = 0;
    for (size_t i = 0; i < message->call_count; i++) {
        const char *arguments = message->calls[i].arguments;
        sum = sum * 31 + hearth_checksum(arguments, strlen(arguments));
    }
    return message->call_count > 0 ? (uint32_t)(sum % UINT32_MAX) + 1 : 0;
}

struct hearth_digest hearth_message_chain(struct hearth_digest said, const struct hearth_message *message) {
    return hearth_digest_chain(said, &message->says, sizeof message->says);
}

bool hearth_message_equal(const struct hearth_message *a, const struct hearth_message *b) {
    return a == b || (hearth_digest_equal(a->says, b->says) && same_reasoning(a->reasoning, b->reasoning));
}

static bool is_blank(const char *text) {
    return text == NULL || *text == '\0';
}

/* Whether the words in front of a call were printed as thoughts. */
static bool words_as_thoughts(const struct hearth_message *print, const struct hearth_message *message) {
    return message->call_count > 0 && is_blank(message->reasoning) && !is_blank(message->content) &&
           is_blank(print->content) && !is_blank(print->reasoning) &&
           same_reasoning(print->reasoning, message->content);
}

static bool same_words(const struct hearth_message *print, const struct hearth_message *message) {
    return hearth_message_alike(print->content, print->content_len, message->content, message->content_len) &&
           same_reasoning(print->reasoning, message->reasoning) &&
           (is_blank(message->reasoning) || !is_blank(print->reasoning));
}

bool hearth_message_is_print(const struct hearth_message *print, const struct hearth_message *message) {
    if (print->call_count != message->call_count ||
        !(same_words(print, message) || words_as_thoughts(print, message))) {
        return false;
    }
    for (size_t i = 0; i < print->call_count; i++) {
        const struct hearth_call *a = &print->calls[i], *b = &message->calls[i];
        bool same = a->parsed != NULL && b->parsed != NULL ? same_print(a->parsed, b->parsed)
                                                           : strcmp(a->arguments, b->arguments) == 0;
        if (!same || strcmp(a->name, b->name) != 0) {
            return false;
        }
    }
    return true;
}
