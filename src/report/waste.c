/* What each client lost. Clients are told apart by the name that they give themselves, and by key.
 *
 * A client's main cause is what it had computed again for most time; a wait comes before that only where it took
 * WAIT_WEIGHT times as long, since all clients of a busy server wait; and what is no loss comes last. Each cause is
 * shown by its newest verdict, or its newest that has an option which can be used as it stands. */
#include "report/waste.h"

#include "session/json_memory.h"

#include <stdlib.h>
#include <string.h>

#define WAIT_WEIGHT 50

/* ---- of one request ---- */

static const char *text_of(const json_t *json, const char *name) {
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL ? text : "";
}

static bool is_ready(const char *advice) {
    const char *option = strstr(advice, "`--");
    const char *space = option != NULL ? strchr(option, ' ') : NULL;
    return space != NULL && space < option + 1 + strcspn(option + 1, "`") && !(space[1] >= 'A' && space[1] <= 'Z');
}

static enum hearth_verdict_cause cause_named(const char *name) {
    size_t cause = 0;
    while (cause < HEARTH_VERDICT_COUNT && strcmp(hearth_verdict_name((enum hearth_verdict_cause)cause), name) != 0) {
        cause++;
    }
    return (enum hearth_verdict_cause)cause;
}

static uint32_t tokens_of(const json_t *json, const char *name) {
    const json_int_t n = json_integer_value(json_object_get(json, name));
    return n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
}

void hearth_losses_read(const json_t *report, struct hearth_losses *out) {
    const json_t *tokens = json_object_get(report, "tokens"), *verdict;
    size_t i;
    *out = (struct hearth_losses){.computes = tokens != NULL, .computed_tokens = tokens_of(tokens, "computed")};
    json_array_foreach(json_object_get(report, "verdicts"), i, verdict) {
        if (i < HEARTH_VERDICTS_MAX) {
            out->v[out->n++] = (struct hearth_loss){.cause = cause_named(text_of(verdict, "cause")),
                                                    .ready = is_ready(text_of(verdict, "advice")),
                                                    .tokens = tokens_of(verdict, "tokens"),
                                                    .ms = json_number_value(json_object_get(verdict, "lost_ms"))};
        }
    }
}

/* ---- sums ---- */

struct sums {
    double lost_ms, waited_ms;              /* computing again; waiting */
    uint64_t again_tokens, computed_tokens; /* computed again, of all that were computed */
};

/* A client's requests: those from `first` on. */
struct client {
    size_t first, n;
    struct sums sums;
};

struct cause {
    enum hearth_verdict_cause cause;
    double rank, lost_ms;
    uint64_t tokens;
    size_t times;
    const struct hearth_waste_request *shown; /* NULL: nothing has this cause */
    size_t shown_at;                          /* of its verdicts */
};

static double rank_of(const struct hearth_loss *loss) {
    return hearth_verdict_kind(loss->cause) == HEARTH_KIND_WAIT ? loss->ms / WAIT_WEIGHT : loss->ms;
}

static void add(const struct hearth_losses *losses, struct sums *sums) {
    sums->computed_tokens += losses->computed_tokens;
    for (size_t i = 0; i < losses->n; i++) {
        const struct hearth_loss *loss = &losses->v[i];
        if (loss->cause == HEARTH_VERDICT_COUNT) {
            continue;
        }
        if (hearth_verdict_kind(loss->cause) == HEARTH_KIND_WAIT) {
            sums->waited_ms += loss->ms;
        } else if (hearth_verdict_kind(loss->cause) == HEARTH_KIND_WASTE) {
            sums->lost_ms += loss->ms;
            sums->again_tokens += loss->tokens;
        }
    }
}

static void add_cause(const struct hearth_waste_request *request, size_t at, struct cause *to) {
    const struct hearth_loss *loss = &request->losses->v[at];
    to->cause = loss->cause;
    to->rank += rank_of(loss);
    to->lost_ms += loss->ms;
    to->tokens += loss->tokens;
    to->times++;
    if (to->shown == NULL || (loss->ready && !to->shown->losses->v[to->shown_at].ready)) {
        to->shown = request;
        to->shown_at = at;
    }
}

/* What of a session's requests could have been less. */
static double rank_of_request(const struct hearth_losses *losses) {
    double sum = 0;
    for (size_t i = 0; i < losses->n; i++) {
        const bool counts = losses->v[i].cause != HEARTH_VERDICT_COUNT &&
                            hearth_verdict_kind(losses->v[i].cause) != HEARTH_KIND_NO_LOSS;
        sum += counts ? rank_of(&losses->v[i]) : 0;
    }
    return sum;
}

/* ---- order ---- */

static int compare_names(const char *a, const char *b) {
    return strcmp(a != NULL ? a : "", b != NULL ? b : "");
}

static int compare_clients(const struct hearth_waste_request *a, const struct hearth_waste_request *b) {
    const int by_client = compare_names(a->client, b->client);
    return by_client != 0 ? by_client : compare_names(a->key, b->key);
}

static int by_client_and_age(const void *a, const void *b) {
    const struct hearth_waste_request *x = a, *y = b;
    const int by_client = compare_clients(x, y);
    return by_client != 0 ? by_client : (x->age > y->age) - (x->age < y->age);
}

static int by_session(const void *a, const void *b) {
    const struct hearth_waste_request *x = a, *y = b;
    return compare_names(x->session, y->session);
}

static int costlier(const void *a, const void *b) {
    const struct sums *x = &((const struct client *)a)->sums, *y = &((const struct client *)b)->sums;
    const double more[] = {y->lost_ms - x->lost_ms, y->waited_ms - x->waited_ms,
                           (double)y->computed_tokens - (double)x->computed_tokens};
    size_t i = 0;
    while (i < 2 && more[i] == 0) {
        i++;
    }
    return (more[i] > 0) - (more[i] < 0);
}

static int worse(const void *a, const void *b) {
    const struct cause *x = a, *y = b;
    const int fine_x = hearth_verdict_kind(x->cause) == HEARTH_KIND_NO_LOSS;
    const int fine_y = hearth_verdict_kind(y->cause) == HEARTH_KIND_NO_LOSS;
    return fine_x != fine_y ? fine_x - fine_y : (x->rank < y->rank) - (x->rank > y->rank);
}

/* ---- JSON ---- */

static json_t *ms_json(double ms) {
    return json_real((double)(int64_t)(ms * 100) / 100);
}

static json_t *name_json(const char *name) {
    return name != NULL ? hearth_json_text(name, strlen(name)) : json_null();
}

static json_t *cause_json(const struct cause *cause) {
    json_t *report = hearth_json_load(cause->shown->listed, strlen(cause->shown->listed), 0, NULL);
    const json_t *verdict = json_array_get(json_object_get(report, "verdicts"), cause->shown_at);
    json_t *json = report == NULL
                       ? NULL
                       : json_pack("{s:s, s:s, s:I, s:o, s:I, s:O?, s:O?, s:O?}", "cause",
                                   hearth_verdict_name(cause->cause), "kind", hearth_verdict_kind_text(cause->cause),
                                   "times", (json_int_t)cause->times, "lost_ms", ms_json(cause->lost_ms), "tokens",
                                   (json_int_t)cause->tokens, "text", json_object_get(verdict, "text"), "advice",
                                   json_object_get(verdict, "advice"), "request", json_object_get(report, "id"));
    json_decref(report);
    return json;
}

/* The causes of some requests, the main one first. */
static json_t *causes_json(const struct hearth_waste_request *requests, size_t n) {
    struct cause causes[HEARTH_VERDICT_COUNT] = {0};
    json_t *list = json_array();
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t at = 0; at < requests[i].losses->n; at++) {
            const enum hearth_verdict_cause cause = requests[i].losses->v[at].cause;
            if (cause != HEARTH_VERDICT_COUNT) {
                add_cause(&requests[i], at, &causes[cause]);
            }
        }
    }
    for (size_t i = 0; i < HEARTH_VERDICT_COUNT; i++) {
        if (causes[i].shown != NULL) {
            causes[count++] = causes[i];
        }
    }
    qsort(causes, count, sizeof causes[0], worse);
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(list, cause_json(&causes[i])) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Fills in how many sessions there are, and the one that lost most. */
static bool add_sessions(struct hearth_waste_request *requests, size_t n, json_t *json) {
    const char *most = NULL;
    double most_rank = -1, rank = 0;
    json_int_t count = 0;
    qsort(requests, n, sizeof *requests, by_session);
    for (size_t i = 0; i < n; i++) {
        rank = i > 0 && by_session(&requests[i - 1], &requests[i]) == 0 ? rank : 0;
        count += requests[i].session != NULL && (i == 0 || by_session(&requests[i - 1], &requests[i]) != 0);
        rank += rank_of_request(requests[i].losses);
        if (requests[i].session != NULL && rank > most_rank) {
            most_rank = rank;
            most = requests[i].session;
        }
    }
    return json_object_set_new(json, "sessions", json_integer(count)) == 0 &&
           json_object_set_new(json, "session", name_json(most)) == 0;
}

static json_t *client_json(struct hearth_waste_request *requests, const struct client *client) {
    struct hearth_waste_request *own = requests + client->first;
    const struct sums *sums = &client->sums;
    json_t *json =
        json_pack("{s:o, s:o, s:I, s:o, s:o, s:I, s:I, s:o}", "client", name_json(own->client), "key",
                  name_json(own->key), "requests", (json_int_t)client->n, "lost_ms", ms_json(sums->lost_ms),
                  "waited_ms", ms_json(sums->waited_ms), "again_tokens", (json_int_t)sums->again_tokens,
                  "computed_tokens", (json_int_t)sums->computed_tokens, "causes", causes_json(own, client->n));
    if (json != NULL && !add_sessions(own, client->n, json)) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* When the oldest of them came. */
static json_t *since_json(const struct hearth_waste_request *requests, size_t n) {
    const struct hearth_waste_request *oldest = requests;
    for (size_t i = 1; i < n; i++) {
        oldest = requests[i].age > oldest->age ? &requests[i] : oldest;
    }
    json_t *report = n > 0 ? hearth_json_load(oldest->listed, strlen(oldest->listed), 0, NULL) : NULL;
    json_t *at = report != NULL ? json_incref(json_object_get(report, "at")) : NULL;
    json_decref(report);
    return at != NULL ? at : json_null();
}

json_t *hearth_waste_json(struct hearth_waste_request *requests, size_t n, size_t most) {
    struct client *clients = calloc(n + 1, sizeof *clients);
    struct sums all = {0};
    size_t count = 0;
    if (clients == NULL) {
        return NULL;
    }
    qsort(requests, n, sizeof *requests, by_client_and_age);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || compare_clients(&requests[i - 1], &requests[i]) != 0) {
            clients[count++] = (struct client){.first = i};
        }
        clients[count - 1].n++;
        add(requests[i].losses, &clients[count - 1].sums);
        add(requests[i].losses, &all);
    }
    qsort(clients, count, sizeof *clients, costlier);
    json_t *list = json_array();
    json_t *json = json_pack("{s:s, s:I, s:o, s:o, s:I, s:I, s:I, s:o}", "object", "list", "requests", (json_int_t)n,
                             "since", since_json(requests, n), "lost_ms", ms_json(all.lost_ms), "again_tokens",
                             (json_int_t)all.again_tokens, "computed_tokens", (json_int_t)all.computed_tokens,
                             "clients", (json_int_t)count, "data", list);
    for (size_t i = 0; json != NULL && i < count && i < most; i++) {
        if (json_array_append_new(list, client_json(requests, &clients[i])) < 0) {
            json_decref(json);
            json = NULL;
        }
    }
    free(clients);
    return json;
}
