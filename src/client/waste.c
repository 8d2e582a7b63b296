/* What each client of a server lost, made of the last requests (GET /requests): for `hearth top` and `hearth why`.
 *
 * Clients are told apart by the name that they give themselves. The cause that is named for one is what it had computed
 * again for most time, and a wait only where it took WAIT_WEIGHT times as long: all clients of a busy server wait. */
#include "client/waste.h"

#include <stdlib.h>
#include <string.h>

#define WAIT_WEIGHT 50

static const char *text_of(const json_t *json, const char *name) {
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL ? text : "";
}

bool hearth_client_waste_counts(const json_t *verdict) {
    return strcmp(text_of(verdict, "kind"), "no_loss") != 0;
}

static bool is_wait(const json_t *verdict) {
    return strcmp(text_of(verdict, "kind"), "wait") == 0;
}

static double lost_ms(const json_t *verdict) {
    return json_number_value(json_object_get(verdict, "lost_ms"));
}

/* Whether an advice has an option that can be used as it stands. */
static bool is_ready(const json_t *verdict) {
    const char *option = strstr(text_of(verdict, "advice"), "`--");
    const char *space = option != NULL ? strchr(option, ' ') : NULL;
    return space != NULL && space < option + 1 + strcspn(option + 1, "`") && !(space[1] >= 'A' && space[1] <= 'Z');
}

static struct client_waste *client_of(struct client_waste_list *list, const char *client) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->clients[i].client, client) == 0) {
            return &list->clients[i];
        }
    }
    if (list->count == CLIENT_WASTE_CLIENTS) {
        return NULL;
    }
    list->clients[list->count] = (struct client_waste){.client = client};
    return &list->clients[list->count++];
}

static struct client_waste_cause *cause_of(struct client_waste *client, const char *cause) {
    for (size_t i = 0; i < client->cause_count; i++) {
        if (strcmp(client->causes[i].cause, cause) == 0) {
            return &client->causes[i];
        }
    }
    if (client->cause_count == CLIENT_WASTE_CAUSES) {
        return NULL;
    }
    client->causes[client->cause_count] = (struct client_waste_cause){.cause = cause};
    return &client->causes[client->cause_count++];
}

/* Requests come with the newest first, so the first verdict is the one to show, unless only a later one is ready. */
static void add_verdict(struct client_waste *client, const json_t *verdict) {
    struct client_waste_cause *cause = cause_of(client, text_of(verdict, "cause"));
    if (is_wait(verdict)) {
        client->waited_ms += lost_ms(verdict);
    } else {
        client->lost_ms += lost_ms(verdict);
        client->again_tokens += (uint64_t)json_integer_value(json_object_get(verdict, "tokens"));
    }
    if (cause != NULL) {
        cause->rank += lost_ms(verdict) / (is_wait(verdict) ? WAIT_WEIGHT : 1);
        cause->times++;
        cause->shown = cause->shown == NULL || (is_ready(verdict) && !is_ready(cause->shown)) ? verdict : cause->shown;
    }
}

static int by_rank(const void *a, const void *b) {
    const struct client_waste_cause *x = a, *y = b;
    return (x->rank < y->rank) - (x->rank > y->rank);
}

static int costlier(const void *a, const void *b) {
    const struct client_waste *x = a, *y = b;
    const bool equal = x->lost_ms == y->lost_ms;
    const double one = equal ? x->waited_ms : x->lost_ms, other = equal ? y->waited_ms : y->lost_ms;
    return (one < other) - (one > other);
}

bool hearth_client_waste(const json_t *requests, struct client_waste_list *out) {
    size_t i, j;
    const json_t *request, *verdict;
    *out = (struct client_waste_list){.clients = calloc(CLIENT_WASTE_CLIENTS, sizeof *out->clients)};
    if (out->clients == NULL) {
        return false;
    }
    json_array_foreach(requests, i, request) {
        const json_t *tokens = json_object_get(request, "tokens"); /* of those only that asked for a turn */
        struct client_waste *client = tokens != NULL ? client_of(out, text_of(request, "client")) : NULL;
        if (client != NULL) {
            client->requests++;
            client->computed_tokens += (uint64_t)json_integer_value(json_object_get(tokens, "computed"));
            json_array_foreach(json_object_get(request, "verdicts"), j, verdict) {
                if (hearth_client_waste_counts(verdict)) {
                    add_verdict(client, verdict);
                }
            }
        }
    }
    for (i = 0; i < out->count; i++) {
        const struct client_waste *client = &out->clients[i];
        qsort(out->clients[i].causes, client->cause_count, sizeof *client->causes, by_rank);
        out->lost_ms += client->lost_ms;
        out->requests += client->requests;
        out->again_tokens += client->again_tokens;
        out->computed_tokens += client->computed_tokens;
    }
    qsort(out->clients, out->count, sizeof *out->clients, costlier);
    return true;
}

void hearth_client_waste_finish(struct client_waste_list *list) {
    free(list->clients);
    *list = (struct client_waste_list){0};
}
