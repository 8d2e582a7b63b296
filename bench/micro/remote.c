/* Reading state from a Redis on the same machine, beside what redis-benchmark reads from it: values of a chunk's size,
 * by one connection, by four, and by one that sends four commands at a time, of which the fastest counts. In the clear
 * and sealed, by TCP.
 *
 * One tier writes, another one asks for all of it in order, as far ahead as a restore does, and keeps what comes, into
 * memory that was made ready as an idle server makes it (base/prefault.h). Then snapshots of 150 MiB and pages are
 * written and read, and the store says how many of its commands took longer than 5 ms each, and which one took longest.
 */
#include "micro.h"

#include "base/assert.h"
#include "base/prefault.h"
#include "tier/remote.h"

#include <fcntl.h>
#include <hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE_TOKENS 256
#define PAGE_BYTES ((size_t)6 << 20) /* of SmolLM2-135M */
#define SNAPSHOT_BYTES ((size_t)150 << 20)
#define SLOW_US "5000"
#define CHUNK_BYTES (1 << 20) /* REMOTE_CHUNK of tier/remote_engine.h */
#define AHEAD_BYTES ((size_t)128 << 20)
#define READY_BYTES ((size_t)512 << 20) /* as the server has it */
#define EVENT_US 20000000

struct bench {
    struct micro *micro;
    char folder[64], port[8];
    pid_t server;
    size_t pages, page_bytes;
};

/* ---- programs ---- */

static pid_t run(struct bench *bench, char *const argv[], const char *also, int out) {
    const pid_t process = fork();
    if (process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (dup2(out, STDOUT_FILENO) >= 0 && chdir(bench->folder) == 0) {
            (void)execvp(argv[0], argv);
            (void)execvp(also, argv); /* Debian's redis-tools holds the server under another name */
        }
        _exit(127);
    }
    return process;
}

/* MiB a second that redis-benchmark reads; 0: it is not there. */
static double yardstick(struct bench *bench, const char *clients, const char *at_once) {
    char bytes[16], text[4096] = "";
    (void)snprintf(bytes, sizeof bytes, "%d", CHUNK_BYTES);
    char *const argv[] = {"redis-benchmark",
                          "-p",
                          bench->port,
                          "-d",
                          bytes,
                          "-c",
                          (char *)(uintptr_t)clients,
                          "-n",
                          "1000",
                          "-P",
                          (char *)(uintptr_t)at_once,
                          "--csv",
                          "-t",
                          "set,get",
                          NULL};
    int ends[2];
    HEARTH_ASSERT(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t process = run(bench, argv, "redis-benchmark", ends[1]);
    (void)close(ends[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(ends[0], text + len, sizeof text - 1 - len)) > 0;) {
        len += (size_t)n;
    }
    (void)close(ends[0]);
    (void)waitpid(process, NULL, 0);
    const char *got = strstr(text, "\"GET\",\"");
    return got ? strtod(got + 7, NULL) * CHUNK_BYTES / (1 << 20) : 0;
}

static bool answers(const struct bench *bench) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(bench->port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool there = fd >= 0 && connect(fd, (struct sockaddr *)(void *)&to, sizeof to) == 0;
    (void)close(fd);
    return there;
}

/* ---- items ---- */

static void fill(struct hearth_record *record, hearth_token tokens[PAGE_TOKENS], size_t number, size_t bytes) {
    for (size_t i = 0; i < PAGE_TOKENS; i++) {
        tokens[i] = (hearth_token)(number * PAGE_TOKENS + i);
    }
    *record = (struct hearth_record){.kind = HEARTH_RECORD_PAGE,
                                     .base = {1, number},
                                     .base_pos = (int32_t)(number * PAGE_TOKENS),
                                     .p0 = (int32_t)(number * PAGE_TOKENS),
                                     .p1 = (int32_t)((number + 1) * PAGE_TOKENS),
                                     .tokens = tokens,
                                     .state_bytes = bytes};
    record->name = hearth_record_name(record);
}

static struct hearth_backing *open_tier(struct bench *bench, const char *key_file) {
    char url[64];
    struct hearth_errmsg msg = {""};
    struct hearth_backing *backing = NULL;
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%s", bench->port);
    const struct hearth_remote_params params = {.url = url,
                                                .fingerprint = {7, key_file ? 2 : 1},
                                                .page_tokens = PAGE_TOKENS,
                                                .key_file = key_file,
                                                .timeout_us = EVENT_US,
                                                .queue_bytes = (uint64_t)8 << 30};
    if (hearth_remote_create(&params, &backing, &msg) != HEARTH_OK) {
        fprintf(stderr, "remote is left out: %s\n", msg.text);
    }
    return backing;
}

/* Counts events of a type until there were `n` of them; what they have read goes to `kept`, or is freed. */
static size_t await(struct hearth_backing *backing, enum hearth_backing_event_type type, size_t n, void **kept) {
    size_t seen = 0;
    while (seen < n && backing->ops->wait(backing, EVENT_US)) {
        struct hearth_backing_event event;
        while (backing->ops->poll(backing, &event)) {
            if (event.type == type && event.err == HEARTH_OK && kept) {
                kept[seen] = event.bytes.data;
                event.bytes = (struct hearth_buf){0};
            }
            seen += event.type == type && event.err == HEARTH_OK;
            hearth_backing_event_finish(&event);
        }
    }
    return seen;
}

static bool write_all(struct bench *bench, struct hearth_backing *backing) {
    struct hearth_ram *ram = hearth_ram_create();
    bool good = ram != NULL;
    uint64_t noise = 88172645463325252u;
    for (size_t i = 0; good && i < bench->pages; i++) {
        struct hearth_buf bytes = {0};
        struct hearth_record record;
        hearth_token tokens[PAGE_TOKENS];
        HEARTH_ASSERT(hearth_buf_reserve(&bytes, bench->page_bytes));
        for (; bytes.len < bench->page_bytes; bytes.len += sizeof noise) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            memcpy(bytes.data + bytes.len, &noise, sizeof noise);
        }
        struct hearth_blob *blob = hearth_ram_put(ram, &bytes, NULL);
        fill(&record, tokens, i, bench->page_bytes);
        good = backing->ops->put(backing, &record, blob, NULL) && await(backing, HEARTH_BACKING_WRITTEN, 1, NULL) == 1;
        hearth_ram_drop(ram, blob);
    }
    hearth_ram_destroy(ram);
    return good;
}

static double cpu_now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Reads all of it; the seconds that it took, 0: some is missing. */
static double read_all(struct bench *bench, struct hearth_backing *backing, double *cpu_s) {
    size_t asked = 0, came = 0;
    struct hearth_digest *names = malloc(bench->pages * sizeof *names);
    void **kept = calloc(bench->pages, sizeof *kept);
    HEARTH_ASSERT(names && kept);
    for (size_t i = 0; i < bench->pages; i++) {
        struct hearth_record record;
        hearth_token tokens[PAGE_TOKENS];
        fill(&record, tokens, i, bench->page_bytes);
        names[i] = record.name;
        const struct hearth_backing_place place = {record.base, record.base_pos, tokens, PAGE_TOKENS};
        HEARTH_ASSERT(backing->ops->seek(backing, &place, 1) != 0);
        (void)await(backing, HEARTH_BACKING_SOUGHT, 1, NULL);
    }
    const uint64_t start = micro_now_ns();
    *cpu_s = -cpu_now_s();
    bool good = true;
    while (good && came < bench->pages) {
        for (; asked < bench->pages && (asked - came) * bench->page_bytes < AHEAD_BYTES; asked++) {
            good = good && backing->ops->get(backing, names[asked]);
        }
        const size_t n = await(backing, HEARTH_BACKING_READ, 1, kept + came);
        good = good && n > 0;
        came += n;
    }
    *cpu_s += cpu_now_s();
    const double s = good ? (double)(micro_now_ns() - start) / 1e9 : 0;
    for (size_t i = 0; i < bench->pages; i++) {
        hearth_prefault_give(kept[i]);
    }
    free(kept);
    free(names);
    return s;
}

/* ---- entry ---- */

static void measure(struct bench *bench, const char *key_file) {
    const char *how = key_file ? "sealed" : "plain";
    struct hearth_backing *backing = open_tier(bench, key_file);
    const bool written = backing && write_all(bench, backing);
    if (backing) {
        backing->ops->destroy(backing);
    }
    for (int i = 0; written && i < (bench->micro->quick ? 1 : 5); i++) {
        backing = open_tier(bench, key_file);
        double cpu_s = 0;
        const double s = backing ? read_all(bench, backing, &cpu_s) : 0;
        const double rates[] = {yardstick(bench, "1", "1"), yardstick(bench, "4", "1"), yardstick(bench, "1", "4")};
        double most = 0;
        for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
            most = rates[k] > most ? rates[k] : most;
        }
        const double mib = s > 0 ? (double)(bench->pages * bench->page_bytes) / (1 << 20) / s : 0;
        micro_value(bench->micro, "fetch", "MiB/s", mib,
                    "\"how\": \"%s\", \"redis-benchmark\": %.0f, \"share\": %.2f, \"cpu_s_per_gib\": %.2f", how, most,
                    most > 0 ? mib / most : 0, cpu_s * 1024 * (1 << 20) / (double)(bench->pages * bench->page_bytes));
        if (backing) {
            backing->ops->destroy(backing);
        }
    }
}

/* The number that a command answers with, or of entries of a list. */
static long long told(redisContext *store, const char *command) {
    redisReply *reply = redisCommand(store, command);
    const long long n = !reply ? -1 : reply->type == REDIS_REPLY_INTEGER ? reply->integer : (long long)reply->elements;
    freeReplyObject(reply);
    return n;
}

/* Microseconds and name of the command that took longest of those that were noted. */
static long long slowest(redisContext *store, char name[32]) {
    long long most_us = 0;
    redisReply *reply = redisCommand(store, "SLOWLOG GET 1000");
    for (size_t i = 0; reply && reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        const redisReply *entry = reply->element[i];
        if (entry->elements > 3 && entry->element[2]->integer > most_us && entry->element[3]->elements > 0) {
            most_us = entry->element[2]->integer;
            (void)snprintf(name, 32, "%.31s", entry->element[3]->element[0]->str);
        }
    }
    freeReplyObject(reply);
    return most_us;
}

static void measure_blocking(struct bench *bench) {
    const struct {
        const char *what;
        size_t n, bytes;
    } KINDS[] = {{"snapshots of 150 MiB", bench->micro->quick ? 1 : 4, SNAPSHOT_BYTES}, {"64 pages", 64, PAGE_BYTES}};
    redisContext *store = redisConnect("127.0.0.1", atoi(bench->port));
    if (!store || store->err) {
        redisFree(store);
        return;
    }
    (void)told(store, "CONFIG SET slowlog-max-len 1000");
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        char name[32] = "none";
        double cpu_s;
        (void)told(store, "FLUSHALL");
        (void)told(store, "SLOWLOG RESET");
        (void)told(store, "CONFIG SET slowlog-log-slower-than " SLOW_US);
        bench->pages = KINDS[i].n;
        bench->page_bytes = KINDS[i].bytes;
        struct hearth_backing *backing = open_tier(bench, NULL);
        const bool done = backing && write_all(bench, backing) && read_all(bench, backing, &cpu_s) > 0;
        if (backing) {
            backing->ops->destroy(backing);
        }
        const long long us = slowest(store, name);
        micro_value(bench->micro, "blocked > 5 ms", done ? "times" : "times (failed)",
                    (double)told(store, "SLOWLOG LEN"), "\"what\": \"%s\", \"longest\": \"%s\", \"longest_us\": %lld",
                    KINDS[i].what, name, us);
    }
    redisFree(store);
}

void micro_remote(struct micro *micro) {
    struct bench bench = {
        .micro = micro, .folder = "/tmp/hearth-micro-XXXXXX", .pages = micro->quick ? 2 : 48, .page_bytes = PAGE_BYTES};
    char key_file[96], secret[] = "not a secret: it is for measuring only";
    HEARTH_ASSERT(mkdtemp(bench.folder) != NULL);
    (void)snprintf(bench.port, sizeof bench.port, "%d", 20000 + (int)getpid() % 10000);
    (void)snprintf(key_file, sizeof key_file, "%s/key", bench.folder);
    const int key = open(key_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600),
              null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    HEARTH_ASSERT(key >= 0 && null >= 0 && write(key, secret, sizeof secret) == sizeof secret);
    (void)close(key);
    char *const argv[] = {"redis-server", "--port", bench.port, "--save", "", "--bind", "127.0.0.1", NULL};
    bench.server = run(&bench, argv, "redis-check-rdb", null);
    (void)close(null);
    int status;
    bool up = false;
    for (int i = 0; i < 200 && !up && waitpid(bench.server, &status, WNOHANG) == 0; i++) {
        (void)usleep(20000);
        up = answers(&bench);
    }
    if (up) {
        hearth_prefault_limit(READY_BYTES);
        while (hearth_prefault_make(PAGE_BYTES + 2)) {
        }
        measure(&bench, NULL);
        measure(&bench, key_file);
        hearth_prefault_limit(0);
        measure_blocking(&bench);
    } else {
        fputs("remote is left out: redis-server is not installed\n", stderr);
    }
    (void)kill(bench.server, SIGKILL);
    (void)waitpid(bench.server, NULL, 0);
    (void)unlink(key_file);
    (void)rmdir(bench.folder);
}
