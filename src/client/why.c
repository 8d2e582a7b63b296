/* `hearth why`: why requests were slow, in sentences. The verdicts and what each client lost are the
 * server's (GET /requests, GET /requests/clients); this prints them.
 *
 *     hearth why                    what each client lost; then the slow ones of the last requests, the costliest first
 *     hearth why REQUEST            all there is to know of one
 *     hearth why TRACE              the same of each request of an agent's trace (32 hexadecimal digits)
 *     hearth why --follow           each request as it ends, slow or not
 *
 * A request is worth a line when its client waited for a second (--slow MS) or something was computed for nothing. */
#include "client/client.h"
#include "client/commands.h"

#include "console/interrupt.h"
#include "console/show.h"
#include "console/table.h"
#include "console/tool.h"

#include <ctype.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_DEFAULT_MS 1000
#define LIMIT_DEFAULT 10
#define KEPT_MOST 100000 /* more than any server keeps */
#define FOLLOW_MS 1000

struct why_options {
    struct client_server server;
    const char *session, *client;
    int64_t limit, slow_ms; /* -1: not given */
    bool follow, json;
    const char *trace; /* NULL: any */
};

static const struct hearth_console_command commands[] = {
    {"", "[REQUEST|TRACE]", "why requests were slow: causes, what they cost, and what to do", 1, 0, 1},
};

static const struct hearth_console_option options[] = {
    {"--session", "NAME", "only requests of this session", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct why_options, session)},
    {"--client", "NAME", "only requests of this program, as claude-cli", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct why_options, client)},
    {"--slow", "MS", "only requests whose client waited so long for the first token, or that lost something [1000]", 1,
     HEARTH_CONSOLE_NUMBER, offsetof(struct why_options, slow_ms)},
    {"--limit", "N", "at most so many [10]", 1, HEARTH_CONSOLE_NUMBER, offsetof(struct why_options, limit)},
    {"--follow", "", "each request as it ends, until Ctrl-C", 1, HEARTH_CONSOLE_SWITCH,
     offsetof(struct why_options, follow)},
    {"--json", "", "what the server said, for programs", 1, HEARTH_CONSOLE_SWITCH, offsetof(struct why_options, json)},
    CLIENT_SERVER_OPTIONS("--api-key", "its API key [HEARTH_API_KEY]"),
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL("why", "", commands, options);

/* ---- members ---- */

static const char *text_of(const json_t *json, const char *name) {
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL ? text : "";
}

static uint64_t count_of(const json_t *json, const char *name) {
    return (uint64_t)json_integer_value(json_object_get(json, name));
}

static double number_of(const json_t *json, const char *group, const char *name) {
    return json_number_value(json_object_get(json_object_get(json, group), name));
}

/* Whether a verdict, or a cause of a client, is about a loss. */
static bool is_loss(const json_t *verdict) {
    return strcmp(text_of(verdict, "kind"), "no_loss") != 0;
}

/* What all its verdicts together cost, but for what is no loss. */
static double lost_ms(const json_t *request) {
    double sum = 0;
    size_t i;
    const json_t *verdict;
    json_array_foreach(json_object_get(request, "verdicts"), i, verdict) {
        if (is_loss(verdict)) {
            sum += json_number_value(json_object_get(verdict, "lost_ms"));
        }
    }
    return sum;
}

/* The client waited long, or something was lost. */
static bool is_slow(const json_t *request, int64_t slow_ms) {
    const double waited = number_of(request, "ms", "ttft");
    return (double)slow_ms <= (waited > 0 ? waited : number_of(request, "ms", "total")) || lost_ms(request) > 0;
}

/* ---- sentences ---- */

static void print_head(const json_t *request) {
    char at[16];
    const char *client = text_of(request, "client"), *session = text_of(request, "session");
    const double ttft = number_of(request, "ms", "ttft"), total = number_of(request, "ms", "total");
    (void)printf("%s ", hearth_client_local_time(text_of(request, "at"), 0, at));
    (void)hearth_show_text(stdout, *client != '\0' ? client : text_of(request, "endpoint"), 32);
    if (*session != '\0') {
        (void)fputs(", session ", stdout);
        (void)hearth_show_text(stdout, session, 32);
    }
    (void)printf(", %s tokens, ", hearth_show_count((uint64_t)number_of(request, "tokens", "prompt")).text);
    if (ttft > 0) {
        (void)printf("%.1f s to the first token, %.1f s in all", ttft / 1000, total / 1000);
    } else {
        (void)printf("%.1f s, and no token came (%s)", total / 1000, text_of(request, "end"));
    }
}

static void print_verdict(const json_t *verdict) {
    const char *advice = text_of(verdict, "advice");
    (void)fputs("    ", stdout);
    (void)hearth_show_text(stdout, text_of(verdict, "text"), 400);
    (void)printf(" (%.1f s). ", json_number_value(json_object_get(verdict, "lost_ms")) / 1000);
    if (*advice >= 'a' && *advice <= 'z') { /* it begins a sentence */
        (void)fputc(toupper(*advice++), stdout);
    }
    (void)hearth_show_text(stdout, advice, 600);
    (void)fputc('\n', stdout);
}

static void print_request(const json_t *request) {
    size_t i;
    const json_t *verdict, *verdicts = json_object_get(request, "verdicts");
    print_head(request);
    (void)printf("%s  %s%s%s\n", json_array_size(verdicts) > 0 ? ":" : ": nothing was lost", hearth_show_dim(stdout),
                 text_of(request, "id"), hearth_show_plain(stdout));
    json_array_foreach(verdicts, i, verdict) {
        print_verdict(verdict);
    }
    (void)fflush(stdout);
}

/* ---- one request ---- */

static void print_text(const char *title, const char *text) {
    bool fresh = true;
    (void)printf("%s\n", title);
    hearth_show_lines(stdout, text, "    | ", &fresh);
    if (!fresh) {
        (void)fputc('\n', stdout);
    }
}

static void print_details(const json_t *request) {
    static const struct {
        const char *name, *text;
    } times[] = {{"read", "the request on its way here"},
                 {"prepare", "reading, rendering, tokenising"},
                 {"queue", "waiting"},
                 {"restore", "bringing state back"},
                 {"prefill", "computing the prompt"},
                 {"decode", "computing the reply"},
                 {"beside", "of these two, computing other requests"},
                 {"unread", "of the reply's time, waiting for the client to take it"}};
    const json_t *divergence = json_object_get(request, "divergence");
    const json_t *reused = json_object_get(json_object_get(request, "tokens"), "reused");
    char remote[48] = "";
    if (json_integer_value(json_object_get(reused, "remote")) > 0) {
        (void)snprintf(remote, sizeof remote, ", %lld from the shared store",
                       json_integer_value(json_object_get(reused, "remote")));
    }
    print_request(request);
    (void)printf("\n%s ", text_of(request, "method"));
    (void)hearth_show_text(stdout, text_of(request, "endpoint"), 200); /* a client's own */
    (void)printf(", %s, key %s, class %s, model %s, status %d, end %s%s%s\n", text_of(request, "at"),
                 *text_of(request, "key") != '\0' ? text_of(request, "key") : "-", text_of(request, "class"),
                 text_of(request, "model"), (int)json_integer_value(json_object_get(request, "status")),
                 text_of(request, "end"), *text_of(request, "trace") != '\0' ? ", trace " : "",
                 text_of(request, "trace"));
    (void)printf("tokens: %.0f in the prompt; reused %lld live, %lld from RAM, %lld from disk%s; %.0f computed; "
                 "%.0f in the reply\n",
                 number_of(request, "tokens", "prompt"), json_integer_value(json_object_get(reused, "live")),
                 json_integer_value(json_object_get(reused, "ram")),
                 json_integer_value(json_object_get(reused, "disk")), remote, number_of(request, "tokens", "computed"),
                 number_of(request, "tokens", "generated"));
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (number_of(request, "ms", times[i].name) >= 1) {
            (void)printf("%12.1f ms  %s\n", number_of(request, "ms", times[i].name), times[i].text);
        }
    }
    if (json_is_object(divergence)) {
        (void)printf("the prompt left an earlier one at token %lld: %s (%s)\n",
                     json_integer_value(json_object_get(divergence, "token")), text_of(divergence, "cause"),
                     text_of(divergence, "cause_text"));
        if (json_object_get(divergence, "before") != NULL) {
            print_text("before:", text_of(divergence, "before"));
            print_text("now:", text_of(divergence, "after"));
        }
    }
}

static int show_one(struct hearth_client *client, const char *id, bool json) {
    char *path = hearth_client_path("/requests/", id, "");
    json_t *request = NULL;
    bool missing = false;
    int status = 1;
    if (path != NULL && hearth_client_json(client, path, NULL, &request, &missing) == CLIENT_DONE) {
        if (missing) {
            status =
                hearth_complain(1, "%s keeps no request %s (hearth why lists them)", hearth_client_url(client), id);
        } else if (json) {
            status = hearth_show_json(request);
            request = NULL;
        } else {
            print_details(request);
            status = 0;
        }
    }
    json_decref(request);
    free(path);
    return status;
}

/* ---- lists ---- */

/* What the server says at this path of the requests that the options select. NULL after a complaint. */
static json_t *read_selected(struct hearth_client *client, const char *at, const struct why_options *chosen,
                             enum client_outcome *outcome) {
    struct hearth_buf path = {0};
    json_t *answer = NULL;
    bool missing = false;
    bool ok = hearth_buf_printf(&path, "%s?limit=%d", at, KEPT_MOST);
    if (chosen->session != NULL) {
        ok = ok && hearth_buf_text(&path, "&session=") && hearth_client_escape(&path, chosen->session);
    }
    if (chosen->client != NULL) {
        ok = ok && hearth_buf_text(&path, "&client=") && hearth_client_escape(&path, chosen->client);
    }
    if (chosen->trace != NULL) {
        ok = ok && hearth_buf_printf(&path, "&trace=%s", chosen->trace);
    }
    *outcome = ok ? hearth_client_json(client, (const char *)path.data, NULL, &answer, &missing) : CLIENT_FAILED;
    if (*outcome == CLIENT_DONE && missing) {
        *outcome = CLIENT_FAILED;
        (void)hearth_complain(1, "%s is no hearth server, or an old one: it has no %s", hearth_client_url(client), at);
    }
    hearth_buf_finish(&path);
    return answer;
}

/* The last requests that the options select, the newest first. NULL after a complaint. */
static json_t *read_list(struct hearth_client *client, const struct why_options *chosen, enum client_outcome *outcome) {
    json_t *answer = read_selected(client, "/requests", chosen, outcome);
    json_t *list = json_incref(json_object_get(answer, "data"));
    json_decref(answer);
    return list;
}

static int costlier(const void *a, const void *b) {
    const double x = lost_ms(*(json_t *const *)a), y = lost_ms(*(json_t *const *)b);
    return (x < y) - (x > y);
}

/* "volatile_line in 9 of 10 requests: " and what to do. */
static void print_cause(const json_t *client) {
    const json_t *main = json_array_get(json_object_get(client, "causes"), 0);
    if (main == NULL || !is_loss(main)) {
        (void)fputs("nothing", stdout);
    } else {
        (void)hearth_show_text(stdout, text_of(main, "cause"), 32);
        (void)printf(" in %.0f of %.0f requests: ", json_number_value(json_object_get(main, "times")),
                     json_number_value(json_object_get(client, "requests")));
        (void)hearth_show_text(stdout, text_of(main, "advice"), 600);
    }
    (void)fputc('\n', stdout);
}

static struct hearth_shown seconds(double ms) {
    struct hearth_shown shown = {"-"};
    if (ms > 0) {
        (void)snprintf(shown.text, sizeof shown.text, "%.1f s", ms / 1000);
    }
    return shown;
}

/* Where there are several clients: what each of them lost, the costliest first. */
static void print_clients(const json_t *waste) {
    static const struct hearth_show_column columns[] = {
        {"CLIENT", true, 32}, {"LOST", false, 0}, {"TOKENS AGAIN", false, 0}, {"WAITED", false, 0}};
    const json_t *list = json_object_get(waste, "data"), *client;
    struct hearth_show_table table;
    size_t i;
    if (json_array_size(list) < 2) {
        return;
    }
    hearth_show_table_init(&table, columns, sizeof columns / sizeof columns[0], "  ");
    json_array_foreach(list, i, client) {
        const struct hearth_shown lost = seconds(json_number_value(json_object_get(client, "lost_ms"))),
                                  waited = seconds(json_number_value(json_object_get(client, "waited_ms"))),
                                  again = hearth_show_count(count_of(client, "again_tokens"));
        const char *name = text_of(client, "client");
        hearth_show_table_add(&table,
                              (const char *const[]){*name != '\0' ? name : "-", lost.text, again.text, waited.text});
    }
    (void)printf(
        "the last %.0f requests: of %s prompt tokens that were computed %s had been computed before (%.1f s)\n",
        json_number_value(json_object_get(waste, "requests")),
        hearth_show_count(count_of(waste, "computed_tokens")).text,
        hearth_show_count(count_of(waste, "again_tokens")).text,
        json_number_value(json_object_get(waste, "lost_ms")) / 1000);
    (void)hearth_show_table_head(&table, "MAIN CAUSE");
    for (i = 0; !table.nomem && i < json_array_size(list); i++) {
        (void)hearth_show_table_row(&table, i);
        print_cause(json_array_get(list, i));
    }
    (void)fputc('\n', stdout);
    (void)hearth_show_table_end(&table);
}

/* The slow ones of a list, the costliest first. */
static void print_slow(json_t *list, const struct why_options *chosen) {
    const int64_t slow_ms = chosen->slow_ms >= 0 ? chosen->slow_ms : SLOW_DEFAULT_MS;
    const size_t limit = (size_t)(chosen->limit >= 0 ? chosen->limit : LIMIT_DEFAULT);
    json_t **slow = calloc(json_array_size(list) + 1, sizeof *slow), *request;
    double longest = 0;
    size_t n = 0, i;
    json_array_foreach(list, i, request) {
        const double ttft = number_of(request, "ms", "ttft");
        longest = ttft > longest ? ttft : longest;
        if (slow != NULL && is_slow(request, slow_ms)) {
            slow[n++] = request;
        }
    }
    if (n == 0) {
        (void)printf("none of the last %zu requests was slow: the longest took %.1f s to its first token\n",
                     json_array_size(list), longest / 1000);
    } else {
        qsort(slow, n, sizeof *slow, costlier);
    }
    for (i = 0; i < n && i < limit; i++) {
        print_request(slow[i]);
    }
    if (n > limit) {
        (void)printf("and %zu more (--limit)\n", n - limit);
    }
    free(slow);
}

/* Prints those that were not there yet, the oldest first; `last` is the id of the newest that is known. */
static void print_new(const json_t *list, char last[64], bool first) {
    size_t fresh = 0;
    while (fresh < json_array_size(list) && strcmp(text_of(json_array_get(list, fresh), "id"), last) != 0) {
        fresh++;
    }
    for (size_t i = fresh; !first && i-- > 0;) {
        print_request(json_array_get(list, i));
    }
    if (json_array_size(list) > 0) {
        (void)snprintf(last, 64, "%s", text_of(json_array_get(list, 0), "id"));
    }
}

/* Until Ctrl-C. The server must answer the first time; later it may be away for a while. */
static int follow(struct hearth_client *client, const struct why_options *chosen) {
    struct pollfd wake = {.fd = hearth_interrupt_fd(), .events = POLLIN};
    char last[64] = "";
    for (bool first = true; !hearth_interrupted && fflush(stdout) == 0; first = false) {
        enum client_outcome outcome;
        json_t *list = read_list(client, chosen, &outcome);
        if (outcome == CLIENT_FAILED && first) {
            return 1;
        }
        print_new(list, last, first);
        json_decref(list);
        if (!hearth_interrupted) {
            (void)poll(&wake, 1, FOLLOW_MS);
        }
    }
    return 0;
}

/* Prints where the state of a session is now, and what it costs to come back. Nothing is printed where the server keeps
 * no session of that name. */
static void print_state(struct hearth_client *client, const char *session) {
    static const char *const places[][2] = {
        {"live", "in the engine"}, {"ram", "in RAM"}, {"disk", "on disk"}, {"remote", "in the shared store"}};
    char *path = hearth_client_path("/v1/sessions/", session, "/state");
    json_t *state = NULL;
    bool missing = false;
    if (path != NULL && hearth_client_json(client, path, NULL, &state, &missing) == CLIENT_DONE && !missing) {
        const double ms = json_number_value(json_object_get(state, "restore_ms")) +
                          json_number_value(json_object_get(state, "prefill_ms"));
        (void)printf("its state now:");
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            const double tokens = number_of(state, "there", places[i][0]);
            if (tokens > 0) {
                (void)printf(" %s tokens %s,", hearth_show_count((uint64_t)tokens).text, places[i][1]);
            }
        }
        (void)printf(" %s to be computed; to come back takes %.1f s\n",
                     hearth_show_count((uint64_t)json_integer_value(json_object_get(state, "computed"))).text,
                     ms / 1000);
    }
    json_decref(state);
    free(path);
}

static int list_slow(struct hearth_client *client, const struct why_options *chosen) {
    enum client_outcome outcome;
    json_t *list = read_list(client, chosen, &outcome);
    if (list != NULL && chosen->json) {
        return hearth_show_json(list);
    }
    json_t *waste = list != NULL ? read_selected(client, "/requests/clients", chosen, &outcome) : NULL;
    if (waste != NULL) {
        print_clients(waste);
        print_slow(list, chosen);
    }
    if (waste != NULL && chosen->session != NULL) {
        print_state(client, chosen->session);
    }
    json_decref(waste);
    json_decref(list);
    return outcome == CLIENT_FAILED;
}

static bool is_trace(const char *id) {
    return id != NULL && strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32;
}

/* What is kept of a trace, the oldest request first. */
static int show_trace(struct hearth_client *client, const struct why_options *chosen) {
    enum client_outcome outcome;
    json_t *list = read_list(client, chosen, &outcome);
    int status = outcome == CLIENT_FAILED;
    if (list != NULL && chosen->json) {
        return hearth_show_json(list);
    }
    if (list != NULL && json_array_size(list) == 0) {
        status = hearth_complain(1, "%s keeps no request of the trace %s", hearth_client_url(client), chosen->trace);
    }
    for (size_t i = json_array_size(list); status == 0 && i-- > 0;) {
        status = show_one(client, text_of(json_array_get(list, i), "id"), false);
        (void)fputs(i > 0 ? "\n" : "", stdout);
    }
    json_decref(list);
    return status;
}

static int run(const struct hearth_console_call *call, void *user) {
    struct why_options *chosen = user;
    const char *id = call->args[0];
    struct hearth_client *client;
    int status = hearth_client_create(&chosen->server, "--api-key", &client);
    if (status != 0) {
        return status;
    }
    chosen->trace = is_trace(id) ? id : NULL;
    status = is_trace(id)     ? show_trace(client, chosen)
             : id != NULL     ? show_one(client, id, chosen->json)
             : chosen->follow ? follow(client, chosen)
                              : list_slow(client, chosen);
    hearth_client_destroy(client);
    return status;
}

int hearth_client_why(int argc, char *const argv[]) {
    struct why_options chosen = {.limit = -1, .slow_ms = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, run);
}
