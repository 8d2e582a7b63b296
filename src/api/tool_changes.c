/* Keeps the head of a conversation's prompt as it was when the client changes its list of tools.
 *
 * Any change in the head of a prompt would make the whole conversation be computed again. Clients change the list in
 * three ways: they add tools in the middle (a server of tools has connected), they send tools or their members in
 * another order (a resumed session), or they send no tools (a compaction). So the tools that a prompt described are
 * remembered with its reply (session/toolsets.h), and the request that continues from this reply is rendered like this:
 *
 *     no tools                           the known ones stay described; none may be called
 *     all of the head's, by value        the head as it was; tools that no prompt has described yet are described at
 *                                        the end of the first new message, and stay there
 *     anything else                      as it was sent
 *
 * A reply may call exactly the tools that the request offers.
 *
 * Invariants. The chain is over messages as they were sent, so it is the same for every turn. New tools are described
 * behind the last known reply, so nothing that was computed before changes. */
#include "api/job.h"

#include "session/toolsets.h"

#include <string.h>

static bool same_tool(const json_t *a, const json_t *b) {
    return a != NULL && b != NULL && json_equal(json_object_get(a, "function"), json_object_get(b, "function"));
}

/* The latest tool of this name in a set; NULL: none. */
static json_t *described(const struct hearth_toolset *set, const char *name) {
    for (size_t i = json_array_size(set->late); i-- > 0;) {
        json_t *found = hearth_api_tool_find(json_array_get(json_array_get(set->late, i), 1), name);
        if (found != NULL) {
            return found;
        }
    }
    return hearth_api_tool_find(set->head, name);
}

/* The set behind the last known reply, and where that reply stands; NULL: none. Fills out->said and out->replied. */
static struct hearth_toolset *find_set(const struct hearth_job *job, size_t count, size_t *at,
                                       struct hearth_api_resolved *out) {
    struct hearth_digest *chain = calloc(count + 1, sizeof *chain);
    struct hearth_toolset *set = NULL;
    if (chain == NULL) {
        return NULL;
    }
    chain[0] = hearth_toolsets_begin(out->salt);
    for (size_t i = 0; i < count; i++) {
        chain[i + 1] = hearth_message_chain(chain[i], out->history.messages[i]);
    }
    out->said = chain[count];
    for (size_t i = count; set == NULL && i-- > 0;) {
        if (out->history.messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            out->replied = hearth_digest_is_zero(out->replied) ? chain[i + 1] : out->replied;
            set = hearth_toolsets_get(job->api->toolsets, chain[i + 1]);
            *at = i;
        }
    }
    free(chain);
    return set;
}

/* Puts the definitions of tools at the end of a message. False: out of memory. */
static bool describe_in(struct hearth_history *history, size_t at, const json_t *tools) {
    const struct hearth_message *sent = history->messages[at];
    struct hearth_api_draft draft = {0};
    struct hearth_message *longer = NULL;
    size_t i;
    const json_t *tool;
    bool ok = hearth_api_draft_begin(&draft, sent->role) &&
              hearth_buf_append(&draft.content, sent->content, sent->content_len) &&
              hearth_api_tools_announce(&draft.content);
    json_array_foreach(tools, i, tool) {
        ok = ok && hearth_api_tool_describe(tool, &draft.content);
    }
    if (ok) {
        draft.message->name = sent->name != NULL ? hearth_memory_strdup(sent->name) : NULL;
        draft.message->tool_call_id = sent->tool_call_id != NULL ? hearth_memory_strdup(sent->tool_call_id) : NULL;
        longer = hearth_api_draft_end(&draft, NULL);
    }
    hearth_api_draft_drop(&draft);
    if (longer != NULL) {
        hearth_message_unref(history->messages[at]);
        history->messages[at] = longer;
    }
    return longer != NULL;
}

/* The set, with the new tools described in message `at`. NULL: out of memory. */
static struct hearth_toolset *extended(const struct hearth_toolset *set, size_t at, json_t *fresh) {
    json_t *late = json_copy(set->late);
    struct hearth_toolset *made = NULL;
    if (late != NULL && json_array_append_new(late, json_pack("[I, O]", (json_int_t)at, fresh)) == 0) {
        made = hearth_toolset_create(set->head, late);
    }
    json_decref(late);
    return made;
}

/* The tools that no prompt has described yet. NULL: tools of the head are missing or changed, or out of memory. */
static json_t *fresh_tools(const struct hearth_toolset *set, const json_t *tools) {
    json_t *fresh = json_array();
    size_t i;
    json_t *tool;
    bool ok = fresh != NULL;
    json_array_foreach(set->head, i, tool) {
        ok = ok && same_tool(tool, hearth_api_tool_find(tools, hearth_api_tool_name(tool)));
    }
    json_array_foreach(tools, i, tool) {
        if (ok && !same_tool(tool, described(set, hearth_api_tool_name(tool)))) {
            ok = json_array_append(fresh, tool) == 0;
        }
    }
    if (!ok) {
        json_decref(fresh);
        return NULL;
    }
    return fresh;
}

/* The set with which the request is printed: the known one, maybe with more; NULL: its tools as sent. */
static struct hearth_toolset *choose_set(const struct hearth_api_resolved *out, struct hearth_toolset *known,
                                         size_t reply, size_t count) {
    const struct hearth_history *history = &out->history;
    struct hearth_toolset *set = NULL;
    size_t at = reply + 1;
    if (json_array_size(out->tools) == 0) {
        return hearth_toolset_ref(known);
    }
    json_t *fresh = fresh_tools(known, out->tools);
    while (at < count && history->messages[at]->role == HEARTH_ROLE_ASSISTANT) {
        at++;
    }
    if (fresh != NULL && json_array_size(fresh) == 0) {
        set = hearth_toolset_ref(known);
    } else if (fresh != NULL && at < count) {
        set = extended(known, at, fresh);
    }
    json_decref(fresh);
    return set;
}

static bool print_with(struct hearth_api_resolved *out, const struct hearth_toolset *set) {
    struct hearth_chat_request *request = &out->request;
    size_t i;
    const json_t *late;
    json_array_foreach(set->late, i, late) {
        const size_t at = (size_t)json_integer_value(json_array_get(late, 0));
        if (!describe_in(&out->history, at, json_array_get(late, 1))) {
            return false;
        }
    }
    if (json_array_size(out->tools) == 0) {
        request->tool_choice = HEARTH_TOOLS_NONE;
    }
    request->tools = set->head;
    return true;
}

bool hearth_api_tools_recall(const struct hearth_job *job, struct hearth_api_resolved *out,
                             struct hearth_api_error *error) {
    const size_t count = out->history.count - (out->request.continues ? 1 : 0);
    (void)error;
    size_t reply = 0;
    struct hearth_toolset *known = find_set(job, count, &reply, out);
    if (known != NULL) {
        out->toolset = choose_set(out, known, reply, count);
        hearth_toolset_unref(known);
    }
    if (out->toolset != NULL) {
        return print_with(out, out->toolset);
    }
    if (json_array_size(out->tools) > 0) { /* the first set of a conversation, for requests that continue this reply */
        json_t *late = json_array();
        out->toolset = late != NULL ? hearth_toolset_create(out->tools, late) : NULL;
        json_decref(late);
    }
    return true;
}

void hearth_api_tools_remember(const struct hearth_job *job, const struct hearth_message *reply) {
    const struct hearth_api_resolved *resolved = job->resolved;
    if (resolved->toolset != NULL) {
        hearth_toolsets_put(job->api->toolsets, hearth_message_chain(resolved->said, reply), resolved->toolset);
    }
}
