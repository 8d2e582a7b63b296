/* Content that is not text, for a model that reads only text.
 *
 * Clients leave images, sounds and files in a history and send them again with every request. Such content must not end
 * a session, so a note takes its place: kind, type, size and name. A note depends on the part alone, so the same part
 * gives the same text in every turn and in every dialect. The bytes of the content reach neither the prompt nor the
 * store. --strict-content refuses such content instead.
 *
 * The dialects put the same facts into different members. They are looked for by name, in the part itself and in those
 * of its objects that are known to describe content. A signed URL is long and differs each time it is made, so only the
 * text before its query is printed.
 *
 * A message keeps what its notes say (hearth_message.unseen), so that a response can warn about it, also when the
 * message was taken from the cache of parsed messages. */
#include "api/job.h"

#include "base/utf8.h"

#include <ctype.h>
#include <string.h>

#define NAME_MAX_BYTES 120
#define URL_MAX_BYTES 200
#define TYPE_MAX_BYTES 64
#define WARNINGS_MAX 16
/* Precedes what was left out, in a warning. */
#define WARNING "not shown to the model, which reads text only: "

static const struct {
    const char *type, *noun, *verb;
} kinds[] = {
    {"image_url", "image", "see"},
    {"input_image", "image", "see"},
    {"image", "image", "see"},
    {"image_file", "image", "see"},
    {"computer_screenshot", "image", "see"},
    {"browser_state", "image", "see"},
    {"input_audio", "audio", "hear"},
    {"audio_url", "audio", "hear"},
    {"audio", "audio", "hear"},
    {"video_url", "video", "see"},
    {"input_video", "video", "see"},
    {"video", "video", "see"},
    {"input_file", "file", "read"},
    {"file", "file", "read"},
    {"document", "file", "read"},
    {"container_upload", "file", "read"},
    {"resource", "resource", "read"},
    {"resource_link", "resource", "read"},
};

/* The first bytes of formats, in Base64. */
static const char *const magics[][2] = {
    {"iVBORw0KGgo", "image/png"},
    {"/9j/", "image/jpeg"},
    {"R0lGOD", "image/gif"},
    {"JVBERi0", "application/pdf"},
};

struct facts {
    const char *type; /* for example "image/png"; not terminated */
    size_t type_len;
    const char *top; /* first half of the type if only its second half is known: "audio" */
    bool sized;
    size_t bytes;
    const char *name, *url;
};

/* ---- what a part says ---- */

static const char *text_member(const json_t *object, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_object_get(object, names[i]));
        if (text != NULL && *text != '\0') {
            return text;
        }
    }
    return NULL;
}

#define MEMBER(object, ...)                                   \
    text_member((object), (const char *const[]){__VA_ARGS__}, \
                sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void set_type(struct facts *facts, const char *type, size_t len) {
    if (facts->type == NULL && len > 0) {
        facts->type = type;
        facts->type_len = len;
    }
}

static void take_base64(struct facts *facts, const char *data) {
    size_t len = strlen(data);
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++) {
        if (strncmp(data, magics[i][0], strlen(magics[i][0])) == 0) {
            set_type(facts, magics[i][1], strlen(magics[i][1]));
        }
    }
    while (len > 0 && data[len - 1] == '=') {
        len--;
    }
    facts->sized = true;
    facts->bytes = len / 4 * 3 + (len % 4 * 3) / 4;
}

/* "data:image/png;base64,…", or Base64 alone. */
static void take_data(struct facts *facts, const char *data) {
    if (strncmp(data, "data:", 5) != 0) {
        take_base64(facts, data);
        return;
    }
    const char *type = data + 5, *comma = strchr(type, ',');
    const size_t head = comma != NULL ? (size_t)(comma - type) : strlen(type);
    const char *semicolon = memchr(type, ';', head);
    const char base64[] = ";base64";
    const size_t mark = sizeof base64 - 1;
    set_type(facts, type, semicolon != NULL ? (size_t)(semicolon - type) : head);
    if (comma != NULL && head >= mark && memcmp(comma - mark, base64, mark) == 0) {
        take_base64(facts, comma + 1);
    } else if (comma != NULL) {
        facts->sized = true;
        facts->bytes = strlen(comma + 1);
    }
}

static void take_facts(struct facts *facts, const json_t *object) {
    const char *type = MEMBER(object, "media_type", "mime_type", "mimeType");
    const char *format = MEMBER(object, "format");
    const char *data = MEMBER(object, "data", "file_data", "blob");
    const char *url = MEMBER(object, "url", "image_url", "file_url", "audio_url", "video_url", "uri");
    const char *name = MEMBER(object, "filename", "name", "title", "file_id");
    if (type != NULL) {
        set_type(facts, type, strlen(type));
    }
    if (format != NULL && facts->type == NULL) {
        facts->top = "audio";
        set_type(facts, format, strlen(format));
    }
    if (data != NULL && !facts->sized) {
        take_data(facts, data);
    }
    if (url != NULL && strncmp(url, "data:", 5) == 0) {
        take_data(facts, url);
    } else if (url != NULL) {
        facts->url = url;
    }
    if (name != NULL && facts->name == NULL) {
        facts->name = name;
    }
}

/* ---- the note ---- */

/* Appends a client's text in one line: at most `most` bytes, whole characters, no control characters. */
static bool append_sanitized(struct hearth_buf *out, const char *text, size_t most) {
    const size_t whole = strlen(text), from = out->len;
    const bool cut = whole > most;
    if (!hearth_buf_append(out, text, cut ? hearth_utf8_complete(text, most) : whole)) {
        return false;
    }
    for (size_t i = from; i < out->len; i++) {
        if (out->data[i] < ' ' || out->data[i] == 0x7F) {
            out->data[i] = ' ';
        }
    }
    return !cut || hearth_buf_text(out, "…");
}

static bool append_type(struct hearth_buf *out, const struct facts *facts) {
    if (facts->type == NULL || facts->type_len > TYPE_MAX_BYTES) {
        return true;
    }
    for (size_t i = 0; i < facts->type_len; i++) {
        if (!isalnum((unsigned char)facts->type[i]) && strchr("/.+-_", facts->type[i]) == NULL) {
            return true;
        }
    }
    return hearth_buf_printf(out, ", %s%s%.*s", facts->top != NULL ? facts->top : "", facts->top != NULL ? "/" : "",
                             (int)facts->type_len, facts->type);
}

static bool append_size(struct hearth_buf *out, const struct facts *facts) {
    const size_t bytes = facts->bytes;
    if (!facts->sized) {
        return true;
    }
    if (bytes < 1000) {
        return hearth_buf_printf(out, ", %zu bytes", bytes);
    }
    return bytes < 1000 * 1000 ? hearth_buf_printf(out, ", %zu KB", bytes / 1000)
                               : hearth_buf_printf(out, ", %zu.%zu MB", bytes / 1000000, bytes / 100000 % 10);
}

static bool append_url(struct hearth_buf *out, const char *url) {
    char bare[URL_MAX_BYTES + 1];
    if (url == NULL) {
        return true;
    }
    if (strlen(url) > URL_MAX_BYTES) {
        const size_t len = strcspn(url, "?#");
        snprintf(bare, sizeof bare, "%.*s", (int)(len < URL_MAX_BYTES ? len : URL_MAX_BYTES), url);
        url = bare;
    }
    return hearth_buf_text(out, ", ") && append_sanitized(out, url, URL_MAX_BYTES);
}

/* "image, image/png, 123 KB, photo.png" */
static bool describe(const json_t *part, const char *type, const char *noun, struct hearth_buf *out) {
    struct facts facts = {0};
    take_facts(&facts, part);
    take_facts(&facts, json_object_get(part, "source"));
    take_facts(&facts, json_object_get(part, type));
    return hearth_buf_text(out, noun) && append_type(out, &facts) && append_size(out, &facts) &&
           (facts.name == NULL || (hearth_buf_text(out, ", ") && append_sanitized(out, facts.name, NAME_MAX_BYTES))) &&
           append_url(out, facts.url);
}

bool hearth_content_is_known(const char *type) {
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) == 0) {
            return true;
        }
    }
    return false;
}

bool hearth_content_note(const json_t *part, struct hearth_buf *text, struct hearth_buf *unseen) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const char *noun = "content", *verb = "read";
    struct hearth_buf note = {0};
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) == 0) {
            noun = kinds[i].noun;
            verb = kinds[i].verb;
        }
    }
    const bool ok =
        describe(part, type != NULL ? type : "", noun, &note) &&
        hearth_buf_printf(text, "[%.*s; this model cannot %s it]", (int)note.len, (const char *)note.data, verb) &&
        (unseen == NULL ||
         ((unseen->len == 0 || hearth_buf_text(unseen, "\n")) && hearth_buf_append(unseen, note.data, note.len)));
    hearth_buf_finish(&note);
    return ok;
}

bool hearth_content_leave_out(const char *type, struct hearth_buf *unseen) {
    return (unseen->len == 0 || hearth_buf_text(unseen, "\n")) && hearth_buf_text(unseen, "an item of type ") &&
           append_sanitized(unseen, type, TYPE_MAX_BYTES);
}

/* ---- warnings ---- */

json_t *hearth_content_warnings(const struct hearth_history *history) {
    json_t *warnings = NULL;
    size_t count = 0;
    for (size_t i = 0; i < history->count; i++) {
        for (const char *line = history->messages[i]->unseen; line != NULL && *line != '\0';) {
            const size_t len = strcspn(line, "\n");
            if (count++ < WARNINGS_MAX) {
                warnings = warnings != NULL ? warnings : json_array();
                json_array_append_new(warnings, json_sprintf(WARNING "%.*s", (int)len, line));
            }
            line += len + (line[len] == '\n');
        }
    }
    if (count > WARNINGS_MAX) {
        json_array_append_new(warnings, json_sprintf("and %zu more", count - WARNINGS_MAX));
    }
    return warnings;
}

/* Appends a quoted string of a header; characters that are not ASCII become '?'. */
static bool append_quoted(struct hearth_buf *out, const char *text) {
    bool ok = hearth_buf_text(out, "299 - \"");
    for (; ok && *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        const char plain[] = {byte < ' ' || byte > '~' ? '?' : (char)byte};
        ok = ((byte != '"' && byte != '\\') || hearth_buf_text(out, "\\")) && hearth_buf_append(out, plain, 1);
    }
    return ok && hearth_buf_text(out, "\"");
}

void hearth_content_warn(const struct hearth_history *history, struct hearth_http_exchange *exchange) {
    json_t *warnings = hearth_content_warnings(history);
    struct hearth_buf line = {0};
    char text[512];
    const size_t count = json_array_size(warnings);
    if (count > 0) {
        const char *first = json_string_value(json_array_get(warnings, 0));
        snprintf(text, sizeof text, count > 1 ? "%s (and more; see hearth.warnings)" : "%s", first);
        if (append_quoted(&line, text) && hearth_buf_append(&line, "", 1)) {
            hearth_http_set_header(exchange, "Warning", (const char *)line.data);
        }
    }
    hearth_buf_finish(&line);
    json_decref(warnings);
}
