/* What the files of `hearth serve` share. serve.c puts a server together of these parts. */
#ifndef HEARTH_CLI_SERVE_INTERNAL_H
#define HEARTH_CLI_SERVE_INTERNAL_H

#include "api/api.h"
#include "base/log.h"
#include "base/seal.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "sched/service.h"
#include "tier/backing.h"

/* ---- serve_paths.c: the paths that a server is given, checked before anything is loaded ---- */

/* Checks every file that an option names (flag, environment or --config) and that is to be read. Errors: IO, with the
 * option, the path and the reason. */
int hearth_serve_paths_check(const struct hearth_options *options, struct hearth_errmsg *msg);

/* Where sessions are stored, in *out (the caller's to free); its directory is made. NULL: nowhere; that a default place
 * cannot be used is told. Errors: IO (--session-db names a place that cannot be used), NOMEM. */
int hearth_serve_paths_sessions(const struct hearth_options *options, char **out, struct hearth_errmsg *msg);

/* After a failure: names the option that a path in the message is of, unless the message begins with one. `path` may be
 * NULL. Returns `err`. */
int hearth_serve_paths_name(const char *option, const char *path, int err, struct hearth_errmsg *msg);

/* ---- serve_exposure.c: which clients reach the server without a key ---- */

/* Refuses a network address without a key (unless --insecure), every origin without a key, and words of --cors-origin
 * and --allow-host that say nothing. Errors: INVALID, with one line that says what to set. */
int hearth_serve_exposure_check(const struct hearth_options *options, size_t key_count, struct hearth_errmsg *msg);

/* True when only this machine reaches what is listened on: a loopback address, a name of one, or a socket in a file. */
bool hearth_serve_exposure_is_local(const char *host);

/* ---- serve_confine.c: the paths that stay open to a server ---- */

/* Confines the process as --confine has it and says in one line what is in force. `kv_dir`, `session_db`: where state
 * and sessions are kept; NULL: nowhere. Before any thread is started. Errors: UNSUPPORTED (--confine on, and
 * something is not in force), NOMEM. */
int hearth_serve_confine(const struct hearth_options *options, const char *kv_dir, const char *session_db,
                         struct hearth_errmsg *msg);

/* Whether files are now out of reach that were not named at the start. */
bool hearth_serve_is_confined(void);

/* ---- serve_disk.c: what a server stores outside of RAM: the backing tiers, and where its transcripts go ---- */

struct hearth_serve_disk {
    struct hearth_backing *backing; /* the cache's: `local`, `remote`, or both as one; NULL: state is in RAM only */
    struct hearth_backing *local;   /* the disk; NULL: nothing is stored there */
    struct hearth_backing *remote;  /* the store that boxes share; NULL: there is none */
    char *dir;                      /* NULL: likewise */
    struct hearth_digest dir_name;  /* its own (hearth_directory_identify); zero: it has none */
    char *transcripts;              /* path of the file */
    struct hearth_seal *seal;       /* for the transcripts; NULL: not encrypted */
};

/* Finds and makes the directory that the options name (`dir`). A default one that cannot be used is told, and the
 * server runs without it. Errors: IO (--kv-dir names one that cannot be used), NOMEM. */
int hearth_serve_disk_prepare(const struct hearth_options *options, struct hearth_serve_disk *disk,
                              struct hearth_errmsg *msg);
/* Opens it; then all is NULL, or only `seal` may be. Errors: as before, and a key file that is not good, because what
 * was to be encrypted must not be written otherwise. `model_name` is for people. */
int hearth_serve_disk_open(const struct hearth_options *options, const struct hearth_caps *caps, const char *model_name,
                           size_t cache_bytes, struct hearth_serve_disk *disk, struct hearth_errmsg *msg);
/* After the service is gone: writes what is queued. */
void hearth_serve_disk_close(struct hearth_serve_disk *disk);

/* ---- serve_engine.c: what computes for a server: the engine that the options describe ---- */

/* Loads the model, with progress on stderr, or makes the simulated engine. Errors: those of hearth_llama_create(). */
int hearth_serve_engine_create(const struct hearth_options *options, struct hearth_engine **out,
                               struct hearth_errmsg *msg);

/* ---- serve_reload.c: what a running server takes over on SIGHUP ---- */

struct hearth_serve_live {
    int argc;
    char *const *argv; /* the command line, read again each time */
    struct hearth_api *api;
    struct hearth_service *service;
    size_t key_count;                     /* that are in force; 0: clients need none */
    const struct hearth_options *options; /* those that hold now: the first ones, or `taken` */
    struct hearth_options taken;
};

/* Reads the file of --config, the keys and the certificate again and takes over what can be; what has changed besides
 * is told. When something is wrong with any of it that is told, and nothing changes. The main thread. */
void hearth_serve_live_reload(struct hearth_serve_live *live);
void hearth_serve_live_finish(struct hearth_serve_live *live);

/* A word of --log-level. */
enum hearth_log_level hearth_serve_log_level(const char *name);

#endif
