/* A chat's messages and the session that the client names: which of them are new?
 *
 * Clients do it in two ways. One sends its whole history every time, the other only what is new since the last reply.
 * Both work, told apart by what stands there:
 *
 *     sent                                                  taken as
 *     begins like the session, and has replies in it        the whole history; what differs from the session's is a
 *                                                           fork at the last turn that is the same
 *     begins with the last reply (and what followed)        what is new: that message is there already
 *     no replies, other system text than the session's      a side question (a title, a check): answered by itself,
 *                                                           the session stays as it is
 *     no replies                                            what is new
 *     only what the session's first turn had asked          that request once more, a fork at the beginning
 *     anything else with replies in it                      another history (a client has summed up): the session goes
 *                                                           on from there
 *
 * A reply that is begun at the end of what was sent, for the model to go on with it, is none of these replies.
 *
 * What the client has not sent is the session's: system text, tools (which are described, and cannot be called: the
 * client does not know them). */
#include "api/kept.h"

#include <stdlib.h>
#include <string.h>

/* The session's side of the comparison. */
struct past {
    struct hearth_history history; /* its messages */
    size_t *ends;                  /* messages up to and with each of its turns */
    json_t *config;                /* of its last turn */
};

static void past_finish(struct past *past) {
    hearth_history_finish(&past->history);
    free(past->ends);
    json_decref(past->config);
}

static bool has_reply(const struct hearth_history *sent, size_t from, size_t end) {
    for (size_t i = from; i < end; i++) {
        if (sent->messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            return true;
        }
    }
    return false;
}

/* The end of what was said: behind it there is at most a reply that the client has begun, to be continued. */
static size_t end_of(const struct hearth_history *sent, size_t lead) {
    const bool begun = sent->count > lead && !sent->ends_empty;
    const struct hearth_message *last = begun ? sent->messages[sent->count - 1] : NULL;
    return sent->count - (last != NULL && last->role == HEARTH_ROLE_ASSISTANT && last->call_count == 0);
}

/* So many messages are the same, from those indices on. */
static size_t common(const struct hearth_history *a, size_t i, const struct hearth_history *b, size_t k) {
    size_t n = 0;
    while (i + n < a->count && k + n < b->count && hearth_message_equal(a->messages[i + n], b->messages[k + n])) {
        n++;
    }
    return n;
}

static bool same_system(const struct hearth_history *sent, size_t lead, const json_t *config) {
    struct hearth_history kept = {0};
    const bool same = hearth_kept_add_system(&kept, config) && kept.count == lead && common(sent, 0, &kept, 0) == lead;
    hearth_history_finish(&kept);
    return same;
}

static bool append(struct hearth_history *to, const struct hearth_history *from, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        if (!hearth_history_add(to, hearth_message_ref(from->messages[i]))) {
            return false;
        }
    }
    return true;
}

/* What the messages that were sent are, beside the session's. */
struct reading {
    bool aside;       /* not a part of the session */
    size_t turns;     /* of the session that stay */
    size_t first_new; /* index into what was sent */
};

/* Turns of the session that end within its first `messages` messages. */
static size_t turns_within(const struct past *past, size_t turn_count, size_t messages) {
    size_t turns = turn_count;
    while (turns > 0 && past->ends[turns - 1] > messages) {
        turns--;
    }
    return turns;
}

/* Messages at the end of the session that what was sent begins with, a reply first. */
static size_t overlap(const struct past *past, const struct hearth_history *sent, size_t lead) {
    const size_t count = past->history.count;
    if (lead == sent->count || sent->messages[lead]->role != HEARTH_ROLE_ASSISTANT) {
        return 0;
    }
    for (size_t i = count; i-- > 0;) {
        if (past->history.messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            const size_t n = common(&past->history, i, sent, lead);
            return n == count - i ? n : 0;
        }
    }
    return 0;
}

static struct reading read_sent(const struct past *past, size_t turn_count, const struct hearth_history *sent,
                                size_t lead) {
    const size_t same = common(&past->history, 0, sent, lead), end = end_of(sent, lead), news = end - lead;
    const bool replies = has_reply(sent, lead, end);
    struct reading reading = {.turns = turn_count, .first_new = lead};
    const size_t again = same == 0 ? overlap(past, sent, lead) : 0;
    if (again > 0) {
        reading.first_new = lead + again;
    } else if (replies || (turn_count == 1 && same >= news && same + 1 >= past->history.count)) {
        reading.turns = turns_within(past, turn_count, same);
        reading.first_new = lead + (reading.turns > 0 ? past->ends[reading.turns - 1] : 0);
    } else if (lead > 0 && !same_system(sent, lead, past->config)) {
        reading.aside = true;
    }
    return reading;
}

/* Puts the conversation together in job->history: system text, the session's messages, what is new. */
static bool put_together(struct hearth_job *job, const struct past *past, struct hearth_history *sent, size_t lead,
                         const struct reading *reading) {
    struct hearth_kept *kept = job->kept;
    const size_t stays = reading->turns > 0 ? past->ends[reading->turns - 1] : 0;
    const bool ok =
        (lead > 0 ? append(&job->history, sent, 0, lead) : hearth_kept_add_system(&job->history, past->config)) &&
        append(&job->history, &past->history, 0, stays) && append(&job->history, sent, reading->first_new, sent->count);
    const size_t system = job->history.count - stays - (sent->count - reading->first_new);
    kept->line_messages = stays;
    kept->first_new = system + stays;
    kept->exact_messages = kept->line.tokens_turns > 0 ? system + past->ends[kept->line.tokens_turns - 1] : 0;
    return ok || hearth_api_fail_nomem(&job->error);
}

static bool inherit_tools(struct hearth_job *job, const json_t *body, const json_t *config) {
    struct hearth_chat_options *options = &job->chat;
    json_t *tools = json_object_get(config, "tools");
    if (options->tools != NULL || json_array_size(tools) == 0 || json_object_get(body, "tools") != NULL) {
        return true;
    }
    options->tools = json_deep_copy(tools);
    options->request.tools = options->tools;
    options->request.tool_choice = HEARTH_TOOLS_NONE;
    return options->tools != NULL || hearth_api_fail_nomem(&job->error);
}

/* Loads the session as it stands into `past`; its line stays in job->kept. */
static bool load_past(struct hearth_job *job, struct hearth_digest head, struct past *past, const char *param) {
    struct hearth_kept *kept = job->kept;
    if (!hearth_kept_load_line(job, head, kept->session, param)) {
        return false;
    }
    past->ends = calloc(kept->line.count, sizeof *past->ends);
    past->config = hearth_kept_config_json(&kept->line.turns[kept->line.count - 1]);
    if (past->ends == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    const bool ok = hearth_kept_add_line(job, past->ends, param);
    past->history = job->history;
    job->history = (struct hearth_history){0};
    return ok;
}

/* The line only up to the turn that the request goes on from. At one that was deleted no fork can begin: then nothing
 * of the line stays, for the client has sent it all. */
static bool shorten_line(struct hearth_job *job, struct reading *reading, size_t lead, const char *param) {
    struct hearth_kept *kept = job->kept;
    if (reading->turns == kept->line.count) {
        return true;
    }
    if (reading->turns > 0) {
        if (hearth_kept_load_line(job, kept->line.turns[reading->turns - 1].id, kept->session, param)) {
            return true;
        }
        if (job->error.status != 404) {
            return false;
        }
        reading->turns = 0;
        reading->first_new = lead;
    }
    hearth_line_finish(&kept->line);
    return true;
}

static bool attach(struct hearth_job *job, const json_t *body, struct hearth_digest head, const char *param) {
    struct hearth_kept *kept = job->kept;
    struct hearth_history sent = job->history;
    struct past past = {0};
    const size_t lead = hearth_history_system_count(&sent);
    job->history = (struct hearth_history){0};
    bool ok = load_past(job, head, &past, param);
    if (ok) {
        struct reading reading = read_sent(&past, kept->line.count, &sent, lead);
        if (reading.aside) {
            hearth_kept_destroy(job);
            ok = append(&job->history, &sent, 0, sent.count) || hearth_api_fail_nomem(&job->error);
        } else {
            ok = shorten_line(job, &reading, lead, param) && put_together(job, &past, &sent, lead, &reading) &&
                 inherit_tools(job, body, past.config);
        }
    }
    job->history.ends_empty = sent.ends_empty;
    hearth_history_finish(&sent);
    past_finish(&past);
    return ok && (job->kept == NULL || hearth_kept_keep(job, NULL, true));
}

bool hearth_kept_attach_session(struct hearth_job *job, const json_t *body) {
    const json_t *given = hearth_json_get(body, "session_id");
    const char *name = json_string_value(given), *param = given != NULL ? "session_id" : "x-session-id";
    struct hearth_digest head;
    if (given != NULL && (name == NULL || strlen(name) != json_string_length(given))) {
        return hearth_api_fail(&job->error, 400, "invalid_type", param, "session_id must be a string");
    }
    if (name == NULL && (name = job->session_header) == NULL) {
        return true;
    }
    if (!hearth_kept_name_session(job, name, param) || !hearth_kept_find_head(job, false, param, &head)) {
        return false;
    }
    if (hearth_digest_equal(head, (struct hearth_digest){0, 0})) {
        return hearth_kept_keep(job, NULL, true);
    }
    return attach(job, body, head, param);
}
