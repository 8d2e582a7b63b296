/* Compares the messages of the earlier prompt with those of this one. The first difference is the place of the
 * divergence; what follows it tells whether something was edited, removed or inserted. */
#include "session/diagnose.h"

#include <stdlib.h>
#include <string.h>

static const char *const texts[][2] = {
#define X(name, text, help) [HEARTH_CAUSE_##name] = {text, help},
    HEARTH_CAUSE_TABLE(X)
#undef X
};

const char *hearth_cause_text(enum hearth_cause cause) {
    return texts[cause][0];
}

const char *hearth_cause_help(enum hearth_cause cause) {
    return texts[cause][1];
}

/* Behind lines that differ: less is what every template prints between two messages. */
#define WORTH_BYTES 64

struct sides {
    const struct hearth_said *then;
    struct hearth_message *const *now;
    size_t then_count, now_count;
};

static bool same(const struct sides *sides, size_t then, size_t now) {
    return hearth_digest_equal(sides->then[then].says, sides->now[now]->says);
}

static size_t common(const struct sides *sides) {
    size_t i = 0;
    while (i < sides->then_count && i < sides->now_count && same(sides, i, i)) {
        i++;
    }
    return i;
}

/* Whether both prompts have a common reply: then they are two states of one conversation, not two that begin alike. */
static bool share_reply(const struct sides *sides) {
    for (size_t i = 0; i < sides->then_count; i++) {
        for (size_t j = 0; sides->then[i].role == HEARTH_ROLE_ASSISTANT && j < sides->now_count && j < i + 64; j++) {
            if (same(sides, i, j)) {
                return true;
            }
        }
    }
    return false;
}

static const char *field_of(const struct hearth_said *then, const struct hearth_message *now) {
    if (then->role != now->role) {
        return "role";
    }
    if (then->content == hearth_checksum(now->content, now->content_len)) {
        return "tool_calls";
    }
    return hearth_role_is_system(now->role) ? "system" : "content";
}

size_t hearth_diagnose_lines(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt,
                             struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX], char **then) {
    size_t begin = fork->offset;
    while (begin > 0 && prompt->text[begin - 1] != '\n') {
        begin--;
    }
    const size_t before = fork->offset - begin;
    *then = fork->then != NULL ? malloc(before + fork->then_len + 1) : NULL;
    if (*then == NULL) {
        return 0;
    }
    memcpy(*then, prompt->text + begin, before);
    memcpy(*then + before, fork->then, fork->then_len);
    return hearth_line_changes(*then, before + fork->then_len, prompt->text + begin, prompt->len - begin, changes);
}

/* Whether the prompt differs in a line of the message, and goes on alike behind it. */
static bool line_differs(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt,
                         const struct hearth_message *message, bool own) {
    struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX];
    char *then;
    size_t alike = 0;
    for (size_t n = hearth_diagnose_lines(fork, prompt, changes, &then); n > 0; n--) {
        alike += changes[n - 1].alike;
    }
    bool found = alike >= WORTH_BYTES;
    if (found && changes[0].now != NULL) { /* a template may have put something in front of it, or behind it */
        const char *end = strchr(message->content, '\n');
        const size_t first = end != NULL ? (size_t)(end - message->content) : message->content_len;
        const char *last = strrchr(message->content, '\n');
        last = last != NULL ? last + 1 : message->content;
        found = memmem(message->content, message->content_len, changes[0].now, changes[0].now_len) != NULL ||
                (first > 0 && memmem(changes[0].now, changes[0].now_len, message->content, first) != NULL) ||
                (*last != '\0' && memmem(changes[0].now, changes[0].now_len, last, strlen(last)) != NULL);
        /* All of the text is no line of it, unless the conversation is the same. */
        found = found &&
                (own || memmem(changes[0].now, changes[0].now_len, message->content, message->content_len) == NULL);
    }
    free(then);
    return found;
}

#define COMPACTED_LEAST 3 /* least messages that have gone */
#define COMPACTED_MOST 2  /* most messages that replace them */

/* Whether a client has compacted from message `i` on: messages have gone, one or two stand in their place, and behind
 * them both prompts agree. */
static bool is_compacted(const struct sides *sides, size_t i) {
    for (size_t j = i + 1; j <= i + COMPACTED_MOST && j < sides->now_count; j++) {
        for (size_t k = i + 1; k < sides->then_count; k++) {
            if (same(sides, k, j)) {
                return k - i >= COMPACTED_LEAST; /* fewer would be an edit */
            }
        }
    }
    return false;
}

#define NEAR 64 /* messages behind the first difference, in either prompt, that are compared */

/* Finds the nearest two messages in a row, from message `i` on, that both prompts have, and how many messages stand
 * before them in the earlier prompt and in this one. A single message may occur twice ("Go on."). False: there are
 * none. */
static bool next_pair(const struct sides *sides, size_t i, size_t *then, size_t *now) {
    for (size_t both = 1; both < 2 * NEAR; both++) {
        for (size_t k = 0; k <= both; k++) {
            const size_t a = i + k, b = i + both - k;
            if (a + 1 < sides->then_count && b + 1 < sides->now_count && same(sides, a, b) &&
                same(sides, a + 1, b + 1)) {
                *then = k;
                *now = both - k;
                return true;
            }
        }
    }
    return false;
}

/* Whether a reply has lost its calls: its text is there, and the results are gone or have not come. Some clients join
 * this text with the reply that came after the results. */
static bool calls_dropped(const struct sides *sides, size_t i) {
    const bool result_now = i + 1 < sides->now_count && sides->now[i + 1]->role == HEARTH_ROLE_TOOL;
    return sides->then[i].role == HEARTH_ROLE_ASSISTANT && sides->now[i]->role == HEARTH_ROLE_ASSISTANT &&
           sides->then[i].printed != 0 && sides->now[i]->call_count == 0 && !result_now;
}

/* The cause if message `i` is in both prompts and differs. */
static enum hearth_cause cause_at(const struct sides *sides, size_t i, bool line,
                                  const struct hearth_transcript_fork *fork, bool own) {
    const bool begins = i == 0 || (i == 1 && hearth_role_is_system(sides->now[0]->role));
    if (begins && fork->summary && !hearth_role_is_system(sides->now[i]->role)) {
        return HEARTH_CAUSE_COMPACTED;
    }
    if (begins && !own && !line) {
        return HEARTH_CAUSE_OTHER;
    }
    bool was_later = false, is_later = false;
    for (size_t j = i + 1; j < sides->then_count && !was_later; j++) {
        was_later = same(sides, j, i);
    }
    for (size_t j = i + 1; j < sides->now_count && !is_later; j++) {
        is_later = same(sides, i, j);
    }
    if (was_later || is_later) {
        return was_later && is_later ? HEARTH_CAUSE_MOVED : was_later ? HEARTH_CAUSE_DROPPED : HEARTH_CAUSE_INSERTED;
    }
    if (sides->now[i]->role == HEARTH_ROLE_USER && is_compacted(sides, i)) {
        return HEARTH_CAUSE_COMPACTED;
    }
    size_t then, now;
    if (line) {
        return HEARTH_CAUSE_VOLATILE;
    }
    if (calls_dropped(sides, i)) {
        return HEARTH_CAUSE_DROPPED;
    }
    if (!hearth_role_is_system(sides->now[i]->role) && next_pair(sides, i, &then, &now) && then != now) {
        return then > now ? HEARTH_CAUSE_DROPPED : HEARTH_CAUSE_INSERTED;
    }
    return HEARTH_CAUSE_EDITED;
}

/* Of the first `count` messages, which say the same, the first with calls that are printed differently; `count`: none.
 */
static size_t first_reprinted(const struct sides *sides, size_t count) {
    size_t i = 0;
    while (i < count &&
           (sides->then[i].printed == 0 || sides->then[i].printed == hearth_message_printed(sides->now[i]))) {
        i++;
    }
    return i;
}

void hearth_diagnose(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt,
                     struct hearth_diagnosis *diagnosis) {
    struct sides sides = {fork->said, prompt->messages, fork->said_count, prompt->message_count};
    size_t i = common(&sides);
    *diagnosis = (struct hearth_diagnosis){.cause = HEARTH_CAUSE_OTHER, .message = -1, .field = "messages"};
    const bool own = fork->own || share_reply(&sides);
    const bool same_tools = hearth_digest_equal(fork->root.tools, prompt->root.tools);
    const bool line = (own || same_tools) && i < sides.then_count && i < sides.now_count &&
                      hearth_role_is_system(sides.now[i]->role) && line_differs(fork, prompt, sides.now[i], own);
    diagnosis->own = own;
    if (sides.then_count == 0 || (i == 0 && !own && !line)) {
        return;
    }
    if (!line && !same_tools) {
        diagnosis->cause = own ? HEARTH_CAUSE_TOOLS : HEARTH_CAUSE_OTHER; /* another client has other tools */
        diagnosis->field = own ? "tools" : "messages";
    } else if (!line && !hearth_digest_equal(fork->root.arguments, prompt->root.arguments)) {
        diagnosis->cause = own ? HEARTH_CAUSE_ARGUMENTS : HEARTH_CAUSE_OTHER;
        diagnosis->field = own ? "template_arguments" : "messages";
    } else if (i == sides.then_count) { /* all messages are unchanged */
        const size_t call = first_reprinted(&sides, i);
        diagnosis->cause = call < i ? HEARTH_CAUSE_REPRINTED : HEARTH_CAUSE_RENDERED;
        diagnosis->message = call < i ? (int32_t)call : -1;
        diagnosis->field = call < i ? "tool_calls" : "messages";
    } else if (i == sides.now_count) {
        diagnosis->cause = HEARTH_CAUSE_TRUNCATED;
        diagnosis->message = (int32_t)i;
    } else {
        diagnosis->cause = cause_at(&sides, i, line, fork, own);
        diagnosis->message = (int32_t)i;
        diagnosis->field = field_of(&sides.then[i], sides.now[i]);
    }
}
