/* Finds why a prompt left an earlier one.
 *
 * The transcripts say at which byte the prompt leaves it (struct hearth_transcript_fork), session/diagnose.h what
 * became of the message there. Added here is what takes the request or the rendered prompt to tell: the message's role,
 * the tool, the lines that changed, and how many tokens the difference costs. */
#include "api/divergence.h"

#include "api/internal.h"
#include "api/volatile.h"
#include "session/shared_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the message in which a template prints the same messages differently, by where they stand in the prompt. */
static void locate(struct hearth_diagnosis *diagnosis, const struct hearth_chat_request *request,
                   const struct hearth_chat_prompt *rendered, size_t offset) {
    size_t *offsets = calloc(request->message_count, sizeof *offsets);
    if (offsets != NULL) {
        hearth_chat_locate(request, rendered, offsets);
        for (size_t i = 0; i < request->message_count; i++) {
            if (offsets[i] != HEARTH_CHAT_NO_MARK && offsets[i] <= offset) {
                diagnosis->message = (int32_t)i;
            }
        }
    }
    free(offsets);
}

/* Finds which tool stood where the quoted name of another tool begins now, and what became of both. */
static void find_tool_then(struct hearth_divergence *divergence, const struct hearth_chat_request *request,
                           const struct hearth_transcript_prompt *prompt, size_t name_at) {
    const struct hearth_transcript_fork *fork = &divergence->fork;
    const size_t front = fork->offset - name_at - 1; /* bytes with which both names begin */
    const char *end = fork->then != NULL ? memchr(fork->then, '"', fork->then_len) : NULL;
    divergence->report.tools = HEARTH_REPORT_TOOL_OTHER;
    if (end == NULL || fork->offset <= name_at) {
        return;
    }
    snprintf(divergence->tool_then, sizeof divergence->tool_then, "%.*s%.*s", (int)front, prompt->text + name_at + 1,
             (int)(end - fork->then), fork->then);
    char quoted[70];
    const int len = snprintf(quoted, sizeof quoted, "\"%s\"", divergence->tool);
    const bool had = memmem(fork->then, fork->then_len, quoted, (size_t)len) != NULL;
    const bool has = hearth_api_tool_find(request->tools, divergence->tool_then) != NULL;
    divergence->report.tools = had && has ? HEARTH_REPORT_TOOLS_MOVED
                               : had      ? HEARTH_REPORT_TOOL_GONE
                               : has      ? HEARTH_REPORT_TOOL_CAME
                                          : HEARTH_REPORT_TOOL_OTHER;
}

/* Finds the tool that has gone: the earlier prompt goes on with a tool that the request does not have. */
static void find_tool_gone(struct hearth_divergence *divergence, const struct hearth_chat_request *request) {
    enum { NEAR = 120 };
    static const char key[] = "\"name\": \"";
    const struct hearth_transcript_fork *fork = &divergence->fork;
    const size_t near = fork->then_len < NEAR ? fork->then_len : NEAR;
    const char *name = fork->then != NULL ? memmem(fork->then, near, key, sizeof key - 1) : NULL;
    name = name != NULL ? name + sizeof key - 1 : NULL;
    const char *end = name != NULL ? memchr(name, '"', fork->then_len - (size_t)(name - fork->then)) : NULL;
    if (end != NULL) {
        snprintf(divergence->tool_then, sizeof divergence->tool_then, "%.*s", (int)(end - name), name);
        divergence->report.tools = hearth_api_tool_find(request->tools, divergence->tool_then) != NULL
                                       ? HEARTH_REPORT_TOOL_CHANGED
                                       : HEARTH_REPORT_TOOL_GONE;
    }
}

/* Finds the tool with the text that the byte is in: the last one that is named before it. */
static void find_tool(struct hearth_divergence *divergence, const struct hearth_chat_request *request,
                      const struct hearth_transcript_prompt *prompt) {
    const size_t offset = divergence->fork.offset;
    size_t last = 0, i;
    bool is_other = false;
    const json_t *tool;
    json_array_foreach(request->tools, i, tool) {
        char quoted[70];
        const char *name = hearth_api_tool_name(tool);
        const int len = name != NULL ? snprintf(quoted, sizeof quoted, "\"%s\"", name) : 0;
        const char *at = prompt->text;
        while (len > 2 && (size_t)len < sizeof quoted &&
               (at = memmem(at, prompt->len - (size_t)(at - prompt->text), quoted, (size_t)len)) != NULL &&
               (size_t)(at - prompt->text) < offset) {
            if ((size_t)(at - prompt->text) >= last) {
                last = (size_t)(at - prompt->text);
                snprintf(divergence->tool, sizeof divergence->tool, "%s", name);
                is_other = offset < last + (size_t)len;
            }
            at++;
        }
    }
    if (is_other && last > 0) {
        find_tool_then(divergence, request, prompt, last);
    } else {
        find_tool_gone(divergence, request);
    }
}

static double tokens_before_byte(void *user, size_t offset) {
    const struct hearth_transcript_fork *fork = user;
    return hearth_transcript_fork_tokens(fork, fork->reach + offset);
}

/* The first message without a counterpart in the earlier prompt: behind the last message that both prompts have, each
 * message that the earlier prompt had there is the counterpart of one. */
static size_t first_new(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt) {
    enum { NEAR = 64 };
    const size_t count = prompt->message_count, then = fork->said_count;
    for (size_t j = 0; j < NEAR && j < count; j++) {
        for (size_t i = 0; i < NEAR && i < then; i++) {
            if (hearth_digest_equal(fork->said[then - 1 - i].says, prompt->messages[count - 1 - j]->says)) {
                return count - j + i;
            }
        }
    }
    return count;
}

/* The offset where messages begin that are new in any case; the prompt's end if that is unknown. */
static size_t new_begins(const struct hearth_divergence *divergence, const struct hearth_chat_request *request,
                         const struct hearth_transcript_prompt *prompt, const struct hearth_chat_prompt *rendered) {
    const struct hearth_transcript_fork *fork = &divergence->fork;
    const bool can_tell = divergence->diagnosis.own && prompt->prefix_messages == 0;
    const size_t first = can_tell ? first_new(fork, prompt) : prompt->message_count;
    size_t *offsets = first < prompt->message_count ? calloc(request->message_count, sizeof *offsets) : NULL;
    size_t end = prompt->len;
    if (offsets != NULL) {
        hearth_chat_locate(request, rendered, offsets);
        end = offsets[first] < end ? offsets[first] : end; /* NO_MARK is more than any length */
    }
    free(offsets);
    return end > fork->reach ? end : prompt->len;
}

/* Whether the difference can be avoided without changing the conversation: a replaced system text, or messages inserted
 * in front of known ones. A question that is asked again cannot be avoided. */
static bool can_be_left(const struct hearth_divergence *divergence, const struct hearth_transcript_prompt *prompt) {
    const struct hearth_diagnosis *diagnosis = &divergence->diagnosis;
    const bool replaced = divergence->report.all && strcmp(diagnosis->field, "system") == 0;
    return (replaced || diagnosis->cause == HEARTH_CAUSE_INSERTED) && diagnosis->own && prompt->prefix_messages == 0;
}

/* Fills how many tokens the difference costs, and how many of them the changed lines cost. */
static void weigh(struct hearth_divergence *divergence, const struct hearth_transcript_prompt *prompt, size_t known_end,
                  size_t fixed_bytes) {
    struct hearth_transcript_fork *fork = &divergence->fork;
    if (divergence->diagnosis.cause == HEARTH_CAUSE_OTHER || fork->then == NULL) {
        return;
    }
    divergence->report.saved_tokens = (uint32_t)hearth_shared_text_weighed(
        fork->then, fork->then_len, prompt->text + fork->reach, known_end - fork->reach, tokens_before_byte, fork);
    if (divergence->report.saved_tokens > 0 && can_be_left(divergence, prompt)) {
        divergence->report.saved_tokens = (uint32_t)(hearth_transcript_fork_tokens(fork, known_end) - fork->token);
    }
    const size_t rest = prompt->len - fork->offset, end = fork->offset + (fixed_bytes < rest ? fixed_bytes : rest);
    if (divergence->report.line_count > 0 &&
        end > fork->reach) { /* they begin a line or two behind the fork: no matter */
        divergence->report.fixed_tokens = (uint32_t)(hearth_transcript_fork_tokens(fork, end) - fork->token);
    }
}

/* Whether both conversations come from one program that rewrites the same line: both have the line, and a pattern
 * recognises it by the part that stays. Without tools to tell programs apart only numbers may differ. Otherwise the
 * other prompt is another program's, which merely has lines in common with this one. */
static bool is_one_program(const struct hearth_divergence *divergence, const struct hearth_chat_request *request) {
    const struct hearth_report_line *line = &divergence->lines[0];
    if (divergence->report.line_count == 0 || line->pattern[0] == '\0' || line->then[0] == '\0' ||
        line->now[0] == '\0') {
        return false;
    }
    return json_array_size(request->tools) > 0 || hearth_volatile_only_numbers(line->then, line->now);
}

void hearth_divergence_find(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_chat_prompt *rendered, const struct hearth_transcript_fork *found,
                            struct hearth_divergence *divergence) {
    const struct hearth_chat_request *request = &job->resolved->request;
    *divergence = (struct hearth_divergence){.fork = *found};
    struct hearth_transcript_fork *fork = &divergence->fork;
    struct hearth_diagnosis *diagnosis = &divergence->diagnosis;
    size_t fixed_bytes = 0;
    hearth_diagnose(fork, prompt, diagnosis);
    if (diagnosis->cause == HEARTH_CAUSE_RENDERED && prompt->prefix_messages == 0) {
        locate(diagnosis, request, rendered, fork->offset);
    }
    if (diagnosis->message >= 0 && (size_t)diagnosis->message < request->message_count) {
        divergence->report.role = hearth_role_text(request->messages[diagnosis->message]->role);
    }
    const bool says_other = diagnosis->cause == HEARTH_CAUSE_VOLATILE || diagnosis->cause == HEARTH_CAUSE_EDITED;
    if (says_other && diagnosis->own && divergence->report.role != NULL) {
        divergence->report.all = hearth_volatile_all(prompt, fork, request->messages[diagnosis->message],
                                                     hearth_transcripts_specials(job->api->transcripts));
        divergence->report.moved = !divergence->report.all && hearth_volatile_moved(prompt, fork);
        diagnosis->cause = divergence->report.all || divergence->report.moved ? HEARTH_CAUSE_EDITED : diagnosis->cause;
    }
    if (diagnosis->cause == HEARTH_CAUSE_VOLATILE) {
        divergence->report.line_count = hearth_volatile_find(prompt, fork, request, divergence->lines, &fixed_bytes);
        if (!diagnosis->own && !is_one_program(divergence, request)) {
            *diagnosis =
                (struct hearth_diagnosis){.cause = HEARTH_CAUSE_OTHER, .message = -1, .field = diagnosis->field};
            divergence->report.line_count = 0;
        }
    } else if (diagnosis->cause == HEARTH_CAUSE_EDITED && diagnosis->message >= 0 &&
               (size_t)diagnosis->message < request->message_count) {
        divergence->report.line_count =
            hearth_volatile_edited(prompt, fork, request->messages[diagnosis->message],
                                   hearth_transcripts_specials(job->api->transcripts), &divergence->lines[0]);
    } else if (diagnosis->cause == HEARTH_CAUSE_TOOLS) {
        find_tool(divergence, request, prompt);
        if (fork->then != NULL && divergence->report.tools == HEARTH_REPORT_TOOL_CHANGED) {
            hearth_volatile_around(prompt, fork, &divergence->lines[0]);
            divergence->report.line_count = 1;
        }
    }
    weigh(divergence, prompt, new_begins(divergence, request, prompt, rendered), fixed_bytes);
    divergence->report.cause = diagnosis->cause;
    divergence->report.token = fork->token;
    divergence->report.message = diagnosis->message;
    divergence->report.field = diagnosis->field;
    divergence->report.own = diagnosis->own;
    divergence->report.tool = divergence->tool[0] != '\0' ? divergence->tool : NULL;
    divergence->report.tool_then = divergence->tool_then[0] != '\0' ? divergence->tool_then : NULL;
    divergence->report.lines = divergence->lines;
    divergence->report.before = fork->before;
    divergence->report.after = fork->after;
    fork->said = NULL; /* the caller keeps these */
    fork->then = NULL;
    fork->stretches = NULL;
}
