/* Lines of the system text that change from request to request: which ones, and a regular expression for --strip-line
 * that matches them and no other line of that text, neither then nor now.
 *
 * Candidates, the plainest first: the words in front of what changes, up to the first digit; all of what stands in
 * front of it, with numbers as [0-9]+; what stands in front of it and behind it; the line, as classes of characters.
 * What is proposed has been tried with the same function that will run it. */
#include "api/volatile.h"

#include "api/strip.h"
#include "base/cancel.h"
#include "base/utf8.h"
#include "chat/chat.h"
#include "session/shared_text.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#define STEADY_LEAST 3 /* a pattern must have at least so many literal bytes */
#define STEADY_MOST 40

/* Appends a character of a line, so that it matches itself, in any shell. No memory: the pattern is not the right one.
 */
static void put(struct hearth_buf *out, char c) {
    if (c == '\'' || (unsigned char)c < ' ' || c == 0x7F) {
        c = '.';
    } else if (strchr(".[]{}()\\*+?|^$", c) != NULL) {
        (void)hearth_buf_text(out, "\\");
    }
    (void)hearth_buf_append(out, &c, 1);
}

/* Appends text; `any` stands for runs of a kind of characters. */
static void put_runs(struct hearth_buf *out, const char *text, size_t len, int (*is_kind)(int c), const char *any) {
    for (size_t i = 0; i < len; i++) {
        if (!is_kind((unsigned char)text[i])) {
            put(out, text[i]);
        } else if (i == 0 || !is_kind((unsigned char)text[i - 1])) {
            (void)hearth_buf_text(out, any);
        }
    }
}

/* Appends text; runs of digits match any number. */
static void put_text(struct hearth_buf *out, const char *text, size_t len) {
    put_runs(out, text, len, isdigit, "[0-9]+");
}

/* Frees a pattern, and copies it with its NUL. False: it is too long. */
static bool take_pattern(struct hearth_buf *pattern, char *out, size_t cap) {
    const bool fits = pattern->data != NULL && pattern->len < cap;
    snprintf(out, cap, "%.*s", fits ? (int)pattern->len : 0, fits ? (const char *)pattern->data : "");
    hearth_buf_finish(pattern);
    return fits;
}

static int32_t count_lines(const char *text, size_t len) {
    int32_t n = text != NULL;
    for (size_t i = 0; i < len; i++) {
        n += text[i] == '\n';
    }
    return n;
}

static size_t common_front(const struct hearth_line_change *change) {
    size_t n = 0;
    while (n < change->then_len && n < change->now_len && change->then[n] == change->now[n]) {
        n++;
    }
    return n;
}

static size_t common_back(const struct hearth_line_change *change, size_t front) {
    size_t n = 0;
    while (n + front < change->then_len && n + front < change->now_len &&
           change->then[change->then_len - 1 - n] == change->now[change->now_len - 1 - n]) {
        n++;
    }
    return n;
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

/* How much of a front is whole words: not the "T" of "Tuesday", which "Thursday" has, too. */
static size_t whole_words(const char *line, size_t front, size_t line_len) {
    if (front < line_len || front == STEADY_MOST) {
        while (front > 0 && in_word(line[front - 1])) {
            front--;
        }
    }
    while (front > 0 && line[front - 1] == ' ') {
        front--;
    }
    return front;
}

/* Of a front that a line has in any case, its key: "Working directory:" of "Working directory: /home/olga". */
static size_t key_of(const char *line, size_t front) {
    for (size_t i = STEADY_LEAST; i < front; i++) {
        if (line[i - 1] == ':' || line[i - 1] == '=') {
            return i;
        }
    }
    return front;
}

static bool matches(const regex_t *regex, const char *line, size_t len) {
    char *copy = strndup(line, len);
    const bool found = copy != NULL && regexec(regex, copy, 0, NULL, 0) == 0;
    free(copy);
    return found;
}

/* Counts the lines of the request's system text that a pattern matches, but for those that are `but` (or NULL). */
static size_t count_matches(const regex_t *regex, const struct hearth_chat_request *request, const char *but,
                            size_t but_len) {
    size_t n = 0;
    for (size_t m = 0; m < request->message_count; m++) {
        const char *line = hearth_role_is_system(request->messages[m]->role) ? request->messages[m]->content : NULL;
        while (line != NULL) {
            if (hearth_cancel_poll() != HEARTH_OK) {
                return SIZE_MAX; /* no pattern is right then */
            }
            const size_t len = strcspn(line, "\n");
            const bool own = but != NULL && len == but_len && memcmp(line, but, len) == 0;
            n += !own && matches(regex, line, len);
            line = line[len] == '\n' ? line + len + 1 : NULL;
        }
    }
    return n;
}

/* Whether a pattern matches both lines, and no other line of the system text. */
static bool is_right(const char *pattern, const struct hearth_line_change *change,
                     const struct hearth_chat_request *request) {
    regex_t regex;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    const bool right = (change->then == NULL || matches(&regex, change->then, change->then_len)) &&
                       (change->now == NULL || matches(&regex, change->now, change->now_len)) &&
                       count_matches(&regex, request, change->now, change->now_len) == 0;
    regfree(&regex);
    return right;
}

bool hearth_volatile_pattern(const struct hearth_line_change *change, const struct hearth_chat_request *request,
                             char *out, size_t cap) {
    if (count_lines(change->then, change->then_len) > 1 || count_lines(change->now, change->now_len) > 1) {
        return false; /* equal lines in every request are not to be expected */
    }
    const char *line = change->now != NULL ? change->now : change->then;
    const size_t len = change->now != NULL ? change->now_len : change->then_len;
    const bool both = change->now != NULL && change->then != NULL;
    const size_t front = both ? common_front(change) : len, back = both ? common_back(change, front) : 0;
    const size_t most = front < STEADY_MOST ? front : STEADY_MOST, words = whole_words(line, most, len);
    size_t plain = 0;
    while (plain < words && !isdigit((unsigned char)line[plain])) {
        plain++;
    }
    plain = both ? key_of(line, whole_words(line, plain, plain < words ? len : plain))
                 : whole_words(line, plain, plain < words ? len : plain);
    const size_t tail = back < STEADY_MOST ? back : STEADY_MOST;
    const size_t said[] = {plain, words, words + back, len};
    for (size_t candidate = 0; candidate < sizeof said / sizeof said[0]; candidate++) {
        struct hearth_buf pattern = {0};
        (void)hearth_buf_text(&pattern, "^");
        if (candidate < 3) {
            put_text(&pattern, line, candidate == 0 ? plain : words);
        } else {
            put_runs(&pattern, line, len, isalnum, "[0-9A-Za-z]+"); /* it may begin with a time, or an id */
        }
        if (candidate == 2) {
            (void)hearth_buf_text(&pattern, ".*");
            put_text(&pattern, line + len - tail, tail);
        }
        (void)hearth_buf_text(&pattern, candidate < 2 ? "" : "$");
        if (take_pattern(&pattern, out, cap) && said[candidate] >= STEADY_LEAST && is_right(out, change, request)) {
            return true;
        }
    }
    return false;
}

/* ---- paragraphs ---- */

#define HEADINGS_MAX 3
#define PARAGRAPHS_LINES 32 /* a heading with more lines below it is a chapter's */
#define CONTEXT_BYTES 4096  /* most bytes of a paragraph in front of the difference, and behind it */

/* A line that names what stands below it ("Status:"), as "^Status:$". */
static bool put_heading(struct hearth_buf *out, const char *line, size_t len) {
    if (len < STEADY_LEAST || len > STEADY_MOST || line[len - 1] != ':' || !in_word(line[0])) {
        return false;
    }
    (void)hearth_buf_text(out, out->len > 0 ? "|^" : "^");
    put_text(out, line, len);
    return hearth_buf_text(out, "$");
}

static bool is_empty(const char *line, size_t len) {
    size_t n = 0;
    while (n < len && strchr(" \t\r", line[n]) != NULL) {
        n++;
    }
    return n == len;
}

/* Where the paragraph of a line begins; the line itself if it is the first one. */
static const char *paragraph_of(const char *text, const char *line) {
    while (line > text) {
        const char *before = line - 1;
        while (before > text && before[-1] != '\n') {
            before--;
        }
        if (is_empty(before, (size_t)(line - 1 - before))) {
            break;
        }
        line = before;
    }
    return line;
}

static size_t line_bytes(const char *line, size_t left) {
    const char *end = memchr(line, '\n', left);
    return end != NULL ? (size_t)(end - line) : left;
}

/* Appends the headings that begin a paragraph inside of what differs. Returns how many the pattern has then. */
static size_t add_headings(const struct hearth_line_change *change, struct hearth_buf *out) {
    bool empty = false;
    size_t found = 1;
    for (size_t at = 0; change->now != NULL && at < change->now_len && found < HEADINGS_MAX;) {
        const size_t len = line_bytes(change->now + at, change->now_len - at);
        found += empty && put_heading(out, change->now + at, len);
        empty = is_empty(change->now + at, len);
        at += len + 1;
    }
    return found;
}

/* Counts the lines that stripping takes out of the request's system text. */
static size_t count_taken(const struct hearth_strip *strip, const struct hearth_chat_request *request) {
    size_t n = 0;
    for (size_t m = 0; m < request->message_count; m++) {
        const struct hearth_message *message = request->messages[m];
        char *copy = hearth_role_is_system(message->role) ? strdup(message->content) : NULL;
        if (copy != NULL) {
            size_t len = message->content_len;
            hearth_strip_text(strip, copy, &len);
            n += (size_t)(count_lines(message->content, message->content_len) - count_lines(copy, len));
        }
        free(copy);
    }
    return n;
}

/* Appends the text around what differs, as stripping leaves it. False: out of memory. */
static bool left_of(const struct hearth_strip *strip, const char *front, size_t front_len, const char *row,
                    size_t row_len, const struct hearth_line_change *change, struct hearth_buf *out) {
    const size_t rest = change->alike < CONTEXT_BYTES ? change->alike : CONTEXT_BYTES;
    if (!hearth_buf_append(out, front, front_len) ||
        (row != NULL && !(hearth_buf_append(out, row, row_len) && hearth_buf_text(out, "\n"))) ||
        !hearth_buf_append(out, change->behind, rest) || !hearth_buf_append(out, "", 1)) {
        return false;
    }
    out->len--;
    hearth_strip_text(strip, (char *)out->data, &out->len);
    return true;
}

bool hearth_volatile_paragraph(const char *text, const struct hearth_line_change *change,
                               const struct hearth_chat_request *request, char *out, size_t cap) {
    const char *from = change->now != NULL ? change->now : change->behind, *begin = paragraph_of(text, from);
    const char *const pattern = out;
    const size_t front = (size_t)(from - begin);
    struct hearth_strip strip;
    struct hearth_errmsg msg;
    struct hearth_buf headings = {0}, then = {0}, now = {0};
    out[0] = '\0';
    if (begin == from || front > CONTEXT_BYTES || !put_heading(&headings, begin, line_bytes(begin, front))) {
        hearth_buf_finish(&headings);
        return false;
    }
    const size_t count = add_headings(change, &headings);
    if (!take_pattern(&headings, out, cap)) {
        return false;
    }
    const bool same = hearth_strip_init(&strip, NULL, 0, &pattern, 1, &msg) == HEARTH_OK &&
                      count_matches(&strip.patterns[0], request, NULL, 0) == count &&
                      count_taken(&strip, request) <= PARAGRAPHS_LINES &&
                      left_of(&strip, begin, front, change->then, change->then_len, change, &then) &&
                      left_of(&strip, begin, front, change->now, change->now_len, change, &now) &&
                      then.len == now.len && memcmp(then.data, now.data, now.len) == 0;
    hearth_strip_finish(&strip);
    hearth_buf_finish(&then);
    hearth_buf_finish(&now);
    return same;
}

bool hearth_volatile_only_numbers(const char *then, const char *now) {
    static const char digits[] = "0123456789";
    while (*then != '\0' || *now != '\0') {
        const size_t a = strspn(then, digits), b = strspn(now, digits);
        if ((a == 0) != (b == 0) || (a == 0 && *then != *now)) {
            return false;
        }
        then += a > 0 ? a : 1;
        now += b > 0 ? b : 1;
    }
    return true;
}

/* ---- where they are ---- */

/* The line of a system text that a line of the prompt contains, where a template may have added something before or
 * behind: the longest one. */
static bool find_line(const struct hearth_message *message, const char *text, size_t len, const char **out,
                      size_t *out_len, int32_t *number) {
    int32_t at = 1;
    *out = NULL;
    *out_len = 0;
    for (const char *line = message->content; line != NULL && hearth_cancel_poll() == HEARTH_OK; at++) {
        const size_t n = strcspn(line, "\n");
        if (n > *out_len && n <= len && memmem(text, len, line, n) != NULL) {
            *out = line;
            *out_len = n;
            *number = at;
        }
        line = line[n] == '\n' ? line + n + 1 : NULL;
    }
    return *out != NULL;
}

/* Whether some lines in a row stand in the message as they do in the prompt. */
static bool find_row(const struct hearth_chat_request *request, const struct hearth_line_change *change,
                     int32_t *number) {
    for (size_t m = 0; m < request->message_count; m++) {
        const struct hearth_message *message = request->messages[m];
        const char *at = hearth_role_is_system(message->role)
                             ? memmem(message->content, message->content_len, change->now, change->now_len)
                             : NULL;
        if (at != NULL) {
            *number = count_lines(message->content, (size_t)(at - message->content));
            return true;
        }
    }
    return false;
}

/* Cuts a line of the prompt to the part that stands in the message; a line that only the earlier prompt has stays
 * whole. False: the message has no such line. */
static bool cut_line(const struct hearth_chat_request *request, struct hearth_line_change *change, int32_t *number) {
    const char *line;
    size_t len;
    *number = 0;
    if (change->now == NULL) {
        return true;
    }
    if (count_lines(change->now, change->now_len) > 1) {
        return find_row(request, change, number);
    }
    for (size_t m = 0; m < request->message_count; m++) {
        if (hearth_role_is_system(request->messages[m]->role) &&
            find_line(request->messages[m], change->now, change->now_len, &line, &len, number)) {
            const char *in = memmem(change->now, change->now_len, line, len);
            const size_t before = (size_t)(in - change->now), behind = change->now_len - before - len;
            if (change->then != NULL && change->then_len >= before + behind) {
                change->then += before;
                change->then_len -= before + behind;
            }
            change->now = in;
            change->now_len = len;
            return true;
        }
    }
    return false;
}

static void copy_line(char *out, size_t cap, const char *line, size_t len) {
    snprintf(out, cap, "%.*s", (int)(len < cap - 1 ? len : cap - 1), line);
    out[hearth_utf8_complete(out, hearth_guards_strip(out, strlen(out)))] = '\0';
}

#define SHOWN_FRONT 64 /* most bytes shown in front of the change */

/* Copies both lines for the report; long ones from a word a little before the change. */
static void copy_lines(struct hearth_report_line *to, const struct hearth_line_change *change) {
    size_t from = change->then != NULL && change->now != NULL ? common_front(change) : 0;
    from = from > SHOWN_FRONT ? from - SHOWN_FRONT : 0;
    while (from > 0 && from < change->now_len && from < change->then_len && change->now[from - 1] != ' ') {
        from++;
    }
    from = from < change->now_len && from < change->then_len ? from : 0;
    copy_line(to->now, sizeof to->now, change->now != NULL ? change->now + from : "",
              change->now != NULL ? change->now_len - from : 0);
    copy_line(to->then, sizeof to->then, change->then != NULL ? change->then + from : "",
              change->then != NULL ? change->then_len - from : 0);
}

/* A text, and the end of the message in it. */
struct turn_text {
    const char *text;
    size_t end;
};

static bool same_text(const char *a, size_t na, const char *b, size_t nb) {
    return na == nb && memcmp(a, b, na) == 0;
}

/* The next line; NULL: this was the last one. */
static const char *line_after(const char *line, size_t len, const char *end, size_t *next_len) {
    const char *next = line + len < end && line[len] == '\n' ? line + len + 1 : NULL;
    *next_len = next != NULL ? line_bytes(next, (size_t)(end - next)) : 0;
    return next;
}

/* Turns a pair of lines into one line that was added or removed, if the lines behind show that. Returns by how many
 * lines the place moves down. */
static int came_or_went(struct hearth_line_change *change, const struct turn_text *then,
                        const struct hearth_message *message) {
    size_t then_len, now_len;
    const char *then_next = line_after(change->then, change->then_len, then->text + then->end, &then_len);
    const char *now_next = line_after(change->now, change->now_len, message->content + message->content_len, &now_len);
    const bool same = same_text(change->then, change->then_len, change->now, change->now_len);
    if (same && (then_next == NULL) != (now_next == NULL)) { /* one of the texts ends there */
        *change =
            (struct hearth_line_change){.then = then_next, .then_len = then_len, .now = now_next, .now_len = now_len};
        return 1;
    }
    if (now_next != NULL && same_text(change->then, change->then_len, now_next, now_len)) {
        change->then = NULL;
        change->then_len = 0;
    } else if (then_next != NULL && same_text(then_next, then_len, change->now, change->now_len)) {
        change->now = NULL;
        change->now_len = 0;
    }
    return 0;
}

/* The prompt and the one that it left, both from the beginning of the line in which they part to their ends. Returns
 * the earlier one, which the caller frees; NULL: out of memory, or its text is not known. */
static char *from_line(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                       size_t *then_len, const char **now, size_t *now_len) {
    size_t begin = fork->offset;
    while (begin > 0 && prompt->text[begin - 1] != '\n') {
        begin--;
    }
    const size_t front = fork->offset - begin;
    *now = prompt->text + begin;
    *now_len = prompt->len - begin;
    *then_len = front + fork->then_len;
    char *then = fork->then != NULL ? malloc(*then_len + 1) : NULL;
    if (then != NULL) {
        memcpy(then, *now, front);
        memcpy(then + front, fork->then, fork->then_len);
    }
    return then;
}

bool hearth_volatile_moved(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork) {
    enum { LEAST = 16 }; /* bytes: a shorter line may stand anywhere */
    const char *now;
    size_t then_len, now_len;
    char *then = from_line(prompt, fork, &then_len, &now, &now_len);
    if (then == NULL) {
        return false;
    }
    const size_t now_line = line_bytes(now, now_len), then_line = line_bytes(then, then_len);
    const bool moved = now_line >= LEAST && then_line >= LEAST &&
                       memmem(then + then_line, then_len - then_line, now, now_line) != NULL &&
                       memmem(now + now_line, now_len - now_line, then, then_line) != NULL;
    free(then);
    return moved;
}

size_t hearth_volatile_edited(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                              const struct hearth_message *message, const struct hearth_specials *specials,
                              struct hearth_report_line *line) {
    const char *now, *in;
    size_t len, whole, now_len;
    int32_t number = 0;
    char *then = from_line(prompt, fork, &whole, &now, &now_len);
    now_len = line_bytes(now, now_len);
    if (then == NULL || !find_line(message, now, now_len, &in, &len, &number)) {
        free(then);
        return 0;
    }
    const size_t before = (size_t)((const char *)memmem(now, now_len, in, len) - now), front = whole - fork->then_len;
    if (before > front || front > before + len) {
        free(then);
        return 0; /* the template's own text differs */
    }
    size_t then_end = hearth_specials_turn_end(specials, then, whole, before);
    const size_t line_end = before + line_bytes(then + before, whole - before);
    then_end = line_end < then_end ? line_end : then_end;
    struct hearth_line_change change = {
        .then = then + before, .then_len = then_end - before, .now = in, .now_len = len};
    const struct turn_text then_text = {then, hearth_specials_turn_end(specials, then, whole, before)};
    number += came_or_went(&change, &then_text, message);
    *line = (struct hearth_report_line){
        .number = memchr(message->content, '\n', message->content_len) != NULL && change.now != NULL ? number : 0,
        .count = 1};
    copy_lines(line, &change);
    free(then);
    return strcmp(line->then, line->now) != 0;
}

static double bytes_before(void *user, size_t offset) {
    (void)user;
    return (double)offset;
}

bool hearth_volatile_all(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                         const struct hearth_message *message, const struct hearth_specials *specials) {
    enum { MOST = 4 }; /* one byte in so many may be unchanged */
    const char *at =
        message->content_len > 0 ? memmem(prompt->text, prompt->len, message->content, message->content_len) : NULL;
    const size_t begin = at != NULL ? (size_t)(at - prompt->text) : prompt->len;
    if (fork->then == NULL || begin > fork->offset || fork->offset >= begin + message->content_len) {
        return false;
    }
    const size_t front = fork->offset - begin, len = message->content_len - front;
    const size_t then_len = hearth_specials_turn_end(specials, fork->then, fork->then_len, 0);
    const char *now = prompt->text + fork->offset;
    const size_t shorter = then_len < len ? then_len : len;
    const double runs = hearth_shared_text_weighed(fork->then, then_len, now, len, bytes_before, NULL);
    size_t back = 0;
    while (back < shorter && fork->then[then_len - 1 - back] == now[len - 1 - back]) {
        back++;
    }
    const double shared = (double)front + (runs > (double)back ? runs : (double)back);
    return shared * MOST < (double)(front + shorter);
}

/* How many bytes to show: up to the end of the string or line, but more than brackets and commas. */
static int string_len(const char *text, size_t len) {
    enum { LEAST = 12, MOST = 40 };
    size_t n = 0;
    while (n < len && n < MOST && (text[n] != '"' || n < LEAST) && text[n] != '\n') {
        n++;
    }
    return (int)n;
}

void hearth_volatile_around(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                            struct hearth_report_line *line) {
    enum { FRONT = 20 };
    size_t from = fork->offset;
    while (from > 0 && strchr("\"\n", prompt->text[from - 1]) == NULL &&
           (fork->offset - from < FRONT || prompt->text[from - 1] != ' ') && fork->offset - from < 2 * FRONT) {
        from--;
    }
    const char *front = prompt->text + from, *now = prompt->text + fork->offset;
    const int front_len = (int)(fork->offset - from);
    char then_text[sizeof line->then], now_text[sizeof line->now];
    snprintf(then_text, sizeof then_text, "%.*s%.*s", front_len, front, string_len(fork->then, fork->then_len),
             fork->then);
    snprintf(now_text, sizeof now_text, "%.*s%.*s", front_len, front, string_len(now, prompt->len - fork->offset), now);
    *line = (struct hearth_report_line){.count = 1};
    copy_line(line->then, sizeof line->then, then_text, strlen(then_text));
    copy_line(line->now, sizeof line->now, now_text, strlen(now_text));
}

/* Finds the pattern to propose. A line with a key, or the same line in both prompts, gets a pattern for --strip-line.
 * Entries of a list get one for --strip-paragraph, where that leaves the same text. Otherwise a pattern for the line is
 * taken as it is. */
static void find_pattern(const char *text, const struct hearth_line_change *raw,
                         const struct hearth_line_change *change, const struct hearth_chat_request *request,
                         struct hearth_report_line *to) {
    const char *line = change->now != NULL ? change->now : change->then;
    const size_t len = change->now != NULL ? change->now_len : change->then_len;
    const size_t front = change->now != NULL && change->then != NULL ? common_front(change) : 0;
    size_t key = 0;
    while (key < len && key < STEADY_MOST && (in_word(line[key]) || strchr(" -_", line[key]) != NULL)) {
        key++;
    }
    const bool keyed = key > 0 && key < len && line[key] == ':' && line[0] != ' ' && !isdigit((unsigned char)line[0]);
    const bool entry = front < 2 * STEADY_LEAST && !keyed;
    const bool found = hearth_volatile_pattern(change, request, to->pattern, sizeof to->pattern);
    char pattern[sizeof to->pattern];
    to->paragraph = (!found || entry) && hearth_volatile_paragraph(text, raw, request, pattern, sizeof pattern);
    if (to->paragraph) {
        memcpy(to->pattern, pattern, sizeof pattern);
    } else if (!found) {
        to->pattern[0] = '\0';
    }
}

size_t hearth_volatile_find(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                            const struct hearth_chat_request *request,
                            struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX], size_t *fixed_bytes) {
    struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX];
    char *then;
    size_t kept = 0;
    bool fixable = true;
    const size_t n = hearth_diagnose_lines(fork, prompt, changes, &then);
    *fixed_bytes = 0;
    for (size_t i = 0; i < n && kept < HEARTH_REPORT_LINES_MAX; i++) {
        struct hearth_report_line *to = &lines[kept];
        *to = (struct hearth_report_line){.number = 0};
        const struct hearth_line_change raw = changes[i];
        const size_t alike = raw.alike;
        if (!cut_line(request, &changes[i], &to->number)) {
            break;
        }
        copy_lines(to, &changes[i]);
        find_pattern(prompt->text, &raw, &changes[i], request, to);
        const int32_t then_lines = count_lines(changes[i].then, changes[i].then_len);
        to->count = changes[i].now != NULL ? count_lines(changes[i].now, changes[i].now_len) : then_lines;
        fixable = fixable && (to->pattern[0] != '\0' || kept == 0);
        *fixed_bytes += fixable ? alike : 0;
        fixable = fixable && to->pattern[0] != '\0';
        kept++;
    }
    free(then);
    return kept;
}
