/* `hearth replay`: what each policy would compute of a trace (src/replay), as a table, a picture or JSON.
 *
 * --cache-tokens gives what RAM may hold as tokens of the model's shape. */
#include "cli/commands.h"

#include "cli/replay_fleet.h"
#include "cli/replay_print.h"
#include "cli/replay_values.h"
#include "console/show.h"
#include "console/tool.h"
#include "tier/record.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct replay_options {
    const char *policy, *ram, *cache_tokens, *shape, *part, *token_bytes, *svg;
    const char *import, *disk, *disk_read, *disk_write;
    int64_t concurrency, prefill, conversations, parallel, share, page_tokens;
    bool json;
    struct replay_fleet_options fleet;
};

static const struct hearth_console_command commands[] = {
    {"", "TRACE…", "what a cache would have computed of recorded requests, by policy", 1, 1, HEARTH_CONSOLE_MANY},
};

#define OPTION_AT(member) offsetof(struct replay_options, member)

static const struct hearth_console_option options[] = {
    {"--policy", "NAME", "only this one [all]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(policy)},
    {"--ram", "SIZE", "state that RAM may hold, as 64G [of a recording: the server's; else 16G]", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(ram)},
    {"--disk", "SIZE", "state that a disk may hold besides, as 400G; with --cache-tokens a part of it [none]", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(disk)},
    {"--disk-read", "RATE", "bytes a second that are read from it [2g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(disk_read)},
    {"--disk-write", "RATE", "and written [1g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(disk_write)},
    {"--cache-share", "PERCENT", "of RAM, that one key may hold while others want it, as the server's [75]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(share)},
    {"--cache-tokens", "N", "instead: tokens of state that may be held in all, as 600k", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(cache_tokens)},
    {"--model-shape", "SHAPE",
     "pages; hybrid:BYTES, with snapshots of so many; window:N, with a window of N tokens "
     "[the server's, or pages]",
     1, HEARTH_CONSOLE_TEXT, OPTION_AT(shape)},
    {"--token-bytes", "SIZE", "state of a token in pages [the server's, or 96k]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(token_bytes)},
    {"--page-tokens", "N", "tokens of a page, up to 65536 [the server's, or 256]", 1, HEARTH_CONSOLE_NUMBER,
     OPTION_AT(page_tokens)},
    {"--prefill", "N", "tokens that are computed in a second [2000]", 1, HEARTH_CONSOLE_NUMBER, OPTION_AT(prefill)},
    {"--import", "RATE", "bytes a second from RAM to the model [10g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(import)},
    {"--parallel", "N", "lanes that keep the state of their last prompt; 0: none does [the server's, or 0]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(parallel)},
    {"--concurrency", "N", "sessions at once, for each box; the next starts when one ends [20]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(concurrency)},
    {"--conversations", "N", "so many sessions: more than there are come again as others with the same heads", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(conversations)},
    {"--part", "K/N", "only sessions K, K + N, K + 2N, … [0/1]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(part)},
    {"--boxes", "N,…", "over so many boxes; several numbers: one run each", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.boxes)},
    {"--router", "NAME,…", "with --boxes: affinity, least-loaded, prefix or random [affinity]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.router)},
    {"--remote", "SPEC", "with --boxes: a store that they share, as rate=10gbit,latency=200us,size=1t (or default)", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(fleet.remote)},
    {"--network", "RATE", "with --boxes: of each box, in each direction [10gbit]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.network)},
    {"--lose", "WHAT@TIME,…", "with --boxes: box@1h, box3@1h+10m, store@1h: gone since then, for so long", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(fleet.lose)},
    {"--svg", "FILE", "draw it, too", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(svg)},
    {"--json", "", "output for programs", 1, HEARTH_CONSOLE_SWITCH, OPTION_AT(json)},
};

static const struct hearth_console_tool tool =
    HEARTH_CONSOLE_TOOL("replay", "The lab for what is kept: no model is needed.", commands, options);

/* ---- values ---- */

static bool read_bytes(const char *name, const char *text, uint64_t *out) {
    if (text && !hearth_lab_size(text, 1024, out)) {
        (void)hearth_complain(1, "%s: '%s' is not a size such as 64M or 2G", name, text);
        return false;
    }
    return true;
}

static bool read_rate(const char *name, const char *text, double *out) {
    if (text && !hearth_lab_rate(text, out)) {
        (void)hearth_complain(1, "%s: '%s' is not a rate such as 2g", name, text);
        return false;
    }
    return true;
}

static bool read_shape(const char *text, struct hearth_replay_params *params) {
    uint64_t value = 0;
    if (!text || strcmp(text, "pages") == 0) {
        return true;
    }
    if (strncmp(text, "hybrid:", 7) == 0 && hearth_lab_size(text + 7, 1024, &value) && value > 0) {
        params->snapshot_bytes = value;
        return true;
    }
    if (strncmp(text, "window:", 7) == 0 && hearth_lab_size(text + 7, 1000, &value) && value > 0) {
        params->snapshot_bytes = value * params->token_bytes;
        return true;
    }
    (void)hearth_complain(1, "--model-shape: '%s' is not pages, hybrid:BYTES or window:N", text);
    return false;
}

static bool read_part(const char *text, struct hearth_trace_choice *choice) {
    char *end;
    if (!text) {
        return true;
    }
    unsigned long part = strtoul(text, &end, 10), of = *end == '/' ? strtoul(end + 1, &end, 10) : 0;
    if (*end || of < 1 || of > UINT32_MAX || part >= of) {
        (void)hearth_complain(1, "--part: '%s' is not K/N with K below N, such as 0/2", text);
        return false;
    }
    *choice =
        (struct hearth_trace_choice){.part = (uint32_t)part, .of = (uint32_t)of, .concurrency = choice->concurrency};
    return true;
}

/* What the recorded server had, where nothing else is asked for. */
static void take_server(const struct hearth_trace *trace, const struct replay_options *chosen,
                        struct hearth_replay_params *params) {
    const struct hearth_trace_server *server = &trace->server;
    if (!server->known) {
        return;
    }
    params->page_tokens = chosen->page_tokens > 0 ? params->page_tokens : server->page_tokens;
    params->export_bytes_per_s = params->import_bytes_per_s;
    params->lanes = chosen->parallel >= 0 ? params->lanes : server->lanes;
    params->token_bytes = chosen->token_bytes ? params->token_bytes : server->token_bytes;
    params->snapshot_bytes = chosen->shape ? params->snapshot_bytes : server->snapshot_bytes;
    params->ram_bytes = chosen->ram || chosen->cache_tokens ? params->ram_bytes : server->ram_bytes;
}

/* False after a complaint. */
static bool read_options(const struct replay_options *chosen, struct hearth_replay_params *params,
                         struct hearth_trace_choice *choice) {
    uint64_t token_bytes = 96 << 10, tokens = 0;
    *params =
        (struct hearth_replay_params){.ram_bytes = UINT64_C(16) << 30,
                                      .prefill_tokens_per_s = chosen->prefill > 0 ? (double)chosen->prefill : 2000,
                                      .import_bytes_per_s = 10e9,
                                      .disk_read_bytes_per_s = 2e9,
                                      .disk_write_bytes_per_s = 1e9};
    *choice = (struct hearth_trace_choice){.of = 1, .concurrency = 20};
    if (chosen->concurrency > 100000 || chosen->concurrency == 0) {
        (void)hearth_complain(1, "--concurrency is between 1 and 100000");
        return false;
    }
    choice->sessions = chosen->conversations > 0 ? (uint64_t)chosen->conversations : 0;
    choice->concurrency = chosen->concurrency > 0 ? (uint32_t)chosen->concurrency : choice->concurrency;
    bool ok = read_bytes("--token-bytes", chosen->token_bytes, &token_bytes) &&
              read_bytes("--ram", chosen->ram, &params->ram_bytes) && read_part(chosen->part, choice) &&
              read_bytes("--disk", chosen->disk, &params->disk_bytes) &&
              read_rate("--disk-read", chosen->disk_read, &params->disk_read_bytes_per_s) &&
              read_rate("--disk-write", chosen->disk_write, &params->disk_write_bytes_per_s) &&
              read_rate("--import", chosen->import, &params->import_bytes_per_s);
    params->token_bytes = token_bytes;
    if (chosen->parallel > 64) {
        (void)hearth_complain(1, "--parallel is between 0 and 64");
        return false;
    }
    if (chosen->page_tokens == 0 || chosen->page_tokens > HEARTH_RECORD_TOKENS_MAX) {
        (void)hearth_complain(1, "--page-tokens is between 1 and %d", HEARTH_RECORD_TOKENS_MAX);
        return false;
    }
    params->page_tokens = chosen->page_tokens > 0 ? (int32_t)chosen->page_tokens : 0;
    if (chosen->share == 0 || chosen->share > 100) {
        (void)hearth_complain(1, "--cache-share is between 1 and 100");
        return false;
    }
    params->share = chosen->share > 0 ? (double)chosen->share / 100 : 0.75;
    params->lanes = chosen->parallel > 0 ? (uint32_t)chosen->parallel : 0;
    if (!ok || !read_shape(chosen->shape, params)) {
        return false;
    }
    if (chosen->cache_tokens && !hearth_lab_size(chosen->cache_tokens, 1000, &tokens)) {
        (void)hearth_complain(1, "--cache-tokens: '%s' is not a number such as 600k", chosen->cache_tokens);
        return false;
    }
    if (chosen->cache_tokens) {
        params->ram_bytes = hearth_replay_bytes(params, tokens);
        if (params->ram_bytes <= params->disk_bytes) {
            (void)hearth_complain(1, "--cache-tokens: the disk alone holds more, which leaves nothing to RAM");
            return false;
        }
        params->ram_bytes -= params->disk_bytes;
    }
    return true;
}

/* ---- the command ---- */

static int replay(const struct replay_options *chosen, struct hearth_replay_params *params,
                  const struct hearth_trace *trace) {
    struct hearth_errmsg msg = {""};
    struct replay_report report = {.trace = trace, .params = params};
    take_server(trace, chosen, params);
    if (hearth_oracle_make(trace, &report.oracle, &msg)) {
        return hearth_complain(1, "%s", msg.text);
    }
    int status = 0;
    for (size_t i = 0; status == 0 && hearth_replay_policies[i]; i++) {
        if (chosen->policy && strcmp(chosen->policy, hearth_replay_policies[i]->name) != 0) {
            continue;
        }
        struct replay_row *row = &report.rows[report.row_count++];
        row->name = hearth_replay_policies[i]->name;
        params->policy = hearth_replay_policies[i];
        if (hearth_replay_run(trace, &report.oracle, params, &row->result, &msg)) {
            status = hearth_complain(1, "%s", msg.text);
        }
    }
    if (status == 0 && report.row_count == 0) {
        status = hearth_complain(HEARTH_CONSOLE_USAGE, "--policy: there is no '%s'", chosen->policy);
    }
    if (status == 0) {
        report.belady = hearth_replay_bound(trace, &report.oracle, params);
        status = chosen->json ? hearth_lab_print_json(&report) : hearth_lab_print_table(&report);
    }
    if (status == 0 && chosen->svg) {
        status = hearth_lab_print_svg(&report, chosen->svg);
    }
    hearth_oracle_finish(&report.oracle);
    return status;
}

/* The policy of that name; NULL: the server's. False: there is none. */
static bool find_policy(const char *name, const struct hearth_policy **out) {
    size_t i = 0;
    while (name && hearth_replay_policies[i] && strcmp(name, hearth_replay_policies[i]->name) != 0) {
        i++;
    }
    *out = hearth_replay_policies[i];
    return *out != NULL;
}

static int replay_fleet(const struct replay_options *chosen, struct hearth_replay_params *params,
                        const struct hearth_trace_choice *choice, const struct hearth_console_call *call) {
    if (!find_policy(chosen->policy, &params->policy)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--policy: there is no '%s'", chosen->policy);
    }
    if (chosen->svg) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--svg: there is no picture of several boxes");
    }
    if (chosen->disk) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--disk: several boxes have a store (--remote) and no disks");
    }
    return hearth_lab_fleet(&chosen->fleet, params, choice, call->args, (size_t)call->arg_count, chosen->json);
}

static int run(const struct hearth_console_call *call, void *user) {
    const struct replay_options *chosen = user;
    const struct replay_fleet_options *fleet = &chosen->fleet;
    struct hearth_replay_params params;
    struct hearth_trace_choice choice;
    struct hearth_trace trace = {0};
    struct hearth_errmsg msg = {""};
    if (!fleet->boxes && (fleet->router || fleet->remote || fleet->network || fleet->lose)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--router, --remote, --network and --lose need --boxes");
    }
    if (!read_options(chosen, &params, &choice)) {
        return HEARTH_CONSOLE_USAGE;
    }
    if (fleet->boxes) {
        return replay_fleet(chosen, &params, &choice, call);
    }
    const int status = hearth_trace_read(call->args, (size_t)call->arg_count, &choice, &trace, &msg) == HEARTH_OK
                           ? replay(chosen, &params, &trace)
                           : hearth_complain(1, "%s", msg.text);
    hearth_trace_finish(&trace);
    return status;
}

int hearth_cli_replay(int argc, char *const argv[]) {
    struct replay_options chosen = {.concurrency = -1, .prefill = -1, .parallel = -1, .share = -1, .page_tokens = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, run);
}
