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
#include "api/stored_turns.h"

#include <stdlib.h>
#include <string.h>

/* The session's side of the comparison. */
struct past {
    struct hearth_history history; /* messages of the session */
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

/* The end of the sent history, without a begun reply at its end that is to be continued. */
static size_t end_of(const struct hearth_history *sent, size_t lead) {
    const bool begun = sent->count > lead && !sent->ends_empty;
    const struct hearth_message *last = begun ? sent->messages[sent->count - 1] : NULL;
    return sent->count - (last != NULL && last->role == HEARTH_ROLE_ASSISTANT && last->call_count == 0);
}

/* How many messages are equal, from these indices on. */
static size_t common(const struct hearth_history *a, size_t i, const struct hearth_history *b, size_t k) {
    size_t n = 0;
    while (i + n < a->count && k + n < b->count && hearth_message_equal(a->messages[i + n], b->messages[k + n])) {
        n++;
    }
    return n;
}

static bool same_system(const struct hearth_history *sent, size_t lead, const json_t *config) {
    struct hearth_history kept = {0};
    const bool same =
        hearth_api_stored_add_system(&kept, config) && kept.count == lead && common(sent, 0, &kept, 0) == lead;
    hearth_history_finish(&kept);
    return same;
}

/* How the sent messages relate to the session's. */
struct sent_reading {
    bool aside;       /* a side question, not part of the session */
    size_t turns;     /* turns of the session that stay */
    size_t first_new; /* index into what was sent */
};

/* How many turns of the session end within its first `messages` messages. */
static size_t turns_within(const struct past *past, size_t turn_count, size_t messages) {
    size_t turns = turn_count;
    while (turns > 0 && past->ends[turns - 1] > messages) {
        turns--;
    }
    return turns;
}

/* How many messages at the end of the session, the first of them a reply, the sent messages begin with. */
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

static struct sent_reading read_sent(const struct past *past, size_t turn_count, const struct hearth_history *sent,
                                     size_t lead) {
    const size_t same = common(&past->history, 0, sent, lead), end = end_of(sent, lead), news = end - lead;
    const bool replies = has_reply(sent, lead, end);
    struct sent_reading reading = {.turns = turn_count, .first_new = lead};
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

/* Fills out->history: system text, messages of the session, new messages. */
static bool put_together(const struct past *past, const struct hearth_history *sent, size_t lead,
                         const struct sent_reading *reading, struct hearth_api_resolved *out) {
    struct hearth_api_stored *stored = out->stored;
    const size_t stays = reading->turns > 0 ? past->ends[reading->turns - 1] : 0;
    const bool ok = (lead > 0 ? hearth_history_append(&out->history, sent, 0, lead)
                              : hearth_api_stored_add_system(&out->history, past->config)) &&
                    hearth_history_append(&out->history, &past->history, 0, stays) &&
                    hearth_history_append(&out->history, sent, reading->first_new, sent->count);
    const size_t system = out->history.count - stays - (sent->count - reading->first_new);
    stored->line_messages = stays;
    stored->first_new = system + stays;
    stored->exact_messages = stored->line.tokens_turns > 0 ? system + past->ends[stored->line.tokens_turns - 1] : 0;
    return ok;
}

static void inherit_tools(const struct hearth_job *job, const json_t *config, struct hearth_api_resolved *out) {
    json_t *tools = json_object_get(config, "tools");
    if (out->tools == NULL && json_array_size(tools) > 0 && !job->parsed->has_tools) {
        out->tools = json_deep_copy(tools);
        out->request.tools = out->tools;
        out->request.tool_choice = HEARTH_TOOLS_NONE;
    }
}

/* Loads the session as it is now into `past`; its line stays in out->stored. */
static bool load_past(const struct hearth_job *job, struct hearth_digest head, struct past *past, const char *param,
                      struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_api_stored *stored = out->stored;
    if (!hearth_api_stored_load_line(job, head, stored->session, param, out, error)) {
        return false;
    }
    past->ends = hearth_memory_calloc(stored->line.count, sizeof *past->ends);
    past->config = hearth_api_stored_config_json(&stored->line.turns[stored->line.count - 1]);
    const bool ok = past->ends != NULL && hearth_api_stored_add_line(job, past->ends, param, out, error);
    past->history = out->history;
    out->history = (struct hearth_history){0};
    return ok;
}

/* Shortens the line to the turn that the request continues. A fork cannot begin at a deleted turn: then the whole line
 * is dropped, since the client has sent everything. */
static bool shorten_line(const struct hearth_job *job, struct sent_reading *reading, size_t lead, const char *param,
                         struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_api_stored *stored = out->stored;
    if (reading->turns == stored->line.count) {
        return true;
    }
    if (reading->turns > 0) {
        if (hearth_api_stored_load_line(job, stored->line.turns[reading->turns - 1].id, stored->session, param, out,
                                        error)) {
            return true;
        }
        if (error->status != 404) {
            return false;
        }
        (void)hearth_api_fail_nomem(error); /* that the turn is gone is no error here */
        reading->turns = 0;
        reading->first_new = lead;
    }
    hearth_line_finish(&stored->line);
    return true;
}

static bool attach(const struct hearth_job *job, struct hearth_digest head, struct hearth_api_resolved *out,
                   struct hearth_api_error *error) {
    const struct hearth_history *sent = &job->parsed->history;
    const char *param = job->parsed->session_param;
    struct past past = {0};
    const size_t lead = hearth_history_system_count(sent);
    bool ok = load_past(job, head, &past, param, out, error);
    if (ok) {
        struct sent_reading reading = read_sent(&past, out->stored->line.count, sent, lead);
        if (reading.aside) {
            hearth_api_stored_destroy(&out->stored);
            ok = hearth_history_append(&out->history, sent, 0, sent->count);
        } else {
            ok = shorten_line(job, &reading, lead, param, out, error) && put_together(&past, sent, lead, &reading, out);
            inherit_tools(job, past.config, out);
        }
    }
    past_finish(&past);
    return ok && (out->stored == NULL || hearth_api_stored_plan_write(job, NULL, out, error));
}

bool hearth_api_stored_attach_session(const struct hearth_job *job, struct hearth_api_resolved *out,
                                      struct hearth_api_error *error) {
    const struct hearth_history *sent = &job->parsed->history;
    const char *name = job->parsed->session, *param = job->parsed->session_param;
    struct hearth_digest head = {0, 0};
    if (name != NULL && (!hearth_api_stored_name_session(job, name, param, out, error) ||
                         !hearth_api_stored_find_head(job, false, param, &head, out, error))) {
        return false;
    }
    const bool ok = !hearth_digest_is_zero(head)
                        ? attach(job, head, out, error)
                        : hearth_history_append(&out->history, sent, 0, sent->count) &&
                              (name == NULL || hearth_api_stored_plan_write(job, NULL, out, error));
    out->history.ends_empty = sent->ends_empty;
    return ok;
}
