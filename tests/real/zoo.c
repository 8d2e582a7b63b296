/* The proof of export and import on every architecture.
 *
 *   zoo DIR     DIR holds the files that llama.cpp's `test-llama-archs -o DIR` writes: one small model with random
 *               weights per architecture
 *
 * Each model runs in a process of its own, so that a crash is a result like any other. A model passes when
 *   - its logits after export, clear and import are those before, to the bit, whole and (where its class can) from part
 *     of its pages with a snapshot taken on the way, or
 *   - hearth refuses to serve it and says why (docs/models.md has the table).
 * Anything else fails: another logit, an error, a cache that turned itself off, a crash. The last line is
 * "N passed, N failed"; the exit status is 0 when none failed. */
#include "engine/llama.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 48
#define MIDDLE 60 /* inside the second page */
#define END 110
#define CHILD_SECONDS 300

enum verdict { IDENTICAL, REFUSED, FAILED };

struct result {
    enum verdict verdict;
    char memory_class[32];
    char note[400];
};

struct subject {
    struct hearth_engine *engine;
    hearth_token prompt[END + 1];
    struct hearth_buf page[3], middle, end;
    float *row[2]; /* logits: wanted, got */
};

static int failed(struct result *result, const char *what, int err) {
    result->verdict = FAILED;
    snprintf(result->note, sizeof result->note, "%s%s%s", what, err != 0 ? ": " : "",
             err != 0 ? hearth_err_text(err) : "");
    return -1;
}

static int decode(struct subject *s, int32_t begin, int32_t end) {
    struct hearth_batch_item items[END + 1];
    for (int32_t i = begin; i < end; i++) {
        items[i - begin] = (struct hearth_batch_item){s->prompt[i], 0, i, i + 1 == end};
    }
    return s->engine->ops->decode(s->engine, items, (size_t)(end - begin));
}

static int compute(struct subject *s, int32_t at, float *row) {
    int err = decode(s, at, at + 1);
    if (err == HEARTH_OK) {
        memcpy(row, s->engine->ops->logits(s->engine, 0), s->engine->caps.vocab_tokens * sizeof *row);
    }
    return err;
}

static int export_pages(struct subject *s) {
    int err = HEARTH_OK;
    for (int32_t p0 = 0, i = 0; err == HEARTH_OK && p0 < END; p0 += PAGE, i++) {
        err = s->engine->ops->page_export(s->engine, 0, p0, p0 + PAGE < END ? p0 + PAGE : END, &s->page[i]);
    }
    return err;
}

/* The state of [0, n) into the cleared sequence. */
static int restore(struct subject *s, int32_t n, const struct hearth_buf *snapshot) {
    const struct hearth_engine_ops *ops = s->engine->ops;
    int err = HEARTH_OK;
    ops->seq_clear(s->engine, 0);
    for (int32_t p0 = 0, i = 0; hearth_caps_has_pages(&s->engine->caps) && err == HEARTH_OK && p0 < n;
         p0 += PAGE, i++) {
        int32_t page_p1 = p0 + PAGE < END ? p0 + PAGE : END;
        err =
            ops->page_import(s->engine, 0, p0, page_p1 < n ? page_p1 : n, s->page[i].data, s->page[i].len, p0, page_p1);
    }
    if (err == HEARTH_OK && hearth_caps_needs_snapshot(&s->engine->caps)) {
        err = ops->snapshot_import(s->engine, 0, n, snapshot->data, snapshot->len);
    }
    return err;
}

static int compare(struct subject *s, const char *what, struct result *result) {
    size_t n = s->engine->caps.vocab_tokens;
    if (memcmp(s->row[0], s->row[1], n * sizeof(float)) == 0) {
        return 0;
    }
    double most = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)s->row[0][i] - (double)s->row[1][i];
        most = d > most ? d : -d > most ? -d : most;
    }
    char text[128];
    snprintf(text, sizeof text, "%s: logits differ by up to %g", what, most);
    return failed(result, text, 0);
}

/* Another history must give other logits, or the comparisons prove nothing. Leaves the wanted row alone. */
static int control(struct subject *s, struct result *result) {
    struct subject other = *s;
    for (int32_t i = 5; i < END - 5; i++) {
        other.prompt[i] = s->prompt[END - i];
    }
    s->engine->ops->seq_clear(s->engine, 0);
    int err = decode(&other, 0, END);
    err = err == HEARTH_OK ? compute(&other, END, s->row[1]) : err;
    if (err != HEARTH_OK) {
        return failed(result, "control", err);
    }
    bool same = memcmp(s->row[0], s->row[1], s->engine->caps.vocab_tokens * sizeof(float)) == 0;
    return same ? failed(result, "another history gives the same logits", 0) : 0;
}

/* Computes a token, takes the sequence out and back, computes it again; at the end and in the middle. */
static int prove(struct subject *s, struct result *result) {
    const struct hearth_engine_ops *ops = s->engine->ops;
    bool snapshots = hearth_caps_needs_snapshot(&s->engine->caps), pages = hearth_caps_has_pages(&s->engine->caps);
    int err = decode(s, 0, MIDDLE);
    if (err == HEARTH_OK && snapshots) {
        err = ops->snapshot_export(s->engine, 0, MIDDLE, &s->middle);
    }
    float *at_middle = calloc(s->engine->caps.vocab_tokens, sizeof *at_middle);
    if (at_middle == NULL) {
        return failed(result, "walk", HEARTH_ERR_NOMEM);
    }
    err = err == HEARTH_OK ? compute(s, MIDDLE, at_middle) : err;
    err = err == HEARTH_OK ? decode(s, MIDDLE + 1, END) : err;
    err = err == HEARTH_OK && pages ? export_pages(s) : err;
    err = err == HEARTH_OK && snapshots ? ops->snapshot_export(s->engine, 0, END, &s->end) : err;
    err = err == HEARTH_OK ? compute(s, END, s->row[0]) : err;
    if (err != HEARTH_OK) {
        free(at_middle);
        return failed(result, "export", err);
    }
    err = restore(s, END, &s->end);
    err = err == HEARTH_OK ? compute(s, END, s->row[1]) : err;
    int status = err == HEARTH_OK ? compare(s, "whole", result) : failed(result, "import", err);
    status = status == 0 ? control(s, result) : status;
    if (status == 0) {
        memcpy(s->row[0], at_middle, s->engine->caps.vocab_tokens * sizeof *at_middle);
        err = restore(s, MIDDLE, &s->middle);
        err = err == HEARTH_OK ? compute(s, MIDDLE, s->row[1]) : err;
        status = err == HEARTH_OK ? compare(s, "part", result) : failed(result, "import of a part", err);
    }
    free(at_middle);
    return status;
}

static void examine(const char *path, struct result *result) {
    struct hearth_llama_params params;
    struct hearth_errmsg msg = {""};
    struct subject s = {0};
    hearth_llama_params_default(&params);
    params.model_path = path;
    params.ctx_tokens = 256;
    params.lanes = 2;
    params.threads = 1;
    int err = hearth_llama_create(&params, &s.engine, &msg);
    if (err != HEARTH_OK) {
        result->verdict = err == HEARTH_ERR_UNSUPPORTED ? REFUSED : FAILED;
        const char *reason = strstr(msg.text, "): ");
        reason = reason != NULL                         ? reason + 3
                 : strstr(msg.text, "served: ") != NULL ? strstr(msg.text, "served: ") + 8
                                                        : msg.text;
        snprintf(result->note, sizeof result->note, "%s", reason);
        return;
    }
    snprintf(result->memory_class, sizeof result->memory_class, "%s",
             hearth_engine_class_text(s.engine->caps.memory_class));
    for (uint32_t i = 0; i <= END; i++) {
        s.prompt[i] = (hearth_token)((i * 2654435761u >> 7) % s.engine->caps.vocab_tokens);
    }
    for (int i = 0; i < 2; i++) {
        s.row[i] = calloc(s.engine->caps.vocab_tokens, sizeof(float));
    }
    if (!s.engine->caps.cache_ok) {
        hearth_engine_selftest(s.engine, &msg);
        failed(result, msg.text, 0);
    } else if (s.row[0] == NULL || s.row[1] == NULL) {
        failed(result, "examine", HEARTH_ERR_NOMEM);
    } else {
        prove(&s, result);
    }
    /* The process ends here; what is still allocated goes with it. */
}

/* Runs `examine` in a child and reports how that ended. */
static void examine_apart(const char *path, struct result *result) {
    *result = (struct result){.verdict = FAILED};
    int fds[2];
    if (pipe(fds) != 0) {
        failed(result, "no pipe", 0);
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        setenv("GGML_NO_BACKTRACE", "1", 1);
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(3);
        }
        struct result own = {.verdict = IDENTICAL};
        examine(path, &own);
        ssize_t n = write(fds[1], &own, sizeof own);
        _exit(n == (ssize_t)sizeof own ? 0 : 3);
    }
    close(fds[1]);
    bool whole = child > 0 && read(fds[0], result, sizeof *result) == (ssize_t)sizeof *result;
    close(fds[0]);
    int status = 0;
    if (child > 0) {
        waitpid(child, &status, 0);
    }
    if (!whole) {
        result->verdict = FAILED;
        snprintf(result->note, sizeof result->note, "%s",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended without a result");
    }
}

static int is_gguf(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot != NULL && strcmp(dot, ".gguf") == 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: zoo DIR\n");
        return 2;
    }
    struct dirent **entries;
    int n = scandir(argv[1], &entries, is_gguf, alphasort);
    if (n <= 0) {
        fprintf(stderr, "zoo: there are no models in %s\n", argv[1]);
        return 2;
    }
    static const char *const verdicts[] = {"identical", "refused", "FAILED"};
    int passed = 0;
    printf("| %-28s | %-16s | %-9s | note\n", "model", "class", "result");
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct result result;
        snprintf(path, sizeof path, "%s/%s", argv[1], entries[i]->d_name);
        examine_apart(path, &result);
        passed += result.verdict != FAILED;
        *strrchr(entries[i]->d_name, '.') = '\0';
        printf("| %-28s | %-16s | %-9s | %s\n", entries[i]->d_name, result.memory_class, verdicts[result.verdict],
               result.note);
        free(entries[i]);
    }
    free(entries);
    printf("%d passed, %d failed\n", passed, n - passed);
    return passed == n ? 0 : 1;
}
