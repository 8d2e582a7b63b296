/* Breakpoints: the places in a prompt to which a client says it will come back. They are found first as marks in the
 * text, then as pins in the tokens.
 *
 * A breakpoint behind a message is where the template ends that message's turn, or, when the template has no such end,
 * where the next message's text begins. Behind the system text it is the mark that is always there; behind the last
 * message it is the beginning of the generation prompt. A message's text is searched for in the rendered prompt,
 * because templates print it unchanged except for the white space around it.
 *
 * Invariant: the marks of a prompt ascend and differ, and so do its pins. */
#include "api/job.h"

#include "base/assert.h"
#include "session/transcript.h"

#include <stdlib.h>
#include <string.h>

void hearth_marks_add(struct hearth_transcript_prompt *prompt, size_t offset) {
    size_t at = prompt->mark_count;
    while (at > 0 && prompt->marks[at - 1] >= offset) {
        at--;
    }
    if (prompt->mark_count == HEARTH_TRANSCRIPT_MARKS_MAX || (at < prompt->mark_count && prompt->marks[at] == offset)) {
        return;
    }
    memmove(prompt->marks + at + 1, prompt->marks + at, (prompt->mark_count - at) * sizeof prompt->marks[0]);
    prompt->marks[at] = offset;
    prompt->mark_count++;
}

/* ---- where they are in the text ---- */

/* The offset in the prompt at which the first `upto` bytes of a message end; NO_MARK: the message was not found. */
static size_t inside(const struct hearth_message *message, size_t begin, size_t upto) {
    size_t len = message->content_len;
    const size_t lead = (size_t)(hearth_message_trim(message->content, &len) - message->content);
    const size_t bytes = upto > lead ? upto - lead : 0;
    return begin == HEARTH_CHAT_NO_MARK ? begin : begin + (bytes < len ? bytes : len);
}

static size_t end_of(const struct hearth_job *job, const struct hearth_chat_request *request,
                     const struct hearth_chat_prompt *rendered, const size_t *offsets, size_t index) {
    const struct hearth_message *message = request->messages[index];
    const size_t len = rendered->text.len;
    size_t next = rendered->generation_start;
    for (size_t i = index + 1; i < request->message_count; i++) {
        if (offsets[i] != HEARTH_CHAT_NO_MARK) {
            next = offsets[i];
            break;
        }
    }
    const size_t said = inside(message, offsets[index], message->content_len);
    const char *text = (const char *)rendered->text.data;
    const size_t turn =
        said != HEARTH_CHAT_NO_MARK
            ? hearth_specials_turn_end(hearth_transcripts_specials(job->api->transcripts), text, len, said)
            : len;
    return turn < len && turn <= next ? turn : next;
}

/* The offset of a breakpoint, or NO_MARK. */
static size_t find(const struct hearth_job *job, const struct hearth_chat_request *request,
                   const struct hearth_chat_prompt *rendered, const size_t *offsets,
                   const struct hearth_breakpoint *point) {
    const struct hearth_message *first = request->messages[0];
    if (point->message == SIZE_MAX) {
        const bool within = first->role == HEARTH_ROLE_SYSTEM && point->upto < first->content_len;
        const size_t at = within ? inside(first, offsets[0], point->upto) : HEARTH_CHAT_NO_MARK;
        return at < rendered->system_end ? at : rendered->system_end;
    }
    if (point->message >= request->message_count) {
        return HEARTH_CHAT_NO_MARK;
    }
    const size_t index = request->message_count - 1 - point->message;
    if (point->upto < request->messages[index]->content_len) {
        return inside(request->messages[index], offsets[index], point->upto);
    }
    if (point->message == 0) {
        return request->continues ? rendered->text.len : rendered->generation_start;
    }
    return end_of(job, request, rendered, offsets, index);
}

/* None before a message that is not known yet: they are counted from the end. */
static size_t count_of(const struct hearth_job *job) {
    return job->resolved->unknown_messages == 0 ? job->parsed->generation.breakpoint_count : 0;
}

void hearth_breakpoints_mark(const struct hearth_job *job, const struct hearth_chat_prompt *rendered, size_t from,
                             struct hearth_transcript_prompt *prompt, struct hearth_api_rendered *out) {
    const struct hearth_generation *generation = &job->parsed->generation;
    const struct hearth_chat_request *request = &job->resolved->request;
    size_t *offsets = count_of(job) > 0 ? calloc(request->message_count, sizeof *offsets) : NULL;
    if (offsets == NULL) {
        return; /* out of memory: fewer places are kept, and no answer depends on them */
    }
    hearth_chat_locate(request, rendered, offsets);
    for (size_t i = 0; i < count_of(job); i++) {
        const size_t at = find(job, request, rendered, offsets, &generation->breakpoints[i]);
        out->breakpoints[i] = HEARTH_CHAT_NO_MARK;
        if (at != HEARTH_CHAT_NO_MARK && at >= from && at <= rendered->text.len) {
            out->breakpoints[i] = at - from;
            hearth_marks_add(prompt, at - from);
        }
    }
    free(offsets);
}

/* ---- where they are in the tokens ---- */

static void add_pin(struct hearth_api_rendered *out, int32_t position, int64_t ttl_us) {
    struct hearth_pin *pins = out->pins;
    size_t at = out->pin_count;
    while (at > 0 && pins[at - 1].position >= position) {
        at--;
    }
    if (at < out->pin_count && pins[at].position == position) {
        pins[at].ttl_us = pins[at].ttl_us > ttl_us ? pins[at].ttl_us : ttl_us;
        return;
    }
    HEARTH_ASSERT(out->pin_count < HEARTH_PINS_MAX);
    memmove(pins + at + 1, pins + at, (out->pin_count - at) * sizeof *pins);
    pins[at] = (struct hearth_pin){.position = position, .ttl_us = ttl_us};
    out->pin_count++;
}

void hearth_breakpoints_pin(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_transcript_result *result, struct hearth_api_rendered *out) {
    const struct hearth_generation *generation = &job->parsed->generation;
    for (size_t i = 0; i < count_of(job); i++) {
        const struct hearth_breakpoint *point = &generation->breakpoints[i];
        int32_t position = point->message == 0 && point->upto == SIZE_MAX ? (int32_t)result->tokens.n : 0;
        for (size_t k = 0; k < prompt->mark_count; k++) {
            if (prompt->marks[k] == out->breakpoints[i] && result->placed[k] > 0) {
                position = result->placed[k];
            }
        }
        if (position > 0) {
            add_pin(out, position, point->ttl_us);
        }
    }
}

_Static_assert(HEARTH_BREAKPOINTS_MAX <= HEARTH_PINS_MAX, "each has a pin");
_Static_assert(HEARTH_PROMPT_MARKS_MAX >= HEARTH_TRANSCRIPT_MARKS_MAX, "each has a place");
