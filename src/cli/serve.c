/* `hearth serve`.
 *
 * Design. The rooms are created bottom-up (engine, disk, service, chat, API) into one struct and destroyed in the
 * opposite order, whatever stage was reached. The address is tried before the model is loaded, so that a port in use
 * is reported at once and not minutes later. Before that, the paths of the options are checked and created, and the
 * process is confined to them. This has to happen while the process has one thread, because threads inherit the
 * kernel's rules and do not share them.
 *
 * Signals. The handlers only count and post a semaphore; the main thread waits on it. SIGTERM and SIGINT end the
 * process at once while nothing is served yet, and from the second one on. SIGHUP makes the server read settings
 * again. SIGHUP also comes when the terminal closes in which the server was started; then the server ends, unless
 * nohup prevents it. */
#include "cli/commands.h"

#include "api/api.h"
#include "base/health.h"
#include "base/infile.h"
#include "base/prefault.h"
#include "base/spans.h"
#include "cache/cache.h"
#include "cache/policy.h"
#include "chat/chat.h"
#include "cli/banner.h"
#include "cli/keys.h"
#include "cli/serve_internal.h"
#include "console/show.h"
#include "console/version.h"
#include "engine/llama.h"
#include "http/server.h"
#include "publish/kv_events.h"
#include "sched/service.h"
#include "session/db_pg.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <malloc.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct server {
    const struct hearth_options *options;
    struct hearth_engine *engine;
    struct hearth_serve_disk disk;
    struct hearth_kv_events *events; /* NULL: none are published */
    struct hearth_service *service;
    struct hearth_chat *chat;
    struct hearth_api *api;
    struct hearth_buf template_text; /* of --chat-template-file */
    struct hearth_key_list keys;
    struct hearth_serve_live live;
    char *template_kwargs; /* JSON; NULL: none */
    char *model_name;
    size_t cache_bytes;
    struct hearth_seal *seal;           /* of the sessions; NULL: they are not encrypted */
    struct hearth_session_store *store; /* sessions; NULL: in memory */
    char *store_path;
    int trace_fd; /* of --trace, until the spans have it; -1: none */
};

/* ---------------------------------------------------------------------------------------------------- signals, log */

static sem_t signalled;
static atomic_int stops_seen;
static atomic_bool hangup_seen, serving;
static bool ends_with_terminal;

static void on_stop(int number) {
    if (!atomic_load(&serving) || atomic_fetch_add(&stops_seen, 1) > 0) {
        _exit(128 + number);
    }
    (void)sem_post(&signalled);
}

static void on_hangup(int number) {
    (void)number;
    atomic_store(&hangup_seen, true);
    (void)sem_post(&signalled);
}

static bool has_terminal(void) {
    const int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

/* While the model is loaded, what llama.cpp warns of is the cause of a failure that is about to be told in one line, or
 * of interest for debugging only. */
static void log_sink(void *user, enum hearth_log_level level, const char *line) {
    static const char llama[] = "llama.cpp: ";
    const bool quiet = !atomic_load(&serving) && hearth_log_lowest() != HEARTH_LOG_DEBUG;
    if (!quiet || strncmp(line, llama, sizeof(llama) - 1) != 0) {
        hearth_banner_log(user, level, line);
    }
}

/* What the command line and the environment are answered with. */
static void log_lines(enum hearth_log_level level, const struct hearth_buf *lines) {
    const char *line = (const char *)lines->data;
    for (size_t n; line && *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        hearth_log(level, "%.*s", (int)n, line);
    }
}

static void install_signals(void) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction hangup = {.sa_handler = on_hangup, .sa_flags = SA_RESTART}, before = {.sa_handler = SIG_DFL};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sem_init(&signalled, 0, 0);
    (void)sigaction(SIGTERM, &stop, NULL);
    (void)sigaction(SIGINT, &stop, NULL);
    (void)sigaction(SIGHUP, &hangup, &before);
    ends_with_terminal = before.sa_handler != SIG_IGN && has_terminal();
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

/* ---------------------------------------------------------------------------------------------------- memory */

/* What this machine, or the container the process runs in, has. */
static size_t physical_bytes(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    unsigned long long limit = 0;
    if (file && fscanf(file, "%llu", &limit) == 1 && limit < bytes) {
        bytes = (size_t)limit;
    }
    if (file) {
        (void)fclose(file);
    }
    return bytes;
}

static size_t mib(int64_t n) {
    return (size_t)n << 20;
}

/* ---------------------------------------------------------------------------------------------------- files */

static int read_keys(struct server *server, struct hearth_errmsg *msg) {
    const int err = hearth_key_list_read(server->options, &server->keys, msg);
    return err == HEARTH_OK ? hearth_serve_exposure_check(server->options, server->keys.count, msg) : err;
}

/* --alias, or the file's name without its ending. */
static int name_model(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    const char *path = options->model ? options->model : "sim";
    const char *slash = strrchr(path, '/');
    server->model_name = strdup(options->alias ? options->alias : slash ? slash + 1 : path);
    if (!server->model_name) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    const size_t len = strlen(server->model_name);
    if (!options->alias && len > 5 && strcmp(server->model_name + len - 5, ".gguf") == 0) {
        server->model_name[len - 5] = '\0';
    }
    return HEARTH_OK;
}

static int find_places(struct server *server, struct hearth_errmsg *msg) {
    const int err = hearth_serve_disk_prepare(server->options, &server->disk, msg);
    return err == HEARTH_OK ? hearth_serve_paths_sessions(server->options, &server->store_path, msg) : err;
}

/* The file of --trace, before paths are closed. */
static int open_trace(struct server *server, struct hearth_errmsg *msg) {
    const char *path = server->options->trace;
    server->trace_fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600) : -1;
    return !path || server->trace_fd >= 0
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_IO, "--trace: %s cannot be written: %s", path, strerror(errno));
}

static int begin_trace(struct server *server, struct hearth_errmsg *msg) {
    const uint32_t lanes = server->options->parallel > 0 ? (uint32_t)server->options->parallel : 4;
    return server->trace_fd >= 0
               ? hearth_spans_start(server->trace_fd, lanes, (uint64_t)server->options->trace_mib << 20, msg)
               : HEARTH_OK;
}

static int confine(struct server *server, struct hearth_errmsg *msg) {
    return hearth_serve_confine(server->options, server->disk.dir, server->store_path, msg);
}

/* ---------------------------------------------------------------------------------------------------- rooms */

static uint32_t u32(int64_t n) {
    return n < 0 ? 0 : (uint32_t)n;
}

static int create_engine(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    const int err = hearth_serve_engine_create(options, &server->engine, msg);
    (void)hearth_serve_paths_name("--lora", options->lora, err, msg);
    return hearth_serve_paths_name("--model", options->model, err, msg);
}

static int open_disk(struct server *server, struct hearth_errmsg *msg) {
    const size_t prefault_most = mib(512);
    server->cache_bytes = server->options->cache_ram < 0 ? physical_bytes() / 4 : mib(server->options->cache_ram);
    hearth_prefault_limit(server->cache_bytes / 8 < prefault_most ? server->cache_bytes / 8 : prefault_most);
    return hearth_serve_disk_open(server->options, &server->engine->caps, server->model_name, server->cache_bytes,
                                  &server->disk, msg);
}

/* A file that was named and cannot be used ends the start. Without the usual one the server serves, and says so. */
static int open_sessions(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    const int64_t day_us = (int64_t)24 * 3600 * 1000000;
    struct hearth_errmsg cause = {""};
    int err = options->kv_key ? hearth_seal_create(options->kv_key, &server->seal, msg) : HEARTH_OK;
    err = hearth_fail_of(msg, err, "--kv-key");
    if (err != HEARTH_OK || (options->session_db && strcmp(options->session_db, "none") == 0)) {
        return err;
    }
    const struct hearth_session_store_params memory = {.is_fallback = true};
    if (!server->store_path) { /* hearth_serve_paths_sessions() has said why */
        return hearth_session_store_create(&memory, &server->store, msg);
    }
    const struct hearth_session_store_params params = {.path = server->store_path,
                                                       .seal = server->seal,
                                                       .waits = true,
                                                       .model = server->engine->caps.fingerprint,
                                                       .place = server->disk.dir_name,
                                                       .ttl_us = options->session_ttl * day_us,
                                                       .grace_us = 7 * day_us};
    err = hearth_session_store_create(&params, &server->store, &cause);
    if (err != HEARTH_OK && !options->session_db && !options->kv_key && err != HEARTH_ERR_NOMEM) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                            "sessions: %s: they are kept in memory only, and those that may be there cannot be gone on "
                            "with (--session-db names another file, none is silent)",
                            cause.text);
        return hearth_session_store_create(&memory, &server->store, msg);
    }
    return err == HEARTH_OK ? err : hearth_fail(msg, err, "--session-db: %s", cause.text);
}

static enum hearth_speculate speculation(const char *word) {
    if (strcmp(word, "auto") == 0) {
        return HEARTH_SPECULATE_AUTO;
    }
    return strcmp(word, "on") == 0 ? HEARTH_SPECULATE_ON : HEARTH_SPECULATE_OFF;
}

static int create_events(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    if (!options->kv_events) {
        return HEARTH_OK;
    }
    const struct hearth_kv_events_params params = {.endpoint = options->kv_events,
                                                   .replay = options->kv_events_replay,
                                                   .topic = options->kv_events_topic ? options->kv_events_topic : "",
                                                   .page_tokens = (int32_t)options->page_tokens};
    return hearth_kv_events_create(&params, &server->events, msg);
}

static uint32_t snapshot_interval(const struct server *server) {
    const int64_t given = server->options->snapshot_interval;
    return given > 0 ? u32(given) : (uint32_t)hearth_cache_snapshot_interval(&server->engine->caps, 8192);
}

static int create_service(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    struct hearth_service_params params;
    hearth_service_params_default(&params);
    params.page_tokens = u32(options->page_tokens);
    params.cache_bytes = server->cache_bytes;
    params.snapshot_bytes = mib(options->cache_ram_snapshots);
    params.cache_share = (double)options->cache_share / 100;
    params.policy = strcmp(options->cache_policy, "lru") == 0 ? &hearth_policy_lru : &hearth_policy_returns;
    params.snapshot_interval_tokens = snapshot_interval(server);
    params.backing = server->disk.backing;
    params.backing_min_tokens = u32(options->kv_min_tokens);
    params.backing_interval_tokens = u32(options->kv_interval_tokens);
    params.observer = server->events ? hearth_kv_events_observer(server->events) : NULL;
    params.queue = u32(options->queue);
    params.min_decode_tps = options->min_decode_tps;
    params.speculate = speculation(options->speculate);
    params.draft_tokens = u32(options->draft_tokens);
    return hearth_service_create(server->engine, &params, &server->service, msg);
}

/* --reasoning and --reasoning-effort are arguments of the template with names of their own, and weaker than those that
 * --chat-template-kwargs names. What is no JSON object there is left to the API to complain of. */
static int make_kwargs(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    const char *text = options->chat_template_kwargs, *effort = options->reasoning_effort;
    json_t *all = text ? json_loads(text, 0, NULL) : json_object(), *own = json_object();
    bool ok = own != NULL;
    if (strcmp(options->reasoning, "auto") != 0) {
        const bool on = strcmp(options->reasoning, "on") == 0;
        ok = ok && json_object_set_new(own, "enable_thinking", json_boolean(on)) == 0;
    }
    if (effort && strcmp(effort, "default") != 0) {
        ok = ok && json_object_set_new(own, "reasoning_effort", json_string(effort)) == 0;
    }
    if (ok && json_is_object(all)) {
        ok = json_object_update_missing(all, own) == 0 && (server->template_kwargs = json_dumps(all, 0)) != NULL;
    } else if (ok && text) {
        ok = (server->template_kwargs = strdup(text)) != NULL;
    }
    json_decref(all);
    json_decref(own);
    return ok ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

static int read_template(struct server *server, struct hearth_errmsg *msg) {
    const char *path = server->options->chat_template_file;
    int err = hearth_infile_read(path, &server->template_text, msg);
    const char *text = (const char *)server->template_text.data;
    if (err == HEARTH_OK && text[strspn(text, " \t\r\n")] == '\0') {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s holds no template", path);
    }
    return hearth_fail_of(msg, err, "--chat-template-file");
}

static int create_chat(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    const struct hearth_caps *caps = &server->engine->caps;
    const char *text = options->chat_template ? options->chat_template : caps->chat_template;
    if (options->chat_template_file) {
        const int err = read_template(server, msg);
        if (err != HEARTH_OK) {
            return err;
        }
        text = (const char *)server->template_text.data;
    }
    if (!text) {
        hearth_log(HEARTH_LOG_INFO, "the model brings no chat template: using chatml");
    }
    const struct hearth_chat_params params = {
        .template_text = text, .bos_text = caps->bos_text, .eos_text = caps->eos_text, .add_bos = caps->add_bos};
    struct hearth_errmsg cause = {""};
    const int err = hearth_chat_create(&params, &server->chat, &cause);
    const char *from = options->chat_template_file ? options->chat_template_file
                       : options->chat_template    ? "of --chat-template"
                                                   : "of the model";
    if (err != HEARTH_OK) {
        (void)hearth_fail(msg, err, "the chat template %s cannot be used: %s", from, cause.text);
        return options->chat_template_file ? hearth_fail_of(msg, err, "--chat-template-file") : err;
    }
    const struct hearth_chat_abilities *abilities = hearth_chat_abilities(server->chat);
    if (abilities->failure) { /* no error: it may want arguments that requests bring */
        hearth_log(HEARTH_LOG_WARN, "the chat template %s fails on every prompt that was tried: %s", from,
                   abilities->failure);
    }
    if (!abilities->tools) {
        hearth_log(HEARTH_LOG_INFO,
                   "the chat template has no tools: hearth describes them itself (generic tool prompt)");
    }
    for (unsigned bit = 0; bit < HEARTH_CHAT_FORM_BITS; bit++) {
        if ((abilities->form >> bit & 1) != 0) {
            hearth_log(HEARTH_LOG_INFO, "the chat template is strict: %s", hearth_chat_form_help(bit));
        }
    }
    return HEARTH_OK;
}

static void fill_http(const struct hearth_options *options, struct hearth_http_params *params) {
    params->host = options->host;
    params->cors_origins = options->cors_origin.v;
    params->cors_origin_count = options->cors_origin.n;
    params->allow_hosts = options->allow_host.v;
    params->allow_host_count = options->allow_host.n;
    params->port = (uint16_t)options->port;
    params->body_bytes = mib(options->max_body);
    const size_t two = 2 * params->body_bytes;
    params->bodies_bytes = params->bodies_bytes > two ? params->bodies_bytes : two;
    params->connections = u32(options->max_connections);
    params->connections_per_address = u32(options->max_connections_per_address);
    params->unix_mode = (uint32_t)strtoul(options->host_mode, NULL, 8);
    params->tls_cert_path = options->ssl_cert_file;
    params->tls_key_path = options->ssl_key_file;
    params->body_us = options->timeout * 1000000;
    if (params->body_us < params->stall_us) {
        params->stall_us = params->body_us;
    }
}

static enum hearth_chat_reasoning_format reasoning_format(const char *name) {
    static const char *const names[] = {
#define X(format, text) text,
        HEARTH_REASONING_FORMAT_TABLE(X)
#undef X
    };
    size_t i = 0;
    while (strcmp(names[i], name) != 0) { /* the option lists the same words */
        i++;
    }
    return (enum hearth_chat_reasoning_format)i;
}

static void fill_chat(const struct server *server, struct hearth_api_params *params) {
    const struct hearth_options *options = server->options;
    const bool shared = hearth_db_is_pg(server->store_path); /* with the other boxes */
    params->keep_thinking = options->keep_thinking;
    params->idle_tokens = (uint32_t)options->idle_compute;
    params->idle_on_battery = options->idle_on_battery;
    params->allow_control_tokens = options->allow_control_tokens;
    params->strict_content = options->strict_content;
    params->strip_lines = options->strip_line.v;
    params->strip_line_count = options->strip_line.n;
    params->strip_paragraphs = options->strip_paragraph.v;
    params->strip_paragraph_count = options->strip_paragraph.n;
    params->transcript_bytes = (size_t)options->transcript_bytes;
    params->transcripts_path = shared ? server->store_path : server->disk.transcripts;
    params->transcripts_seal = shared ? server->seal : server->disk.seal;
    params->reasoning_format = reasoning_format(options->reasoning_format);
    params->reasoning_budget = (int32_t)options->reasoning_budget;
    params->reasoning_budget_message = options->reasoning_budget_message;
    params->script_path = options->script;
}

static void fill_sampling(const struct hearth_options *options, struct hearth_sampling *sampling) {
    sampling->temperature = (float)options->temp;
    sampling->top_k = (int32_t)options->top_k;
    sampling->top_p = (float)options->top_p;
    sampling->min_p = (float)options->min_p;
    sampling->typical_p = (float)options->typical;
    sampling->penalty_last_tokens = (int32_t)options->repeat_last_n;
    sampling->penalty_repeat = (float)options->repeat_penalty;
    sampling->penalty_presence = (float)options->presence_penalty;
    sampling->penalty_frequency = (float)options->frequency_penalty;
    sampling->ignore_eos = options->ignore_eos;
    sampling->top_n_sigma = (float)options->top_n_sigma;
    sampling->xtc_probability = (float)options->xtc_probability;
    sampling->xtc_threshold = (float)options->xtc_threshold;
    sampling->dynatemp_range = (float)options->dynatemp_range;
    sampling->dynatemp_exponent = (float)options->dynatemp_exp;
    sampling->dry_multiplier = (float)options->dry_multiplier;
    sampling->dry_base = (float)options->dry_base;
    sampling->dry_allowed_length = (int32_t)options->dry_allowed_length;
    sampling->dry_last_tokens = (int32_t)options->dry_penalty_last_n;
    sampling->seed = options->seed < 0 ? HEARTH_SEED_RANDOM : (uint32_t)options->seed;
}

/* Options that were not given are what the model's file recommends, where it does. */
static void recommend_sampling(const struct server *server, struct hearth_sampling *sampling) {
    const struct hearth_options *options = server->options;
    struct hearth_sampling wanted = *sampling;
    hearth_llama_recommended(server->engine, &wanted);
#define TAKE(option, field)                                                                                         \
    if (hearth_option_is_preset(options, option) && wanted.field != sampling->field) {                              \
        hearth_log(HEARTH_LOG_INFO, "%s is %.3g, which the model's file recommends", option, (double)wanted.field); \
        sampling->field = wanted.field;                                                                             \
    }
    TAKE("--temp", temperature)
    TAKE("--top-k", top_k)
    TAKE("--top-p", top_p)
    TAKE("--min-p", min_p)
    TAKE("--xtc-probability", xtc_probability)
    TAKE("--xtc-threshold", xtc_threshold)
    TAKE("--repeat-last-n", penalty_last_tokens)
    TAKE("--repeat-penalty", penalty_repeat)
#undef TAKE
}

static int create_api(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    struct hearth_api_params params;
    hearth_api_params_default(&params);
    fill_http(options, &params.http);
    params.engine = server->engine;
    params.chat = server->chat;
    params.service = server->service;
    params.disk = server->disk.local;
    params.remote = server->disk.remote;
    params.kv_events = server->events;
    params.store = server->store;
    params.keys = server->keys.keys;
    params.key_count = server->keys.count;
    params.request_timeout_us = (int64_t)(options->request_timeout * 1e6);
    params.prepare_timeout_us = (int64_t)(options->prepare_timeout * 1e6);
    params.speculates = strcmp(options->speculate, "off") != 0;
    params.model_path = options->model ? options->model : "sim";
    params.lora_path = options->lora;
    params.lora_scale = options->lora_scale;
    params.alias = server->model_name;
    params.version = "hearth " HEARTH_VERSION;
    params.lanes = server->engine->caps.lanes;
    fill_sampling(options, &params.sampling);
    if (strcmp(options->engine, "sim") != 0) {
        recommend_sampling(server, &params.sampling);
    }
    params.max_tokens = (int32_t)options->predict;
    params.metrics = options->metrics;
    params.slots = options->slots;
    params.ui = strcmp(options->ui, "off") != 0;
    params.keep_requests = (size_t)options->keep_requests;
    params.keep_texts = options->keep_texts;
    params.snapshot_interval = snapshot_interval(server);
    params.cache_bytes = server->cache_bytes;
    params.page_tokens = (int32_t)server->options->page_tokens;
    fill_chat(server, &params);
    params.template_kwargs = server->template_kwargs;
    const int err = hearth_api_create(&params, &server->api, msg);
    return hearth_serve_paths_name("--script", options->script, err, msg);
}

/* Binds the address once and gives it back. */
static int try_address(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_options *options = server->options;
    struct hearth_http_params params;
    struct hearth_http_server *http = NULL;
    if ((options->ssl_cert_file == NULL) != (options->ssl_key_file == NULL)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "--ssl-%s-file is given without --ssl-%s-file: TLS needs both",
                           options->ssl_cert_file ? "cert" : "key", options->ssl_cert_file ? "key" : "cert");
    }
    hearth_http_params_default(&params);
    fill_http(options, &params);
    const int err = hearth_http_create(&params, NULL, &http, msg);
    hearth_http_destroy(http);
    (void)hearth_serve_paths_name("--ssl-key-file", options->ssl_key_file, err, msg);
    return hearth_serve_paths_name("--ssl-cert-file", options->ssl_cert_file, err, msg);
}

/* ---------------------------------------------------------------------------------------------------- life */

/* Says which options have no effect, once all is known that it depends on. */
static int warn_of_options(struct server *server, struct hearth_errmsg *msg) {
    const struct hearth_caps *caps = &server->engine->caps;
    const bool computes = strcmp(server->options->engine, "sim") != 0;
    const struct hearth_option_facts facts = {.computes = computes,
                                              .gpus = computes ? hearth_llama_gpus() : 0,
                                              .pages = hearth_caps_has_pages(caps),
                                              .snapshots = hearth_caps_needs_snapshot(caps),
                                              .disk = server->disk.local != NULL,
                                              .local = hearth_serve_exposure_is_local(server->options->host),
                                              .sessions = server->store != NULL};
    struct hearth_buf lines = {0};
    const bool ok = hearth_options_moot(server->options, &facts, &lines);
    log_lines(HEARTH_LOG_WARN, &lines);
    hearth_buf_finish(&lines);
    return ok ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

/* From the first request on a signal ends the server in good order. */
static int obey_signals(struct server *server, struct hearth_errmsg *msg) {
    (void)server;
    (void)msg;
    atomic_store(&serving, true);
    return HEARTH_OK;
}

static int start(struct server *server, struct hearth_errmsg *msg) {
    int (*const stages[])(struct server *, struct hearth_errmsg *) = {
        read_keys,      try_address,   name_model,   find_places,   open_trace,      confine,
        begin_trace,    create_engine, open_disk,    open_sessions, warn_of_options, create_events,
        create_service, create_chat,   obey_signals, make_kwargs,   create_api};
    int err = hearth_serve_paths_check(server->options, msg);
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]) && err == HEARTH_OK; i++) {
        err = stages[i](server, msg);
        if (err != HEARTH_OK && msg->text[0] == '\0') {
            (void)hearth_fail(msg, err, "%s", hearth_err_text(err));
        }
    }
    return err;
}

static void finish(struct server *server) {
    hearth_api_destroy(server->api);
    hearth_service_destroy(server->service);
    hearth_kv_events_destroy(server->events);
    hearth_serve_disk_close(&server->disk);
    hearth_session_store_destroy(server->store);
    hearth_seal_destroy(server->seal);
    hearth_chat_destroy(server->chat);
    if (server->engine) {
        server->engine->ops->destroy(server->engine);
    }
    hearth_spans_stop();
    hearth_buf_finish(&server->template_text);
    hearth_key_list_finish(&server->keys);
    hearth_serve_live_finish(&server->live);
    free(server->template_kwargs);
    free(server->model_name);
    free(server->store_path);
}

static uint64_t disk_budget(const struct server *server) {
    struct hearth_backing_stats stats = {0};
    if (server->disk.local) {
        server->disk.local->ops->stats(server->disk.local, &stats);
    }
    return stats.budget_bytes;
}

static void print_banner(const struct server *server) {
    const struct hearth_options *options = server->options;
    const struct hearth_banner banner = {.caps = &server->engine->caps,
                                         .model_name = server->model_name,
                                         .host = options->host,
                                         .port = hearth_api_port(server->api),
                                         .tls = options->ssl_cert_file != NULL,
                                         .cert_path = options->ssl_cert_file,
                                         .cache_bytes = server->cache_bytes,
                                         .disk_dir = server->disk.dir,
                                         .disk_bytes = disk_budget(server),
                                         .is_local = hearth_serve_exposure_is_local(options->host),
                                         .needs_key = server->keys.count > 0,
                                         .hello = options->hello || isatty(STDOUT_FILENO) == 1};
    hearth_banner_print(&banner);
}

/* Waits for the signal to stop, and reads settings again meanwhile. */
static void serve_until_stopped(struct hearth_serve_live *live) {
    while (atomic_load(&stops_seen) == 0) {
        while (sem_wait(&signalled) != 0) {
        }
        if (!atomic_exchange(&hangup_seen, false)) {
            continue;
        }
        if (ends_with_terminal && !has_terminal()) {
            hearth_log(HEARTH_LOG_INFO, "the terminal has gone");
            return;
        }
        hearth_serve_live_reload(live);
    }
}

int hearth_cli_serve(const struct hearth_options *options, int argc, char *const argv[]) {
    struct server server = {.options = options};
    struct hearth_errmsg msg = {""};
    int status = 0;
#ifdef __GLIBC__
    /* Pages and snapshots are larger than this: what is evicted goes back to the system. */
    (void)mallopt(M_MMAP_THRESHOLD, 256 * 1024);
#endif
    hearth_log_set(log_sink, NULL, hearth_serve_log_level(options->log_level));
    log_lines(HEARTH_LOG_INFO, &options->notes);
    log_lines(HEARTH_LOG_WARN, &options->warnings);
    install_signals();
    if (start(&server, &msg) != HEARTH_OK) {
        status = hearth_complain(1, "%s", msg.text);
    } else {
        print_banner(&server);
        server.live = (struct hearth_serve_live){.argc = argc,
                                                 .argv = argv,
                                                 .options = options,
                                                 .api = server.api,
                                                 .service = server.service,
                                                 .key_count = server.keys.count};
        serve_until_stopped(&server.live);
        hearth_log(HEARTH_LOG_INFO, "stopping: running requests have %lld s", (long long)options->grace);
        hearth_api_shutdown(server.api, options->grace * 1000000);
    }
    finish(&server);
    return status;
}
