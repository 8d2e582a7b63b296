/* Design. Log lines and progress go to stderr, what a user reads or a script waits for goes to stdout and is flushed at
 * once. The snippets are complete commands for a shell: nothing in them has to be filled in, except that a server with
 * keys cannot print one and names the variable it is expected in. */
#include "cli/banner.h"

#include "console/version.h"
#include "http/origin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void hearth_banner_log(void *user, enum hearth_log_level level, const char *line) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct timespec now;
    struct tm local;
    char when[32];
    (void)user;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)localtime_r(&now.tv_sec, &local);
    (void)strftime(when, sizeof(when), "%H:%M:%S", &local);
    /* One call, so that lines of several threads do not mix. */
    (void)fprintf(stderr, "%s.%03ld %-5s %s\n", when, now.tv_nsec / 1000000, names[level], line);
}

void hearth_progress_show(void *user, float fraction) {
    struct hearth_progress *progress = user;
    const int percent = (int)(fraction * 100.0F);
    const bool tty = isatty(STDERR_FILENO) == 1;
    if (!progress->begun) {
        progress->begun = true;
        (void)fputs(tty ? "" : "hearth: loading ", stderr);
    } else if (percent < progress->shown + (tty ? 1 : 10)) {
        return;
    }
    progress->shown = tty ? percent : percent / 10 * 10;
    if (tty) {
        (void)fprintf(stderr, "\rhearth: loading %3d %%", percent);
    } else {
        (void)fputc('.', stderr);
    }
    (void)fflush(stderr);
}

void hearth_progress_end(struct hearth_progress *progress) {
    if (progress->begun) {
        (void)fputc('\n', stderr);
    }
    *progress = (struct hearth_progress){0};
}

static void print_url(char *out, size_t cap, const struct hearth_banner *banner, const char *host) {
    if (banner->port == 0) { /* a socket in the file system */
        (void)snprintf(out, cap, "%s", host);
        return;
    }
    const char *open = strchr(host, ':') ? "[" : "";
    (void)snprintf(out, cap, "http%s://%s%s%s:%u", banner->tls ? "s" : "", open, host, *open ? "]" : "",
                   (unsigned)banner->port);
}

/* What curl is told besides the address: the socket, and the certificate to trust. */
static void print_curl(const struct hearth_banner *banner, const char *url) {
    if (banner->port == 0) {
        printf("curl --unix-socket '%s' http%s://localhost", url + strlen("unix:"), banner->tls ? "s" : "");
    } else {
        printf("curl %s", url);
    }
}

static void print_hello(const struct hearth_banner *banner, const char *url) {
    static const char *const question = "Hello! Who are you?";
    printf("\nTry it from another shell:\n\n");
    print_curl(banner, url);
    printf(
        "/v1/chat/completions%s%s%s%s -H 'Content-Type: application/json' \\\n"
        "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}], \"temperature\": 0, \"max_tokens\": 32}'\n",
        banner->tls ? " --cacert '" : "", banner->tls ? banner->cert_path : "", banner->tls ? "'" : "",
        banner->needs_key ? " -H \"Authorization: Bearer $HEARTH_API_KEY\"" : "", question);
    if (banner->tls || banner->port == 0) {
        printf("\n");
        return;
    }
    printf("\nOr with the OpenAI SDK:\n\n"
           "python3 -m venv /tmp/openai-sdk && /tmp/openai-sdk/bin/pip install --quiet openai &&\n"
           "/tmp/openai-sdk/bin/python - <<'EOF'\n"
           "import os\n"
           "from openai import OpenAI\n"
           "client = OpenAI(base_url=\"%s/v1\", api_key=os.environ.get(\"HEARTH_API_KEY\", \"none\"))\n"
           "messages = [{\"role\": \"user\", \"content\": \"%s\"}]\n"
           "reply = client.chat.completions.create(model=\"%s\", messages=messages, temperature=0, max_tokens=32)\n"
           "print(reply.choices[0].message.content)\n"
           "EOF\n\n",
           url, question, banner->model_name);
}

/* The fewest first. What agents need to start and to take a few turns: their first prompt (README.md names them) with
 * room for replies and results of tools, or the context that they ask for. */
static const struct {
    const char *name;
    uint32_t least_tokens;
} agents[] = {{"Codex", 16384}, {"Claude Code", 24576}, {"Hermes", 64000}};

#define AGENTS (sizeof(agents) / sizeof(agents[0]))

bool hearth_banner_fit(uint32_t ctx_tokens, uint32_t train_ctx_tokens, struct hearth_buf *out) {
    const bool able = train_ctx_tokens >= agents[AGENTS - 1].least_tokens;
    size_t fit = 0;
    while (fit < AGENTS && ctx_tokens >= agents[fit].least_tokens) {
        fit++;
    }
    if (fit == AGENTS) {
        return able ||
               hearth_buf_text(out, "agents can start, but the model was trained with less than they send: give "
                                    "another one for useful replies (-m FILE)");
    }
    bool ok = hearth_buf_text(out, "too small for ");
    for (size_t i = fit; i < AGENTS && ok; i++) {
        const char *comma = i + 1 == AGENTS ? "" : i + 2 == AGENTS ? " and " : ", ";
        ok = hearth_buf_printf(out, "%s (%u)%s", agents[i].name, (unsigned)agents[i].least_tokens, comma);
    }
    return ok && hearth_buf_text(out, able ? ": give -c 64k"
                                           : ": give -c 64k, and a model that was trained with as much (-m FILE)");
}

static void print_fit(const struct hearth_caps *caps) {
    struct hearth_buf text = {0};
    if (hearth_banner_fit(caps->ctx_tokens, caps->train_ctx_tokens, &text) && text.len > 0) {
        printf("           %s\n", (const char *)text.data);
    }
    hearth_buf_finish(&text);
}

void hearth_banner_print(const struct hearth_banner *banner) {
    const struct hearth_caps *caps = banner->caps;
    char url[320];
    print_url(url, sizeof(url), banner, banner->host);
    printf("hearth %s is listening on %s%s%s\n", HEARTH_VERSION, url,
           hearth_http_host_is_everywhere(banner->host) ? " (every address of this machine)" : "",
           banner->needs_key || banner->is_local ? "" : ", without a key");
    printf("  model    %s (%s)\n", banner->model_name, caps->description);
    printf("  context  %u tokens (trained with %u), %u lanes\n", caps->ctx_tokens, caps->train_ctx_tokens, caps->lanes);
    print_fit(caps);
    printf("  memory   %s", hearth_engine_class_text(caps->memory_class));
    if (hearth_caps_has_pages(caps)) {
        printf(", %.1f KiB a token", (double)caps->page_bytes_per_token / 1024.0);
    }
    if (hearth_caps_needs_snapshot(caps)) {
        printf(", %.1f MiB a snapshot", (double)caps->snapshot_bytes / (1024.0 * 1024.0));
    }
    if (!caps->cache_ok) {
        printf("\n  cache    off: this model failed the self-test of state export and import\n");
    } else if (banner->cache_bytes == 0) {
        printf("\n  cache    off\n");
    } else {
        printf("\n  cache    %zu MiB of RAM\n", banner->cache_bytes >> 20);
    }
    if (banner->disk_dir) {
        const char *home = getenv("HOME");
        const size_t n = home ? strlen(home) : 0; /* paths below it as shells print them */
        const bool below = n > 1 && strncmp(banner->disk_dir, home, n) == 0 && banner->disk_dir[n] == '/';
        printf("  disk     %s%s, %llu MiB budget\n", below ? "~" : "", banner->disk_dir + (below ? n : 0),
               (unsigned long long)(banner->disk_bytes >> 20));
    } else {
        printf("  disk     off\n");
    }
    if (banner->hello) {
        print_url(url, sizeof(url), banner, hearth_http_host_is_everywhere(banner->host) ? "127.0.0.1" : banner->host);
        print_hello(banner, url);
    }
    (void)fflush(stdout);
}
