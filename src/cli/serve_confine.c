/* The files and devices that a confined server can use.
 *
 * A file that is only read has a rule of its own. A file that is read again on SIGHUP is usually replaced by rename,
 * and a rule holds for the old file, not for the name. So everything in its directory may be read, but not listed,
 * unless that directory is the user's home, one above it, or directly below the root. In those only the file itself
 * may be read, and a new file of the same name needs a restart. The database's directory may be written, as SQLite
 * makes files beside it.
 *
 * A GPU's driver needs devices, /proc, /sys and a cache of compiled kernels. */
#include "cli/serve_internal.h"

#include "base/health.h"
#include "base/log.h"
#include "cli/confine.h"
#include "cli/options_internal.h"
#include "console/places.h"
#include "engine/llama.h"
#include "http/server.h"
#include "session/db_pg.h"
#include "tier/remote.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool confined;

static const struct {
    enum hearth_confine_use use;
    const char *path;
} system_paths[] =
    {
        /* libraries that are loaded late, locales, time zones */
        {HEARTH_CONFINE_READ, "/usr"},
        {HEARTH_CONFINE_READ, "/lib"},
        {HEARTH_CONFINE_READ, "/lib64"},
        {HEARTH_CONFINE_FETCH, "/etc/ld.so.cache"},
        {HEARTH_CONFINE_FETCH, "/etc/localtime"},
        {HEARTH_CONFINE_FETCH, "/etc/ssl/openssl.cnf"},
        {HEARTH_CONFINE_READ, "/etc/ssl/certs"},
        /* names of hosts and users */
        {HEARTH_CONFINE_FETCH, "/etc/nsswitch.conf"},
        {HEARTH_CONFINE_FETCH, "/etc/host.conf"},
        {HEARTH_CONFINE_FETCH, "/etc/hosts"},
        {HEARTH_CONFINE_FETCH, "/etc/resolv.conf"},
        {HEARTH_CONFINE_FETCH, "/etc/gai.conf"},
        {HEARTH_CONFINE_FETCH, "/etc/services"},
        {HEARTH_CONFINE_FETCH, "/etc/passwd"},
        /* processors and memory */
        {HEARTH_CONFINE_READ, "/proc/self"},
        {HEARTH_CONFINE_FETCH, "/proc/cpuinfo"},
        {HEARTH_CONFINE_FETCH, "/proc/meminfo"},
        {HEARTH_CONFINE_FETCH, "/proc/stat"},
        {HEARTH_CONFINE_FETCH, "/proc/sys/vm"},
        {HEARTH_CONFINE_FETCH, "/proc/sys/kernel"},
        {HEARTH_CONFINE_READ, "/sys/devices/system"},
        {HEARTH_CONFINE_READ, "/sys/fs/cgroup"},
        {HEARTH_CONFINE_READ, "/sys/kernel/mm"},
        /* devices; the terminal is only searched for */
        {HEARTH_CONFINE_DEVICE, "/dev/null"},
        {HEARTH_CONFINE_FETCH, "/dev/tty"},
        {HEARTH_CONFINE_FETCH, "/dev/urandom"},
        {HEARTH_CONFINE_FETCH, "/dev/random"},
},
  gpu_paths[] = {
      {HEARTH_CONFINE_DEVICE, "/dev"}, {HEARTH_CONFINE_READ, "/proc"}, {HEARTH_CONFINE_READ, "/sys"},
      {HEARTH_CONFINE_READ, "/etc"},   {HEARTH_CONFINE_READ, "/opt"},  {HEARTH_CONFINE_READ, "/run"},
};

/* ---- places ---- */

/* The directory that a path is in, without links. False: it is not there. */
static bool parent(const char *path, char out[PATH_MAX]) {
    char copy[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t len = slash ? (size_t)(slash - path) : 0;
    if (len >= sizeof copy) {
        return false;
    }
    (void)snprintf(copy, sizeof copy, "%.*s", (int)len, path);
    return realpath(len > 0 ? copy : slash ? "/" : ".", out) != NULL;
}

/* Whether a directory holds much else: the root, one directly below it, the home, or one above that. */
static bool is_wide(const char *directory) {
    char real[PATH_MAX];
    const char *own = hearth_place_home();
    const size_t len = strlen(directory);
    if (strchr(directory + 1, '/') == NULL) {
        return true;
    }
    return own && realpath(own, real) && strncmp(real, directory, len) == 0 && (real[len] == '\0' || real[len] == '/');
}

/* Whether what a path leads to, in `target`, is outside of the directory: rules for that do not hold for it then. */
static bool leads_out(const char *path, const char *directory, char target[PATH_MAX]) {
    const size_t len = strlen(directory);
    return realpath(path, target) && !(strncmp(target, directory, len) == 0 && target[len] == '/');
}

/* ---- the list ---- */

/* The files of a model in several parts stand beside the first one: NAME-00001-of-00003.gguf. */
static void allow_parts(struct hearth_confine_paths *paths, const char *first) {
    static const char pattern[] = "-00001-of-00001.gguf";
    const size_t len = strlen(first), tail = sizeof pattern - 1;
    unsigned count = 0;
    if (len <= tail || sscanf(first + len - tail, "-00001-of-%5u.gguf", &count) != 1) {
        return;
    }
    for (unsigned i = 2; i <= count; i++) {
        hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%.*s-%05u-of-%05u.gguf", (int)(len - tail), first, i, count);
    }
}

/* Whether a file is read again while the server runs. */
static bool is_read_again(const struct hearth_option_row *row) {
    return row->live || strcmp(row->long_name, "--config") == 0 || strncmp(row->long_name, "--ssl-", 6) == 0;
}

/* Allows a file that is read again and the new ones that take its place, by rename or by another link: certbot makes
 * them in a directory of their own. */
static void allow_read_again(const char *path, const char *directory, struct hearth_confine_paths *paths) {
    char target[PATH_MAX], beside[PATH_MAX];
    hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s", directory);
    if (leads_out(path, directory, target) && parent(target, beside)) {
        hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s", is_wide(beside) ? target : beside);
    }
}

/* The files that options name. --session-db is no file that is only read. */
static void allow_files(const struct hearth_options *options, struct hearth_confine_paths *paths) {
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        const char *path = hearth_option_path(row, options, "FILE");
        char directory[PATH_MAX];
        if (!path || strcmp(row->long_name, "--session-db") == 0) {
            continue;
        }
        if (is_read_again(row) && parent(path, directory) && !is_wide(directory)) {
            allow_read_again(path, directory, paths);
        } else {
            hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s", path);
            allow_parts(paths, path);
        }
    }
}

/* The default directory is in one of hearth's own, where it can be made again when it is removed; it may be a link. */
static void allow_state(const struct hearth_options *options, const char *kv_dir, const char *session_db,
                        struct hearth_confine_paths *paths) {
    char directory[PATH_MAX], target[PATH_MAX];
    if (kv_dir) {
        const bool own = !options->kv_dir && parent(kv_dir, directory);
        hearth_confine_allow(paths, HEARTH_CONFINE_WRITE, "%s", own ? directory : kv_dir);
        if (own && leads_out(kv_dir, directory, target)) {
            hearth_confine_allow(paths, HEARTH_CONFINE_WRITE, "%s", target);
        }
    }
    if (session_db && !strstr(session_db, "://") && parent(session_db, directory)) {
        hearth_confine_allow(paths, HEARTH_CONFINE_WRITE, "%s", directory);
        if (is_wide(directory)) {
            hearth_log(HEARTH_LOG_WARN,
                       "confine: all of %s stays open, as --session-db is a file in it: give it a "
                       "directory of its own",
                       directory);
        }
    }
}

static void allow_gpu(struct hearth_confine_paths *paths) {
    for (size_t i = 0; i < sizeof gpu_paths / sizeof *gpu_paths; i++) {
        hearth_confine_allow(paths, gpu_paths[i].use, "%s", gpu_paths[i].path);
    }
    if (hearth_place_home()) {
        hearth_confine_allow(paths, HEARTH_CONFINE_WRITE, "%s/.nv", hearth_place_home());
    }
}

static bool is_address(const char *host) {
    struct in6_addr any;
    return !host || hearth_http_host_is_unix(host) || strcmp(host, "localhost") == 0 ||
           inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

/* Without threads: what the driver of a GPU starts when it is first asked is its own. */
static bool has_gpu(const struct hearth_options *options) {
    return strcmp(options->engine, "llama") == 0 && hearth_llama_gpus() > 0;
}

static void list_paths(const struct hearth_options *options, const char *kv_dir, const char *session_db, bool gpu,
                       struct hearth_confine_paths *paths) {
    char directory[PATH_MAX];
    for (size_t i = 0; i < sizeof system_paths / sizeof *system_paths; i++) {
        hearth_confine_allow(paths, system_paths[i].use, "%s", system_paths[i].path);
    }
    allow_files(options, paths);
    allow_state(options, kv_dir, session_db, paths);
    if (options->host && hearth_http_host_is_unix(options->host) && parent(options->host + 5, directory)) {
        hearth_confine_allow(paths, HEARTH_CONFINE_SOCKET, "%s", directory);
    }
    if (gpu) {
        allow_gpu(paths);
    }
}

/* ---- the line ---- */

static void describe(const struct hearth_confine_report *report, char *out, size_t size) {
    char landlock[120] = "", calls[60] = "";
    if (report->landlock_abi > 0) {
        (void)snprintf(landlock, sizeof landlock, ", Landlock ABI %d (%u paths to read, %u to write%s)",
                       report->landlock_abi, report->reads, report->writes, report->tcp ? ", no TCP to others" : "");
    }
    if (report->refused_calls > 0) {
        (void)snprintf(calls, sizeof calls, ", seccomp (%u system calls refused)", report->refused_calls);
    }
    (void)snprintf(out, size, "%s%s%s", report->no_new_privileges ? "no new privileges" : "", landlock, calls);
}

/* `must`: --confine on. */
static int conclude(const struct hearth_confine_report *report, bool must, struct hearth_errmsg *msg) {
    char text[300];
    describe(report, text, sizeof text);
    confined = report->landlock_abi > 0;
    if (report->missing[0] == '\0') {
        hearth_log(HEARTH_LOG_INFO, "confined: %s", text);
        return HEARTH_OK;
    }
    if (must) {
        return hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "--confine on: these are missing: %s", report->missing);
    }
    if (report->broken) {
        hearth_health_raise(HEARTH_HEALTH_CONFINEMENT, "confined in part: %s; not in force: %s", text, report->missing);
    } else {
        hearth_log(HEARTH_LOG_WARN, "confined in part: %s; not in force: %s", text, report->missing);
    }
    return HEARTH_OK;
}

/* What events are published on: tcp://HOST:PORT or ipc://PATH. */
static void allow_endpoint(const char *endpoint, struct hearth_confine_paths *paths,
                           struct hearth_confine_params *params) {
    char directory[PATH_MAX];
    const char *port = endpoint ? strrchr(endpoint, ':') : NULL;
    if (!port) {
        return;
    }
    if (strncmp(endpoint, "tcp://", 6) == 0) {
        params->ports[params->port_count++] = (uint16_t)strtoul(port + 1, NULL, 10);
    } else if (strncmp(endpoint, "ipc://", 6) == 0 && parent(endpoint + 6, directory)) {
        hearth_confine_allow(paths, HEARTH_CONFINE_SOCKET, "%s", directory);
    }
}

/* What a store on another machine takes: its port, and names. */
static int allow_store(const struct hearth_options *options, struct hearth_confine_params *params,
                       struct hearth_errmsg *msg) {
    struct hearth_remote_address address;
    if (!options->kv_remote) {
        return HEARTH_OK;
    }
    if (hearth_remote_hosts_several(options->kv_remote)) { /* its other nodes are at the same ports */
        params->looks_up = true;
        return hearth_fail_of(msg,
                              hearth_remote_cluster_ports(options->kv_remote, params->stores, HEARTH_CONFINE_STORES_MAX,
                                                          &params->store_count, msg),
                              "--kv-remote");
    }
    const int err = hearth_fail_of(msg, hearth_remote_address_parse(options->kv_remote, &address, msg), "--kv-remote");
    if (err == HEARTH_OK) {
        params->looks_up = true;
        params->stores[params->store_count++] = (uint16_t)address.port;
        hearth_remote_address_finish(&address);
    }
    return err;
}

/* What a database server takes: its ports, names, and the files that its settings name. */
static void allow_database(const char *url, struct hearth_confine_paths *paths, struct hearth_confine_params *params) {
    static const char *const files[] = {"passfile", "servicefile", "sslrootcert", "sslcert", "sslkey", "sslcrl"};
    if (!hearth_db_is_pg(url)) {
        return;
    }
    char *ports = hearth_db_pg_setting(url, "port");
    for (const char *at = ports; at && *at && params->store_count < HEARTH_CONFINE_STORES_MAX;
         at += strcspn(at, ","), at += *at == ',') {
        params->stores[params->store_count++] = (uint16_t)strtoul(at, NULL, 10);
    }
    free(ports);
    params->looks_up = true;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = hearth_db_pg_setting(url, files[i]);
        if (path && *path) {
            hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s", path);
        }
        free(path);
    }
    if (hearth_place_home()) {
        hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s/.pgpass", hearth_place_home());
        hearth_confine_allow(paths, HEARTH_CONFINE_FETCH, "%s/.postgresql", hearth_place_home());
    }
}

int hearth_serve_confine(const struct hearth_options *options, const char *kv_dir, const char *session_db,
                         struct hearth_errmsg *msg) {
    struct hearth_confine_paths paths = {0};
    struct hearth_confine_report report;
    const bool must = strcmp(options->confine, "on") == 0;
    if (strcmp(options->confine, "off") == 0) {
        hearth_log(HEARTH_LOG_INFO, "not confined (--confine off)");
        return HEARTH_OK;
    }
    if (hearth_confine_is_instrumented()) {
        static const char cause[] = "this build is instrumented (sanitizers or coverage), which needs what is refused";
        hearth_log(HEARTH_LOG_INFO, "not confined: %s", cause);
        return must ? hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "--confine on: %s", cause) : HEARTH_OK;
    }
    const bool gpu = has_gpu(options);
    list_paths(options, kv_dir, session_db, gpu, &paths);
    struct hearth_confine_params params = {.paths = &paths,
                                           .ports = {(uint16_t)options->port},
                                           .port_count = 1,
                                           .looks_up = gpu || !is_address(options->host)};
    allow_endpoint(options->kv_events, &paths, &params);
    allow_endpoint(options->kv_events_replay, &paths, &params);
    allow_database(session_db, &paths, &params);
    int err = allow_store(options, &params, msg);
    err = err == HEARTH_OK ? hearth_confine(&params, &report, msg) : err;
    hearth_confine_paths_finish(&paths);
    return err == HEARTH_OK ? conclude(&report, must, msg) : err;
}

bool hearth_serve_is_confined(void) {
    return confined;
}
